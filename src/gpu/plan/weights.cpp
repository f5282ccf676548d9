#include "gpu/plan/weights.hpp"

#include "gpu/dispatch/sequences.hpp"

namespace rocflash::gpu {

void plan_weights(Plan& plan, const Problem& p, const ForwardOutputs& outputs, Chip chip) {
  // Without sequences or keys s_dmask is empty.
  if (!outputs.s_dmask || has_no_sequences(p) || p.max_k == 0) return;
  const Size rows = Size(p.batch()) * p.heads * p.max_q;
  // The kernel uses a grid-stride loop over the rows, so the grid is bounded.
  constexpr std::int64_t max_workgroups = 1 << 16, max_wave_size = 64;
  constexpr std::int64_t rows_per_workgroup = kernel::weights_tile.threads / max_wave_size;
  const std::int64_t workgroups =
      ceil_div(rows.at_most(max_workgroups * rows_per_workgroup), rows_per_workgroup);
  if (workgroups == 0) return;
  plan.next<kernel::Op::weights>() = {.problem = p,
                                      .weights = outputs.s_dmask,
                                      .workgroups = static_cast<std::int32_t>(workgroups),
                                      .caches = caches_of(p)};
  plan.add(kernel::weights_spec(p.dtype), chip.family, workgroups);
}

}  // namespace rocflash::gpu
