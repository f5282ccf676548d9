// Loads and stores rows of tensors of any dtype and stride to and from the kernels' float tiles.
#pragma once

#include "core/problem.hpp"
#include "cpu/gemm/quantized.hpp"
#include "cpu/plan.hpp"
#include "cpu/simd/simd.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// Rows [begin, begin + count) of one head of one sequence.
struct RowBlock {
  const Rows& rows;
  std::int64_t batch, begin, head;
  int count;
  const Descale* descale = nullptr;  // of 8-bit rows

  ROCFLASH_INLINE std::byte* row(int n) const { return rows.row(batch, begin + n, head); }
  ROCFLASH_INLINE float scale(int n) const {
    return descale ? descale->at(rows, batch, begin + n, head) : 1.0f;
  }
};

// An assignable RowBlock, for operands that keep their source.
struct Origin {
  Origin() = default;
  ROCFLASH_INLINE Origin(const RowBlock& b)  // NOLINT: a block, kept
      : rows(&b.rows),
        batch(b.batch),
        begin(b.begin),
        head(b.head),
        count(b.count),
        descale(b.descale) {}
  ROCFLASH_INLINE RowBlock block(std::int64_t most) const {
    return {*rows, batch, begin, head, static_cast<int>(smaller(count, most)), descale};
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
  const Descale* descale = nullptr;
};

// Up to `width` row addresses, resolved once.
struct LaneRows {
  std::byte* row[width];
  int count;

  ROCFLASH_INLINE LaneRows(const RowBlock& block, int first)
      : count(static_cast<int>(smaller(width, block.count - first))) {
    for (int n = 0; n < count; ++n) row[n] = block.row(first + n);
  }
};

// Prefetches the n-th of `parts` parts of the rows into L2.
ROCFLASH_INLINE void prefetch(const RowBlock& block, int n, int parts) {
  const auto bytes = static_cast<std::int64_t>(size_of(block.rows.dtype)) * block.rows.columns;
  for (int r = block.count * n / parts; r < block.count * (n + 1) / parts; ++r) {
    const std::byte* row = block.row(r);
    for (std::int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
  }
}
// The same for accumulators, in whole cache lines, for writing.
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
    return from_bf16(load_as<Short>(from));  // an integer type: the bits of bf16
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

// Calls body with a pointer to the dtype's element type; bf16 is passed as its bits.
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

// Converts one row. Returns a vector with NaN in some lane if any element is infinite or NaN, else
// 0.
ROCFLASH_INLINE Float convert_row(float* to, const std::byte* from, DType dtype, int columns) {
  Float taint{};
  // A copy that GCC does not inline would be linkable.
  with_elements(dtype, from, [&](auto* row) __attribute__((always_inline)) {
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

// Row n of a block, quantized or not.
ROCFLASH_INLINE Float convert_row(float* to, const RowBlock& block, int n) {
  const Rows& rows = block.rows;
  if (is_8_bit(rows.dtype))
    return dequantize_row(to, block.row(n), rows.dtype, rows.columns, block.scale(n));
  return convert_row(to, block.row(n), rows.dtype, rows.columns);
}

// to[row][column], `stride` floats per row. Returns whether all elements are finite.
[[maybe_unused, gnu::noinline]] static bool load_rows(float* to, std::int64_t stride,
                                                      const RowBlock& block) {
  Float taint{};
  for (int n = 0; n < block.count; ++n) taint += convert_row(to + n * stride, block, n);
  return !any_nan(taint);
}
// The same, scaled by a power of two.
[[maybe_unused, gnu::noinline]] static bool load_rows(float* to, std::int64_t stride,
                                                      const RowBlock& block, float factor) {
  const bool finite = load_rows(to, stride, block);
  if (factor == 1.0f) return finite;
  for (int n = 0; n < block.count; ++n)
    for (int c = 0; c < block.rows.columns; ++c) to[n * stride + c] *= factor;
  return finite;
}

// A vector of columns, of which `left` exist; 0 past them.
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

// As load_lanes, for so few rows that no transposition is needed.
template <int count>
ROCFLASH_INLINE void load_few_lanes(float* to, int panel, const RowBlock& block, int first,
                                    float factor) {
  float numbers[larger(1, count)][max_head_dim];
  for (int n = 0; n < count; ++n) convert_row(numbers[n], block, first + n);
  for (int c = 0; c < block.rows.columns; ++c) {
    Float v{};
    for (int n = 0; n < count; ++n) v[n] = numbers[n][c];
    store(to + c * panel, v * factor);
  }
}
// The same for quantized rows of any number, which only the standard backend has in lanes.
[[maybe_unused, gnu::noinline]] static void load_quantized_lanes(float* to, int panel,
                                                                 const RowBlock& block,
                                                                 float factor) {
  float numbers[max_head_dim];
  for (int n = 0; n < panel; ++n) {
    if (n < block.count) convert_row(numbers, block, n);
    for (int c = 0; c < block.rows.columns; ++c)
      to[c * panel + n] = n < block.count ? numbers[c] * factor : 0.0f;
  }
}
// to[column][lane]: packs each row into a lane, scaled by a power of two. Lanes past the rows are
// 0.
[[maybe_unused, gnu::noinline]] static void load_lanes(float* to, int panel, const RowBlock& block,
                                                       float factor = 1.0f) {
  if (is_8_bit(block.rows.dtype)) return load_quantized_lanes(to, panel, block, factor);
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

// The inverse of load_lanes: from[column][lane] * factor[lane] to the block's rows, rounded once.
// `factor` covers all lanes. Returns whether all results are finite.
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

// Allocates cache-line aligned arrays from the thread's scratch memory.
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
