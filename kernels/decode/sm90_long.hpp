// Decode on Hopper over many keys, where no option asks for more than decode/clusters.hpp has: the schedule of decode/sm90.hpp,
// with workgroups that write parts of the results, which combine/sm90.hpp merges.
//
// Warps take tiles by turns here too. So the first tiles are on their way before the number of keys is known, and all
// workgroups read the same stretch of memory at a time.
#pragma once

#include "decode/sm90.hpp"

namespace rocflash::kernel {

// What a workgroup computes; its rank is the number of its part. Those that read the same keys follow each other.
inline ClusterItem long_item(const ClusterArguments& a, int tile_rows) {
  const auto kv_heads = static_cast<std::int32_t>(a.problem.kv_heads);
  std::int32_t rest = arch::group(), block = 0;
  if (a.row_blocks > 1) {
    block = rest % a.row_blocks;
    rest /= a.row_blocks;
  }
  const std::int32_t plane = rest / a.cluster, batch = plane / kv_heads;
  return {a, tile_rows, batch, plane - batch * kv_heads, rest - plane * a.cluster, block};
}

template <KernelSpec spec>
void decode_long(const LongArguments& arguments) {
  using Types = ClusterTypes<spec>;
  const ClusterArguments& a = arguments.common;
  arch::fetch_arguments(arguments);
  const ClusterItem item = long_item(a, Types::tile.rows);
  attend_to_tiles<spec>(a, item);
  merge_results<Types, false>(
      a, item, [&](std::int32_t query, std::int32_t head, int column, Float4 value, float lse) {
        if (arguments.direct)
          return store_result<spec.dtype>(a, item.batch, query, head, column, value, lse);
        const auto heads = static_cast<std::int32_t>(a.problem.heads);
        const std::int64_t row = (std::int64_t{item.batch} * a.queries + query) * heads + head;
        arch::store(reinterpret_cast<Float4*>(arguments.out + item.rank * arguments.out_part +
                                              row * Types::bucket + column),
                    value);
        if (column == 0)
          arch::store(arguments.lse + item.rank * arguments.lse_part +
                          (std::int64_t{item.batch} * heads + head) * a.queries + query,
                      lse);
      });
}

}  // namespace rocflash::kernel
