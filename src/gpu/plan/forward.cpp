#include "gpu/plan/forward.hpp"

#include <algorithm>

#include "gpu/dispatch/prepare.hpp"
#include "gpu/dispatch/sequences.hpp"

namespace rocflash::gpu {
namespace {

using kernel::Op;
using kernel::Schedule;

void add_warp_specialized(Plan& plan, const kernel::ForwardArguments forward,
                          const ForwardSelection& s, Chip chip) {
  const Problem& p = forward.problem;
  auto& a = plan.next<Op::forward,
                      Schedule::warp_specialized>();  // may overwrite `forward`, hence the copy
  a.forward = forward;
  a.pairs = s.pairs;
  plan.add_tensor_map(with_box(s.q, s.kernel.bucket, s.query_box, a.q));
  plan.add_tensor_map(with_box(s.k, s.kernel.bucket, s.key_box, a.k));
  plan.add_tensor_map(with_box(s.v, s.kernel.bucket, s.key_box, a.v));
  if (p.k.blocks) {
    a.box_rows = s.key_box;
    a.tile_grain = p.k.block_rows >= p.lengths.rows_k ? 1 : s.key_box;
  }
  plan.add(s.kernel, s.family, std::min(s.work.workgroups, chip.units));
}

void add_tail_split(Plan& plan, const kernel::ForwardArguments& forward,
                    const ForwardSelection& s) {
  auto& a = plan.next<Op::forward, Schedule::tail_split>();
  a = forward;
  a.work.blocks *= 2;
  a.work.workgroups *= 2;
  a.first_workgroup = static_cast<std::int32_t>(2 * s.tail.first * a.work.xcds);
  plan.add(s.tail_kernel, s.family, a.work.workgroups - a.first_workgroup);
}

}  // namespace

void plan_forward(Plan& plan, const ForwardSelection& s, const Problem& given,
                  const ForwardOutputs& outputs, Chip chip) {
  if (s.work.workgroups == 0) return;
  kernel::ForwardArguments& a = plan.next<Op::forward>();
  a.problem = given;
  a.outputs = outputs;
  a.outputs.s_dmask = {};  // written by the weights kernel
  prepare_forward(a.problem, a.outputs);
  a.caches = caches_of(a.problem);
  a.work = s.work;
  if (s.family == kernel::Family::sm90) return add_warp_specialized(plan, a, s, chip);
  if (s.tail.count == 0) return plan.add(s.kernel, s.family, s.work.workgroups * s.slices);
  const kernel::ForwardArguments common = a;  // overwritten if all blocks are split
  if (s.tail.first > 0) plan.add(s.kernel, s.family, s.tail.first * s.work.xcds);
  add_tail_split(plan, common, s);
}

}  // namespace rocflash::gpu
