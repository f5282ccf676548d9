#include "gpu/dispatch/tile_schedule.hpp"

#include <algorithm>
#include <limits>

#include "core/error.hpp"
#include "core/sizes.hpp"

namespace rocflash::gpu {

using kernel::Family;

int partitions(Family family, int units) {
  const int xcd_units = family == Family::cdna3 ? 38 : family == Family::cdna4 ? 32 : 0;
  return xcd_units > 0 ? std::max(1, units / xcd_units) : 1;
}

// Under a causal mask, LPT order fills the tail of a launch with short blocks. The K and V of the
// interleaved slices should fit in L2, which is at least 40 MiB on NVIDIA's data-center GPUs.
std::int32_t bh_interleave(const Problem& p, Family family) {
  if (kernel::vendor_of(family) != kernel::Vendor::nvidia) return 1;
  constexpr std::int64_t l2_bytes = 32 << 20, max_interleave = 1 << 16;
  const std::int64_t kv_bytes =
      p.max_k * (p.head_dim + p.value_dim) * static_cast<std::int64_t>(size_of(p.dtype));
  const std::int64_t fit =
      l2_bytes / std::max<std::int64_t>(kv_bytes, 1) * std::min(p.gqa_group(), max_interleave);
  return static_cast<std::int32_t>(
      std::clamp<std::int64_t>(std::min(fit, p.batch() * p.heads), 1, max_interleave));
}

kernel::TileSchedulerParams schedule_tiles(const Problem& p, std::int64_t heads, std::int64_t rows,
                                           int tile_rows, int threads, Chip chip) {
  const std::int64_t blocks = ceil_div(rows, tile_rows);
  const std::int64_t max_workgroups =
      std::min<std::int64_t>(std::numeric_limits<std::int32_t>::max(),
                             std::numeric_limits<std::uint32_t>::max() / threads);
  const Size workgroups = Size(blocks) * p.batch() * heads;
  if (!workgroups.fits() || workgroups.value() > max_workgroups)
    refuse_unsupported("q has ", p.batch(), " sequences of ", rows, " rows and ", heads,
                       " heads, which need ", blocks, " workgroups of ", tile_rows,
                       " rows for each sequence and head; a launch has at most ", max_workgroups,
                       " in all");
  return {.blocks = static_cast<std::int32_t>(blocks),
          .workgroups = static_cast<std::int32_t>(workgroups.value()),
          .xcds = partitions(chip.family, chip.units),
          .bh_interleave = bh_interleave(p, chip.family)};
}

std::int32_t causal_interleave(const kernel::TileSchedulerParams& work) {
  if (work.workgroups == 0) return 1;
  const std::int32_t slices = work.workgroups / work.blocks, per_xcd = slices / work.xcds;
  if (slices % work.xcds == 0)
    for (const std::int32_t n : {4, 3, 2})
      if (per_xcd % n == 0) return n;
  return 1;
}

TailSplit split_last_wave(std::int64_t keys, bool same_keys,
                          const kernel::TileSchedulerParams& work, Chip chip) {
  constexpr std::int64_t min_keys = 1024;  // with fewer, combining the halves costs the gain
  const std::int64_t slots = chip.units / work.xcds;
  if (keys < min_keys || slots == 0) return {};
  const std::int64_t tiles = ceil_div(work.workgroups, work.xcds), tail = tiles % slots;
  if (tail == 0 || 2 * tail > slots) return {};
  const bool uniform = same_keys && work.workgroups % work.xcds == 0;
  return tiles == tail || uniform ? TailSplit{tiles - tail, tail} : TailSplit{};
}

kernel::TileSchedulerParams schedule_key_tiles(const Problem& p, const kernel::KernelSpec& spec,
                                               std::int64_t keys, Chip chip) {
  const kernel::BackwardWorkTile tile = kernel::backward_work_tile(spec);
  kernel::TileSchedulerParams work =
      schedule_tiles(p, p.kv_heads, keys, tile.keys, tile.threads, chip);
  if (work.workgroups == 0) return work;
  // Interleave as many (batch, KV head) slices as fill the device once: their queries and dq
  // accumulators stay in L2, and under a causal mask short blocks of the next slices fill the gaps.
  // With uniform blocks and GQA, the blocks of one slice share L2 best if they start together.
  const bool uniform = !p.visibility.bounded() && p.gqa_group() > 1 && !kernel::has_roles(spec);
  work.bh_interleave =
      uniform ? 1 : std::clamp(chip.units / work.blocks, 1, work.workgroups / work.blocks);
  return work;
}

std::int32_t ordered_bh_interleave(const kernel::TileSchedulerParams& work, Chip chip) {
  // A CU holds two or three workgroups: about 20 blocks of each slice are in flight.
  return std::clamp(chip.units / 10, 1, work.workgroups / work.blocks);
}

}  // namespace rocflash::gpu
