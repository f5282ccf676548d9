// CDNA (gfx908, gfx90a, gfx942, gfx950): MFMA 32x32 with wave64. A k-step of 16 is one instruction
// on gfx950, two of k = 8 before, and four of k = 4 for bf16 on gfx908. A lane's eight elements of
// an operand are divided among them in order.
#pragma once

#include "arch/amd.hpp"
#include "arch/layout.hpp"

namespace rocflash::kernel::arch {

template <DType dtype>
struct Mma {
  static constexpr int rows = 32, columns = 32, depth = 16;  // of a k-step of `multiply`
#if defined(__gfx950__)
  static constexpr int instructions = 1;  // per k-step
#elif defined(__gfx908__)
  static constexpr int instructions = dtype == DType::f16 ? 2 : 4;
#else
  static constexpr int instructions = 2;
#endif
  using Layout = layout::Mfma32x32<depth / instructions>;
  static constexpr int results = 16;  // accumulator registers per lane
  using Result = Float16;
  using Operand = Words4;

  static Result multiply(Operand a, Operand b, Result c) {
    return multiply(a, b, c, [] {});
  }
  // Issues `interleave` after the first MFMA, in the shadow of its latency.
  template <class Interleave>
  static Result multiply(Operand a, Operand b, Result c, Interleave interleave) {
#if defined(__gfx950__)
    if constexpr (dtype == DType::f16) {
      using Eight = _Float16 __attribute__((ext_vector_type(8)));
      c = __builtin_amdgcn_mfma_f32_32x32x16_f16(__builtin_bit_cast(Eight, a),
                                                 __builtin_bit_cast(Eight, b), c, 0, 0, 0);
    } else if constexpr (dtype == DType::bf16) {
      using Eight = __bf16 __attribute__((ext_vector_type(8)));
      c = __builtin_amdgcn_mfma_f32_32x32x16_bf16(__builtin_bit_cast(Eight, a),
                                                  __builtin_bit_cast(Eight, b), c, 0, 0, 0);
    } else {
      static_assert(handled_dtype<dtype>, "Mma has no instruction for this dtype");
    }
    interleave();
    return c;
#else
    c = half_depth(a.xy, b.xy, c);
    interleave();
    return half_depth(a.zw, b.zw, c);
#endif
  }
  // The same, pinned: otherwise the compiler issues the two MFMAs back to back.
  template <class Interleave>
  static Result multiply_interleaved(Operand a, Operand b, Result c, Interleave interleave) {
#if defined(__gfx950__)
    return multiply(a, b, c, interleave);
#else
    c = half_depth(a.xy, b.xy, c);
    pin_vgpr(c);
    interleave();
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
    } else if constexpr (dtype == DType::bf16) {
#if defined(__gfx908__)
      const auto quarter_depth = [](std::uint32_t x, std::uint32_t y, Result sum) {
        using Two = short __attribute__((ext_vector_type(2)));
        return __builtin_amdgcn_mfma_f32_32x32x4bf16(__builtin_bit_cast(Two, x),
                                                     __builtin_bit_cast(Two, y), sum, 0, 0, 0);
      };
      return quarter_depth(a.y, b.y, quarter_depth(a.x, b.x, c));
#else
      using Four = short __attribute__((ext_vector_type(4)));
      return __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(__builtin_bit_cast(Four, a),
                                                      __builtin_bit_cast(Four, b), c, 0, 0, 0);
#endif
    } else {
      static_assert(handled_dtype<dtype>, "Mma has no instruction for this dtype");
    }
  }
#endif
};

// MFMA with f32 inputs: one element of each operand per lane.
template <>
struct Mma<DType::f32> {
  using Layout = layout::Mfma16x16x4;
  static constexpr int rows = 16, columns = 16, depth = 4;
  static Float4 multiply(float a, float b, Float4 c) {
    return __builtin_amdgcn_mfma_f32_16x16x4f32(a, b, c, 0, 0, 0);
  }
};

#if defined(__gfx950__)
inline constexpr bool has_ds_read_tr = true;
inline Words2 ds_read_tr16(const ROCFLASH_SHARED Words2* from) {
  using Four = short __attribute__((ext_vector_type(4)));
  return __builtin_bit_cast(Words2,
                            __builtin_amdgcn_ds_read_tr16_b64_v4i16((ROCFLASH_SHARED Four*)from));
}
#else
inline constexpr bool has_ds_read_tr = false;
#endif

// 16-byte chunks that one row of all LDS banks holds: 32 banks, 64 on gfx950.
#if defined(__gfx950__)
inline constexpr int lds_bank_chunks = 16;
#else
inline constexpr int lds_bank_chunks = 8;
#endif

}  // namespace rocflash::kernel::arch
