// Results of rows whose lanes have four neighbouring columns each.
#pragma once

#include "attention/numbers.hpp"
#include "attention/sequence.hpp"
#include "tile/vector.hpp"

namespace rocflash::kernel {

// Columns `column` to `column` + 3 of a row that has `columns` of them, one behind the other: by one store where they lie
// on a multiple of their size.
inline void store_four(std::byte* row, DType dtype, int column, int columns, Float4 x) {
  std::byte* const to = row + column * bytes_of(dtype);
  if (column + 4 <= columns && reinterpret_cast<std::uintptr_t>(to) % (4 * bytes_of(dtype)) == 0) {
    if (dtype == DType::f32) return arch::store(reinterpret_cast<Float4*>(to), x);
    const bool f16 = dtype == DType::f16;
    arch::store(reinterpret_cast<Words2*>(to),
                Words2{f16 ? arch::narrow_two<DType::f16>(x[0], x[1])
                           : arch::narrow_two<DType::bf16>(x[0], x[1]),
                       f16 ? arch::narrow_two<DType::f16>(x[2], x[3])
                           : arch::narrow_two<DType::bf16>(x[2], x[3])});
    return;
  }
  ROCFLASH_UNROLL
  for (int e = 0; e < 4; ++e)
    if (column + e < columns) store_number(row, dtype, column + e, x[e]);
}

}  // namespace rocflash::kernel
