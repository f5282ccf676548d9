// Location of the rows of one sequence (dense, packed or paged) and its lengths.
//
// Lengths are in device memory and the host has not validated them. They are clamped to the extents
// of the tensors: wrong lengths give wrong results, but no access out of bounds.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/arguments.hpp"
#include "tile/vector.hpp"

namespace rocflash::kernel {

constexpr std::int64_t clamp(std::int64_t x, std::int64_t low, std::int64_t high) {
  return x < low ? low : x > high ? high : x;
}

struct SequenceView {
  std::int64_t batch = 0;           // batch index of dense tensors; varlen tensors have batch 1
  std::int64_t q_row = 0;           // first query
  std::int32_t q_rows = 0, sq = 0;  // allocated and used query rows
  std::int64_t k_row = 0;           // first used key; paged: its position in the sequence
  std::int32_t sk = 0;
  std::int64_t k_first = 0, k_rows = 0;  // first allocated key, and allocated keys

  SequenceView(const Problem& p, std::int64_t b) : batch(b) {
    const Lengths& l = p.lengths;
    if (b >= l.batch) return;  // a packed tensor without sequences
    const std::int64_t q_begin = l.cu_q ? clamp(arch::load(l.cu_q + b), 0, l.rows_q) : 0;
    const std::int64_t q_end =
        l.cu_q ? clamp(arch::load(l.cu_q + b + 1), q_begin, l.rows_q) : l.rows_q;
    q_row = q_begin;
    q_rows = static_cast<std::int32_t>(clamp(q_end - q_begin, 0, p.max_q));
    sq = l.used_q ? static_cast<std::int32_t>(clamp(arch::load(l.used_q + b), 0, q_rows)) : q_rows;

    const std::int64_t k_begin = l.cu_k ? arch::load(l.cu_k + b) : 0;
    std::int64_t keys = l.cu_k ? arch::load(l.cu_k + b + 1) - k_begin : l.rows_k;
    k_first = l.packed_k() ? clamp(k_begin, 0, l.rows_k) : 0;
    keys = clamp(keys, 0, smaller(p.max_k, l.rows_k - k_first));
    k_rows = keys;
    const std::int64_t used = l.used_k ? clamp(arch::load(l.used_k + b), 0, keys) : keys;
    const std::int64_t skipped = l.leftpad_k ? clamp(arch::load(l.leftpad_k + b), 0, used) : 0;
    k_row = k_first + skipped;
    sk = static_cast<std::int32_t>(used - skipped);
  }

  Range keys_of(const Visibility& v, Range queries) const {
    return visible_keys(v, queries, sq, sk);
  }
  Range keys_of_all(const Visibility& v, Range queries) const {
    return common_keys(v, queries, sq, sk);
  }
};

// Address of a row of a dense or packed tensor.
inline std::byte* row_address(const Rows& rows, DType dtype, std::int64_t batch, std::int64_t row,
                              std::int64_t head) {
  return rows.data + (batch * rows.batch_stride + row * rows.row_stride + head * rows.head_stride) *
                         bytes_of(dtype);
}
template <DType dtype>
std::byte* row_address(const Rows& rows, std::int64_t batch, std::int64_t row, std::int64_t head) {
  return row_address(rows, dtype, batch, row, head);
}

// The same for K or V, which may be paged. Block table entries are clamped to existing pages.
inline void find_page(const Rows& rows, std::int32_t caches, std::int64_t& batch,
                      std::int64_t& row) {
  if (!rows.blocks) return;
  const auto page_rows = static_cast<std::uint32_t>(rows.block_rows);
  const auto r = static_cast<std::uint32_t>(row);
  batch =
      clamp(arch::load(rows.blocks + batch * rows.blocks_stride + r / page_rows), 0, caches - 1);
  row = r % page_rows;
}
inline const std::byte* key_row(const Rows& rows, DType dtype, std::int32_t caches,
                                std::int64_t batch, std::int64_t row, std::int64_t head) {
  find_page(rows, caches, batch, row);
  return row_address(rows, dtype, batch, row, head);
}
template <DType dtype>
const std::byte* key_row(const Rows& rows, std::int32_t caches, std::int64_t batch,
                         std::int64_t row, std::int64_t head) {
  return key_row(rows, dtype, caches, batch, row, head);
}

}  // namespace rocflash::kernel
