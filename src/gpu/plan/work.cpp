#include "gpu/plan/work.hpp"

#include <algorithm>
#include <limits>

#include "core/error.hpp"

namespace rocflash::gpu {

using kernel::Family;

int partitions(Family family, int units) {
  const int units_each = family == Family::cdna3 ? 38 : family == Family::cdna4 ? 32 : 0;
  return units_each > 0 ? std::max(1, units / units_each) : 1;
}

// Under a causal mask short blocks then fill the end of a launch. But planes that take turns need
// room for their keys and values in the cache that all of the chip shares, which on NVIDIA's larger
// ones is at least 40 MiB.
std::int32_t planes_together(const Problem& p, Family family) {
  if (kernel::vendor_of(family) != kernel::Vendor::nvidia) return 1;
  constexpr std::int64_t cache_bytes = 32 << 20, most = 1 << 16;
  const std::int64_t plane_bytes =
      p.max_k * (p.head_dim + p.value_dim) * static_cast<std::int64_t>(size_of(p.dtype));
  const std::int64_t fit =
      cache_bytes / std::max<std::int64_t>(plane_bytes, 1) * std::min(p.group(), most);
  return static_cast<std::int32_t>(
      std::clamp<std::int64_t>(std::min(fit, p.batch() * p.heads), 1, most));
}

kernel::Work share_work(const Problem& p, std::int64_t heads, std::int64_t rows, int tile_rows,
                        int threads, Chip chip) {
  const std::int64_t blocks = divide_up(rows, tile_rows);
  const std::int64_t most =
      std::min<std::int64_t>(std::numeric_limits<std::int32_t>::max(),
                             std::numeric_limits<std::uint32_t>::max() / threads);
  const Size groups = Size(blocks) * p.batch() * heads;
  if (!groups.fits() || groups.value() > most)
    refuse_unsupported("q: ", p.batch(), " sequences of ", rows, " rows and ", heads,
                       " heads make ", blocks, " blocks of ", tile_rows, " rows each; a GPU takes ",
                       most, " in all");
  return {.blocks = static_cast<std::int32_t>(blocks),
          .groups = static_cast<std::int32_t>(groups.value()),
          .partitions = partitions(chip.family, chip.units),
          .planes_together = planes_together(p, chip.family)};
}

}  // namespace rocflash::gpu
