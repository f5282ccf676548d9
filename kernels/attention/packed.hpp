// Decode's view of a problem: which rows and keys a wave serves.
//
// The query heads that share a key head are packed into the rows of one product, so that each key is read once
// for all of them: row r of a sequence and key head is head r % group of query r / group.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/arguments.hpp"
#include "attention/score.hpp"
#include "attention/sequence.hpp"

namespace rocflash::kernel {

// What a workgroup computes. Workgroups that read the same keys follow each other.
struct DecodeItem {
  std::int32_t batch, kv_head, block, split;

  DecodeItem(const DecodeArguments& a, std::int32_t group) {
    block = group % a.blocks;
    const std::int32_t rest = group / a.blocks, plane = rest / a.splits;
    split = rest % a.splits;
    const auto kv_heads = static_cast<std::int32_t>(a.problem.kv_heads);
    batch = plane / kv_heads;
    kv_head = plane % kv_heads;
  }
};

struct PackedRow {
  std::int32_t query, head;

  PackedRow(std::int32_t row, std::uint32_t group, std::int32_t kv_head)
      : query(static_cast<std::int32_t>(static_cast<std::uint32_t>(row) / group)),
        head(kv_head * static_cast<std::int32_t>(group) +
             static_cast<std::int32_t>(static_cast<std::uint32_t>(row) % group)) {}
};

// A block of rows of one sequence and key head, and a part of the keys that they see.
struct DecodePart {
  std::int32_t row_begin, rows;                   // rows of the block that are in use
  std::int32_t begin = 0, end = 0;                // keys of the part
  std::int32_t common_begin = 0, common_end = 0;  // those of them that all rows see

  // `row_begin` on, at most `tile_rows` rows; part number `part` of `parts`. Parts are whole tiles of keys.
  DecodePart(const DecodeArguments& a, const SequenceView& s, std::int32_t block, int tile_rows,
             std::int32_t part, std::int32_t parts, int tile_keys)
      : row_begin(block * tile_rows) {
    const Problem& p = a.problem;
    const std::int32_t group = a.group;
    rows = static_cast<std::int32_t>(clamp(std::int64_t{s.sq} * group - row_begin, 0, tile_rows));
    if (rows == 0) return;
    const std::int32_t first = row_begin / group, last = (row_begin + rows - 1) / group;
    const SeenKeys seen(p.visibility, s, first, last + 1 - first);
    if (seen.by_any.empty()) return;
    const auto seen_end = static_cast<std::int32_t>(seen.by_any.end);
    const auto first_key = static_cast<std::int32_t>(seen.by_any.begin) / tile_keys * tile_keys;
    const std::int32_t tiles = (seen_end - first_key + tile_keys - 1) / tile_keys,
                       each = (tiles + parts - 1) / parts;
    begin = smaller32(first_key + part * std::int64_t{each} * tile_keys, seen_end);
    end = smaller32(begin + std::int64_t{each} * tile_keys, seen_end);
    common_begin = static_cast<std::int32_t>(seen.by_all.begin);
    common_end = smaller32(seen.by_all.end, end);
  }

  bool empty() const { return end <= begin; }

  // The keys of the part that a query sees.
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

// Sixteen bytes of q for row `row` of a block; zeros where there is no such row or column. Rows of q lie on
// 16 bytes.
template <DType dtype>
Words4 query_chunk(const Rows& q, const SequenceView& s, const DecodePart& part,
                   std::uint32_t group, std::int32_t kv_head, int row, int chunk) {
  constexpr int chunk_columns = 16 / number_bytes<dtype>;
  if (row >= part.rows || chunk * chunk_columns >= q.columns) return Words4{};
  const PackedRow packed(part.row_begin + row, group, kv_head);
  return arch::load(reinterpret_cast<const Words4*>(
      row_address<dtype>(q, s.batch, s.q_row + packed.query, packed.head) + 16 * chunk));
}

// One part's results.
struct PartRows {
  const DecodeArguments& a;
  const SequenceView& sequence;
  std::int32_t part;

  float* out(const PackedRow& row) const {
    return reinterpret_cast<float*>(a.out.data) + part * a.out_part +
           sequence.batch * a.out.batch_stride + (sequence.q_row + row.query) * a.out.row_stride +
           row.head * a.out.head_stride;
  }
  float& lse(const PackedRow& row) const {
    return (&a.lse.at(sequence.batch, row.head, sequence.q_row + row.query))[part * a.lse_part];
  }
  void store_lse(const PackedRow& row, float x) const { arch::store(&lse(row), x); }
  // One column, or several neighbouring ones.
  template <class Numbers>
  void store(const PackedRow& row, int column, Numbers x) const {
    arch::store(reinterpret_cast<Numbers*>(out(row) + column), x);
  }
};

}  // namespace rocflash::kernel
