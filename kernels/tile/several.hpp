// Products of one left operand with several right ones.
#pragma once

#include "tile/ahead.hpp"
#include "tile/amd.hpp"

namespace rocflash::kernel {

// Adds products to sums; the right operands are read once for all rows. `together` as in `product`.
template <int depth, int together, class Sums, int parts, class A, class B>
void add_products(Sums (&to)[parts], const A& a, const B (&b)[parts]) {
  using Mma = typename Sums::Mma;
  if constexpr (arch::wave_size == 64) {
    add_product_ahead<depth>(to[0], a, b[0]);
    return;
  }
  ROCFLASH_UNROLL
  for (int step = 0; step < depth / Mma::depth; ++step) {
    typename Mma::Operand right[parts];
    ROCFLASH_UNROLL
    for (int n = 0; n < parts; ++n) right[n] = b[n].fragment(0, step);
    ROCFLASH_UNROLL
    for (int row = 0; row < Sums::row_parts; ++row) {
      const typename Mma::Operand left = a.fragment(row, step);
      ROCFLASH_UNROLL
      for (int n = 0; n < parts; ++n)
        to[n].part[row][0] = Mma::multiply(left, right[n], to[n].part[row][0]);
      if constexpr (together > 0) {
        if (row % together == together - 1) arch::in_order();
      }
    }
  }
}

// Several products' results with one left operand: each of its fragments is read once, ahead of its use for a wave
// that has its SIMD to itself. `together` as in `product`. `widened`: each use of an operand widens it (bf16 without a
// matrix unit), so the right ones are used for all rows at once.
template <class Result, int depth, int together, bool widened, int parts, class A, class B>
void products(Result (&to)[parts], const A& a, const B (&b)[parts]) {
  using Mma = typename Result::Mma;
  if constexpr (arch::wave_size == 64) {
    static_assert(parts == 1);
    to[0] = product_ahead<Result, depth>(a, b[0]);
    return;
  }
  if constexpr (widened) {
    Accumulators<Mma, Result::rows, Mma::columns> sums[parts] = {};
    add_products<depth, 0>(sums, a, b);
    ROCFLASH_UNROLL
    for (int n = 0; n < parts; ++n) {
      ROCFLASH_UNROLL
      for (int i = 0; i < Result::per_column; ++i)
        to[n].at[0][i] = sums[n].part[i / Mma::results][0][i % Mma::results];
    }
    return;
  }
  ROCFLASH_UNROLL
  for (int row = 0; row < Result::row_parts; ++row) {
    typename Mma::Result sum[parts] = {};
    ROCFLASH_UNROLL
    for (int step = 0; step < depth / Mma::depth; ++step) {
      const typename Mma::Operand left = a.fragment(row, step);
      ROCFLASH_UNROLL
      for (int n = 0; n < parts; ++n) sum[n] = Mma::multiply(left, b[n].fragment(0, step), sum[n]);
      if constexpr (together > 0) {
        if (step % together == together - 1) arch::in_order();
      }
    }
    ROCFLASH_UNROLL
    for (int n = 0; n < parts; ++n) {
      ROCFLASH_UNROLL
      for (int r = 0; r < Mma::results; ++r) to[n].at[0][row * Mma::results + r] = sum[n][r];
    }
  }
}

}  // namespace rocflash::kernel
