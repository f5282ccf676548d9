// Numbers in global memory as f32, whatever their dtype: for kernels that are compiled once for all of
// them. Where the dtype is a constant, the compiler drops the branches.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/sequence.hpp"
#include "tile/vector.hpp"

namespace rocflash::kernel {

inline float number_at(const std::byte* row, DType dtype, std::int64_t index) {
  if (dtype == DType::f32) return arch::load(reinterpret_cast<const float*>(row) + index);
  const std::uint16_t bits = arch::load(reinterpret_cast<const std::uint16_t*>(row) + index);
  return dtype == DType::f16 ? widen<DType::f16>(bits) : widen<DType::bf16>(bits);
}

inline void store_number(std::byte* row, DType dtype, std::int64_t index, float x) {
  if (dtype == DType::f32) {
    arch::store(reinterpret_cast<float*>(row) + index, x);
  } else {
    arch::store(reinterpret_cast<std::uint16_t*>(row) + index,
                dtype == DType::f16 ? narrow<DType::f16>(x) : narrow<DType::bf16>(x));
  }
}

// Four neighbours from `column` on; 0 for those past the last column. `aligned`: rows start on multiples
// of four numbers.
inline Float4 four_at(const std::byte* row, DType dtype, bool aligned, int column, int columns) {
  if (aligned && column + 4 <= columns) {
    if (dtype == DType::f32) return arch::load(reinterpret_cast<const Float4*>(row) + column / 4);
    const Words2 words = arch::load(reinterpret_cast<const Words2*>(row) + column / 4);
    const std::uint32_t low = words.x, high = words.y;
    const auto half = [&](std::uint32_t bits) {
      const auto b = static_cast<std::uint16_t>(bits);
      return dtype == DType::f16 ? widen<DType::f16>(b) : widen<DType::bf16>(b);
    };
    return {half(low), half(low >> 16), half(high), half(high >> 16)};
  }
  const auto number = [&](int c) { return c < columns ? number_at(row, dtype, c) : 0.0f; };
  return {number(column), number(column + 1), number(column + 2), number(column + 3)};
}

// Whether four_at may take whole vectors.
inline bool starts_on_quads(const Rows& rows) {
  return reinterpret_cast<std::uintptr_t>(rows.data) % (4 * size_of(rows.dtype)) == 0 &&
         (rows.batch_stride | rows.row_stride | rows.head_stride) % 4 == 0;
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
