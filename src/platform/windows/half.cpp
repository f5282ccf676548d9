// Conversions of f16 on CPUs without F16C, which clang calls with the argument in a vector
// register. GCC's library for Windows has them with another calling convention: it reads a general
// register.
#include <bit>
#include <cstdint>

extern "C" float __extendhfsf2(_Float16 half) {
  const std::uint32_t bits = std::bit_cast<std::uint16_t>(half);
  const std::uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31u,
                      fraction = bits & 0x3ffu;
  if (exponent == 0) {  // zeros and subnormal numbers
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  if (exponent != 31) return std::bit_cast<float>(sign | (exponent + 112u) << 23 | fraction << 13);
  const std::uint32_t quiet = fraction != 0 ? 0x00400000u : 0u;
  return std::bit_cast<float>(sign | 0x7f800000u | quiet | fraction << 13);
}

// Rounds to nearest, ties to even.
extern "C" _Float16 __truncsfhf2(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value), sign = bits >> 16 & 0x8000u,
                      magnitude = bits & 0x7fffffffu;
  constexpr std::uint32_t infinity = 0x7f800000u, overflow = 0x477ff000u,  // 65520
      least_normal = 0x38800000u;                                          // 2^-14
  std::uint32_t half = 0;
  if (magnitude > infinity) {
    half = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  } else if (magnitude >= overflow) {
    half = 0x7c00u;
  } else if (magnitude < least_normal) {
    // One half has the last place of f16's subnormal numbers, 2^-24, so that the sum rounds.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    half = std::bit_cast<std::uint32_t>(sum) - std::bit_cast<std::uint32_t>(0.5f);
  } else {
    half = ((magnitude + 0xfffu + (magnitude >> 13 & 1u)) >> 13) - (112u << 10);
  }
  return std::bit_cast<_Float16>(static_cast<std::uint16_t>(sign | half));
}

// Through f32 rounded to odd, so that the second rounding has what the first one dropped.
extern "C" _Float16 __truncdfhf2(double value) {
  const auto nearest = static_cast<float>(value);
  const auto back = static_cast<double>(nearest);
  if (back == value || value != value) return __truncsfhf2(nearest);
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
  const bool is_larger = value < 0 ? back < value : back > value;
  return __truncsfhf2(std::bit_cast<float>((bits - (is_larger ? 1u : 0u)) | 1u));
}
