// Operations of a quad: four adjacent lanes of an NVIDIA warp hold elements of the same rows.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "tile/vector.hpp"

namespace rocflash::kernel {

inline constexpr int row_lanes = 4;
inline float row_maximum(float x) {
  x = __builtin_fmaxf(x, arch::shfl_xor(x, 1));
  return __builtin_fmaxf(x, arch::shfl_xor(x, 2));
}
inline float row_sum(float x) {
  x += arch::shfl_xor(x, 1);
  return x + arch::shfl_xor(x, 2);
}
inline std::uint32_t row_union(std::uint32_t bits) {
  bits |= arch::shfl_xor(bits, 1);
  return bits | arch::shfl_xor(bits, 2);
}

// Transposes the 4x4 words of a quad: lane n gets word n of all lanes.
inline Words4 transpose_in_quad(Words4 w) {
  const bool odd = (arch::lane() & 1) != 0, high = (arch::lane() & 2) != 0;
  const auto exchange = [](std::uint32_t& low_word, std::uint32_t& high_word, bool upper,
                           int bits) {
    const std::uint32_t other = arch::shfl_xor(upper ? low_word : high_word, bits);
    (upper ? low_word : high_word) = other;
  };
  std::uint32_t x = w.x, y = w.y, z = w.z, v = w.w;
  exchange(x, y, odd, 1);
  exchange(z, v, odd, 1);
  exchange(x, z, high, 2);
  exchange(y, v, high, 2);
  return {x, y, z, v};
}

}  // namespace rocflash::kernel
