// Moves rows between tensors of any dtype and stride and the float tiles that the kernels work on.
#pragma once

#include "core/problem.hpp"
#include "cpu/plan.hpp"
#include "cpu/simd/simd.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// Rows [begin, begin + count) of one head of one sequence.
struct RowBlock {
  const Rows& rows;
  std::int64_t batch, begin, head;
  int count;

  ROCFLASH_INLINE std::byte* row(int n) const { return rows.row(batch, begin + n, head); }
};

// The same as a value that can be assigned, for operands that remember where they came from.
struct Origin {
  Origin() = default;
  ROCFLASH_INLINE Origin(const RowBlock& b)  // NOLINT: a block, kept
      : rows(&b.rows), batch(b.batch), begin(b.begin), head(b.head), count(b.count) {}
  ROCFLASH_INLINE RowBlock block(std::int64_t most) const {
    return {*rows, batch, begin, head, static_cast<int>(smaller(count, most))};
  }
  ROCFLASH_INLINE Origin from(std::int64_t row) const {
    Origin part = *this;
    part.begin += row;
    part.count -= static_cast<int>(row);
    return part;
  }
  const Rows* rows = nullptr;
  std::int64_t batch = 0, begin = 0, head = 0;
  int count = 0;
};

// Up to `width` of them, found once.
struct LaneRows {
  std::byte* row[width];
  int count;

  ROCFLASH_INLINE LaneRows(const RowBlock& block, int first)
      : count(static_cast<int>(smaller(width, block.count - first))) {
    for (int n = 0; n < count; ++n) row[n] = block.row(first + n);
  }
};

// Asks for the n-th of `parts` of the rows, which will be needed soon, into the second-level cache.
ROCFLASH_INLINE void prefetch(const RowBlock& block, int n, int parts) {
  const auto bytes = static_cast<std::int64_t>(size_of(block.rows.dtype)) * block.rows.columns;
  for (int r = block.count * n / parts; r < block.count * (n + 1) / parts; ++r) {
    const std::byte* row = block.row(r);
    for (std::int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
  }
}
// The same for sums that will be added to, on whole cache lines.
ROCFLASH_INLINE void prefetch(const float* sums, std::int64_t floats, int n, int parts) {
  const std::int64_t lines = floats / cache_line_floats;
  for (std::int64_t at = lines * n / parts; at < lines * (n + 1) / parts; ++at)
    __builtin_prefetch(sums + at * cache_line_floats, 1, 2);
}

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
      taint = fused(v, Float{}, taint);
      store(to + c, v);
    }
    for (; c < columns; ++c) {
      to[c] = load_scalar(row + c);
      taint[0] = fused(to[c], 0.0f, taint[0]);
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
// The same times a power of two.
[[maybe_unused, gnu::noinline]] static bool load_rows(float* to, std::int64_t stride,
                                                      const RowBlock& block, float factor) {
  const bool finite = load_rows(to, stride, block);
  if (factor == 1.0f) return finite;
  for (int n = 0; n < block.count; ++n)
    for (int c = 0; c < block.rows.columns; ++c) to[n * stride + c] *= factor;
  return finite;
}

// A vector of columns from `from` on, of which there are `left`; 0 beyond them.
template <class Element>
[[gnu::noinline]] static Float load_some_columns(const Element* from, int left) {
  Float v{};
  for (int n = 0; n < left; ++n) v[n] = load_scalar(from + n);
  return v;
}
template <class Element>
ROCFLASH_INLINE Float load_columns(const Element* from, int left) {
  return left >= width ? load_vector(from) : load_some_columns(from, left);
}

// The same as below for so few rows that there is nothing to turn.
template <int count>
ROCFLASH_INLINE void load_few_lanes(float* to, int panel, const RowBlock& block, int first,
                                    float factor) {
  float numbers[larger(1, count)][max_head_dim];
  for (int n = 0; n < count; ++n)
    convert_row(numbers[n], block.row(first + n), block.rows.dtype, block.rows.columns);
  for (int c = 0; c < block.rows.columns; ++c) {
    Float v{};
    for (int n = 0; n < count; ++n) v[n] = numbers[n][c];
    store(to + c * panel, v * factor);
  }
}
// to[column][lane]: each row becomes a lane, times a power of two. Lanes beyond the rows become 0.
[[maybe_unused, gnu::noinline]] static void load_lanes(float* to, int panel, const RowBlock& block,
                                                       float factor = 1.0f) {
  const int columns = block.rows.columns;
  for (int first = 0; first < panel; first += width) {
    const LaneRows rows(block, first);
    if (rows.count <= 0) {
      load_few_lanes<0>(to + first, panel, block, first, factor);
    } else if (rows.count == 1) {
      load_few_lanes<1>(to + first, panel, block, first, factor);
    } else if (rows.count == 2) {
      load_few_lanes<2>(to + first, panel, block, first, factor);
    } else {
      with_elements(block.rows.dtype, rows.row[0], [&]<class Element>(const Element*) {
        for (int c = 0; c < columns; c += width) {
          Float v[width];
          over_lanes([&](int n) {
            const auto* row = reinterpret_cast<const Element*>(rows.row[n]);
            v[n] = n < rows.count ? load_columns(row + c, columns - c) : Float{};
          });
          transpose(v);
          over_lanes([&](int n) {
            if (n < columns - c) store(to + (c + n) * panel + first, v[n] * factor);
          });
        }
      });
    }
  }
}

ROCFLASH_INLINE void store_row(std::byte* to, DType dtype, const float* from, int columns) {
  with_elements(dtype, to, [&](auto* row) {
    int c = 0;
    for (; c + width <= columns; c += width) store_vector(row + c, load(from + c));
    for (; c < columns; ++c) store_scalar(row + c, from[c]);
  });
}

// The way back: from[column][lane] * factor[lane] into the block's rows, rounded once. There are
// factors for all lanes. Returns whether all results are finite.
[[maybe_unused, gnu::noinline]] static bool store_lanes(const float* from, int panel,
                                                        const double* factor,
                                                        const RowBlock& block) {
  const int columns = block.rows.columns;
  Float taint{};
  for (int first = 0; first < block.count; first += width) {
    const LaneRows rows(block, first);
    for (int c = 0; c < columns; c += width) {
      const auto left = static_cast<int>(smaller(width, columns - c));
      Float v[width];
      for (int n = 0; n < width; ++n)
        v[n] = n < left ? scaled(load(from + (c + n) * panel + first), factor + first) : Float{};
      transpose(v);
      for (int n = 0; n < rows.count; ++n) {
        taint = fused(v[n], Float{}, taint);
        with_elements(block.rows.dtype, rows.row[n], [&](auto* row) {
          if (left == width) return store_vector(row + c, v[n]);
          for (int i = 0; i < left; ++i) store_scalar(row + c + i, v[n][i]);
        });
      }
    }
  }
  return !any_nan(taint);
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
