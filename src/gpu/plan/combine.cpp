#include "gpu/plan/combine.hpp"

#include "gpu/dispatch/select.hpp"

namespace rocflash::gpu {
namespace {

void add_combine(Plan& plan, const Partials& partials, const Problem* problem,
                 const CombineSelection& s) {
  if (s.workgroups == 0) return;
  kernel::CombineArguments& a = plan.next<kernel::Op::combine>();
  a.partials = partials;
  if (problem) {
    a.problem = *problem;
    a.from_decode = 1;
  }
  a.blocks = s.blocks;
  a.slices = s.slices;
  // The kernel of wide rows has no grid-stride loop.
  if (s.kernel.bucket != kernel::wide_columns)
    a.workgroups = static_cast<std::int32_t>(s.workgroups);
  plan.add(s.kernel, s.family, s.workgroups);
  plan.shape().pdl = s.pdl;
}

}  // namespace

void plan_combine(Plan& plan, const Partials& partials, Chip chip) {
  add_combine(plan, partials, nullptr, select(partials, std::nullopt, chip));
}

void plan_split_combine(Plan& plan, Partials partials, const ForwardOutputs& outputs,
                        const Problem& problem, Features features, Chip chip) {
  const Rows& to = outputs.out;
  partials.out = to.data;
  partials.out_dtype = to.dtype;
  partials.out_stride[0] = to.batch_stride;
  partials.out_stride[1] = to.row_stride;
  partials.out_stride[2] = to.head_stride;
  partials.out_stride[3] = 1;
  partials.lse = outputs.lse.data;
  partials.lse_stride[0] = outputs.lse.batch_stride;
  partials.lse_stride[1] = outputs.lse.head_stride;
  partials.lse_stride[2] = outputs.lse.query_stride;
  add_combine(plan, partials, &problem, select(partials, features, chip));
}

}  // namespace rocflash::gpu
