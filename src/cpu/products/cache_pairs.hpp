// Rows of a bf16 cache in decode's products, with dot products of pairs.
#pragma once

#include "cpu/products/cache.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

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

}  // namespace rocflash::cpu::ROCFLASH_ISA
