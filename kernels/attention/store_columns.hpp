// Stores of rows of which each lane has four adjacent columns.
#pragma once

#include "attention/elements.hpp"
#include "attention/sequence.hpp"
#include "tile/vector.hpp"

namespace rocflash::kernel {

// Of a 16-bit dtype that is known at run time.
inline std::uint32_t cvt_pack(DType dtype, float low, float high) {
  return with_half(dtype, [=]<DType known>() { return arch::cvt_pack<known>(low, high); });
}

// Stores columns `column` to `column` + 3 of a contiguous row of `columns` columns, with one vector
// store if they are aligned.
inline void store_four(std::byte* row, DType dtype, int column, int columns, Float4 x) {
  std::byte* const to = row + column * bytes_of(dtype);
  if (column + 4 <= columns && reinterpret_cast<std::uintptr_t>(to) % (4 * bytes_of(dtype)) == 0) {
    if (dtype == DType::f32) return arch::store(reinterpret_cast<Float4*>(to), x);
    const Words2 words{cvt_pack(dtype, x[0], x[1]), cvt_pack(dtype, x[2], x[3])};
    return arch::store(reinterpret_cast<Words2*>(to), words);
  }
  ROCFLASH_UNROLL
  for (int e = 0; e < 4; ++e)
    if (column + e < columns) store_element(row, dtype, column + e, x[e]);
}

}  // namespace rocflash::kernel
