#include "gpu/dispatch/splits.hpp"

#include <algorithm>
#include <bit>

#include "gpu/dispatch/sequences.hpp"
#include "table/combine.hpp"

namespace rocflash::gpu {

using kernel::DecodeTile;
using kernel::KernelSpec;
using kernel::Vendor;

namespace {

int wave_of(Chip chip) { return kernel::facts_of(chip.family).wave; }

// Occupancy: workgroups per compute unit or SM.
int workgroups_per_cu(const DecodeTile& tile, Chip chip) {
  const bool nvidia = kernel::vendor_of(chip.family) == Vendor::nvidia;
  if (nvidia && tile.combines_waves) return 2;  // limited by shared memory
  const int simds = nvidia || wave_of(chip) == 64 ? 4 : 2;
  return std::max(1, tile.waves_per_simd * simds / tile.waves(wave_of(chip)));
}

}  // namespace

std::int64_t keys_of(const Problem& p) { return std::min(p.max_k, p.lengths.rows_k); }

std::int64_t row_blocks(const Problem& p, const DecodeTile& tile) {
  return ceil_div(sequence_rows(p.lengths, p.max_q) * p.gqa_group(), tile.rows);
}
Size total_row_blocks(const Problem& p, const DecodeTile& tile) {
  return Size(row_blocks(p, tile)) * p.batch() * p.kv_heads;
}

std::int32_t num_splits(const Problem& p, const KernelSpec& kernel, const DecodeTile& tile,
                        Chip chip) {
  // Waves that split the columns share their keys, so there are fewer splits per workgroup.
  const std::int64_t max_splits = tile.divides_columns ? 512 : 128;
  if (p.splits > 0) return static_cast<std::int32_t>(std::min<std::int64_t>(p.splits, max_splits));
  const std::int64_t keys = keys_of(p);
  if (kernel.op == kernel::Op::decode_mla && kernel.schedule == kernel::Schedule::warp_specialized)
    return mla_splits(keys, total_row_blocks(p, tile).at_most(max_decode_workgroups), chip);
  const std::int64_t tile_keys = std::int64_t{tile.keys} * tile.key_waves(wave_of(chip));
  // The combine launch costs as much as some tiles of the main loop.
  constexpr std::int64_t combine_tiles = 8;
  if (tile.combines_waves && keys <= combine_tiles * tile_keys) return 1;
  // At least two tiles per wave.
  const std::int64_t useful_splits =
      std::clamp<std::int64_t>(keys / (2 * tile_keys), 1, max_splits);
  const std::int64_t slots = std::int64_t{chip.units} * workgroups_per_cu(tile, chip),
                     blocks = total_row_blocks(p, tile).at_most(slots * max_splits);
  // Wave quantization: the fraction of workgroup slots in use over all waves, in millionths.
  const auto efficiency = [&](std::int64_t splits) {
    const std::int64_t workgroups = blocks * splits;
    return workgroups * 1'000'000 / (ceil_div(workgroups, slots) * slots);
  };
  if (slots == 0 || blocks == 0) return 1;
  std::int64_t best = 0;
  for (std::int64_t n = 1; n <= useful_splits; ++n) best = std::max(best, efficiency(n));
  // The fewest splits within 5 % of the best efficiency.
  std::int64_t splits = 1;
  while (splits < useful_splits && efficiency(splits) * 20 < best * 19) ++splits;
  return static_cast<std::int32_t>(splits);
}

ClusterSize cluster_size(const Problem& p, const DecodeTile& tile, Chip chip) {
  const std::int64_t keys = keys_of(p), blocks = row_blocks(p, tile),
                     workgroup_keys = tile.keys * tile.waves(32),
                     clusters = blocks * p.batch() * p.kv_heads;
  // Many rows over few keys: the larger query tiles of forward read K and V less often.
  if (blocks > 1 && keys < 256) return {0, Reason::many_row_blocks};
  // A cluster is placed within one GPC, which leaves some SMs unused; clusters that do not fit cost
  // a second wave.
  const std::int64_t slots = std::int64_t{chip.units} * tile.waves_per_simd;
  const auto fits = [&](std::int64_t size) {
    return size == 1 || clusters * size <= slots * 9 / 10;
  };
  std::int64_t size = 1;
  if (p.splits > 0) {
    size = p.splits;
    if (size > kernel::largest_cluster || !std::has_single_bit(static_cast<unsigned>(p.splits)))
      return {0, Reason::num_splits};
  } else {
    while (size < kernel::largest_cluster && 2 * size * workgroup_keys <= keys && fits(2 * size))
      size *= 2;
  }
  // With more keys per workgroup the split-KV kernel is faster: its memory bandwidth is 4 % higher.
  constexpr std::int64_t max_tiles = 16;
  if (keys > max_tiles * workgroup_keys * size) return {0, Reason::long_kv};
  return {static_cast<std::int32_t>(size)};
}

std::int32_t sm90_num_splits(const Problem& p, const DecodeTile& tile, std::int32_t fallback,
                             Chip chip) {
  if (p.splits > 0) return fallback;
  constexpr int workgroups_per_sm = 2;  // occupancy of the kernel
  const std::int64_t slots = std::int64_t{chip.units} * workgroups_per_sm,
                     blocks = row_blocks(p, tile) * p.batch() * p.kv_heads,
                     min_keys = 2 * tile.keys * tile.waves(32);  // two tiles per warp
  if (blocks == 0 || blocks > slots) return fallback;
  const std::int64_t splits = std::min(slots / blocks, keys_of(p) / min_keys);
  return splits * blocks * 10 >= slots * 9 ? static_cast<std::int32_t>(splits) : fallback;
}

std::int32_t mla_splits(std::int64_t keys, std::int64_t blocks, Chip chip) {
  // One workgroup per SM. Its prologue and epilogue cost as much as some tiles, and one tile more
  // without a cluster to combine in.
  constexpr std::int64_t overhead_tiles = 3, max_splits = 512;
  const std::int64_t tiles = ceil_div(keys, kernel::MlaWarpgroups::keys);
  if (chip.units == 0 || blocks == 0) return 1;
  const auto time = [&](std::int64_t splits) {
    const std::int64_t unpaired = splits > 1 && !combines_pairs(static_cast<std::int32_t>(splits));
    return ceil_div(blocks * splits, chip.units) *
           (ceil_div(tiles, splits) + overhead_tiles + unpaired);
  };
  std::int64_t best = 1, shortest = time(1);
  for (std::int64_t n = 2; n <= std::min(tiles / 2, max_splits); ++n) {
    const std::int64_t t = time(n);
    // Among equal times within one wave, the most splits leave the fewest SMs idle.
    if (t < shortest || (t == shortest && blocks * n <= chip.units)) {
      shortest = t;
      best = n;
    }
  }
  return static_cast<std::int32_t>(best);
}

bool combines_pairs(std::int32_t splits) { return splits % 2 == 0; }

int combine_slices(std::int64_t splits, std::int64_t items, Chip chip) {
  const int waves = kernel::combine_tile.threads / wave_of(chip);
  constexpr std::int64_t waves_per_cu = 16;  // enough to hide memory latency
  int slices = 1;
  while (2 * slices <= waves && 2 * slices <= splits && items * slices < chip.units * waves_per_cu)
    slices *= 2;
  return slices;
}

int mla_combine_slices(std::int64_t splits, int waves) {
  int slices = 1;
  while (2 * slices <= waves && 2 * slices * kernel::wide_splits <= splits) slices *= 2;
  return slices;
}

}  // namespace rocflash::gpu
