// What plans ask about rows of tensors: whether plain kernels can take them, and how they are spaced.
#pragma once

#include <cstdint>
#include <limits>

#include "core/problem.hpp"

namespace rocflash::gpu {

// Plain kernels read rows 16 bytes at a time, with 32-bit offsets within a tile, and tell them from what
// lies behind them by their distance.
inline bool suits_plain(const Rows& rows) {
  constexpr std::int64_t vector_bytes = 16, most_tile_rows = 256;
  constexpr int vector_elements = 8;
  const auto bytes = [&](std::int64_t stride) {
    return stride * static_cast<std::int64_t>(size_of(rows.dtype));
  };
  const bool aligned = reinterpret_cast<std::uintptr_t>(rows.data) % vector_bytes == 0 &&
                       bytes(rows.batch_stride) % vector_bytes == 0 &&
                       bytes(rows.row_stride) % vector_bytes == 0 &&
                       bytes(rows.head_stride) % vector_bytes == 0;
  const std::int64_t longest = std::numeric_limits<std::int32_t>::max() / most_tile_rows;
  return aligned && rows.columns % vector_elements == 0 && rows.row_stride >= rows.columns &&
         rows.row_stride <= longest / static_cast<std::int64_t>(size_of(rows.dtype));
}

// The door gives a dimension of one element stride 0; a single row may be any distance from the
// next.
inline void space_single_row(Rows& rows, std::int64_t count) {
  if (count == 1) rows.row_stride = rows.columns;
}

}  // namespace rocflash::gpu
