// Tables of the small floats' values, and their rounding.
#include "isa/small_float.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace rocflash::sim {
namespace {

std::array<float, 256> values_of(Small which) {
  const SmallFormat format = small_format(which);
  std::array<float, 256> table{};
  for (u32 code = 0; code < 1u << format.bits; ++code) {
    const u32 magnitude = code & ((1u << (format.bits - 1)) - 1);
    const int exponent = int(magnitude >> format.fraction);
    const int fraction = int(magnitude & ((1u << format.fraction) - 1));
    const int one = exponent == 0 ? 0 : 1 << format.fraction;
    float x =
        std::ldexp(float(fraction + one), std::max(exponent, 1) - format.bias - format.fraction);
    const bool beyond = magnitude > format.largest;
    if (beyond) x = std::bit_cast<float>(0x7fc00000u);
    if (which == Small::Bf8 && magnitude == 0x7c) x = std::numeric_limits<float>::infinity();
    table[code] = code != magnitude && x == x ? -x : x;
  }
  return table;
}

}  // namespace

const std::array<float, 256>& small_values(Small format) {
  static const std::array<std::array<float, 256>, kSmallFormats> tables = {
      values_of(Small::Fp8), values_of(Small::Bf8), values_of(Small::Fp6), values_of(Small::Bf6),
      values_of(Small::Fp4)};
  return tables[static_cast<std::size_t>(format)];
}

u32 to_small(u32 bits, Small f, bool saturate, const u32* seed) {
  const SmallFormat format = small_format(f);
  const u32 magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return format.bits == 8 ? format.nan : bits >> 31 << (format.bits - 1) | format.nan;
  }
  const u32 beyond = saturate && magnitude != 0x7f800000u ? format.largest : format.overflow;
  return seed == nullptr ? narrow_small(bits, format, beyond, kNearestEven)
                         : narrow_small(bits, format, beyond, Stochastic{*seed});
}

}  // namespace rocflash::sim
