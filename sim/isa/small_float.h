// Floats of 8, 6 and 4 bits: what each code means, and rounding to them.
#pragma once

#include <array>

#include "core/types.h"

namespace rocflash::sim {

// OCP's formats in the order that CBSZ and BLGP number them: E4M3, E5M2, E2M3, E3M2, E2M1.
enum class Small : u8 { Fp8, Bf8, Fp6, Bf6, Fp4 };
inline constexpr int kSmallFormats = 5;

struct SmallFormat {
  int bits;
  int fraction;  // bits
  int bias;
  u32 largest;  // code of the largest number
  u32 overflow;
  u32 nan;
};

constexpr SmallFormat small_format(Small f) {
  switch (f) {
    case Small::Fp8:
      return {8, 3, 7, 0x7e, 0x7f, 0xff};
    case Small::Bf8:
      return {8, 2, 15, 0x7b, 0x7c, 0xfe};
    // The rest have neither infinities nor NaN; what is beyond becomes the largest number.
    case Small::Fp6:
      return {6, 3, 1, 0x1f, 0x1f, 0x1f};
    case Small::Bf6:
      return {6, 2, 3, 0x1f, 0x1f, 0x1f};
    default:
      return {4, 1, 1, 0x7, 0x7, 0x7};
  }
}

// Rounds f32 bits to a code. `round(significand, align, cut)` takes a significand of 24 bits,
// shifts it down by `align` as a subnormal needs and drops `cut` bits; what it does with those is
// its own.
template <typename Round>
u32 narrow_small(u32 bits, const SmallFormat& format, u32 beyond, Round round) {
  const u32 magnitude = bits & 0x7fffffffu;
  const u32 sign = bits >> 31 << (format.bits - 1);
  const int exponent = int(magnitude >> 23) - 127 + format.bias;  // 0 and less: subnormal
  if (exponent >= (1 << (format.bits - 1 - format.fraction))) return sign | beyond;
  const u32 significand = (magnitude & 0x7fffffu) | (magnitude >= 0x800000u ? 0x800000u : 0);
  const int align = exponent < 1 ? 1 - exponent : 0;
  u32 code = round(significand, align, 23 - format.fraction);
  // The implicit one adds the exponent's last step; a carry goes up into it by itself.
  if (exponent > 1) code += u32(exponent - 1) << format.fraction;
  return sign | (code > format.largest ? beyond : code);
}

inline constexpr auto kNearestEven = [](u32 significand, int align, int cut) {
  const int shift = cut + align;
  if (shift > 25) return 0u;
  const u32 kept = significand >> shift;
  const u32 rest = significand & ((1u << shift) - 1);
  const u32 half = 1u << (shift - 1);
  return kept + (rest > half || (rest == half && (kept & 1) != 0) ? 1u : 0u);
};

// The top bits of a seed are added below the last place kept, then cut off.
struct Stochastic {
  u32 seed;
  u32 operator()(u32 significand, int align, int cut) const {
    // What the alignment of a subnormal shifts out does not take part.
    const u32 aligned = align < 32 ? significand >> align : 0;
    return (aligned + (seed >> (32 - cut))) >> cut;
  }
};

// The value of each code.
const std::array<float, 256>& small_values(Small format);

// One rounding of f32 bits, to nearest even or by the seed where there is one. A finite value
// beyond the range becomes the largest number when `saturate` (MODE's FP16_OVFL), otherwise what
// the format has for it. NaN becomes the largest number where the format has none.
u32 to_small(u32 bits, Small format, bool saturate, const u32* seed = nullptr);

// The next number of v_prng_b32.
inline u32 next_random(u32 x) { return x << 1 ^ (x >> 31 != 0 ? 0xc5u : 0u); }

}  // namespace rocflash::sim
