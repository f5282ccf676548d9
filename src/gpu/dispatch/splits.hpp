// Split-KV heuristics: how many workgroups divide the keys of a row block, and how many waves
// combine their results. Pure functions of shapes and the device.
#pragma once

#include <cstdint>
#include <limits>

#include "core/problem.hpp"
#include "core/sizes.hpp"
#include "gpu/dispatch/candidates.hpp"
#include "gpu/dispatch/chip.hpp"
#include "table/decode.hpp"

namespace rocflash::gpu {

// Upper bound on the keys of a sequence.
std::int64_t keys_of(const Problem& problem);
// Row blocks of a (sequence, KV head) slice; a row is a (query, head of its GQA group) pair.
std::int64_t row_blocks(const Problem& problem, const kernel::DecodeTile& tile);
Size total_row_blocks(const Problem& problem, const kernel::DecodeTile& tile);

// The largest numbers of keys, and of rows of q, of a sequence that the sm_90a kernels support.
inline constexpr std::int64_t max_sm90_rows = 1 << 20;
// The largest number of workgroups of a decode launch.
inline constexpr std::int64_t max_decode_workgroups =
    std::numeric_limits<std::int32_t>::max() / 256;

// The caller's `num_splits`, or the heuristic of the kernel.
std::int32_t num_splits(const Problem& problem, const kernel::KernelSpec& kernel,
                        const kernel::DecodeTile& tile, Chip chip);

// The cluster size of decode_cluster, or 0 and why it is slower than split-KV or forward, or cannot
// honor `num_splits`.
struct ClusterSize {
  std::int32_t size = 0;
  Reason reason = Reason::preferred;
};
ClusterSize cluster_size(const Problem& problem, const kernel::DecodeTile& tile, Chip chip);

// decode_splitkv: the number of splits that fills all workgroup slots in one wave, or `fallback`.
std::int32_t sm90_num_splits(const Problem& problem, const kernel::DecodeTile& tile,
                             std::int32_t fallback, Chip chip);

// Warp-specialized MLA decode: the number of splits for this many row blocks.
std::int32_t mla_splits(std::int64_t keys, std::int64_t blocks, Chip chip);
// Whether clusters of two workgroups, with adjacent splits of the same rows, combine their results
// through DSMEM, which halves the partial results.
bool combines_pairs(std::int32_t splits);

// The waves of a workgroup that split the reduction of one column block of a row, a power of two.
// More waves for few blocks and many splits.
int combine_slices(std::int64_t splits, std::int64_t items, Chip chip);
// The same for the wide rows of MLA: enough waves that each has the loads of all its splits in
// flight at once, if there are that many.
int mla_combine_slices(std::int64_t splits, int waves);

}  // namespace rocflash::gpu
