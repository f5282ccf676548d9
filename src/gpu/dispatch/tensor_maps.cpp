#include "gpu/dispatch/tensor_maps.hpp"

#include <limits>
#include <numeric>

#include "gpu/dispatch/sequences.hpp"

namespace rocflash::gpu {

// The stride of a dimension of one element is arbitrary, so validation's 0 is replaced. Broadcast
// dimensions (stride 0) have no tensor map.
std::optional<TensorMapDesc> tensor_map_of(const Rows& rows, std::int64_t count, std::int64_t heads,
                                           std::int64_t batches) {
  constexpr std::int64_t max_size = std::numeric_limits<std::int32_t>::max(), alignment = 16,
                         max_stride = std::int64_t{1} << 40;
  TensorMapDesc desc{.data = rows.data, .dtype = rows.dtype};
  const auto bytes = static_cast<std::int64_t>(size_of(rows.dtype));
  const std::int64_t sizes[] = {rows.columns, count, heads, batches};
  const std::int64_t strides[] = {rows.row_stride, rows.head_stride, rows.batch_stride};
  for (int n = 0; n < TensorMapDesc::dimensions; ++n) {
    if (sizes[n] < 1 || sizes[n] > max_size) return std::nullopt;
    desc.sizes[n] = static_cast<std::uint64_t>(sizes[n]);
    if (n == 0) continue;
    const std::int64_t stride = sizes[n] == 1 ? alignment : strides[n - 1] * bytes;
    if (stride <= 0 || stride % alignment != 0 || stride >= max_stride) return std::nullopt;
    desc.strides[n - 1] = static_cast<std::uint64_t>(stride);
  }
  if (reinterpret_cast<std::uintptr_t>(rows.data) % alignment != 0) return std::nullopt;
  return desc;
}

std::optional<TensorMapDesc> kv_tensor_map(const Rows& rows, const Problem& p) {
  const Lengths& l = p.lengths;
  return rows.blocks ? tensor_map_of(rows, rows.block_rows, p.kv_heads, caches_of(p))
                     : tensor_map_of(rows, l.rows_k, p.kv_heads, l.packed_k() ? 1 : p.batch());
}

std::int32_t tma_box_rows(const Problem& p, int keys) {
  constexpr std::int64_t swizzle_rows = 8;
  if (!p.k.blocks || p.k.block_rows >= p.lengths.rows_k) return keys;
  const std::int64_t rows = std::gcd(std::int64_t{keys}, p.k.block_rows);
  return rows < swizzle_rows ? 0 : static_cast<std::int32_t>(rows);
}

TensorMapDesc with_box(TensorMapDesc desc, int bucket, int rows, kernel::TensorMap& to) {
  desc.box_columns = static_cast<std::uint32_t>(bucket % 64 == 0 ? 64 : 32);  // TmaTile::width
  desc.box_rows = static_cast<std::uint32_t>(rows);
  desc.map = &to;
  return desc;
}

}  // namespace rocflash::gpu
