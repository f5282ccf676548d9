// RDNA3 (gfx11): WMMA 16x16x16 with wave32. Both halves of the wave hold the same operands.
#pragma once

#include "arch/amd.hpp"
#include "arch/layout.hpp"
#include "arch/mma_shape.hpp"

namespace rocflash::kernel::arch {

template <DType dtype>
struct Mma : MmaShape<layout::WmmaGfx11, Float8, Words8> {
  static Result multiply(Operand a, Operand b, Result c) {
    if constexpr (dtype == DType::f16) {
      using Sixteen = _Float16 __attribute__((ext_vector_type(16)));
      return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(__builtin_bit_cast(Sixteen, a),
                                                        __builtin_bit_cast(Sixteen, b), c);
    } else if constexpr (dtype == DType::bf16) {
      using Sixteen = short __attribute__((ext_vector_type(16)));
      return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(__builtin_bit_cast(Sixteen, a),
                                                         __builtin_bit_cast(Sixteen, b), c);
    } else {
      static_assert(handled_dtype<dtype>, "Mma has no instruction for this dtype");
    }
  }
};

inline constexpr bool has_ds_read_tr = false;
inline constexpr int lds_bank_chunks = 8;

}  // namespace rocflash::kernel::arch
