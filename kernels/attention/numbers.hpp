// Numbers of a dtype that only the arguments tell: for kernels that move little and serve all dtypes.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/sequence.hpp"
#include "tile/vector.hpp"

namespace rocflash::kernel {

inline float load_number(const std::byte* from, DType dtype, std::int64_t index) {
  if (dtype == DType::f32) return arch::load(reinterpret_cast<const float*>(from) + index);
  const std::uint16_t bits = arch::load(reinterpret_cast<const std::uint16_t*>(from) + index);
  return dtype == DType::f16 ? widen<DType::f16>(bits) : widen<DType::bf16>(bits);
}

// Rounded to the nearest, ties to even.
inline void store_number(std::byte* to, DType dtype, std::int64_t index, float x) {
  if (dtype == DType::f32) {
    arch::store(reinterpret_cast<float*>(to) + index, x);
  } else {
    arch::store(reinterpret_cast<std::uint16_t*>(to) + index,
                dtype == DType::f16 ? narrow<DType::f16>(x) : narrow<DType::bf16>(x));
  }
}

// Bit by bit.
inline void copy_number(const std::byte* from, std::byte* to, DType dtype, std::int64_t index) {
  if (size_of(dtype) == 4) {
    arch::store(reinterpret_cast<std::uint32_t*>(to) + index,
                arch::load(reinterpret_cast<const std::uint32_t*>(from) + index));
  } else {
    arch::store(reinterpret_cast<std::uint16_t*>(to) + index,
                arch::load(reinterpret_cast<const std::uint16_t*>(from) + index));
  }
}

// The first column of a row, which may lie in a page.
inline std::byte* row_address(const Rows& rows, std::int32_t caches, std::int64_t batch,
                              std::int64_t row, std::int64_t head) {
  find_page(rows, caches, batch, row);
  return rows.data + (batch * rows.batch_stride + row * rows.row_stride + head * rows.head_stride) *
                         static_cast<std::int64_t>(size_of(rows.dtype));
}

// The sequence that row n of a packed tensor belongs to, or -1. Starts that do not rise give some
// sequence or none.
inline std::int64_t sequence_of_row(const std::int32_t* starts, std::int64_t batch,
                                    std::int64_t n) {
  std::int64_t low = 0, high = batch;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (arch::load(starts + middle) <= n ? low : high) = middle;
  }
  return batch > 0 && arch::load(starts + low) <= n && n < arch::load(starts + low + 1) ? low : -1;
}

}  // namespace rocflash::kernel
