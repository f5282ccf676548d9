// CDNA (gfx90a, gfx942, gfx950): matrix products of 32x32, waves of 64 lanes. A step of depth 16 is
// one instruction on gfx950 and two of depth 8 before; a lane's eight numbers of an operand are
// then four for each.
#pragma once

#include "arch/amd.hpp"
#include "arch/layout.hpp"

namespace rocflash::kernel::arch {

template <DType dtype>
struct Mma {
#if defined(__gfx950__)
  using Layout = layout::Mfma32x32<16>;
  static constexpr int instructions = 1;  // of `multiply`
#else
  using Layout = layout::Mfma32x32<8>;
  static constexpr int instructions = 2;
#endif
  static constexpr int rows = 32, columns = 32, depth = 16;  // of `multiply`
  static constexpr int results = 16;                         // registers of a result per lane
  using Result = Float16;
  using Operand = Words4;

  static Result multiply(Operand a, Operand b, Result c) {
    return multiply(a, b, c, [] {});
  }
  // The same with something behind the first instruction.
  template <class Behind>
  static Result multiply(Operand a, Operand b, Result c, Behind behind) {
#if defined(__gfx950__)
    if constexpr (dtype == DType::f16) {
      using Eight = _Float16 __attribute__((ext_vector_type(8)));
      c = __builtin_amdgcn_mfma_f32_32x32x16_f16(__builtin_bit_cast(Eight, a),
                                                 __builtin_bit_cast(Eight, b), c, 0, 0, 0);
    } else {
      using Eight = __bf16 __attribute__((ext_vector_type(8)));
      c = __builtin_amdgcn_mfma_f32_32x32x16_bf16(__builtin_bit_cast(Eight, a),
                                                  __builtin_bit_cast(Eight, b), c, 0, 0, 0);
    }
    behind();
    return c;
#else
    c = half_depth(a.xy, b.xy, c);
    behind();
    return half_depth(a.zw, b.zw, c);
#endif
  }

 private:
#if !defined(__gfx950__)
  static Result half_depth(Words2 a, Words2 b, Result c) {
    if constexpr (dtype == DType::f16) {
      using Four = _Float16 __attribute__((ext_vector_type(4)));
      return __builtin_amdgcn_mfma_f32_32x32x8f16(__builtin_bit_cast(Four, a),
                                                  __builtin_bit_cast(Four, b), c, 0, 0, 0);
    } else {
      using Four = short __attribute__((ext_vector_type(4)));
      return __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(__builtin_bit_cast(Four, a),
                                                      __builtin_bit_cast(Four, b), c, 0, 0, 0);
    }
  }
#endif
};

#if defined(__gfx950__)
inline constexpr bool transposing_reads = true;
inline Words2 read_transposed(const ROCFLASH_SHARED Words2* from) {
  using Four = short __attribute__((ext_vector_type(4)));
  return __builtin_bit_cast(Words2,
                            __builtin_amdgcn_ds_read_tr16_b64_v4i16((ROCFLASH_SHARED Four*)from));
}
#else
inline constexpr bool transposing_reads = false;
#endif

// Chunks of 16 bytes of LDS that lie in different banks.
#if defined(__gfx950__)
inline constexpr int bank_chunks = 16;
#else
inline constexpr int bank_chunks = 8;
#endif

}  // namespace rocflash::kernel::arch
