// exp and log of the FP32 path. The errors of the hardware instructions would dominate: with few
// products per sum, naive attention is off by little more than the rounding of its results. All
// functions here are accurate to 1 ulp; the instructions have 2 ulp or round twice.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/online_softmax.hpp"

namespace rocflash::kernel {

struct ExactLogDomain {
  static constexpr float from_natural = 1;
  static constexpr bool precise = true;

  // x = n ln 2 + r with |r| < 0.35; a polynomial for exp(r), then n is added to the exponent.
  // Subnormal results are flushed to 0.
  static float exp(float x) {
    constexpr float to_integer = 0x1.8p23f;  // adding it rounds to an integer
    const float shifted = __builtin_fmaf(x, arch::to_vgpr(log2_e), arch::to_vgpr(to_integer)),
                n = shifted - to_integer;
    const float r = __builtin_fmaf(n, arch::to_vgpr(-ln_2_rest),
                                   __builtin_fmaf(n, arch::to_vgpr(-ln_2_short), x));
    float q = arch::to_vgpr(1.39529770e-3f);  // saves SGPRs
    q = __builtin_fmaf(q, r, arch::to_vgpr(8.37032776e-3f));
    q = __builtin_fmaf(q, r, arch::to_vgpr(4.16661687e-2f));
    q = __builtin_fmaf(q, r, arch::to_vgpr(1.66665062e-1f));
    q = __builtin_fmaf(q, r, 0.5f);
    const float power = 1 + __builtin_fmaf(q, r * r, r);
    const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, power) +
                               (__builtin_bit_cast(std::uint32_t, shifted) << 23);
    const float result = x < arch::to_vgpr(-87.3f) ? 0.0f : __builtin_bit_cast(float, bits);
    return x <= arch::to_vgpr(88.7f) ? result : x * arch::to_vgpr(infinity);  // NaN propagates
  }
  static float fine_exp(float x) { return exp(x); }

  static float reciprocal(float x) {
    const float nearly = arch::reciprocal(x);
    const float better = __builtin_fmaf(nearly, __builtin_fmaf(-x, nearly, 1.0f), nearly);
    return better == better ? better : nearly;  // the reciprocal of 0 or infinity
  }

  // row_max + log(total), rounded once at the end. total = 2ⁿ m with m between 3/4 and 3/2, and
  // log(m) = 2 artanh((m - 1) / (m + 1)).
  static float lse(float row_max, float total) {
    if (total - total != 0) return row_max + total;
    const auto bits = __builtin_bit_cast(std::int32_t, total);
    const std::int32_t exponent = (bits - 0x3f400000) >> 23;
    const float m = __builtin_bit_cast(float, bits - (exponent << 23));
    const float s = (m - 1) * reciprocal(m + 1), z = s * s;
    float q = 1.20591947e-1f;
    q = __builtin_fmaf(q, z, 1.42528925e-1f);
    q = __builtin_fmaf(q, z, 2.00004438e-1f);
    q = __builtin_fmaf(q, z, 3.33333315e-1f);
    const auto n = static_cast<float>(exponent);
    const float log_m = 2 * __builtin_fmaf(s * z, q, s), large = n * ln_2_short;  // without error
    // The rounding error of row_max + large is added with the rest (2Sum).
    const float sum = row_max + large, of_large = sum - row_max;
    const float lost = (row_max - (sum - of_large)) + (large - of_large);
    const float rest = lost + __builtin_fmaf(n, ln_2_rest, log_m);
    return sum - sum != 0 ? sum : sum + rest;
  }

 private:
  // ln 2 as the sum of two floats; n times the first is exact for any f32 exponent n.
  static constexpr float ln_2_short = 0x1.62e4p-1f, ln_2_rest = 0x1.7f7d1cp-20f;
};

}  // namespace rocflash::kernel
