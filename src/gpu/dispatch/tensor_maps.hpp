// TMA tensor maps of the tensors of a problem.
#pragma once

#include <cstdint>
#include <optional>

#include "core/problem.hpp"
#include "gpu/driver/driver.hpp"

namespace rocflash::gpu {

// The 4-D tensor map of a tensor, if TMA supports it: strides must be multiples of 16 bytes.
std::optional<TensorMapDesc> tensor_map_of(const Rows& rows, std::int64_t count, std::int64_t heads,
                                           std::int64_t batches);

// The tensor map of k or v, contiguous or paged.
std::optional<TensorMapDesc> kv_tensor_map(const Rows& rows, const Problem& problem);

// Rows of one TMA box for a tile of `keys`: all of them, or a common divisor of the tile and the
// page. 0: fewer than eight, the rows of a swizzle atom in shared memory.
std::int32_t tma_box_rows(const Problem& problem, int keys);

// The same tensor with the box of one load, and the destination of the encoded map.
TensorMapDesc with_box(TensorMapDesc desc, int bucket, int rows, kernel::TensorMap& to);

}  // namespace rocflash::gpu
