#include "gpu/plan/cluster_decode.hpp"

#include <algorithm>
#include <bit>
#include <numbers>

#include "gpu/dispatch/sequences.hpp"
#include "gpu/dispatch/splits.hpp"
#include "gpu/plan/combine.hpp"
#include "gpu/plan/scratch.hpp"

namespace rocflash::gpu {
namespace {

using kernel::Op;
using kernel::Schedule;

kernel::ByteStridedRows in_bytes(const Rows& rows) {
  const auto size = static_cast<std::int64_t>(size_of(rows.dtype));
  return {rows.data, rows.batch_stride * size, rows.row_stride * size, rows.head_stride * size,
          static_cast<std::int32_t>(rows.columns * size)};
}

// The arguments that both kernels share.
void fill_common(kernel::ClusterArguments& a, const DecodeSelection& s, const Problem& p,
                 const ForwardOutputs& outputs) {
  const Lengths& l = p.lengths;
  a.q = in_bytes(p.q);
  a.k = in_bytes(p.k);
  a.v = in_bytes(p.v);
  a.used_k = l.used_k;
  a.blocks = p.k.blocks;
  a.blocks_stride = p.k.blocks_stride;
  a.page_rows = static_cast<std::uint32_t>(std::min(p.k.block_rows, max_sm90_rows));
  if (std::has_single_bit(a.page_rows)) a.page_shift = std::countr_zero(a.page_rows);
  a.contiguous_tiles =
      !p.k.blocks || p.k.block_rows % s.tile.keys == 0 || p.k.block_rows >= l.rows_k;
  a.caches = caches_of(p);
  a.keys = static_cast<std::int32_t>(keys_of(p));
  a.queries = static_cast<std::int32_t>(sequence_rows(l, p.max_q));
  a.gqa_group = static_cast<std::int32_t>(p.gqa_group());
  a.row_blocks = static_cast<std::int32_t>(s.row_blocks);
  a.cluster = s.splits;
  if (p.visibility.right >= 0)
    a.masked_tail =
        static_cast<std::int32_t>(std::max<std::int64_t>(a.queries - 1 - p.visibility.right, 0));
  a.scale_log2 = p.scale * std::numbers::log2e_v<float>;
  const Rows& out = outputs.out;
  a.quads = reinterpret_cast<std::uintptr_t>(out.data) % 8 == 0 &&
            (out.batch_stride | out.row_stride | out.head_stride) % 4 == 0;
  a.outputs = outputs;
  a.sinks = p.sinks;
  a.problem = p;
  a.problem.sinks = {};  // non-finite rows are recomputed per warp, before the sinks are added
}

}  // namespace

void plan_cluster_decode(Plan& plan, const DecodeSelection& s, const Problem& p,
                         const ForwardOutputs& outputs) {
  auto& a = plan.next<Op::decode, Schedule::cluster>();
  fill_common(a, s, p, outputs);
  plan.add(s.kernel, s.family, std::int64_t{a.row_blocks} * a.cluster);
  LaunchShape& shape = plan.shape();
  shape.grid_y = static_cast<std::uint32_t>(p.kv_heads);
  shape.grid_z = static_cast<std::uint32_t>(p.batch());
  shape.cluster = static_cast<std::uint32_t>(a.cluster);
  shape.pdl = true;
}

void plan_sm90_splitkv(Plan& plan, const DecodeSelection& s, const Problem& p,
                       const ForwardOutputs& outputs, std::byte* workspace, Chip chip) {
  const std::int32_t splits = s.splits;
  auto& a = plan.next<Op::decode, Schedule::splitkv>();
  fill_common(a.common, s, p, outputs);
  a.direct = !s.combines;
  const std::int64_t queries = a.common.queries;
  const Size lse_split_stride = Size(p.batch()) * p.heads * queries,
             out_split_stride = lse_split_stride * s.tile.columns;
  if (!a.direct) {
    Scratch scratch(plan.workspace, workspace);
    a.out = reinterpret_cast<float*>(scratch.floats(out_split_stride * splits));
    a.lse = reinterpret_cast<float*>(scratch.floats(lse_split_stride * splits));
    if (!plan.workspace.fits()) return;  // the caller rejects the size
    a.common.sinks = {};
    a.out_split_stride = out_split_stride.value();
    a.lse_split_stride = lse_split_stride.value();
  }
  plan.add(s.kernel, s.family, std::int64_t{splits} * a.common.row_blocks * p.batch() * p.kv_heads);
  plan.shape().pdl = true;
  if (a.direct) return;
  const std::int64_t row_stride = p.heads * s.tile.columns;
  const Partials partial{.splits = splits,
                         .batch = p.batch(),
                         .queries = queries,
                         .heads = p.heads,
                         .columns = p.value_dim,
                         .out_partial = a.out,
                         .out_partial_stride = {a.out_split_stride, queries * row_stride,
                                                row_stride, s.tile.columns, 1},
                         .lse_partial = a.lse,
                         .lse_partial_stride = {a.lse_split_stride, p.heads * queries, queries, 1}};
  plan_split_combine(plan, partial, outputs, p, s.features, chip);
}

}  // namespace rocflash::gpu
