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
  a.slices = combine_slices(parts.parts, items, chip);
  // The kernel strides over the rows, so a bounded grid serves any number of them.
  constexpr std::int64_t most_groups = 1 << 16;
  a.groups = static_cast<std::int32_t>(std::min(divide_up(items, waves / a.slices), most_groups));
  if (problem && chip.warpgroups) {  // the launch before is decode's
    const Lengths& lengths = problem->lengths;
    // One workgroup per block of rows there, and strides of its own making.
    const bool wide = parts.columns > kernel::narrow_columns && !lengths.packed_q() &&
                      !lengths.used_q && divide_up(items, waves / a.slices) <= most_groups &&
                      (parts.out_partial_stride[0] | parts.out_partial_stride[3]) % 4 == 0;
    plan.add(
        kernel::combine_spec(kernel::Operation::combine_early, wide ? kernel::wide_columns : 0),
        kernel::Family::sm90, a.groups);
    plan.shape().early = true;
  } else {
    plan.add(kernel::combine_spec(), chip.family, a.groups);
  }
}

}  // namespace rocflash::gpu
