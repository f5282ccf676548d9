// Work partitioning of the CPU backend: block sizes, scratch memory and work lists. Pure functions.
#pragma once

#include <cstdint>

#include "core/inline.hpp"
#include "core/problem.hpp"
#include "core/sizes.hpp"

namespace rocflash::cpu {

// Rows held in vector lanes (queries, or keys in backward) form panels of up to lane_rows. Tiles of
// stream_rows rows of the other operand stream past a panel. Both are multiples of every panel
// width and of the eight keys of a Philox call.
inline constexpr int lane_rows = 64;
inline constexpr int stream_rows = 64;
// Forward loads up to this many rows of k and v at a time and accumulates their values together.
inline constexpr int max_rows_together = 4 * stream_rows;

inline constexpr std::int64_t cache_line_floats = 16;

ROCFLASH_INLINE constexpr std::int64_t blocks_of(std::int64_t rows,
                                                 std::int64_t block = lane_rows) {
  return (rows + block - 1) / block;
}
ROCFLASH_INLINE constexpr std::int64_t padded(std::int64_t floats) {
  return (floats + cache_line_floats - 1) / cache_line_floats * cache_line_floats;
}

// The softmax scale in three factors: a power of two for the operand of QK^T in lanes, one for the
// streamed operand, and the rest. Neither the products nor their sums overflow or underflow for
// ordinary scores. Powers of two are exact. Streamed rows are loaded repeatedly, so only an extreme
// scale changes them. The operands take at most 2^63 of a large scale: a softcap makes scores
// finite that exceed f32, but not the NaN of a sum of infinite products of both signs.
struct SplitScale {
  float lanes = 1, rows = 1, rest = 1;

  // The factor still missing from sums of gradients times rows (or lanes), which were loaded
  // scaled.
  ROCFLASH_INLINE constexpr double of_rows() const {
    return static_cast<double>(rest) * static_cast<double>(lanes);
  }
  ROCFLASH_INLINE constexpr double of_lanes() const {
    return static_cast<double>(rest) * static_cast<double>(rows);
  }
};
ROCFLASH_INLINE constexpr SplitScale split_scale(float scale) {
  if (scale == 0) return {0, 1, 1};
  constexpr std::uint32_t bias = 127, exponent = 0x7f800000u;
  const bool subnormal = (__builtin_bit_cast(std::uint32_t, scale) & exponent) == 0;
  const auto bits = __builtin_bit_cast(std::uint32_t, subnormal ? scale * 0x1p64f : scale);
  const auto of_two = [](int n) {
    return __builtin_bit_cast(float, (static_cast<std::uint32_t>(n) + bias) << 23);
  };
  const int power =
      static_cast<int>((bits & exponent) >> 23) - static_cast<int>(bias) - (subnormal ? 64 : 0);
  constexpr int moderate = 16, most = 63;
  const int of_operands = power < most ? power : most;
  const int rows = power < -moderate || power > moderate ? of_operands / 2 : 0;
  const float significand = __builtin_bit_cast(float, (bits & ~exponent) | bias << 23);
  return {of_two(of_operands - rows), of_two(rows), significand * of_two(power - of_operands)};
}

// A forward work item is a block of queries, as many panels as fit in L2. All of them share the
// cost of loading and converting a tile of k and v. Each thread should get several blocks. Results
// do not depend on the block size: panels of queries and tiles of keys start at fixed positions.
inline constexpr int max_forward_block = 16 * lane_rows;
constexpr int forward_block(const Problem& p, int threads) {
  constexpr std::int64_t cache = 768 * 1024, wanted = 8;
  // Clamped: only large or small matters.
  const std::int64_t queries =
      (p.lengths.packed_q() ? Size(p.lengths.rows_q) : Size(p.batch()) * p.max_q)
          .at_most(std::int64_t{1} << 32);
  const std::int64_t row =
      (p.dtype == DType::bf16 ? 2 : 4) * padded(p.head_dim) + 4 * padded(p.value_dim);
  for (int rows = max_forward_block; rows > lane_rows; rows /= 2)
    if (rows * row <= cache && p.heads * blocks_of(queries, rows) >= wanted * threads) return rows;
  return lane_rows;
}
// Backward's block of keys, which holds k, v, dk and dv. 16-bit operands take half the space where
// the ISA has instructions for them.
inline constexpr int max_gradient_block = 4 * lane_rows;
// Whether q·k of f16 needs f32 products. AMX multiplies f16 as sums of two bf16 numbers, which
// leaves an absolute error of 2^-16 |q||k|. A large scale multiplies it in the scores, the slope of
// a small softcap in the gradients.
ROCFLASH_INLINE constexpr bool needs_f32_products(const Problem& p) {
  constexpr float large_scale = 1024;
  return p.dtype == DType::f16 &&
         (p.scale >= large_scale || p.scale <= -large_scale || (p.softcap > 0 && p.softcap < 1));
}
constexpr int gradient_block(const Problem& p) {
  const int rows = p.dtype == DType::f32 ? max_gradient_block / 2 : max_gradient_block;
  return p.head_dim + p.value_dim > 256 ? rows / 2 : rows;
}

// Stride of a row of floats: an odd number of cache lines, so that a column does not map to a few
// cache sets.
ROCFLASH_INLINE constexpr std::int64_t padded_stride(std::int64_t columns) {
  return padded(columns) | cache_line_floats;
}
// Floats of a GEMM operand in any packed format.
ROCFLASH_INLINE constexpr std::int64_t operand_floats(std::int64_t rows, std::int64_t columns) {
  return rows * larger(padded_stride(columns), 2 * padded(columns / 2 + 1));
}

// Scratch floats per thread.
constexpr std::int64_t products_scratch(std::int64_t max_columns) {
  return operand_floats(max_rows_together, lane_rows) +
         operand_floats(stream_rows, max_gradient_block) +
         operand_floats(stream_rows + lane_rows, max_columns);
}
constexpr std::int64_t forward_scratch(const Problem& p, std::int64_t block) {
  const std::int64_t tile = std::int64_t{lane_rows} * stream_rows;
  return operand_floats(block + max_rows_together, p.head_dim) +
         operand_floats(max_rows_together, p.value_dim) + block * padded(p.value_dim) + 3 * tile +
         3 * block + products_scratch(larger(p.head_dim, p.value_dim));
}
constexpr std::int64_t backward_scratch(const Problem& p) {
  const std::int64_t block = gradient_block(p), tile = std::int64_t{lane_rows} * stream_rows;
  return operand_floats(2 * block + 2 * stream_rows, p.head_dim) +
         operand_floats(block + 2 * stream_rows, p.value_dim) +
         block * (padded(p.head_dim) + padded(p.value_dim)) + block * stream_rows + 4 * tile +
         5 * stream_rows + products_scratch(larger(p.head_dim, p.value_dim));
}
// The standard backend: rows of both operands, results, tiles.
constexpr std::int64_t standard_scratch(const Problem& p, bool gradients) {
  const std::int64_t most = larger(p.head_dim, p.value_dim);
  return gradients ? backward_scratch(p)
                   : operand_floats(2 * lane_rows + stream_rows, most) +
                         3 * std::int64_t{lane_rows} * stream_rows + products_scratch(most);
}

// Backward runs in parallel over (batch, KV head) and splits of the keys. Keys are divided into
// units; split n owns units n, n + parts, and so on. A unit accumulates dq into one of a few
// copies, which are summed in order at the end. Units that share a copy belong to one split, or no
// query attends to keys of both.
struct KeyPartition {
  std::int64_t unit = 1;  // keys: a multiple of the block
  int parts = 1;
  int copies = 1;  // unit n uses copy n % copies
};

// Work items of backward, enough for some dozens of cores. Independent of the number of threads, so
// that results are too.
inline constexpr std::int64_t target_backward_items = 32;

// (batch, KV head) slices that accumulate into the same elements of dbias form a set. A few threads
// work on a set, each with its own accumulators: slot n has members n, n + slots, and so on. The
// workspace then grows with the bias, not with the scores.
struct BiasSharing {
  std::int64_t sets = 1, members = 1;  // slices per set
  std::int64_t heads = 1;              // KV heads
  bool over_batch = false, over_heads = false;
  int slots = 1;

  struct Bh {
    std::int64_t batch, kv_head;
  };
  constexpr Bh bh(std::int64_t set, std::int64_t member) const {
    return {over_batch ? member / (over_heads ? heads : 1) : set / (over_heads ? 1 : heads),
            over_heads ? member % heads : set % heads};
  }
};

inline BiasSharing bias_sharing(const Problem& p, const BackwardTensors& t) {
  constexpr std::int64_t max_slots = 8;
  BiasSharing s;
  s.heads = p.kv_heads;
  s.over_batch = t.dbias && t.dbias.batch_stride == 0 && p.batch() > 1;
  s.over_heads = t.dbias && t.dbias.head_stride == 0 && p.kv_heads > 1;
  s.members = (s.over_batch ? p.batch() : 1) * (s.over_heads ? p.kv_heads : 1);
  s.sets = (s.over_batch ? 1 : p.batch()) * (s.over_heads ? 1 : p.kv_heads);
  s.slots =
      static_cast<int>(smaller(smaller(s.members, max_slots),
                               larger(1, blocks_of(target_backward_items, larger(1, s.sets)))));
  return s;
}

// Whether no dimension of the bias is broadcast.
constexpr bool is_bias_unshared(const Problem& p, const BackwardTensors& t) {
  return (t.dbias.batch_stride || p.batch() == 1) && (t.dbias.head_stride || p.heads == 1) &&
         (t.dbias.query_stride || p.max_q == 1) && (t.dbias.key_stride || p.max_k == 1);
}

// Chooses as many splits as keep all threads busy. At most `concurrent_bh` slices run concurrently.
constexpr KeyPartition key_partition(const Problem& p, std::int64_t concurrent_bh) {
  constexpr std::int64_t wanted = target_backward_items, max_copies = 8;
  const std::int64_t block = gradient_block(p), blocks = blocks_of(p.max_k, block);
  if (blocks <= 1) return {block, 1, 1};
  // A long sequence among many short ones counts as one slice.
  const Size keys =
      p.lengths.packed_k() ? Size(p.lengths.rows_k) : Size(p.batch()) * p.lengths.rows_k;
  const std::int64_t bh_count = (Size(larger(1, keys.value() / p.max_k)) * p.kv_heads)
                                    .at_most(smaller(wanted, larger(1, concurrent_bh)));
  const std::int64_t parts = smaller(blocks, (wanted + bh_count - 1) / bh_count);
  // One block per unit, so that long and short blocks of a causal problem spread evenly; one copy
  // per split.
  const auto copies = static_cast<int>(smaller(parts, max_copies));
  // With a window or chunk, splits of contiguous keys that are far enough apart can share a copy.
  // Then few copies are needed.
  const Visibility& v = p.visibility;
  std::int64_t span = p.max_k;
  if (v.left >= 0 && v.right >= 0)
    span = smaller(span, smaller(v.left, span) + smaller(v.right, span) + 1);
  if (v.chunk > 0) span = smaller(span, v.chunk);
  const std::int64_t unit = blocks_of(blocks, parts) * block;
  const auto enough = static_cast<int>(1 + blocks_of(span - 1, unit));
  if (enough < copies) return {unit, static_cast<int>(blocks_of(p.max_k, unit)), enough};
  return {block, copies, copies};
}

// The copies of dq with contributions to a query that attends to these keys: `count` of them from
// `first` on, modulo copies.
struct Copies {
  std::int64_t first, count;
};
ROCFLASH_INLINE constexpr Copies copies_of(const KeyPartition& g, Range keys) {
  if (keys.empty()) return {0, 0};
  const std::int64_t first = keys.begin / g.unit, last = (keys.end - 1) / g.unit;
  return {first % g.copies, smaller(g.copies, last - first + 1)};
}

// Problems that finish before another thread could wake up, several times in backward.
constexpr bool is_tiny(const Problem& p) {
  constexpr std::int64_t products = 1 << 20;  // multiply-adds: about 20 microseconds
  const std::int64_t factors[] = {p.max_q, p.max_k, std::int64_t{p.head_dim} + p.value_dim};
  std::int64_t work = p.batch() * p.heads;
  for (const std::int64_t n : factors) {
    if (work >= products) return false;
    work *= smaller(n, products);
  }
  return work < products;
}

// Decode: all rows (query heads of a GQA group times queries) that share a KV head are computed
// together. Each key is read once. Keys are split so that there is work for more threads than KV
// heads; the number of splits does not depend on the number of threads.
inline constexpr int max_decode_rows = 16;
// So few queries leave most lanes of a tile idle, whatever the number of heads.
inline constexpr int max_lone_queries = 4;
inline constexpr int decode_keys = 64;  // split sizes are multiples of this

// With few keys there is nothing to split, and the tiled kernel is faster.
constexpr bool is_decode(const Problem& p) {
  const std::int64_t rows = p.gqa_group() * p.max_q;
  const bool few = rows <= max_decode_rows || p.max_q <= max_lone_queries;
  return rows > 0 && few && (rows <= 8 || p.max_k >= 4 * larger(rows, max_decode_rows));
}

// KV heads per work item: their rows of one key are adjacent in memory, and a tile of them fits in
// L2.
inline constexpr int max_decode_heads = 16;

ROCFLASH_INLINE constexpr std::int64_t decode_heads(const Problem& p) {
  constexpr std::int64_t cache = 256 * 1024;
  // A quantized cache is converted to f32 in tiles.
  const auto element =
      static_cast<std::int64_t>(is_8_bit(p.k.dtype) ? sizeof(float) : size_of(p.k.dtype));
  const std::int64_t row = element * (p.head_dim + p.value_dim);
  return smaller(smaller(max_decode_heads, p.kv_heads), larger(1, cache / (decode_keys * row)));
}
ROCFLASH_INLINE constexpr std::int64_t decode_head_blocks(const Problem& p) {
  return (p.kv_heads + decode_heads(p) - 1) / decode_heads(p);
}

// Upper bound of the keys that the queries of a sequence attend to.
constexpr std::int64_t decode_reach(const Problem& p) {
  const Visibility& v = p.visibility;
  std::int64_t reach = p.max_k;
  if (v.left >= 0 && v.right >= 0) reach = smaller(reach, v.left + v.right + p.max_q);
  if (v.chunk > 0) reach = smaller(reach, 2 * v.chunk + p.max_q);
  return reach;
}

constexpr int decode_splits(const Problem& p) {
  const std::int64_t pieces = larger(1, (decode_reach(p) + decode_keys - 1) / decode_keys);
  if (p.splits > 0) return static_cast<int>(smaller(p.splits, pieces));
  constexpr std::int64_t wanted = 64,
                         least_pieces =
                             4;  // a split below 256 keys costs more to combine than it saves
  const std::int64_t bh_count = larger(1, p.batch() * decode_head_blocks(p));
  return static_cast<int>(
      larger(1, smaller((wanted + bh_count - 1) / bh_count, pieces / least_pieces)));
}

// The keys of split n of `splits`: multiples of decode_keys, balanced to within one.
ROCFLASH_INLINE constexpr Range split_of(Range keys, int n, int splits) {
  const std::int64_t pieces = (keys.size() + decode_keys - 1) / decode_keys;
  const auto start = [&](int split) {
    return smaller(keys.end, keys.begin + pieces * split / splits * decode_keys);
  };
  return {start(n), start(n + 1)};
}

// Rows of queries and results are padded to whole steps of columns for every operand format.
ROCFLASH_INLINE constexpr std::int64_t decode_columns(int columns) {
  constexpr std::int64_t step = 2 * cache_line_floats;
  return (columns + step - 1) / step * step;
}
// A row of a partial result: values, and a cache line for the online softmax state.
constexpr std::int64_t decode_partial_row(const Problem& p) {
  return decode_columns(p.value_dim) + cache_line_floats;
}
// A tile of a quantized cache as f32.
ROCFLASH_INLINE constexpr std::int64_t dequantized_row(const Problem& p) {
  return padded(larger(p.head_dim, p.value_dim));
}
constexpr std::int64_t dequantized_floats(const Problem& p) {
  return is_8_bit(p.k.dtype) ? decode_heads(p) * decode_keys * dequantized_row(p) : 0;
}
constexpr std::int64_t decode_scratch(const Problem& p) {
  const std::int64_t rows = p.gqa_group() * p.max_q, heads = decode_heads(p);
  const std::int64_t for_head =
      padded(rows * decode_keys) + padded(rows * decode_columns(p.head_dim));
  return heads * for_head + 2 * padded(p.max_q * decode_keys) + 4 * padded(heads * rows) +
         padded(p.value_dim) + dequantized_floats(p);
}

struct WorkItem {
  std::int64_t batch, head, block;
};

// Blocks of rows over all sequences and heads, for varlen too. The table of each sequence's first
// item is in the workspace.
class WorkList {
 public:
  enum class Rows { queries, keys };
  enum class Order { first_block_first, last_block_first };

  WorkList(const Lengths& lengths, std::int64_t heads, Rows rows, std::int64_t block, Order order,
           std::int64_t* table)
      : batch_(lengths.batch), heads_(heads), order_(order), table_(table) {
    table_[0] = 0;
    for (std::int64_t b = 0; b < batch_; ++b) {
      const Sequence s = lengths.sequence(b);
      table_[b + 1] = table_[b] + heads_ * blocks_of(rows == Rows::queries ? s.sq : s.sk, block);
    }
  }

  std::int64_t size() const { return table_[batch_]; }

  WorkItem operator[](std::int64_t item) const {
    std::int64_t low = 0, high = batch_;  // the last sequence whose items begin at or before `item`
    while (high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      (table_[middle] <= item ? low : high) = middle;
    }
    const std::int64_t blocks = (table_[low + 1] - table_[low]) / heads_;
    const std::int64_t within = item - table_[low];
    const std::int64_t block = within % blocks;
    return {low, within / blocks, order_ == Order::first_block_first ? block : blocks - 1 - block};
  }

 private:
  std::int64_t batch_, heads_;
  Order order_;
  std::int64_t* table_;
};

}  // namespace rocflash::cpu
