// RDNA3 (gfx11): matrix products of 16x16, waves of 32 lanes, both halves of which hold the same
// operands.
#pragma once

#include "arch/amd.hpp"
#include "arch/layout.hpp"

namespace rocflash::kernel::arch {

template <DType dtype>
struct Mma {
  using Layout = layout::WmmaGfx11;
  static constexpr int rows = 16, columns = 16, depth = 16;
  static constexpr int results = 8;
  using Result = Float8;
  using Operand = Words8;

  static Result multiply(Operand a, Operand b, Result c) {
    if constexpr (dtype == DType::f16) {
      using Sixteen = _Float16 __attribute__((ext_vector_type(16)));
      return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(__builtin_bit_cast(Sixteen, a),
                                                        __builtin_bit_cast(Sixteen, b), c);
    } else {
      using Sixteen = short __attribute__((ext_vector_type(16)));
      return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(__builtin_bit_cast(Sixteen, a),
                                                         __builtin_bit_cast(Sixteen, b), c);
    }
  }
};

inline constexpr bool transposing_reads = false;
inline constexpr int bank_chunks = 8;

}  // namespace rocflash::kernel::arch
