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

// Keys or values, which may lie in pages.
std::optional<TensorBox> box_of_keys(const Rows& rows, const Problem& problem);

// Rows of them that are copied together, where a tile has `keys`: all, or as many as divide a page. 0: too few for
// the copy engine, which keeps the pattern of eight rows that tiles have in shared memory.
std::int32_t copied_rows(const Problem& problem, int keys);

// The same with a box of one panel of a kernel's tile, and where its map goes.
TensorBox panel_of(TensorBox box, int bucket, int rows, kernel::TensorMap& to);

}  // namespace rocflash::gpu
