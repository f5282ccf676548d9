#include "gpu/plan/combine.hpp"

#include <algorithm>

namespace rocflash::gpu {

int combine_slices(std::int64_t parts, std::int64_t items, Chip chip) {
  const int waves = kernel::combine_tile.threads / kernel::facts_of(chip.family).wave;
  constexpr std::int64_t waves_per_unit = 16;  // enough to keep a unit busy
  int slices = 1;
  while (2 * slices <= waves && 2 * slices <= parts && items * slices < chip.units * waves_per_unit)
    slices *= 2;
  return slices;
}

namespace {

// Each wave has all of its parts on their way at once, if there are waves for it.
int wide_slices(std::int64_t parts, int waves) {
  int slices = 1;
  while (2 * slices <= waves && 2 * slices * kernel::wide_parts <= parts) slices *= 2;
  return slices;
}

}  // namespace

void plan_combine(Plan& plan, const Parts& parts, const Problem* problem, Chip chip) {
  // Not more than the elements of out, which are counted in 64 bits.
  const std::int64_t rows = parts.columns == 0 ? 0 : parts.batch * parts.queries * parts.heads;
  if (rows == 0) return;
  kernel::CombineArguments& a = plan.next<kernel::Operation::combine>();
  a.parts = parts;
  if (problem) {
    a.problem = *problem;
    a.of_problem = 1;
  }
  const int wave = kernel::facts_of(chip.family).wave, waves = kernel::combine_tile.threads / wave;
  a.blocks = static_cast<std::int32_t>(divide_up(parts.columns, 4 * wave));
  const std::int64_t items = rows * a.blocks;  // no more than elements of out either
  // Rows of latent decode have a kernel of their own, with a workgroup for each block of rows.
  constexpr std::int64_t most_wide_items = 1 << 24;
  const bool wide = problem && chip.warpgroups && parts.columns > kernel::narrow_columns &&
                    !problem->lengths.packed_q() && !problem->lengths.used_q &&
                    items <= most_wide_items &&
                    (parts.out_partial_stride[0] | parts.out_partial_stride[3]) % 4 == 0;
  a.slices = wide ? wide_slices(parts.parts, waves) : combine_slices(parts.parts, items, chip);
  if (wide) {
    plan.add(kernel::combine_spec(kernel::Operation::combine_early, kernel::wide_columns),
             kernel::Family::sm90, divide_up(items, waves / a.slices));
    plan.shape().early = true;
    return;
  }
  // The kernel strides over the rows, so a bounded grid serves any number of them.
  constexpr std::int64_t most_groups = 1 << 16;
  a.groups = static_cast<std::int32_t>(std::min(divide_up(items, waves / a.slices), most_groups));
  if (problem && chip.warpgroups) {  // the launch before is decode's
    plan.add(kernel::combine_spec(kernel::Operation::combine_early), kernel::Family::sm90,
             a.groups);
    plan.shape().early = true;
  } else {
    plan.add(kernel::combine_spec(), chip.family, a.groups);
  }
}

void plan_merge(Plan& plan, Parts parts, const ForwardOutputs& outputs, const Problem& problem,
                Chip chip) {
  const Rows& to = outputs.out;
  parts.out = to.data;
  parts.out_dtype = to.dtype;
  parts.out_stride[0] = to.batch_stride;
  parts.out_stride[1] = to.row_stride;
  parts.out_stride[2] = to.head_stride;
  parts.out_stride[3] = 1;
  parts.lse = outputs.lse.data;
  parts.lse_stride[0] = outputs.lse.batch_stride;
  parts.lse_stride[1] = outputs.lse.head_stride;
  parts.lse_stride[2] = outputs.lse.query_stride;
  plan_combine(plan, parts, &problem, chip);
}

}  // namespace rocflash::gpu
