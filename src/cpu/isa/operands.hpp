// How rows of a cache take part in decode's two products, q.k and weight.v: straight from their
// dtype, a whole vector of columns at a time.
//
// A kind of operands says how many columns a step takes, what q and the weights are kept as, and
// how sums grow. Kinds are free to keep sums in another order than the columns', as long as
// `in_order` can undo it.
#pragma once

#include "cpu/isa/tile.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// The last, partial step of a row, filled up with zeros.
template <class Kind>
struct Tail {
  Tail() = default;
  ROCFLASH_INLINE Tail(const typename Kind::Stored* from, int count) {
    for (int n = 0; n < count; ++n) data[n] = from[n];
  }
  typename Kind::Stored data[Kind::step] = {};
};

// Takes what is infinite or NaN out of a value and leaves 0 in its place.
ROCFLASH_INLINE Float take_nonfinite_of(Float& value) {
  const Int finite = value - value == 0.0f;
  const Float taken = select(finite, Float{}, value);
  value = select(finite, value, Float{});
  return taken;
}

// Products in f32 after converting: f32 and f16.
template <class Element>
struct Converted {
  using Stored = Element;  // in the cache
  using Query = float;     // q in scratch memory
  using Weight = float;    // weights likewise
  using Columns = Float;   // a step's columns of q or of a key
  using Value = Float;     // what is weighed for a vector of results
  using Exponent = Exponential;

  static constexpr int step = width;         // columns
  static constexpr int sums = step / width;  // vectors of results for them
  static constexpr int keys = 1;             // that a weight vector belongs to

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
  ROCFLASH_INLINE static Float weigh(Float sum, Float weight, Float value) {
    return add_products(sum, weight, value);
  }
  ROCFLASH_INLINE static void in_order(Float (&)[sums]) {}
};

// bf16 in f32, two vectors at a time: as 32-bit words they are the odd columns (once the even
// ones' bits are masked out) and, shifted, the even ones. Half of what converting one at a time
// costs.
struct EvenAndOdd {
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
  ROCFLASH_INLINE static Float weigh(Float sum, Float weight, Float value) {
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

#if defined(__AVX512BF16__)
// bf16 by the instruction that adds products of pairs: pairs of columns for q.k, and of keys for
// weight.v. Weights are rounded to bf16 for it, as plain attention in bf16 rounds them.
struct Pairs {
  using Stored = std::uint16_t;
  using Query = std::uint16_t;
  using Weight = std::uint16_t;
  using Columns = __m512i;
  using Value = __m512i;
  using Exponent = QuickExponential;  // weights are rounded, and so are the results

  static constexpr int step = 2 * width, sums = 2, keys = 2;

  ROCFLASH_INLINE static void store_query(Query* to, const float* from) {
    const Word both = side_by_side(load(from), load(from + width));
    __builtin_memcpy(to, &both, sizeof both);
  }
  ROCFLASH_INLINE static Columns load_query(const Query* from) { return _mm512_loadu_si512(from); }
  ROCFLASH_INLINE static Columns load_key(const Stored* from) { return _mm512_loadu_si512(from); }
  ROCFLASH_INLINE static Float add_product(Float sum, Columns a, Columns b) {
    return add_products(sum, (Word)a, (Word)b);
  }

  ROCFLASH_INLINE static void store_weights(Weight* to, Float w) {
    const __m256bh rounded_weights = _mm512_cvtneps_pbh((__m512)w);
    __builtin_memcpy(to, &rounded_weights, sizeof rounded_weights);
  }
  ROCFLASH_INLINE static Weight times(Weight w, float factor) {
    return bf16_from_float(float_from_bf16(w) * factor);
  }
  ROCFLASH_INLINE static Columns load_weight(const Weight* from) {
    int pair;
    __builtin_memcpy(&pair, from, sizeof pair);
    return _mm512_set1_epi32(pair);
  }
  // Columns c and c + 4 (mod 8) of both keys, side by side.
  ROCFLASH_INLINE static void load_values(const Stored* const (&from)[keys], Value (&to)[sums]) {
    const Columns a = load_key(from[0]), b = load_key(from[1]);
    to[0] = _mm512_unpacklo_epi16(a, b);
    to[1] = _mm512_unpackhi_epi16(a, b);
  }
  ROCFLASH_INLINE static Value take_nonfinite(Value& value, int key) {
    const Value magnitude = _mm512_and_si512(value, _mm512_set1_epi16(0x7fff));
    const __mmask32 of_key = key == 0 ? 0x55555555u : 0xaaaaaaaau,
                    taken = of_key & _mm512_cmpge_epu16_mask(magnitude, _mm512_set1_epi16(0x7f80));
    const Value nonfinite = _mm512_maskz_mov_epi16(taken, value);
    value = _mm512_mask_mov_epi16(value, taken, _mm512_setzero_si512());
    return nonfinite;
  }
  ROCFLASH_INLINE static Float weigh(Float sum, Columns weight, Columns value) {
    return add_product(sum, weight, value);
  }
  ROCFLASH_INLINE static void in_order(Float (&v)[sums]) {
    const Float low = v[0], high = v[1];
    v[0] =
        __builtin_shufflevector(low, high, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    v[1] = __builtin_shufflevector(low, high, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29,
                                   30, 31);
  }
};
#endif

// Calls body with the kind of operands for queries and caches of these dtypes.
template <class Body>
ROCFLASH_INLINE void with_operands([[maybe_unused]] DType query, DType cache, Body body) {
  if (cache == DType::f32) return body.template operator()<Converted<float>>();
  if (cache == DType::f16) return body.template operator()<Converted<_Float16>>();
#if defined(__AVX512BF16__) && !defined(ROCFLASH_TILES)
  // CPUs with tiles have this instruction too, but it is slower there than converting.
  if (query == DType::bf16) return body.template operator()<Pairs>();
#endif
  body.template operator()<EvenAndOdd>();
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
