// Elements of any dtype in global memory as f32, for kernels compiled once for all dtypes. With a
// constant dtype the branches fold.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/sequence.hpp"
#include "tile/vector.hpp"

namespace rocflash::kernel {

inline float load_element(const std::byte* row, DType dtype, std::int64_t index) {
  if (dtype == DType::f32) return arch::load(reinterpret_cast<const float*>(row) + index);
  const std::uint16_t bits = arch::load(reinterpret_cast<const std::uint16_t*>(row) + index);
  return widen(dtype, bits);
}

inline void store_element(std::byte* row, DType dtype, std::int64_t index, float x) {
  if (dtype == DType::f32) {
    arch::store(reinterpret_cast<float*>(row) + index, x);
  } else {
    arch::store(reinterpret_cast<std::uint16_t*>(row) + index, narrow(dtype, x));
  }
}

// The same dtype, opaque to the optimizer: a hoisted comparison result would occupy two SGPRs.
inline DType opaque_dtype(DType dtype) {
  return static_cast<DType>(arch::opaque_sgpr(static_cast<int>(dtype)));
}

// Loads of four consecutive elements: one vector load where rows are aligned to four elements.
// Conversion is a separate, later call, so that the load stays in flight. Dtype and alignment share
// one register.
class QuadLoads {
 public:
  QuadLoads(const Rows& rows, DType dtype)
      : format_(static_cast<int>(dtype) + (is_quad_aligned(rows, dtype) ? vectors : 0)) {}

  // From `column` on, unconverted; 0 past the last column and for a null row.
  Words4 load(const std::byte* row, int column, int columns) const {
    const int format = arch::opaque_sgpr(format_);
    Words4 words = {};
    const bool is_f32 = dtype(format) == DType::f32;
    if (format >= vectors && row != nullptr && column + 4 <= columns) {
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
  // Whether `load_vector` supports the rows, if `columns` is a multiple of four.
  bool is_f32_vector() const { return format_ == static_cast<int>(DType::f32) + vectors; }
  static Words4 load_vector(const std::byte* row, int column) {
    return arch::load(reinterpret_cast<const Words4*>(row) + column / 4);
  }
  Float4 widened(Words4 words) const {
    const DType stored = dtype(arch::opaque_sgpr(format_));
    if (stored == DType::f32) return __builtin_bit_cast(Float4, words);
    const std::uint32_t low = words.x, high = words.y;
    const auto half = [&](std::uint32_t bits) {
      return widen(stored, static_cast<std::uint16_t>(bits));
    };
    return {half(low), half(low >> 16), half(high), half(high >> 16)};
  }

 private:
  static constexpr int vectors = 16;
  static bool is_quad_aligned(const Rows& rows, DType dtype) {
    return reinterpret_cast<std::uintptr_t>(rows.data) % (4 * bytes_of(opaque_dtype(dtype))) == 0 &&
           (rows.batch_stride | rows.row_stride | rows.head_stride) % 4 == 0;
  }
  static DType dtype(int format) { return static_cast<DType>(format % vectors); }

  int format_;
};

// Bitwise copy.
inline void copy_element(const std::byte* from, std::byte* to, DType dtype, std::int64_t index) {
  if (size_of(dtype) == 4) {
    arch::store(reinterpret_cast<std::uint32_t*>(to) + index,
                arch::load(reinterpret_cast<const std::uint32_t*>(from) + index));
  } else if (size_of(dtype) == 1) {
    arch::store(reinterpret_cast<std::uint8_t*>(to) + index,
                arch::load(reinterpret_cast<const std::uint8_t*>(from) + index));
  } else {
    arch::store(reinterpret_cast<std::uint16_t*>(to) + index,
                arch::load(reinterpret_cast<const std::uint16_t*>(from) + index));
  }
}

// Address of a row, which may be in a page of the KV cache.
inline std::byte* row_address(const Rows& rows, std::int32_t caches, std::int64_t batch,
                              std::int64_t row, std::int64_t head) {
  find_page(rows, caches, batch, row);
  return rows.data + (batch * rows.batch_stride + row * rows.row_stride + head * rows.head_stride) *
                         static_cast<std::int64_t>(size_of(rows.dtype));
}

// The sequence of row n of a packed (varlen) tensor, or -1. With non-monotonic cu_seqlens the
// result is an arbitrary sequence or -1.
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
