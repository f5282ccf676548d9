// What matrix instructions of both families share: element types and how they are unpacked.
#pragma once

#include <array>

#include "core/target.h"
#include "core/types.h"
#include "isa/fp8.h"

namespace rocflash::sim {

enum class Element : u8 { F32, F16, BF16, I8, U8, FP8, BF8, I4, U4 };

// Short names for tables of shapes.
namespace element {
inline constexpr Element f32e = Element::F32;
inline constexpr Element h = Element::F16;
inline constexpr Element bf = Element::BF16;
inline constexpr Element i8e = Element::I8;
inline constexpr Element p8 = Element::FP8;
inline constexpr Element q8 = Element::BF8;
}  // namespace element

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

inline const std::array<float, 256>& fp8_table(Element e, bool fnuz) {
  return float8_values(e == Element::BF8 ? Float8::Bf8 : Float8::Fp8, fnuz);
}

// Matrix-pipe cycles of one instruction on one SIMD.
struct MatrixShape {
  int m, n, k, blocks;
  Element a, b;
};
u32 matrix_cycles(const Target& target, const MatrixShape& shape);
const MatrixShape* find_matrix_shape(u32 parameter, bool wmma);

}  // namespace rocflash::sim
