#include "gpu/plan/weights.hpp"

#include "gpu/plan/sequences.hpp"

namespace rocflash::gpu {

void plan_weights(Plan& plan, const Problem& p, const ForwardOutputs& outputs, Chip chip) {
  // Without sequences, or without keys, there are no weights.
  if (!outputs.s_dmask || is_without_sequences(p) || p.max_k == 0) return;
  const Size rows = Size(p.batch()) * p.heads * p.max_q;
  // The kernel strides over the rows, so a bounded grid serves any number of them.
  constexpr std::int64_t most_groups = 1 << 16, widest_wave = 64;
  constexpr std::int64_t rows_together = kernel::weights_tile.threads / widest_wave;
  const std::int64_t groups = divide_up(rows.at_most(most_groups * rows_together), rows_together);
  if (groups == 0) return;
  plan.next<kernel::Operation::weights>() = {.problem = p,
                                             .weights = outputs.s_dmask,
                                             .groups = static_cast<std::int32_t>(groups),
                                             .caches = caches_of(p)};
  plan.add(kernel::weights_spec(p.dtype), chip.family, groups);
}

}  // namespace rocflash::gpu
