// AMX tile registers: eight tiles of 16 rows by 64 bytes.
#pragma once

#include "cpu/simd/simd.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// Configures the thread's tile registers (palette 1, all eight tiles) for the lifetime of the
// object.
class TileRegisters {
 public:
  ROCFLASH_INLINE TileRegisters() {
    struct alignas(64) {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } configuration;
    _tile_loadconfig(&configuration);
  }
  ROCFLASH_INLINE ~TileRegisters() { _tile_release(); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;

  // GCC's intrinsics stringize their arguments, so a template argument needs inline assembly.
#if defined(__clang__)
  template <int tile>
  ROCFLASH_INLINE void clear() {
    _tile_zero(tile);
  }
  template <int tile, class Element>
  ROCFLASH_INLINE void load(const Element* from, std::int64_t stride) {
    _tile_loadd(tile, from, static_cast<std::size_t>(stride) * sizeof(Element));
  }
  template <int tile>
  ROCFLASH_INLINE void store(float* to, std::int64_t stride) {
    _tile_stored(tile, to, static_cast<std::size_t>(stride) * sizeof(float));
  }
  // TDPBF16PS: sum[n][lane] += both products of pair k, for all k.
  template <int sum, int left, int right>
  ROCFLASH_INLINE void add_products() {
    _tile_dpbf16ps(sum, left, right);
  }
#else
  template <int tile>
  ROCFLASH_INLINE void clear() {
    asm volatile("tilezero %%tmm%c0" ::"i"(tile));
  }
  template <int tile, class Element>
  ROCFLASH_INLINE void load(const Element* from, std::int64_t stride) {
    asm volatile("tileloadd (%1, %2), %%tmm%c0" ::"i"(tile), "r"(from),
                 "r"(stride * static_cast<std::int64_t>(sizeof(Element)))
                 : "memory");
  }
  template <int tile>
  ROCFLASH_INLINE void store(float* to, std::int64_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1, %2)" ::"i"(tile), "r"(to),
                 "r"(stride * static_cast<std::int64_t>(sizeof(float)))
                 : "memory");
  }
  template <int sum, int left, int right>
  ROCFLASH_INLINE void add_products() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sum), "i"(left), "i"(right));
  }
#endif
};

}  // namespace rocflash::cpu::ROCFLASH_ISA
