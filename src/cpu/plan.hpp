// How the CPU cuts a problem into work: block sizes, scratch memory and the list of items. Pure
// functions.
#pragma once

#include <cstdint>

#include "core/inline.hpp"
#include "core/problem.hpp"
#include "core/sizes.hpp"

namespace rocflash::cpu {

// Rows (queries, or keys in backward) stand in vector lanes, a panel of up to this many at a time,
// and tiles of this many rows of the other side stream past them. Multiples of every panel width
// and of dropout's eight keys.
inline constexpr int lane_rows = 64;
inline constexpr int stream_rows = 64;
// Forward may load several such tiles, and weigh their values together.
inline constexpr int most_rows_together = 4 * stream_rows;

inline constexpr std::int64_t cache_line_floats = 16;

ROCFLASH_INLINE constexpr std::int64_t blocks_of(std::int64_t rows,
                                                 std::int64_t block = lane_rows) {
  return (rows + block - 1) / block;
}
ROCFLASH_INLINE constexpr std::int64_t padded(std::int64_t floats) {
  return (floats + cache_line_floats - 1) / cache_line_floats * cache_line_floats;
}

// The scale of scores in three factors: a power of two for the operand of q.k that stands in lanes,
// one for the operand whose rows stream past, and what is left. So neither the product nor a sum of
// such products overflows, or is lost below the smallest number, where scores are ordinary. Powers
// of two change no bit besides. Rows are loaded again and again, and only an extreme scale changes
// them.
struct ScaleParts {
  float lanes = 1, rows = 1, rest = 1;

  // What sums of gradients times rows (or lanes), as they were loaded, are still to be multiplied
  // with.
  ROCFLASH_INLINE constexpr double of_rows() const {
    return static_cast<double>(rest) * static_cast<double>(lanes);
  }
  ROCFLASH_INLINE constexpr double of_lanes() const {
    return static_cast<double>(rest) * static_cast<double>(rows);
  }
};
ROCFLASH_INLINE constexpr ScaleParts scale_parts(float scale) {
  if (scale == 0) return {0, 1, 1};
  constexpr std::uint32_t bias = 127, exponent = 0x7f800000u;
  const bool subnormal = (__builtin_bit_cast(std::uint32_t, scale) & exponent) == 0;
  const auto bits = __builtin_bit_cast(std::uint32_t, subnormal ? scale * 0x1p64f : scale);
  const auto of_two = [](int n) {
    return __builtin_bit_cast(float, (static_cast<std::uint32_t>(n) + bias) << 23);
  };
  const int power =
      static_cast<int>((bits & exponent) >> 23) - static_cast<int>(bias) - (subnormal ? 64 : 0);
  constexpr int moderate = 16;
  const int rows = power < -moderate || power > moderate ? power / 2 : 0;
  return {of_two(power - rows), of_two(rows),
          __builtin_bit_cast(float, (bits & ~exponent) | bias << 23)};
}

// A work item of forward holds a block of queries, as many panels as the second-level cache takes:
// what it costs to fetch and convert a tile of keys and values is shared by them all. There should
// be several blocks for each thread. Results do not depend on it: panels of queries and tiles of
// keys begin at the same places whatever the block.
inline constexpr int most_forward_block = 16 * lane_rows;
constexpr int forward_block(const Problem& p, int threads) {
  constexpr std::int64_t cache = 768 * 1024, wanted = 8;
  // Only whether there are many of them matters.
  const std::int64_t queries =
      (p.lengths.packed_q() ? Size(p.lengths.rows_q) : Size(p.batch()) * p.max_q)
          .at_most(std::int64_t{1} << 32);
  const std::int64_t row =
      (p.dtype == DType::bf16 ? 2 : 4) * padded(p.head_dim) + 4 * padded(p.value_dim);
  for (int rows = most_forward_block; rows > lane_rows; rows /= 2)
    if (rows * row <= cache && p.heads * blocks_of(queries, rows) >= wanted * threads) return rows;
  return lane_rows;
}
// Backward's block of keys: there is twice as much to keep, and more. Operands of 16 bits take half
// the room, where there are instructions for them.
inline constexpr int most_gradient_block = 4 * lane_rows;
constexpr int gradient_block(const Problem& p) {
  const int rows = p.dtype == DType::f32 ? most_gradient_block / 2 : most_gradient_block;
  return p.head_dim + p.value_dim > 256 ? rows / 2 : rows;
}

// Rows of floats are an odd number of cache lines apart, so that a column's numbers do not all fall
// into the same few sets of the cache.
ROCFLASH_INLINE constexpr std::int64_t apart(std::int64_t columns) {
  return padded(columns) | cache_line_floats;
}
// Floats that an operand of a product takes, in whichever form.
ROCFLASH_INLINE constexpr std::int64_t operand_floats(std::int64_t rows, std::int64_t columns) {
  return rows * larger(apart(columns), 2 * padded(columns / 2 + 1));
}

// Floats of scratch memory that one thread needs.
constexpr std::int64_t products_scratch(std::int64_t most_columns) {
  return operand_floats(most_rows_together, lane_rows) +
         operand_floats(stream_rows, most_gradient_block) +
         operand_floats(stream_rows + lane_rows, most_columns);
}
constexpr std::int64_t forward_scratch(const Problem& p, std::int64_t block) {
  const std::int64_t tile = std::int64_t{lane_rows} * stream_rows;
  return operand_floats(block + most_rows_together, p.head_dim) +
         operand_floats(most_rows_together, p.value_dim) + block * padded(p.value_dim) + 3 * tile +
         3 * block + products_scratch(larger(p.head_dim, p.value_dim));
}
constexpr std::int64_t backward_scratch(const Problem& p) {
  const std::int64_t block = gradient_block(p), tile = std::int64_t{lane_rows} * stream_rows;
  return operand_floats(2 * block + 2 * stream_rows, p.head_dim) +
         operand_floats(block + 2 * stream_rows, p.value_dim) +
         block * (padded(p.head_dim) + padded(p.value_dim)) + block * stream_rows + 4 * tile +
         3 * stream_rows + products_scratch(larger(p.head_dim, p.value_dim));
}
// The standard backend's steps: rows of one side and of the other, results, tiles.
constexpr std::int64_t standard_scratch(const Problem& p, bool gradients) {
  const std::int64_t most = larger(p.head_dim, p.value_dim);
  return gradients ? backward_scratch(p)
                   : operand_floats(2 * lane_rows + stream_rows, most) +
                         3 * std::int64_t{lane_rows} * stream_rows + products_scratch(most);
}

// Backward runs in parallel over sequences, key heads and parts of the keys. Keys are cut into
// units, of which part n has the n-th and every so many further. A unit adds its share of dq to one
// of a few copies of dq, and copies are summed in the end. Units that share a copy belong to one
// part, or no query sees keys of both.
struct GradientParts {
  std::int64_t unit = 1;  // keys, whole blocks
  int parts = 1;
  int copies = 1;  // unit n has copy n mod copies
};

// Backward's work at a time, so that a machine of some dozens of cores is busy. The number of
// threads must not matter.
inline constexpr std::int64_t wanted_gradient_items = 32;

// A sequence and a key head make a plane. Planes that add to the same elements of the bias's
// gradient are a set, which a few threads at most work on, each with sums of its own: slot n has
// the n-th plane of the set and every so many further. Workspace then grows with the bias and not
// with the scores.
struct BiasSharing {
  std::int64_t sets = 1, members = 1;  // of each set
  std::int64_t heads = 1;              // key heads
  bool over_batch = false, over_heads = false;
  int slots = 1;

  struct Plane {
    std::int64_t batch, kv_head;
  };
  constexpr Plane plane(std::int64_t set, std::int64_t member) const {
    return {over_batch ? member / (over_heads ? heads : 1) : set / (over_heads ? 1 : heads),
            over_heads ? member % heads : set % heads};
  }
};

inline BiasSharing bias_sharing(const Problem& p, const BackwardTensors& t) {
  constexpr std::int64_t most_slots = 8;
  BiasSharing s;
  s.heads = p.kv_heads;
  s.over_batch = t.dbias && t.dbias.batch_stride == 0 && p.batch() > 1;
  s.over_heads = t.dbias && t.dbias.head_stride == 0 && p.kv_heads > 1;
  s.members = (s.over_batch ? p.batch() : 1) * (s.over_heads ? p.kv_heads : 1);
  s.sets = (s.over_batch ? 1 : p.batch()) * (s.over_heads ? 1 : p.kv_heads);
  s.slots =
      static_cast<int>(smaller(smaller(s.members, most_slots),
                               larger(1, blocks_of(wanted_gradient_items, larger(1, s.sets)))));
  return s;
}

// Whether each element of the bias serves one query and one key of one sequence and head.
constexpr bool is_bias_unshared(const Problem& p, const BackwardTensors& t) {
  return (t.dbias.batch_stride || p.batch() == 1) && (t.dbias.head_stride || p.heads == 1) &&
         (t.dbias.query_stride || p.max_q == 1) && (t.dbias.key_stride || p.max_k == 1);
}

// There are as many parts as it takes to have work for all. `planes_at_a_time`: no more than these
// are worked on together.
constexpr GradientParts gradient_parts(const Problem& p, std::int64_t planes_at_a_time) {
  constexpr std::int64_t wanted = wanted_gradient_items, most_copies = 8;
  const std::int64_t block = gradient_block(p), blocks = blocks_of(p.max_k, block);
  if (blocks <= 1) return {block, 1, 1};
  // One long sequence among many short ones is as good as alone.
  const Size keys =
      p.lengths.packed_k() ? Size(p.lengths.rows_k) : Size(p.batch()) * p.lengths.rows_k;
  const std::int64_t planes = (Size(larger(1, keys.value() / p.max_k)) * p.kv_heads)
                                  .at_most(smaller(wanted, larger(1, planes_at_a_time)));
  const std::int64_t parts = smaller(blocks, (wanted + planes - 1) / planes);
  // A block in each unit, so that a causal problem's long and short blocks are spread evenly, and a
  // copy for each part.
  const auto copies = static_cast<int>(smaller(parts, most_copies));
  // Where a query sees only so many keys, parts that are that far from each other can share a copy,
  // if each has its keys in one piece. Copies are then few, and read and written in small parts.
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

// The copies of dq that hold something for a query which sees these keys: so many from the first
// on, round and round.
struct Copies {
  std::int64_t first, count;
};
ROCFLASH_INLINE constexpr Copies copies_of(const GradientParts& g, Range keys) {
  if (keys.empty()) return {0, 0};
  const std::int64_t first = keys.begin / g.unit, last = (keys.end - 1) / g.unit;
  return {first % g.copies, smaller(g.copies, last - first + 1)};
}

// Problems over sooner than another thread could join in, and that backward's several steps would
// wake it again and again for.
constexpr bool is_tiny(const Problem& p) {
  constexpr std::int64_t products = 1 << 20;  // about 20 microseconds
  const std::int64_t factors[] = {p.max_q, p.max_k, std::int64_t{p.head_dim} + p.value_dim};
  std::int64_t work = p.batch() * p.heads;
  for (const std::int64_t n : factors) {
    if (work >= products) return false;
    work *= smaller(n, products);
  }
  return work < products;
}

// Few queries: all rows (heads of a group times queries) that share a key head are computed
// together, each key is read once, and the keys are split so that more threads than key heads find
// work. As above, threads must not matter.
inline constexpr int most_decode_rows = 16;
// So few queries would leave most lanes of a tile idle, whatever the number of heads.
inline constexpr int most_lone_queries = 4;
inline constexpr int decode_keys = 64;  // splits are multiples of this

// With as few keys as queries there is nothing to split, and tiles are faster.
constexpr bool is_decode(const Problem& p) {
  const std::int64_t rows = p.group() * p.max_q;
  const bool few = rows <= most_decode_rows || p.max_q <= most_lone_queries;
  return rows > 0 && few && (rows <= 8 || p.max_k >= 4 * larger(rows, most_decode_rows));
}

// Key heads that one item handles together: rows of a key lie side by side for all heads, and a
// tile of them should stay in the second-level cache.
inline constexpr int most_decode_heads = 16;

ROCFLASH_INLINE constexpr std::int64_t decode_heads(const Problem& p) {
  constexpr std::int64_t cache = 256 * 1024;
  const auto row = static_cast<std::int64_t>(size_of(p.k.dtype)) * (p.head_dim + p.value_dim);
  return smaller(smaller(most_decode_heads, p.kv_heads), larger(1, cache / (decode_keys * row)));
}
ROCFLASH_INLINE constexpr std::int64_t decode_head_groups(const Problem& p) {
  return (p.kv_heads + decode_heads(p) - 1) / decode_heads(p);
}

// Keys that the few queries of a sequence see together, at most.
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
                         least_pieces = 4;  // a split below 256 keys is not worth its merge
  const std::int64_t planes = larger(1, p.batch() * decode_head_groups(p));
  return static_cast<int>(
      larger(1, smaller((wanted + planes - 1) / planes, pieces / least_pieces)));
}

// The keys of split n out of `splits`: whole pieces, and no split has two more than another.
ROCFLASH_INLINE constexpr Range split_of(Range keys, int n, int splits) {
  const std::int64_t pieces = (keys.size() + decode_keys - 1) / decode_keys;
  const auto start = [&](int split) {
    return smaller(keys.end, keys.begin + pieces * split / splits * decode_keys);
  };
  return {start(n), start(n + 1)};
}

// Rows of queries and results are whole steps of columns, whichever way these are multiplied.
ROCFLASH_INLINE constexpr std::int64_t decode_columns(int columns) {
  constexpr std::int64_t step = 2 * cache_line_floats;
  return (columns + step - 1) / step * step;
}
// A row of a part: values, and a cache line for the state of its softmax.
constexpr std::int64_t decode_part_row(const Problem& p) {
  return decode_columns(p.value_dim) + cache_line_floats;
}
constexpr std::int64_t decode_scratch(const Problem& p) {
  const std::int64_t rows = p.group() * p.max_q, heads = decode_heads(p);
  const std::int64_t for_head =
      padded(rows * decode_keys) + padded(rows * decode_columns(p.head_dim));
  return heads * for_head + 2 * padded(p.max_q * decode_keys) + 4 * padded(heads * rows) +
         padded(p.value_dim);
}

struct WorkItem {
  std::int64_t batch, head, block;
};

// Blocks of rows over all sequences and heads, whose lengths may differ. The table of where each
// sequence's items begin lies in the workspace.
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
