// What a kernel is told. The host fills these structs and the device reads them, so both compile this
// header. The problem is the one that the C ABI checked.
//
// The host cannot read the int tensors of a GPU without waiting for it, so kernels do not trust any
// length, page or batch index: sequence.hpp clamps them to what the tensors hold.
#pragma once

#include <cstdint>

#include "arch/tensor_map.hpp"
#include "core/new_keys.hpp"
#include "core/parts.hpp"
#include "core/problem.hpp"
#include "table/backward.hpp"
#include "table/wide.hpp"

namespace rocflash::kernel {

// With a scale as small as this, products q·k may leave float's range where scores are ordinary
// numbers. One at the negative end, -infinity, looks like a hidden key and leaves no trace in the
// outputs, so all queries are computed again, or the kernels take a share of the scale with each operand.
inline bool products_overflow(const Problem& p) {
  return p.scale != 0 && __builtin_fabsf(p.scale) < 0x1p-96f;
}

// How workgroups share the work. They are numbered in one dimension; each computes one block of queries
// of one plane, a pair of sequence and head. The order lets workgroups that read the same keys run where
// and when they share a cache (WorkItem in work.hpp).
struct Work {
  std::int32_t blocks = 0;  // of a sequence: its most rows over those of a tile, rounded up
  std::int32_t groups = 0;
  std::int32_t partitions = 1;  // chips with their own caches that get workgroups in turn: XCDs
  std::int32_t planes_together = 1;  // planes whose blocks alternate, the longest blocks first
};

struct ForwardArguments {
  Problem problem;
  ForwardOutputs outputs;
  Work work;
  std::int32_t caches = 0;  // batches that k and v have: what a block table may name
  // forward_halves: the number in `work` of the launch's first workgroup.
  std::int32_t first_group = 0;
};

// Forward with tiles that the copy engine fetches: boxes of one panel of a tile, or of some of its rows where k and v
// lie in pages that have fewer.
struct ForwardWarpgroupsArguments {
  TensorMap q, k, v;
  ForwardArguments forward;
  // Blocks of queries that a workgroup takes one after the other: one, or two, a long one and a short one
  // of the same planes (BlockTurns in turns.hpp).
  std::int32_t pairs = 0;
  // Of k and v in pages, else 0: rows of a box, which divide those of a page and of a tile; and what ends of tiles are
  // multiples of: the rows of a box, or 1 where a sequence has one page only.
  std::int32_t box_rows = 0, tile_grain = 0;
};

// s_dmask is computed by a kernel of its own.
struct WeightsArguments {
  Problem problem;
  PerScore weights;
  std::int32_t groups = 0;  // workgroups; any number is correct
  std::int32_t caches = 0;
};

// The problem is that before anything is appended.
struct AppendArguments {
  Problem problem;
  Append append;
  std::int32_t* used =
      nullptr;              // gets the keys that each sequence then has; null: as many as before
  Rows q;                   // gets the rotated queries; without data: they are not rotated
  std::int32_t groups = 0;  // workgroups; any number is correct
  std::int32_t caches = 0;
};

// Attention of few queries. Rows are pairs of query and query head that share a key head; a block of
// them goes to `splits` workgroups, which divide the keys among them. Each of those writes one part of the
// results (AMD: each of its waves), normalised on its own. The problem has no sinks: whoever merges the
// parts adds them. Rows of q, k and v are as plain kernels take them, but k and v may lie in pages.
struct DecodeArguments {
  Problem problem;
  Rows out;                   // f32, of part 0; as many columns as the kernel's tile has
  RowStatistic lse;           // of part 0
  std::int64_t out_part = 0;  // from one part to the next, in elements
  std::int64_t lse_part = 0;
  std::int32_t group = 1;   // query heads of a key head
  std::int32_t blocks = 0;  // of rows, for each sequence and key head
  std::int32_t splits = 0;
  std::int32_t caches = 0;
  // Where there is one part only and all rows are in use, results go straight to `outputs`, sinks and all
  // (decode_latent: only if there are no sinks).
  std::int32_t direct = 0;
  ForwardOutputs outputs;
  PerHead sinks;
};

// The same of rows that are keys and values, with tiles that the copy engine fetches: boxes of one panel of a tile, or
// of some of its rows where pages have fewer.
struct LatentWarpgroupsArguments {
  TensorMap k;
  DecodeArguments decode;
  std::int32_t box_rows = 0;  // divides those of a page, and of a tile
};

// Rows whose strides count bytes; `bytes` are those of one.
struct ByteRows {
  const std::byte* data = nullptr;
  std::int64_t batch_stride = 0, row_stride = 0, head_stride = 0;
  std::int32_t bytes = 0;
};

// Attention of few queries over few keys by clusters. Without options: all queries are in use, keys are hidden at their
// end alone, scores are scaled by a positive number and nothing else. What a workgroup needs before its first load
// stands together, in few lines of the constant cache. Workgroups are numbered by block of rows and rank in the
// cluster, key head and sequence.
struct ClusterArguments {
  ByteRows q, k, v;
  const std::int32_t *used_k = nullptr, *blocks = nullptr;
  std::int64_t blocks_stride = 0;
  std::uint32_t page_rows = 0;
  std::int32_t page_shift = -1;  // page_rows as a power of two; -1: it is none
  std::int32_t caches = 0, keys = 0, queries = 0, group = 1, row_blocks = 1;
  std::int32_t cluster = 1;  // workgroups that share a block's keys: a power of two
  std::int32_t hidden =
      0;  // keys at the end that the first query does not see; each further one sees one more
  float unit = 0;            // from products to exponents
  std::int32_t in_runs = 1;  // rows of a tile follow each other, in one page or in none
  std::int32_t quads = 0;    // 1: four columns of the output are one store
  ForwardOutputs outputs;
  PerHead sinks;
  Problem problem;  // for rows that are computed again
};

// The same over many keys: `common.cluster` workgroups, any number, share those of a block of rows, and each writes a
// part of the results in f32, unless there is one. They are numbered by sequence, key head, part and block of rows.
struct LongArguments {
  ClusterArguments common;
  std::int32_t direct = 0;  // 1: one part, whose results are those of the call
  // Of part 0: [sequence][query][head][column] and [sequence][head][query].
  float *out = nullptr, *lse = nullptr;
  std::int64_t out_part = 0, lse_part = 0;  // from one part to the next, in elements
};

// Parts to merge. Where they come from decode, the problem says which rows are in use and has the sinks.
struct CombineArguments {
  Parts parts;
  Problem problem;
  std::int32_t of_problem = 0;  // 1: the problem counts
  std::int32_t blocks = 1;      // of columns, each as wide as a wave takes
  std::int32_t slices = 1;      // waves that share a block of a row: a power of two
  std::int32_t groups = 0;      // workgroups; any number is correct
};

// Sixteen bytes at a time; where all of them folded are `wanted`, that is told.
struct ReadArguments {
  const std::byte* data = nullptr;
  std::int64_t chunks = 0;
  std::uint32_t* found = nullptr;
  std::uint32_t wanted = 0;
  std::int32_t groups = 0;  // workgroups; any number is correct
};

// What all kernels of backward are given: they share one struct.
struct BackwardArguments {
  Problem problem;
  BackwardTensors tensors;
  Work work;           // its blocks are of queries or of keys, as the kernel owns
  RowStatistic delta;  // dout·out, divided by dropout's scale: one kernel writes it, others read it
  Rows dq_sums;        // f32, as dq: what backward_fused adds to and backward_round reads
  RowStatistic slope_sums;  // of dalibi, per sequence, head and block of queries
  // The order of dq_sums on NVIDIA (kernels/backward/dq_sums.hpp), and whether workgroups take turns at them.
  std::int32_t sums_by_lane = 0;
  // Hopper: per plane of keys, how many have reported that their additions to dq are done, and how many will
  // (kernels/backward/planes.hpp). gfx10: how many workgroups have started (kernels/backward/amd_in_turn.hpp). Null: nobody
  // counts.
  std::int32_t reports = 0;
  std::uint32_t* planes = nullptr;
};

// Backward with tiles that the copy engine fetches: boxes of one panel of a tile.
struct BackwardWarpgroupsArguments {
  TensorMap q, dout, k, v;
  BackwardArguments backward;
};

// What the kernels of an operation are given: the entry declares them so, and the host's plan fills
// it in.
template <Operation operation>
struct ArgumentsChoice;
template <Operation operation>
  requires(is_backward(operation) || (is_wide(operation) && operation != Operation::forward_wide))
struct ArgumentsChoice<operation> {
  using Type = BackwardArguments;
};
template <>
struct ArgumentsChoice<Operation::forward> {
  using Type = ForwardArguments;
};
template <>
struct ArgumentsChoice<Operation::forward_halves> {
  using Type = ForwardArguments;
};
template <>
struct ArgumentsChoice<Operation::forward_warpgroups> {
  using Type = ForwardWarpgroupsArguments;
};
template <>
struct ArgumentsChoice<Operation::forward_pages> {
  using Type = ForwardWarpgroupsArguments;
};
template <>
struct ArgumentsChoice<Operation::backward_warpgroups> {
  using Type = BackwardWarpgroupsArguments;
};
template <>
struct ArgumentsChoice<Operation::backward_warpgroups_large> {
  using Type = BackwardWarpgroupsArguments;
};
template <>
struct ArgumentsChoice<Operation::forward_wide> {
  using Type = ForwardArguments;
};
template <>
struct ArgumentsChoice<Operation::weights> {
  using Type = WeightsArguments;
};
template <>
struct ArgumentsChoice<Operation::append> {
  using Type = AppendArguments;
};
template <>
struct ArgumentsChoice<Operation::decode> {
  using Type = DecodeArguments;
};
template <>
struct ArgumentsChoice<Operation::decode_latent> {
  using Type = DecodeArguments;
};
template <>
struct ArgumentsChoice<Operation::latent_warpgroups> {
  using Type = LatentWarpgroupsArguments;
};
template <>
struct ArgumentsChoice<Operation::decode_wide> {
  using Type = DecodeArguments;
};
template <>
struct ArgumentsChoice<Operation::read_memory> {
  using Type = ReadArguments;
};
template <>
struct ArgumentsChoice<Operation::decode_long> {
  using Type = LongArguments;
};
template <>
struct ArgumentsChoice<Operation::decode_clusters> {
  using Type = ClusterArguments;
};
template <>
struct ArgumentsChoice<Operation::combine> {
  using Type = CombineArguments;
};
template <>
struct ArgumentsChoice<Operation::combine_early> {
  using Type = CombineArguments;
};
template <Operation operation>
using ArgumentsOf = typename ArgumentsChoice<operation>::Type;

// The device lays structs out as the host does; a difference would show here first.
static_assert(sizeof(void*) == 8 && sizeof(Problem) % 8 == 0 && alignof(Problem) == 8);

}  // namespace rocflash::kernel
