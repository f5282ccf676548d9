// CDNA: matrix products of 32x32, waves of 64 lanes.
//
// Attention is computed transposed, S^T = K Q^T and O^T = V^T P^T, with keys (then columns of v) as
// the product's rows and queries as its columns. A lane then holds scores of one query only, and
// they are, register for register, the operand P^T of the second product.
//
//   result, 16 registers:  column = lane % 32        row = 8 (r / 4) + 4 (lane / 32) + r % 4
//   operand, 8 numbers:    row or column = lane % 32; depth: any order will do if both operands use
//   the same
//
// Depth 16 at a time is one instruction on gfx950 and two of depth 8 before. Q and K give a lane
// eight neighbours, 8 (lane / 32) on; P gives what the lane has, rows 4 (lane / 32) +
// {0..3, 8..11}, so V must come in that order.
#pragma once

#include "arch/amd.hpp"

namespace rocflash::kernel::arch {

template <DType dtype>
struct Mma {
  static constexpr int rows = 32, columns = 32, depth = 16;
  static constexpr int results = 16;  // registers of a result in a lane
#if defined(__gfx950__)
  static constexpr bool transposing = true;  // LDS can give a column of v where it holds rows
#else
  static constexpr bool transposing = false;
#endif
  using Result = Float16;
  using Operand = Words4;

  static int column(int lane) { return lane % 32; }
  static int operand_row(int lane) { return lane % 32; }
  // The row of result r is row(r) + row_offset(lane).
  static constexpr int row(int r) { return 8 * (r / 4) + r % 4; }
  static int row_offset(int lane) { return 4 * (lane / 32); }
  static constexpr int dropout_run = 4;
  // Outputs are stored four rows at a time, and stand so already.
  static constexpr int store_row(int r) { return row(r); }
  static int store_offset(int lane) { return row_offset(lane); }
  static void put_side_by_side(float*) {}

  // Which chunk of eight numbers, of the two that a step of depth 16 has, a lane gives for q and k.
  static int operand_chunk(int lane) { return lane / 32; }

  static Result multiply(Operand a, Operand b, Result c) {
#if defined(__gfx950__)
    if constexpr (dtype == DType::f16) {
      using Eight = _Float16 __attribute__((ext_vector_type(8)));
      return __builtin_amdgcn_mfma_f32_32x32x16_f16(__builtin_bit_cast(Eight, a),
                                                    __builtin_bit_cast(Eight, b), c, 0, 0, 0);
    } else {
      using Eight = __bf16 __attribute__((ext_vector_type(8)));
      return __builtin_amdgcn_mfma_f32_32x32x16_bf16(__builtin_bit_cast(Eight, a),
                                                     __builtin_bit_cast(Eight, b), c, 0, 0, 0);
    }
#else
    c = half_depth(a.xy, b.xy, c);
    return half_depth(a.zw, b.zw, c);
#endif
  }

  // Weights of 16 keys, results 8 half on, as the operand of the second product.
  static Operand weights(const float* p) { return pack_weights<dtype>(p); }

  // V is stored transposed, keys side by side in quads. Key e of quad n, and where the quad stands
  // among the four of its 16 keys so that a lane finds the eight keys of its weights in one piece.
  static constexpr int quad_key(int n, int e) { return 4 * n + e; }
  static constexpr int quad_place(int n) { return (n % 2) * 2 + n / 2 % 2; }

#if defined(__gfx950__)
  // Sixteen lanes name four rows of 16 numbers, four numbers each, and get a column of four each.
  // Two such reads, eight keys apart, give a lane the keys of its weights for column lane % 32.
  static int transposing_row(int lane) { return 4 * (lane / 32) + lane % 16 / 4; }
  static int transposing_column(int lane) { return 16 * (lane / 16 % 2) + 4 * (lane % 4); }
  static Words2 read_transposed(const ROCFLASH_SHARED Words2* from) {
    using Four = short __attribute__((ext_vector_type(4)));
    return __builtin_bit_cast(Words2,
                              __builtin_amdgcn_ds_read_tr16_b64_v4i16((ROCFLASH_SHARED Four*)from));
  }
#endif

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

}  // namespace rocflash::kernel::arch
