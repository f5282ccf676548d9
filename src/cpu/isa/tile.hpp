// Moves rows between tensors of any dtype and stride and the float tiles that the kernels work on.
#pragma once

#include "core/problem.hpp"
#include "cpu/isa/simd.hpp"
#include "cpu/plan.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// Rows [begin, begin + count) of one head of one sequence.
struct RowBlock {
  const Rows& rows;
  std::int64_t batch, begin, head;
  int count;

  ROCFLASH_INLINE std::byte* row(int n) const { return rows.row(batch, begin + n, head); }
};

template <class Element>
ROCFLASH_INLINE Float load_vector(const Element* from) {
  if constexpr (sizeof(Element) == 4) {
    return load(from);
  } else if constexpr (static_cast<Element>(0.5f) == static_cast<Element>(0)) {
    return from_bf16(load_as<Short>(from));  // an integer type: bf16's bits
  } else {
    return __builtin_convertvector(load_as<Half>(from), Float);
  }
}
ROCFLASH_INLINE float load_scalar(const float* from) { return *from; }
ROCFLASH_INLINE float load_scalar(const _Float16* from) { return static_cast<float>(*from); }
ROCFLASH_INLINE float load_scalar(const std::uint16_t* from) { return float_from_bf16(*from); }

ROCFLASH_INLINE void store_vector(float* to, Float v) { store(to, v); }
ROCFLASH_INLINE void store_vector(_Float16* to, Float v) {
  const Half h = __builtin_convertvector(v, Half);
  __builtin_memcpy(to, &h, sizeof h);
}
ROCFLASH_INLINE void store_vector(std::uint16_t* to, Float v) {
  const Short s = to_bf16(v);
  __builtin_memcpy(to, &s, sizeof s);
}
ROCFLASH_INLINE void store_scalar(float* to, float x) { *to = x; }
ROCFLASH_INLINE void store_scalar(_Float16* to, float x) { *to = static_cast<_Float16>(x); }
ROCFLASH_INLINE void store_scalar(std::uint16_t* to, float x) { *to = bf16_from_float(x); }

// Calls body with a pointer of the dtype's element type. bf16 travels as its bits.
template <class Body>
ROCFLASH_INLINE void with_elements(DType dtype, const std::byte* data, Body body) {
  if (dtype == DType::f16) return body(reinterpret_cast<const _Float16*>(data));
  if (dtype == DType::bf16) return body(reinterpret_cast<const std::uint16_t*>(data));
  body(reinterpret_cast<const float*>(data));
}
template <class Body>
ROCFLASH_INLINE void with_elements(DType dtype, std::byte* data, Body body) {
  if (dtype == DType::f16) return body(reinterpret_cast<_Float16*>(data));
  if (dtype == DType::bf16) return body(reinterpret_cast<std::uint16_t*>(data));
  body(reinterpret_cast<float*>(data));
}

// Converts one row; returns a vector that is NaN in some lane if any element is infinite or NaN,
// else 0.
ROCFLASH_INLINE Float convert_row(float* to, const std::byte* from, DType dtype, int columns) {
  Float taint{};
  with_elements(dtype, from, [&](auto* row) {
    int c = 0;
    for (; c + width <= columns; c += width) {
      const Float v = load_vector(row + c);
      taint += v * 0.0f;
      store(to + c, v);
    }
    for (; c < columns; ++c) {
      to[c] = load_scalar(row + c);
      taint[0] += to[c] * 0.0f;
    }
  });
  return taint;
}

// to[row][column], `stride` floats a row. Returns whether all elements are finite.
[[maybe_unused, gnu::noinline]] static bool load_rows(float* to, std::int64_t stride,
                                                      const RowBlock& block) {
  Float taint{};
  for (int n = 0; n < block.count; ++n)
    taint += convert_row(to + n * stride, block.row(n), block.rows.dtype, block.rows.columns);
  return !any_nan(taint);
}

// Pairs of bf16 numbers as words: along the columns, to[row][column / 2], and along the rows,
// to[row / 2][column]. What is missing to a pair is 0; `stride` counts words.
[[maybe_unused, gnu::noinline]] static void load_column_pairs(std::uint32_t* to,
                                                              std::int64_t stride,
                                                              const RowBlock& block) {
  const int columns = block.rows.columns;
  for (int n = 0; n < block.count; ++n, to += stride) {
    to[columns / 2] = 0;  // there is room for one more
    __builtin_memcpy(to, block.row(n), static_cast<std::size_t>(columns) * 2);
  }
}
// Returns whether all elements are finite.
[[maybe_unused, gnu::noinline]] static bool load_row_pairs(std::uint32_t* to, std::int64_t stride,
                                                           const RowBlock& block) {
  Float taint{};
  const auto taint_of = [](Word pair) {
    return (Float)(pair << 16) * 0.0f + (Float)(pair & 0xffff0000u) * 0.0f;
  };
  for (int n = 0; n < block.count; n += 2, to += stride) {
    const auto* lower = reinterpret_cast<const std::uint16_t*>(block.row(n));
    const bool both = n + 1 < block.count;
    const auto* upper = both ? reinterpret_cast<const std::uint16_t*>(block.row(n + 1)) : lower;
    const std::uint32_t mask = both ? 0xffffffffu : 0x0000ffffu;
    int c = 0;
    for (; c + width <= block.rows.columns; c += width) {
      const Word pair = (__builtin_convertvector(load_as<Short>(lower + c), Word) |
                         __builtin_convertvector(load_as<Short>(upper + c), Word) << 16) &
                        mask;
      taint += taint_of(pair);
      store(to + c, pair);
    }
    for (; c < block.rows.columns; ++c) {
      to[c] = (lower[c] | static_cast<std::uint32_t>(upper[c]) << 16) & mask;
      taint += taint_of(splat(to[c]));
    }
  }
  return !any_nan(taint);
}

// to[column][lane]: each row becomes a lane. Lanes beyond the rows become 0.
[[maybe_unused, gnu::noinline]] static void load_lanes(float* to, int panel,
                                                       const RowBlock& block) {
  float row[max_head_dim];
  const int columns = block.rows.columns;
  for (int n = 0; n < panel; ++n) {
    if (n < block.count) convert_row(row, block.row(n), block.rows.dtype, columns);
    for (int c = 0; c < columns; ++c) to[c * panel + n] = n < block.count ? row[c] : 0.0f;
  }
}

ROCFLASH_INLINE void store_row(std::byte* to, DType dtype, const float* from, int columns) {
  with_elements(dtype, to, [&](auto* row) {
    int c = 0;
    for (; c + width <= columns; c += width) store_vector(row + c, load(from + c));
    for (; c < columns; ++c) store_scalar(row + c, from[c]);
  });
}

// The way back: from[column][lane] * factor[lane] into the block's rows, rounded once.
[[maybe_unused, gnu::noinline]] static void store_lanes(const float* from, int panel,
                                                        const double* factor,
                                                        const RowBlock& block) {
  float row[max_head_dim];
  const int columns = block.rows.columns;
  for (int n = 0; n < block.count; ++n) {
    for (int c = 0; c < columns; ++c)
      row[c] = static_cast<float>(static_cast<double>(from[c * panel + n]) * factor[n]);
    store_row(block.row(n), block.rows.dtype, row, columns);
  }
}

// Hands out pieces of the thread's scratch memory, each on a cache line of its own.
class Scratch {
 public:
  ROCFLASH_INLINE explicit Scratch(float* memory) : next_(memory) {}
  ROCFLASH_INLINE float* take(std::int64_t floats) {
    float* piece = next_;
    next_ += padded(floats);
    return piece;
  }

 private:
  float* next_;
};

}  // namespace rocflash::cpu::ROCFLASH_ISA
