// Operands of bf16 pairs for vectors: rows of words, and their product.
#pragma once

#include "cpu/plan.hpp"
#include "cpu/products/gemm.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// Operands of pairs for vectors, row by row.
struct LeftRows {
  std::uint32_t* data;
  std::int64_t stride;

  ROCFLASH_INLINE static constexpr std::int64_t stride_for(std::int64_t k) { return k; }
  ROCFLASH_INLINE std::uint32_t* at(std::int64_t n, std::int64_t k) const {
    return data + n * stride + k;
  }
  ROCFLASH_INLINE LeftRows from(std::int64_t n, std::int64_t k) const { return {at(n, k), stride}; }
};
struct RightRows {
  std::uint32_t* data;
  std::int64_t stride;

  ROCFLASH_INLINE static constexpr std::int64_t stride_for(std::int64_t, std::int64_t lanes) {
    return lanes;
  }
  ROCFLASH_INLINE std::uint32_t* at(std::int64_t k, std::int64_t lane) const {
    return data + k * stride + lane;
  }
  ROCFLASH_INLINE RightRows from(std::int64_t k, std::int64_t lane) const {
    return {at(k, lane), stride};
  }
};

// Products of pairs by vectors. One layer only: without tiles, f16 is faster in f32.
struct ByVectors {
  using LeftWords = LeftRows;
  using RightWords = RightRows;
  static constexpr int rows_together = 2 * stream_rows;  // that forward weighs at a time

  template <int wide, Into into, int layers, class Left, class Right>
  ROCFLASH_INLINE void multiply(std::int64_t n, std::int64_t k, Left left, Right right,
                                Panel<float> c) {
    static_assert(layers == 1);
    gemm<wide, into, Sums::whole, std::uint32_t>(n, k, {left(0).data, left(0).stride, 1},
                                                 {right(0).data, right(0).stride}, c);
  }
};

}  // namespace rocflash::cpu::ROCFLASH_ISA
