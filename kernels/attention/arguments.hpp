// Kernel arguments. The launch plan fills these structs on the host and kernels read them, so both
// compile this header. The problem has passed the validation of the C ABI.
//
// Sequence lengths, block tables and cache indices are in device memory, which the host does not
// read. Kernels do not trust them: sequence.hpp clamps them to the extents of the tensors.
#pragma once

#include <cstdint>

#include "arch/tensor_map.hpp"
#include "core/new_keys.hpp"
#include "core/partials.hpp"
#include "core/problem.hpp"
#include "table/backward.hpp"
#include "table/feature.hpp"
#include "table/fp32.hpp"

namespace rocflash::kernel {

// With so small a scale, q·k may overflow although the score is finite. An overflow to -infinity is
// indistinguishable from a masked key. So all rows are recomputed, or the kernels apply part of the
// scale to each operand.
inline bool products_overflow(const Problem& p) {
  return p.scale != 0 && __builtin_fabsf(p.scale) < 0x1p-96f;
}

// Parameters of the tile scheduler (WorkTile in work_tile.hpp). The grid is one-dimensional; a work
// tile is one block of queries of one (batch, head) slice. The order lets workgroups that read the
// same K and V run at the same time on the same L2.
struct TileSchedulerParams {
  std::int32_t blocks = 0;  // work tiles per slice: max seqlen over tile rows, rounded up
  std::int32_t workgroups = 0;
  std::int32_t xcds = 1;           // dies with an L2 each; workgroups are dispatched round-robin
  std::int32_t bh_interleave = 1;  // slices whose work tiles alternate, in LPT order
};

struct ForwardArguments {
  Problem problem;
  ForwardOutputs outputs;
  TileSchedulerParams work;
  std::int32_t caches = 0;  // pages, or batch entries, of the KV cache: bound of its indices
  // The tail split: scheduler index of the launch's first workgroup.
  std::int32_t first_workgroup = 0;
};

// Warp-specialized forward with TMA loads. A TMA box is one swizzled column block of a tile; with a
// paged KV cache it has fewer rows where a page has fewer.
struct ForwardWarpSpecializedArguments {
  TensorMap q, k, v;
  ForwardArguments forward;
  // 1: the persistent kernel pairs a long and a short work tile of the same slices (TileScheduler
  // in tile_scheduler.hpp).
  std::int32_t pairs = 0;
  // Paged KV cache, else 0. box_rows divides the rows of a page and of a tile. Tile ends are
  // multiples of tile_grain: box_rows, or 1 where a sequence has a single page.
  std::int32_t box_rows = 0, tile_grain = 0;
};

// s_dmask: the attention probabilities, written by a separate kernel.
struct WeightsArguments {
  Problem problem;
  PerScore weights;
  std::int32_t workgroups = 0;  // grid-stride loop: any number is correct
  std::int32_t caches = 0;
};

// The problem describes the KV cache before the append.
struct AppendArguments {
  Problem problem;
  Append append;
  std::int32_t* used = nullptr;  // output: seqlens after the append; null: unchanged
  Rows q;                        // output: Q with RoPE applied; no data: no rotation
  std::int32_t workgroups = 0;   // grid-stride loop: any number is correct
  std::int32_t caches = 0;
};

// Split-KV decode. Rows are packed GQA rows: (query, head) pairs that share a KV head. `splits`
// workgroups divide the keys of a block of rows. Each workgroup (AMD: each of its waves) writes a
// normalized partial result. The problem has no sinks; the combine kernel adds them. Q, K and V are
// aligned as for specialized kernels, and K and V may be paged.
struct DecodeArguments {
  Problem problem;
  Rows out;          // FP32 partial results of split 0; columns of the kernel's tile
  RowStatistic lse;  // of split 0
  std::int64_t out_split_stride = 0;  // in elements
  std::int64_t lse_split_stride = 0;
  std::int32_t gqa_group = 1;  // query heads per KV head
  std::int32_t blocks = 0;     // blocks of packed rows per (batch, KV head)
  std::int32_t splits = 0;
  std::int32_t caches = 0;
  // 1: a single partial result, and all rows are valid. The kernel writes `outputs` itself, with
  // sinks (decode_mla: only without sinks); no combine kernel runs.
  std::int32_t direct = 0;
  ForwardOutputs outputs;
  PerHead sinks;
};

// MLA decode with TMA loads of the latent KV cache. Boxes as in ForwardWarpSpecializedArguments.
struct MlaWarpSpecializedArguments {
  TensorMap k;
  DecodeArguments decode;
  std::int32_t box_rows = 0;  // divides the rows of a page and of a tile
};

// Rows with strides in bytes; `bytes` is the length of one row.
struct ByteStridedRows {
  const std::byte* data = nullptr;
  std::int64_t batch_stride = 0, row_stride = 0, head_stride = 0;
  std::int32_t bytes = 0;
};

// Decode over short KV caches by clusters, which combine through DSMEM. Specialized: all queries
// are valid, only the causal tail is masked, the scale is positive, no score modifiers. The fields
// that precede the first load come first, in few lines of the constant cache. The grid is (row
// block and cluster rank, KV head, batch).
struct ClusterArguments {
  ByteStridedRows q, k, v;
  const std::int32_t *used_k = nullptr, *blocks = nullptr;
  std::int64_t blocks_stride = 0;
  std::uint32_t page_rows = 0;
  std::int32_t page_shift = -1;  // log2(page_rows); -1: not a power of two
  std::int32_t caches = 0, keys = 0, queries = 0, gqa_group = 1, row_blocks = 1;
  std::int32_t cluster = 1;      // CTAs that divide the keys of a row block: a power of two
  std::int32_t masked_tail = 0;  // keys at the end masked for query 0; one fewer per further query
  float scale_log2 = 0;          // softmax scale times log2(e)
  std::int32_t contiguous_tiles = 1;  // 1: no tile crosses a page boundary
  std::int32_t quads = 0;             // 1: vectorized stores of four output columns
  ForwardOutputs outputs;
  PerHead sinks;
  Problem problem;  // for the recomputation of non-finite rows
};

// Split-KV decode over long KV caches: `common.cluster` CTAs, any number, are the splits of a row
// block. Each writes an FP32 partial result, unless there is one split only. The grid index is
// batch, KV head, split, row block, the last one fastest.
struct SplitKvArguments {
  ClusterArguments common;
  std::int32_t direct = 0;  // 1: one split; the kernel writes the outputs itself
  // Of split 0: [batch][query][head][column] and [batch][head][query].
  float *out = nullptr, *lse = nullptr;
  std::int64_t out_split_stride = 0,
               lse_split_stride = 0;  // in elements
};

// Partial results to combine with LSE weights. From decode, the problem gives the valid rows and
// sinks.
struct CombineArguments {
  Partials partials;
  Problem problem;
  std::int32_t from_decode = 0;  // 1: `problem` is set
  std::int32_t blocks = 1;       // column blocks of a row, one wave wide each
  std::int32_t slices = 1;       // waves that divide the splits of a column block: a power of two
  std::int32_t workgroups = 0;   // grid-stride loop: any number is correct
};

// Bandwidth reference: reads 16-byte chunks and XORs them; stores to `found` if the result is
// `wanted`.
struct ReadArguments {
  const std::byte* data = nullptr;
  std::int64_t chunks = 0;
  std::uint32_t* found = nullptr;
  std::uint32_t wanted = 0;
  std::int32_t workgroups = 0;  // grid-stride loop: any number is correct
};

// Shared by all kernels of the backward pass.
struct BackwardArguments {
  Problem problem;
  BackwardTensors tensors;
  TileSchedulerParams work;  // blocks of queries or of keys, as the kernel owns
  RowStatistic delta;        // (rowsum(dO·O) − dlse) / dropout scale, from preprocess
  Rows dq_accum;  // FP32 accumulator of the fused kernel, converted by backward_postprocess
  RowStatistic dalibi_partial;  // per batch, head and block of queries
  // For rows whose LSE does not determine the weights (core/lse.hpp): P = exp(S − row_max) ·
  // row_share. The preprocess kernels write them.
  RowStatistic row_max, row_share;
  // sm_90a: −lse · log2(e) as the main kernel reads it, from preprocess. NaN where the LSE does not
  // determine the weights. The check costs the main kernel 15 % at head dimension 64.
  RowStatistic minus_lse_log2;
  // Layout of dq_accum on NVIDIA (kernels/backward/dq_accumulator.hpp), or dq_accum_ordered.
  std::int32_t dq_accum_layout = 0;
  // Hopper: counters of completed dQ reductions per (batch, KV head) slice, and the count to wait
  // for (kernels/backward/sm90_pdl.hpp). gfx10: tickets of started workgroups
  // (kernels/backward/rdna2_dq_ordered.hpp). Null: not counted.
  std::int32_t reports = 0;
  std::uint32_t* bh_counters = nullptr;
  RowStatistic dlse;  // gradient of lse, null: none; only preprocess reads it
};

// Warp-specialized backward with TMA loads; a box is one swizzled column block of a tile.
struct BackwardWarpSpecializedArguments {
  TensorMap q, dout, k, v;
  BackwardArguments backward;
};

// Argument type of each operation, for all its schedules or for one: the kernel's parameter, which
// the launch plan fills in.
template <Op op, Schedule schedule>
struct ArgumentsTrait;
template <Schedule schedule>
struct ArgumentsTrait<Op::forward, schedule> {
  using Type = ForwardArguments;
};
template <>
struct ArgumentsTrait<Op::forward, Schedule::warp_specialized> {
  using Type = ForwardWarpSpecializedArguments;
};
template <>
struct ArgumentsTrait<Op::forward, Schedule::warp_specialized_paged> {
  using Type = ForwardWarpSpecializedArguments;
};
template <Schedule schedule>
struct ArgumentsTrait<Op::weights, schedule> {
  using Type = WeightsArguments;
};
template <Schedule schedule>
struct ArgumentsTrait<Op::append, schedule> {
  using Type = AppendArguments;
};
template <Schedule schedule>
struct ArgumentsTrait<Op::decode, schedule> {
  using Type = DecodeArguments;
};
template <>
struct ArgumentsTrait<Op::decode, Schedule::cluster> {
  using Type = ClusterArguments;
};
template <>
struct ArgumentsTrait<Op::decode, Schedule::splitkv> {
  using Type = SplitKvArguments;
};
template <Schedule schedule>
struct ArgumentsTrait<Op::decode_mla, schedule> {
  using Type = DecodeArguments;
};
template <>
struct ArgumentsTrait<Op::decode_mla, Schedule::warp_specialized> {
  using Type = MlaWarpSpecializedArguments;
};
template <Schedule schedule>
struct ArgumentsTrait<Op::combine, schedule> {
  using Type = CombineArguments;
};
template <Schedule schedule>
struct ArgumentsTrait<Op::read_memory, schedule> {
  using Type = ReadArguments;
};
template <Op op, Schedule schedule>
  requires(is_backward(op))
struct ArgumentsTrait<op, schedule> {
  using Type = BackwardArguments;
};
template <>
struct ArgumentsTrait<Op::backward, Schedule::warp_specialized> {
  using Type = BackwardWarpSpecializedArguments;
};
template <>
struct ArgumentsTrait<Op::backward, Schedule::warp_specialized_large> {
  using Type = BackwardWarpSpecializedArguments;
};
template <Op op, Schedule schedule = Schedule::tiled>
using ArgumentsOf = typename ArgumentsTrait<op, schedule>::Type;

// Host and device must agree on the layout.
static_assert(sizeof(void*) == 8 && sizeof(Problem) % 8 == 0 && alignof(Problem) == 8);

}  // namespace rocflash::kernel
