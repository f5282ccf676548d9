// A software model of the AMX tile registers, for tests on CPUs without AMX.
#pragma once

#include "cpu/simd/simd.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

class TileRegisters {
 public:
  TileRegisters() = default;
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;

  template <int tile>
  ROCFLASH_INLINE void clear() {
    for (Word& row : row_[tile]) row = Word{};
  }
  template <int tile, class Element>
  ROCFLASH_INLINE void load(const Element* from, std::int64_t stride) {
    for (Word& row : row_[tile]) {
      row = load_as<Word>(from);
      from += stride;
    }
  }
  template <int tile>
  ROCFLASH_INLINE void store(float* to, std::int64_t stride) {
    for (const Word& row : row_[tile]) {
      ROCFLASH_ISA::store(to, (Float)row);
      to += stride;
    }
  }
  template <int sum, int left, int right>
  ROCFLASH_INLINE void add_products() {
    for (int n = 0; n < 16; ++n)
      for (int k = 0; k < 16; ++k) {
        const std::uint32_t pair = row_[left][n][k];
        row_[sum][n] =
            (Word)ROCFLASH_ISA::add_products((Float)row_[sum][n], splat(pair), row_[right][k]);
      }
  }

 private:
  Word row_[8][16];
};

}  // namespace rocflash::cpu::ROCFLASH_ISA
