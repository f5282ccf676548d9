// Operand formats of decode's two products, q.k and weight.v: read directly from the cache's dtype,
// a vector of columns at a time.
//
// A format defines the columns per step, the representation of q and weights, and the accumulation.
// It may keep sums in another column order if `in_order` restores it.
#pragma once

#include "cpu/gemm/rows.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// The last, partial step of a row, zero-padded.
template <class Kind>
struct Tail {
  Tail() = default;
  ROCFLASH_INLINE Tail(const typename Kind::Stored* from, int count) {
    for (int n = 0; n < count; ++n) data[n] = from[n];
  }
  typename Kind::Stored data[Kind::step] = {};
};

// Moves non-finite lanes out of `value`, which becomes 0 there.
ROCFLASH_INLINE Float take_nonfinite_of(Float& value) {
  const Int finite = value - value == 0.0f;
  const Float taken = select(finite, Float{}, value);
  value = select(finite, value, Float{});
  return taken;
}

// f32 and f16, converted to f32.
template <class Element>
struct ConvertedRows {
  using Stored = Element;  // in the cache
  using Query = float;     // q in scratch memory
  using Weight = float;    // weights in scratch memory
  using Columns = Float;   // one step of columns of q or of a key
  using Value = Float;     // one vector of values
  using Exponent = Exponential;

  static constexpr int step = width;         // columns
  static constexpr int sums = step / width;  // result vectors per step
  static constexpr int keys = 1;             // keys per weight vector

  ROCFLASH_INLINE static void store_query(Query* to, const float* from) { store(to, load(from)); }
  ROCFLASH_INLINE static Columns load_query(const Query* from) { return load(from); }
  ROCFLASH_INLINE static Columns load_key(const Stored* from) { return load_vector(from); }
  ROCFLASH_INLINE static Float add_product(Float sum, Columns q, Columns k) {
    return add_products(sum, q, k);
  }

  ROCFLASH_INLINE static void store_weights(Weight* to, Float w) { store(to, w); }
  ROCFLASH_INLINE static Weight times(Weight w, float factor) { return w * factor; }
  ROCFLASH_INLINE static Float load_weight(const Weight* from) { return splat(*from); }
  ROCFLASH_INLINE static void load_values(const Stored* const (&from)[keys], Value (&to)[sums]) {
    to[0] = load_vector(from[0]);
  }
  ROCFLASH_INLINE static Float take_nonfinite(Value& value, int) {
    return take_nonfinite_of(value);
  }
  ROCFLASH_INLINE static Float add_weighted(Float sum, Float weight, Float value) {
    return add_products(sum, weight, value);
  }
  ROCFLASH_INLINE static void in_order(Float (&)[sums]) {}
};

// bf16 in f32, two vectors at a time: as 32-bit words they are the odd columns (even ones masked
// out) and, shifted, the even columns. Half the cost of converting one vector at a time.
struct DeinterleavedBf16 {
  using Stored = std::uint16_t;
  using Query = float;
  using Weight = float;
  struct Columns {
    Float even, odd;
  };
  using Value = Float;
  using Exponent = Exponential;

  static constexpr int step = 2 * width, sums = 2, keys = 1;

  ROCFLASH_INLINE static void store_query(Query* to, const float* from) {
    for (int n = 0; n < width; ++n) {
      to[n] = from[2 * n];
      to[width + n] = from[2 * n + 1];
    }
  }
  ROCFLASH_INLINE static Columns load_query(const Query* from) {
    return {load(from), load(from + width)};
  }
  ROCFLASH_INLINE static Columns load_key(const Stored* from) {
    const Word words = load_as<Word>(from);
    return {(Float)(words << 16), (Float)(words & 0xffff0000u)};
  }
  ROCFLASH_INLINE static Float add_product(Float sum, Columns q, Columns k) {
    return add_products(add_products(sum, q.even, k.even), q.odd, k.odd);
  }

  ROCFLASH_INLINE static void store_weights(Weight* to, Float w) { store(to, w); }
  ROCFLASH_INLINE static Weight times(Weight w, float factor) { return w * factor; }
  ROCFLASH_INLINE static Float load_weight(const Weight* from) { return splat(*from); }
  ROCFLASH_INLINE static void load_values(const Stored* const (&from)[keys], Value (&to)[sums]) {
    const Columns c = load_key(from[0]);
    to[0] = c.even;
    to[1] = c.odd;
  }
  ROCFLASH_INLINE static Float take_nonfinite(Value& value, int) {
    return take_nonfinite_of(value);
  }
  ROCFLASH_INLINE static Float add_weighted(Float sum, Float weight, Float value) {
    return add_products(sum, weight, value);
  }
  ROCFLASH_INLINE static void in_order(Float (&v)[sums]) {
    float columns[step];
    for (int n = 0; n < width; ++n) {
      columns[2 * n] = v[0][n];
      columns[2 * n + 1] = v[1][n];
    }
    for (int n = 0; n < sums; ++n) v[n] = load(columns + n * width);
  }
};

// Calls body with the operand format for a cache of this dtype. Tiles of a quantized cache are
// converted to f32 before the products: each key once for all rows that share it.
template <class Body>
ROCFLASH_INLINE void with_f32_operands(DType cache, Body body) {
  if (cache == DType::f32 || is_8_bit(cache))
    return body.template operator()<ConvertedRows<float>>();
  if (cache == DType::f16) return body.template operator()<ConvertedRows<_Float16>>();
  body.template operator()<DeinterleavedBf16>();
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
