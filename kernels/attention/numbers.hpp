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

// The same dtype, with which the compiler must compare again: results of comparisons that are kept take
// two scalar registers each.
inline DType renewed(DType dtype) {
  return static_cast<DType>(arch::renewed(static_cast<int>(dtype)));
}

// How four neighbours of a row are loaded: as one vector where rows start on multiples of four numbers.
// They are widened by another call, later, so that no one waits for them before. One number says dtype
// and alignment, and stays in one register.
class QuadLoads {
 public:
  QuadLoads(const Rows& rows, DType dtype)
      : form_(static_cast<int>(dtype) + (starts_on_quads(rows, dtype) ? vectors : 0)) {}

  // From `column` on, as they are stored; 0 for those past the last column, and for a row of null.
  Words4 load(const std::byte* row, int column, int columns) const {
    const int form = arch::renewed(form_);
    Words4 words = {};
    const bool is_f32 = dtype(form) == DType::f32;
    if (form >= vectors && row != nullptr && column + 4 <= columns) {
      if (is_f32) return arch::load(reinterpret_cast<const Words4*>(row) + column / 4);
      words.xy = arch::load(reinterpret_cast<const Words2*>(row) + column / 4);
      return words;
    }
    if (row == nullptr) return words;
    ROCFLASH_UNROLL
    for (int e = 0; e < 4; ++e) {
      if (column + e >= columns) break;
      if (is_f32) {
        words[e] = arch::load(reinterpret_cast<const std::uint32_t*>(row) + column + e);
      } else {
        const std::uint32_t bits =
            arch::load(reinterpret_cast<const std::uint16_t*>(row) + column + e);
        words[e / 2] |= bits << (16 * (e % 2));
      }
    }
    return words;
  }
  // Whether all of a row's numbers can be loaded by `load_plain`, `columns` being a multiple of four.
  bool plain() const { return form_ == static_cast<int>(DType::f32) + vectors; }
  static Words4 load_plain(const std::byte* row, int column) {
    return arch::load(reinterpret_cast<const Words4*>(row) + column / 4);
  }
  Float4 widened(Words4 words) const {
    const DType stored = dtype(arch::renewed(form_));
    if (stored == DType::f32) return __builtin_bit_cast(Float4, words);
    const std::uint32_t low = words.x, high = words.y;
    const auto half = [&](std::uint32_t bits) {
      const auto b = static_cast<std::uint16_t>(bits);
      return stored == DType::f16 ? widen<DType::f16>(b) : widen<DType::bf16>(b);
    };
    return {half(low), half(low >> 16), half(high), half(high >> 16)};
  }

 private:
  static constexpr int vectors = 16;
  static bool starts_on_quads(const Rows& rows, DType dtype) {
    return reinterpret_cast<std::uintptr_t>(rows.data) % (4 * bytes_of(dtype)) == 0 &&
           (rows.batch_stride | rows.row_stride | rows.head_stride) % 4 == 0;
  }
  static DType dtype(int form) { return static_cast<DType>(form % vectors); }

  int form_;
};

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
