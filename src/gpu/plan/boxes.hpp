// What Hopper's copy engine is told about the tensors of a problem.
#pragma once

#include <cstdint>
#include <optional>

#include "core/problem.hpp"
#include "gpu/driver/driver.hpp"

namespace rocflash::gpu {

// A tensor, if the copy engine can take it: four sizes, and strides of whole 16 bytes.
std::optional<TensorBox> box_of(const Rows& rows, std::int64_t count, std::int64_t heads,
                                std::int64_t batches);

// The same with a box of one panel of a kernel's tile, and where its map goes.
TensorBox panel_of(TensorBox box, int bucket, int rows, kernel::TensorMap& to);

}  // namespace rocflash::gpu
