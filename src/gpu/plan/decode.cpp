#include "gpu/plan/decode.hpp"

#include "gpu/dispatch/prepare.hpp"
#include "gpu/dispatch/sequences.hpp"
#include "gpu/dispatch/splits.hpp"
#include "gpu/plan/cluster_decode.hpp"
#include "gpu/plan/combine.hpp"
#include "gpu/plan/scratch.hpp"

namespace rocflash::gpu {
namespace {

using kernel::DecodeTile;
using kernel::Op;
using kernel::Schedule;

// The arguments of the next launch, with the tensor map of the latent KV cache if the kernel has
// one.
kernel::DecodeArguments& next_decode(Plan& plan, const DecodeSelection& s) {
  if (!s.mla_warp_specialized()) return plan.next<Op::decode>();
  auto& a = plan.next<Op::decode_mla, Schedule::warp_specialized>();
  a.box_rows = s.key_box;
  plan.add_tensor_map(with_box(s.k, kernel::mla_values + kernel::mla_rest, s.key_box, a.k));
  return a.decode;
}

void add_launch(Plan& plan, const DecodeSelection& s, const Problem& p) {
  plan.add(s.kernel, s.family, total_row_blocks(p, s.tile).value() * s.splits);
  plan.shape().pdl = s.family == kernel::Family::sm90;
  plan.shape().cluster = static_cast<std::uint32_t>(s.cluster);
}

}  // namespace

void plan_decode(Plan& plan, const DecodeSelection& s, const Problem& given,
                 const ForwardOutputs& outputs, std::byte* workspace, Chip chip) {
  if (s.uses(Schedule::cluster))
    return plan_cluster_decode(plan, s, decode_problem(given), outputs);
  if (s.uses(Schedule::splitkv))
    return plan_sm90_splitkv(plan, s, decode_problem(given), outputs, workspace, chip);
  const DecodeTile& tile = s.tile;
  kernel::DecodeArguments& a = next_decode(plan, s);
  a.problem = decode_problem(given);
  Problem& p = a.problem;
  p.sinks = {};
  const Lengths& l = p.lengths;
  a.gqa_group = static_cast<std::int32_t>(p.gqa_group());
  a.blocks = static_cast<std::int32_t>(s.row_blocks);
  a.splits = s.splits;
  a.caches = caches_of(p);
  const std::int64_t partials = s.partials;
  if (!s.combines) {
    a.direct = 1;
    a.outputs = outputs;
    a.sinks = given.sinks;
    add_launch(plan, s, p);
    return;
  }

  // Packed (varlen) tensors have one batch that holds all sequences.
  const std::int64_t batches = l.packed_q() ? 1 : p.batch();
  // Each partial lse is two floats (kernels/attention/split_lse.hpp).
  const Size rows = Size(batches) * p.heads * l.rows_q, lse_split_stride = rows * 2,
             out_split_stride = rows * tile.columns;
  Scratch scratch(plan.workspace, workspace);
  std::byte* out = scratch.floats(out_split_stride * partials);
  std::byte* lse = scratch.floats(lse_split_stride * partials);
  if (!plan.workspace.fits()) return;  // the caller rejects the size
  a.out_split_stride = out_split_stride.value();
  a.lse_split_stride = lse_split_stride.value();
  const std::int64_t row_stride = p.heads * tile.columns;
  a.out = {.data = out,
           .dtype = DType::f32,
           .batch_stride = l.packed_q() ? 0 : l.rows_q * row_stride,
           .row_stride = row_stride,
           .head_stride = tile.columns,
           .columns = tile.columns};
  a.lse = {reinterpret_cast<float*>(lse), l.packed_q() ? 0 : 2 * p.heads * l.rows_q, 2 * l.rows_q,
           2};
  add_launch(plan, s, p);

  const Partials partial{
      .splits = partials,
      .batch = batches,
      .queries = l.rows_q,
      .heads = p.heads,
      .columns = p.value_dim,
      .out_partial = reinterpret_cast<const float*>(out),
      .out_partial_stride = {a.out_split_stride, a.out.batch_stride, row_stride, tile.columns, 1},
      .lse_partial = reinterpret_cast<const float*>(lse),
      .lse_partial_stride = {a.lse_split_stride, a.lse.batch_stride, a.lse.head_stride,
                             a.lse.query_stride}};
  plan_split_combine(plan, partial, outputs, given, s.features, chip);
}

}  // namespace rocflash::gpu
