// RDNA4 (gfx12): WMMA 16x16x16 with wave32. Each half of the wave holds half of the k dimension.
#pragma once

#include "arch/amd.hpp"
#include "arch/layout.hpp"
#include "arch/mma_shape.hpp"

namespace rocflash::kernel::arch {

template <DType dtype>
struct Mma : MmaShape<layout::WmmaGfx12, Float8, Words4> {
  static Result multiply(Operand a, Operand b, Result c) {
    if constexpr (dtype == DType::f16) {
      using Eight = _Float16 __attribute__((ext_vector_type(8)));
      return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(__builtin_bit_cast(Eight, a),
                                                              __builtin_bit_cast(Eight, b), c);
    } else if constexpr (dtype == DType::bf16) {
      using Eight = short __attribute__((ext_vector_type(8)));
      return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(__builtin_bit_cast(Eight, a),
                                                               __builtin_bit_cast(Eight, b), c);
    } else {
      static_assert(handled_dtype<dtype>, "Mma has no instruction for this dtype");
    }
  }
};

inline constexpr bool has_ds_read_tr = false;
inline constexpr int lds_bank_chunks = 8;

}  // namespace rocflash::kernel::arch
