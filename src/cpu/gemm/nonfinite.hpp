// GEMM with infinities and NaNs.
//
// A weight of exactly 0 contributes nothing, even to such a value: masked and dropped elements must
// not leak. The rare tiles with non-finite elements are first multiplied with 0 in their place, by
// the same instructions as other tiles; then the non-finite terms are added. Sums without such
// terms keep their bits.
#pragma once

#include "cpu/gemm/gemm.hpp"
#include "cpu/gemm/rows.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// Which operand holds the weights, if that matters.
enum class Weights { left, right, neither };

// 0 for finite x, else NaN.
ROCFLASH_INLINE Float nan_unless_finite(Float x) { return x - x; }

// Replaces non-finite elements by 0, in whole vectors.
[[maybe_unused, gnu::noinline]] static void clear_nonfinite(float* at, std::int64_t floats) {
  for (std::int64_t n = 0; n < floats; n += width) {
    const Float x = load(at + n);
    store(at + n, select(nan_unless_finite(x) == 0.0f, x, Float{}));
  }
}

// C += the terms of A * B with a non-finite factor and a nonzero weight.
template <int vectors, Weights weights>
[[gnu::noinline]] static void add_nonfinite(std::int64_t n, std::int64_t k, Strided a,
                                            Panel<const float> b, Panel<float> c) {
  for (std::int64_t i = 0; i < n; ++i) {
    for (int m = 0; m < vectors * width; m += width) {
      float* at = c.at(i, m).data;
      Float sum = load(at);
      for (std::int64_t j = 0; j < k; ++j) {
        const Float left = splat(*a.at(i, j).data), right = load(b.at(j, m).data);
        const Float taint = nan_unless_finite(left) + nan_unless_finite(right);
        Int counts = taint != 0.0f;
        if (weights == Weights::left) counts &= left != 0.0f;
        if (weights == Weights::right) counts &= right != 0.0f;
        sum = select(counts, sum + left * right, sum);
      }
      store(at, sum);
    }
  }
}

// The same where B is rows of a tensor: c[n][column] += weights(n, k) * block[k][column]. `spare`
// holds stream_rows rows.
[[maybe_unused, gnu::noinline]] static void add_nonfinite_rows(std::int64_t n, Strided weights,
                                                               const RowBlock& block, float* spare,
                                                               Panel<float> c) {
  const std::int64_t stride = padded(block.rows.columns);
  for (std::int64_t k = 0; k < block.count; k += stream_rows) {
    const RowBlock part = Origin(block).from(k).block(stream_rows);
    load_rows(spare, stride, part);
    over_columns(block.rows.columns, [&]<int wide>(int at) {
      add_nonfinite<wide, Weights::left>(n, part.count, weights.at(0, k),
                                         Panel<const float>{spare, stride}.at(0, at), c.at(0, at));
    });
  }
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
