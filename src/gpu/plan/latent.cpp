#include "gpu/plan/latent.hpp"

#include <algorithm>

#include "gpu/plan/boxes.hpp"
#include "gpu/plan/sequences.hpp"

namespace rocflash::gpu {
namespace {

using kernel::LatentGroups;
using kernel::Operation;

}  // namespace

int latent_group_rows(const Problem& p, Chip chip) {
  const Lengths& l = p.lengths;
  const bool shaped = p.scale <= 0 || kernel::products_overflow(p) || p.softcap > 0 || p.alibi ||
                      p.bias || p.mask || p.dropout.on();
  if (!chip.warpgroups || shaped || l.packed_k() || l.cu_k || l.leftpad_k || l.rows_k == 0 ||
      copied_rows(p, LatentGroups::keys) == 0 || !box_of_keys(p.k, p))
    return 0;
  const int most = kernel::largest_bucket(Operation::latent_warpgroups, p.dtype);
  const std::int64_t rows = std::min<std::int64_t>(sequence_rows(l, p.max_q) * p.group(), most);
  return kernel::bucket_of(Operation::latent_warpgroups, p.dtype, static_cast<int>(rows),
                           kernel::family_set::sm90);
}

std::int32_t latent_splits(std::int64_t keys, std::int64_t blocks, Chip chip) {
  // A workgroup has a multiprocessor to itself; its start and its end take as long as some tiles, and one more where
  // it has no other one to merge with.
  constexpr std::int64_t ends = 3, most = 512;
  const std::int64_t tiles = divide_up(keys, LatentGroups::keys);
  if (chip.units == 0 || blocks == 0) return 1;
  const auto time = [&](std::int64_t splits) {
    const std::int64_t alone = splits > 1 && !latent_pairs(static_cast<std::int32_t>(splits));
    return divide_up(blocks * splits, chip.units) * (divide_up(tiles, splits) + ends + alone);
  };
  std::int64_t best = 1, shortest = time(1);
  for (std::int64_t n = 2; n <= std::min(tiles / 2, most); ++n) {
    const std::int64_t t = time(n);
    // Of those that take as long, in one round, the one that leaves the fewest multiprocessors idle.
    if (t < shortest || (t == shortest && blocks * n <= chip.units)) {
      shortest = t;
      best = n;
    }
  }
  return static_cast<std::int32_t>(best);
}

bool latent_pairs(std::int32_t splits) { return splits % 2 == 0; }

void map_latent(Plan& plan, kernel::LatentWarpgroupsArguments& a) {
  const Problem& p = a.decode.problem;
  a.box_rows = copied_rows(p, LatentGroups::keys);
  plan.map(
      panel_of(*box_of_keys(p.k, p), kernel::latent_values + kernel::latent_rest, a.box_rows, a.k));
}

}  // namespace rocflash::gpu
