// Split-KV decode on Hopper over many keys, specialized: the schedule of decode/sm90_cluster.hpp,
// with workgroups that write partial results, which combine/sm90_pdl.hpp combines.
//
// Warps take tiles round-robin here too: the loads of the first tiles are issued before the number
// of keys is known, and all workgroups read the same stretch of memory at a time.
#pragma once

#include "decode/sm90_cluster.hpp"

namespace rocflash::kernel {

// Work tile; its rank is the split. Workgroups that read the same keys have adjacent indices (L2).
inline ClusterWorkTile splitkv_work_tile(const ClusterArguments& a, int tile_rows) {
  const auto kv_heads = static_cast<std::int32_t>(a.problem.kv_heads);
  std::int32_t rest = arch::workgroup_id(), block = 0;
  if (a.row_blocks > 1) {
    block = rest % a.row_blocks;
    rest /= a.row_blocks;
  }
  const std::int32_t bh = rest / a.cluster, batch = bh / kv_heads;
  return {a, tile_rows, batch, bh - batch * kv_heads, rest - bh * a.cluster, block};
}

template <KernelSpec spec>
void decode_splitkv(const SplitKvArguments& arguments) {
  using Types = ClusterTypes<spec>;
  const ClusterArguments& a = arguments.common;
  arch::prefetch_kernel_params(arguments);
  const ClusterWorkTile item = splitkv_work_tile(a, Types::tile.rows);
  attend_to_tiles<spec>(a, item);
  combine_results<Types, false>(
      a, item, [&](std::int32_t query, std::int32_t head, int column, Float4 value, float lse) {
        if (arguments.direct)
          return store_result<spec.dtype>(a, item.batch, query, head, column, value, lse);
        const auto heads = static_cast<std::int32_t>(a.problem.heads);
        const std::int64_t row = (std::int64_t{item.batch} * a.queries + query) * heads + head;
        arch::store(
            reinterpret_cast<Float4*>(arguments.out + item.rank * arguments.out_split_stride +
                                      row * Types::bucket + column),
            value);
        if (column == 0)
          arch::store(arguments.lse + item.rank * arguments.lse_split_stride +
                          (std::int64_t{item.batch} * heads + head) * a.queries + query,
                      lse);
      });
}

}  // namespace rocflash::kernel
