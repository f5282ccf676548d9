// NEON with bf16 dot products (BFDOT): two elements per 32-bit lane.
#pragma once

#include "cpu/simd/traits.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// Half of the accumulators hold the sums of earlier blocks.
inline constexpr Traits traits{
    .width = 4, .summation_block = 16, .blocks_in_registers = true, .registers = 32};

}  // namespace rocflash::cpu::ROCFLASH_ISA

#include "cpu/simd/neon_vectors.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// BFDOT: adds both products of each lane's pair. Subnormal inputs count as 0.
ROCFLASH_INLINE Float add_products(Float sum, Word a, Word b) {
  return (Float)vbfdotq_f32((float32x4_t)sum, vreinterpretq_bf16_u32((uint32x4_t)a),
                            vreinterpretq_bf16_u32((uint32x4_t)b));
}
// Rounds 2 * width floats to bf16, in order.
ROCFLASH_INLINE Word pack_bf16(Float first, Float second) {
  const bfloat16x8_t lower = vcvtq_low_bf16_f32((float32x4_t)first);
  return (Word)vreinterpretq_u32_bf16(vcvtq_high_bf16_f32(lower, (float32x4_t)second));
}
// Interleaves the elements of two rows into pairs, for the first `width` columns and for the rest.
ROCFLASH_INLINE Word pair_first(Word lower, Word upper) {
  return (Word)vzip1q_u16((uint16x8_t)lower, (uint16x8_t)upper);
}
ROCFLASH_INLINE Word pair_second(Word lower, Word upper) {
  return (Word)vzip2q_u16((uint16x8_t)lower, (uint16x8_t)upper);
}
// Rounds to bf16 pairs; the first operand is in the lower halves.
ROCFLASH_INLINE Word pair_up(Float lower, Float upper) {
  const auto both = (uint16x8_t)pack_bf16(lower, upper);
  return (Word)vzip1q_u16(both, vextq_u16(both, both, 4));
}
ROCFLASH_INLINE Short round_bf16(Float x) {
  return (Short)vreinterpret_u16_bf16(vcvt_bf16_f32((float32x4_t)x));
}

// The larger of unsigned 16-bit halves, and whether any is at least `bound`.
ROCFLASH_INLINE Word larger_halves(Word a, Word b) {
  return (Word)vmaxq_u16((uint16x8_t)a, (uint16x8_t)b);
}
ROCFLASH_INLINE bool any_half_from(Word x, std::uint16_t bound) {
  return vmaxvq_u16((uint16x8_t)x) >= bound;
}

// Columns of two rows as pairs; sums over them are in order.
ROCFLASH_INLINE void interleave(Word a, Word b, Word (&to)[2]) {
  to[0] = pair_first(a, b);
  to[1] = pair_second(a, b);
}
ROCFLASH_INLINE void undo_interleave(Float (&)[2]) {}
// Moves the infinities and NaNs of one half of each pair out of `value`.
ROCFLASH_INLINE Word take_nonfinite_halves(Word& value, int half) {
  const Word of_half = splat(half == 0 ? 0x0000ffffu : 0xffff0000u);
  const auto magnitude = (uint16x8_t)(value & 0x7fff7fffu);
  const Word taken = (Word)vcgeq_u16(magnitude, vdupq_n_u16(0x7f80)) & of_half;
  const Word nonfinite = value & taken;
  value &= ~taken;
  return nonfinite;
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
