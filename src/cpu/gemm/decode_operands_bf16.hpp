// Operand format of a bf16 cache for decode on ISAs with bf16 dot products.
#pragma once

#include "cpu/gemm/decode_operands.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// Pairs of columns for q.k, and pairs of keys for weight.v. Weights are rounded to bf16, as in
// naive attention.
struct Bf16Pairs {
  using Stored = std::uint16_t;
  using Query = std::uint16_t;
  using Weight = std::uint16_t;
  using Columns = Word;
  using Value = Word;
  using Exponent = QuickExponential;  // weights and results are rounded

  static constexpr int step = 2 * width, sums = 2, keys = 2;

  ROCFLASH_INLINE static void store_query(Query* to, const float* from) {
    const Word both = pack_bf16(load(from), load(from + width));
    __builtin_memcpy(to, &both, sizeof both);
  }
  ROCFLASH_INLINE static Columns load_query(const Query* from) { return load_as<Word>(from); }
  ROCFLASH_INLINE static Columns load_key(const Stored* from) { return load_as<Word>(from); }
  ROCFLASH_INLINE static Float add_product(Float sum, Columns a, Columns b) {
    return add_products(sum, a, b);
  }

  ROCFLASH_INLINE static void store_weights(Weight* to, Float w) {
    const Short rounded_weights = round_bf16(w);
    __builtin_memcpy(to, &rounded_weights, sizeof rounded_weights);
  }
  ROCFLASH_INLINE static Weight times(Weight w, float factor) {
    return bf16_from_float(float_from_bf16(w) * factor);
  }
  ROCFLASH_INLINE static Columns load_weight(const Weight* from) {
    std::uint32_t pair;
    __builtin_memcpy(&pair, from, sizeof pair);
    return splat(pair);
  }
  // Both keys, interleaved in the order that is fastest.
  ROCFLASH_INLINE static void load_values(const Stored* const (&from)[keys], Value (&to)[sums]) {
    interleave(load_key(from[0]), load_key(from[1]), to);
  }
  ROCFLASH_INLINE static Value take_nonfinite(Value& value, int key) {
    return take_nonfinite_halves(value, key);
  }
  ROCFLASH_INLINE static Float add_weighted(Float sum, Columns weight, Columns value) {
    return add_product(sum, weight, value);
  }
  ROCFLASH_INLINE static void in_order(Float (&v)[sums]) { undo_interleave(v); }
};

}  // namespace rocflash::cpu::ROCFLASH_ISA
