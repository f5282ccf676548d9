// GEMMs of one A operand with several B operands.
#pragma once

#include "tile/amd.hpp"
#include "tile/fragment_prefetch.hpp"

namespace rocflash::kernel {

// to[n] += A·B[n]; fragments of B are read once for all row blocks. `together` as in `product`.
template <int depth, int together, class Sums, int parts, class A, class B>
void add_products(Sums (&to)[parts], const A& a, const B (&b)[parts]) {
  using Mma = typename Sums::Mma;
  if constexpr (arch::wave_size == 64) {
    multiply_add_prefetched<depth>(to[0], a, b[0]);
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
        if (row % together == together - 1) arch::sched_barrier();
      }
    }
  }
}

// to[n] = A·B[n]; each fragment of A is read once, and prefetched at one wave per SIMD. `together`
// as in `product`. `widened`: the emulated MMA converts bf16 at each use, so each fragment of B is
// used for all row blocks at once.
template <class Result, int depth, int together, bool widened, int parts, class A, class B>
void products(Result (&to)[parts], const A& a, const B (&b)[parts]) {
  using Mma = typename Result::Mma;
  if constexpr (arch::wave_size == 64) {
    static_assert(parts == 1);
    to[0] = multiply_prefetched<Result, depth>(a, b[0]);
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
        if (step % together == together - 1) arch::sched_barrier();
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
