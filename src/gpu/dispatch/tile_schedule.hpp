// Tile schedule: which workgroup computes which row block of which (batch, head) slice.
#pragma once

#include <cstdint>

#include "attention/arguments.hpp"
#include "core/problem.hpp"
#include "gpu/dispatch/chip.hpp"

namespace rocflash::gpu {

// XCDs of a device, each with its own L2; the hardware assigns workgroups to them round-robin.
int partitions(kernel::Family family, int units);

// Number of (batch, head) slices whose row blocks are interleaved, longest first (LPT order).
std::int32_t bh_interleave(const Problem& problem, kernel::Family family);

// One workgroup per block of `tile_rows` rows of each (batch, head) slice. Rejects more workgroups
// than a launch can have.
kernel::TileSchedulerParams schedule_tiles(const Problem& problem, std::int64_t heads,
                                           std::int64_t rows, int tile_rows, int threads,
                                           Chip chip);

// The interleave of a causal launch on XCDs, where the length of a work tile grows with its block:
// 2 to 4 slices in LPT order, so that the longest tiles of an XCD's last slices do not start late.
// It divides the number of slices of an XCD; otherwise XCDs would share slices unevenly. More than
// four slices would compete for L2.
std::int32_t causal_interleave(const kernel::TileSchedulerParams& work);

// The work tiles per partition (kernel::WorkTile) whose query blocks are halved: `count` from
// `first`.
struct TailSplit {
  std::int64_t first = 0, count = 0;
};

// Wave quantization: a last wave that is at most half full takes as long as a full one. Its query
// blocks are split in halves, which take half as long. This applies to a launch of a single wave,
// and to the last wave of blocks that all attend to the same keys. (Under a causal mask the last
// blocks are short anyway.)
TailSplit split_last_wave(std::int64_t keys, bool same_keys,
                          const kernel::TileSchedulerParams& work, Chip chip);

// The key blocks of the warp-specialized kernel.
kernel::TileSchedulerParams schedule_key_tiles(const Problem& problem,
                                               const kernel::KernelSpec& spec, std::int64_t keys,
                                               Chip chip);
// Ordered dQ accumulation staggers the key blocks of a (batch, head) slice by about half a tile, so
// several slices are interleaved.
std::int32_t ordered_bh_interleave(const kernel::TileSchedulerParams& work, Chip chip);

}  // namespace rocflash::gpu
