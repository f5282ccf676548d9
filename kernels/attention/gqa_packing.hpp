// GQA packing and key splits of split-KV decode.
//
// The query heads that share a KV head are packed into the rows of one product, so that each key is
// read once. Packed row r of a (batch, KV head) slice is head r % group of query r / group.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/arguments.hpp"
#include "attention/score_mod.hpp"
#include "attention/sequence.hpp"
#include "attention/split_lse.hpp"

namespace rocflash::kernel {

// Work tile of a workgroup. Workgroups that read the same keys have adjacent indices (L2).
struct DecodeWorkTile {
  std::int32_t batch, kv_head, block, split;

  DecodeWorkTile(const DecodeArguments& a, std::int32_t group) {
    block = group % a.blocks;
    const std::int32_t rest = group / a.blocks, bh = rest / a.splits;
    split = rest % a.splits;
    const auto kv_heads = static_cast<std::int32_t>(a.problem.kv_heads);
    batch = bh / kv_heads;
    kv_head = bh % kv_heads;
  }
};

struct PackedRow {
  std::int32_t query, head;

  PackedRow(std::int32_t row, std::uint32_t group, std::int32_t kv_head)
      : query(static_cast<std::int32_t>(static_cast<std::uint32_t>(row) / group)),
        head(kv_head * static_cast<std::int32_t>(group) +
             static_cast<std::int32_t>(static_cast<std::uint32_t>(row) % group)) {}
};

// A block of packed rows of one (batch, KV head) slice, and a split of its visible keys.
struct KeySplit {
  std::int32_t row_begin, rows;                   // valid rows of the block
  std::int32_t begin = 0, end = 0;                // keys of the split
  std::int32_t common_begin = 0, common_end = 0;  // keys that all rows attend to

  // Split number `split` of `splits`, for up to `tile_rows` rows. Splits are multiples of a key
  // tile.
  KeySplit(const DecodeArguments& a, const SequenceView& s, std::int32_t block, int tile_rows,
           std::int32_t split, std::int32_t splits, int tile_keys)
      : row_begin(block * tile_rows) {
    const Problem& p = a.problem;
    const std::int32_t group = a.gqa_group;
    rows = static_cast<std::int32_t>(clamp(std::int64_t{s.sq} * group - row_begin, 0, tile_rows));
    if (rows == 0) return;
    const std::int32_t first = row_begin / group, last = (row_begin + rows - 1) / group;
    const VisibleKeys visible(p.visibility, s, first, last + 1 - first);
    if (visible.by_any.empty()) return;
    const auto visible_end = static_cast<std::int32_t>(visible.by_any.end);
    const auto first_key = static_cast<std::int32_t>(visible.by_any.begin) / tile_keys * tile_keys;
    const std::int32_t tiles = (visible_end - first_key + tile_keys - 1) / tile_keys,
                       each = (tiles + splits - 1) / splits;
    begin = smaller32(first_key + split * std::int64_t{each} * tile_keys, visible_end);
    end = smaller32(begin + std::int64_t{each} * tile_keys, visible_end);
    common_begin = static_cast<std::int32_t>(visible.by_all.begin);
    common_end = smaller32(visible.by_all.end, end);
  }

  bool empty() const { return end <= begin; }

  // The visible key range of a query within the split.
  QueryView view(const Problem& p, const SequenceView& s, std::int32_t query) const {
    QueryView v(p.visibility, s, query);
    v.begin = v.begin > begin ? v.begin : begin;
    v.end = v.end < end ? v.end : end;
    if (v.end < v.begin) v.end = v.begin;
    return v;
  }

 private:
  static std::int32_t smaller32(std::int64_t a, std::int64_t b) {
    return static_cast<std::int32_t>(a < b ? a : b);
  }
};

// 16 bytes of Q for row `row` of a block; zeros out of bounds. Rows of Q are 16-byte aligned.
template <DType dtype>
Words4 query_chunk(const Rows& q, const SequenceView& s, const KeySplit& part, std::uint32_t group,
                   std::int32_t kv_head, int row, int chunk) {
  constexpr int chunk_columns = 16 / element_bytes<dtype>;
  if (row >= part.rows || chunk * chunk_columns >= q.columns) return Words4{};
  const PackedRow packed(part.row_begin + row, group, kv_head);
  return arch::load(reinterpret_cast<const Words4*>(
      row_address<dtype>(q, s.batch, s.q_row + packed.query, packed.head) + 16 * chunk));
}

// Destination of the partial results of one split.
struct SplitRows {
  const DecodeArguments& a;
  const SequenceView& sequence;
  std::int32_t split;

  float* out(const PackedRow& row) const {
    return reinterpret_cast<float*>(a.out.data) + split * a.out_split_stride +
           sequence.batch * a.out.batch_stride + (sequence.q_row + row.query) * a.out.row_stride +
           row.head * a.out.head_stride;
  }
  float& lse(const PackedRow& row) const {
    return (&a.lse.at(sequence.batch, row.head,
                      sequence.q_row + row.query))[split * a.lse_split_stride];
  }
  // The workspace has two floats per LSE.
  void store_lse(const PackedRow& row, SplitLse x) const {
    arch::store(&lse(row), x.lse);
    arch::store(&lse(row) + 1, x.rest);
  }
  // One column, or a vector of adjacent columns.
  template <class Values>
  void store(const PackedRow& row, int column, Values x) const {
    arch::store(reinterpret_cast<Values*>(out(row) + column), x);
  }
};

}  // namespace rocflash::kernel
