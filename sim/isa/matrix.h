// What matrix instructions of both families share: element types and how they are unpacked.
#pragma once

#include <array>

#include "core/target.h"
#include "core/types.h"

namespace rocflash::sim {

enum class Element : u8 { F32, F16, BF16, I8, U8, FP8, BF8, I4, U4 };

constexpr int element_bits(Element e) {
  switch (e) {
    case Element::F32:
      return 32;
    case Element::F16:
    case Element::BF16:
      return 16;
    case Element::I4:
    case Element::U4:
      return 4;
    default:
      return 8;
  }
}

// 8-bit floats: gfx940 has the "fnuz" formats (no infinities, no -0), gfx950 and gfx12 OCP's.
const std::array<float, 256>& fp8_table(Element e, bool fnuz);
bool uses_fnuz(const Target& target);

// Matrix-pipe cycles of one instruction on one SIMD.
struct MatrixShape {
  int m, n, k, blocks;
  Element a, b;
};
u32 matrix_cycles(const Target& target, const MatrixShape& shape);
const MatrixShape* find_matrix_shape(u32 parameter, bool wmma);

}  // namespace rocflash::sim
