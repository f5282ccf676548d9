// RDNA4: matrix products of 16x16, waves of 32 lanes. As on CDNA attention is computed transposed,
// and a lane's scores are the operand of the second product as they stand.
//
//   result, 8 registers:  column = lane % 16         row = 8 (lane / 16) + r
//   operand, 8 numbers:   row or column = lane % 16  depth = 8 (lane / 16) + e
#pragma once

#include "arch/amd.hpp"

namespace rocflash::kernel::arch {

template <DType dtype>
struct Mma {
  static constexpr int rows = 16, columns = 16, depth = 16;
  static constexpr int results = 8;
  static constexpr bool transposing = false;
  using Result = Float8;
  using Operand = Words4;

  static int column(int lane) { return lane % 16; }
  static int operand_row(int lane) { return lane % 16; }
  static constexpr int row(int r) { return r; }
  static int row_offset(int lane) { return 8 * (lane / 16); }
  static constexpr int dropout_run = 8;
  static constexpr int store_row(int r) { return r; }
  static int store_offset(int lane) { return row_offset(lane); }
  static void put_side_by_side(float*) {}
  static int operand_chunk(int lane) { return lane / 16; }

  static Result multiply(Operand a, Operand b, Result c) {
    if constexpr (dtype == DType::f16) {
      using Eight = _Float16 __attribute__((ext_vector_type(8)));
      return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(__builtin_bit_cast(Eight, a),
                                                              __builtin_bit_cast(Eight, b), c);
    } else {
      using Eight = short __attribute__((ext_vector_type(8)));
      return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(__builtin_bit_cast(Eight, a),
                                                               __builtin_bit_cast(Eight, b), c);
    }
  }

  static Operand weights(const float* p) { return pack_weights<dtype>(p); }

  static constexpr int quad_key(int n, int e) { return 4 * n + e; }
  static constexpr int quad_place(int n) { return n % 4; }
};

}  // namespace rocflash::kernel::arch
