// Row-major operands of bf16 pairs for dot products in vectors, and their GEMM.
#pragma once

#include "cpu/gemm/gemm.hpp"
#include "cpu/plan.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// Row-major operands of bf16 pairs.
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

// GEMM engine on vector dot products. One layer only: without AMX, f16 is faster in f32.
struct VectorEngine {
  using LeftWords = LeftRows;
  using RightWords = RightRows;
  static constexpr int rows_together = 2 * stream_rows;  // rows of v per GEMM in forward

  template <int wide, Into into, int layers, class Left, class Right>
  ROCFLASH_INLINE void multiply(std::int64_t n, std::int64_t k, Left left, Right right,
                                Panel<float> c) {
    static_assert(layers == 1);
    gemm<wide, into, Summation::whole, std::uint32_t>(n, k, {left(0).data, left(0).stride, 1},
                                                      {right(0).data, right(0).stride}, c);
  }
};

}  // namespace rocflash::cpu::ROCFLASH_ISA
