// Alignment and strides of tensor rows, for kernel selection.
#pragma once

#include <cstdint>
#include <limits>

#include "core/problem.hpp"
#include "table/features.hpp"

namespace rocflash::gpu {

// Specialized kernels load rows in vectors of 16 bytes, with 32-bit offsets within a tile. Buffer
// bounds checks derive the end of a tile from the row stride, so it must be at least a row. Returns
// what does not allow such loads; empty if they are allowed.
inline kernel::Features row_features(const Rows& rows) {
  using kernel::Feature;
  constexpr std::int64_t vector_bytes = 16, max_tile_rows = 256;
  constexpr int vector_elements = 8;
  const auto size = static_cast<std::int64_t>(size_of(rows.dtype));
  const auto aligned = [&](std::int64_t stride) { return stride * size % vector_bytes == 0; };
  const std::int64_t max_stride_bytes = std::numeric_limits<std::int32_t>::max() / max_tile_rows;
  kernel::Features found;
  found.add_if(reinterpret_cast<std::uintptr_t>(rows.data) % vector_bytes != 0 ||
                   !aligned(rows.batch_stride) || !aligned(rows.row_stride) ||
                   !aligned(rows.head_stride),
               Feature::unaligned_rows);
  found.add_if(rows.columns % vector_elements != 0, Feature::partial_vectors);
  found.add_if(rows.row_stride < rows.columns, Feature::overlapping_rows);
  found.add_if(rows.row_stride > max_stride_bytes / size, Feature::large_strides);
  return found;
}

// Validation normalizes the stride of a dimension of one element to 0; any stride is correct for a
// single row.
inline void set_single_row_stride(Rows& rows, std::int64_t count) {
  if (count == 1) rows.row_stride = rows.columns;
}

}  // namespace rocflash::gpu
