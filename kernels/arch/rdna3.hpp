// RDNA3: matrix products of 16x16, waves of 32 lanes, both halves of which hold the same operand.
//
//   result, 8 registers:   column = lane % 16         row = 2 r + lane / 16
//   operand, 16 numbers:   row or column = lane % 16  depth = e, in any order that both operands
//   share
//
// Attention is computed transposed. A lane has the weights of every other key of its query; the
// other half of the wave has the rest, so eight of a lane's 16 numbers come from there: even keys
// first, then odd ones, and V in that order too.
#pragma once

#include "arch/amd.hpp"

namespace rocflash::kernel::arch {

template <DType dtype>
struct Mma {
  static constexpr int rows = 16, columns = 16, depth = 16;
  static constexpr int results = 8;
  static constexpr bool transposing = false;
  using Result = Float8;
  using Operand = Words8;

  static int column(int lane) { return lane % 16; }
  static int operand_row(int lane) { return lane % 16; }
  static constexpr int row(int r) { return 2 * r; }
  static int row_offset(int lane) { return lane / 16; }
  static constexpr int dropout_run = 4;
  // The halves of the wave exchange every other row: the lower one gets rows 0 to 7, the upper one
  // 8 to 15.
  static constexpr int store_row(int r) { return r; }
  static int store_offset(int lane) { return 8 * (lane / 16); }
  static void put_side_by_side(float* x) {
    const bool upper = lane() / 16 != 0;
    float own[4], other[4];
    ROCFLASH_UNROLL
    for (int n = 0; n < 4; ++n) {
      own[n] = upper ? x[4 + n] : x[n];
      other[n] = other_half(upper ? x[n] : x[4 + n]);
    }
    ROCFLASH_UNROLL
    for (int n = 0; n < 4; ++n) {
      x[2 * n] = upper ? other[n] : own[n];
      x[2 * n + 1] = upper ? own[n] : other[n];
    }
  }

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

  static Operand weights(const float* p) { return both_halves(pack_weights<dtype>(p)); }

  static constexpr int quad_key(int n, int e) { return 8 * (n / 2) + n % 2 + 2 * e; }
  static constexpr int quad_place(int n) { return (n % 2) * 2 + n / 2 % 2; }
};

}  // namespace rocflash::kernel::arch
