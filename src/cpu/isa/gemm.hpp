// The one matrix product of the CPU kernels: C[n][lane] (+)= sum over k of A(n, k) * B[k][lane].
//
// Lanes hold rows of one operand side by side (64 queries, say), packed so that B[k] is a few whole
// vectors; A is read one number at a time and broadcast. So neither operand is ever transposed in
// an inner loop, and everything done to the result between two products (softmax, masks) works on
// whole vectors without a step across lanes. A is a matrix of any two strides: products with A's
// transpose cost the same.
#pragma once

#include "core/problem.hpp"
#include "cpu/isa/simd.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// Vectors side by side in a panel at most: as many as leave room for enough accumulators to hide
// latency.
inline constexpr int most_vectors = registers == 32 ? 4 : 2;
inline constexpr int most_accumulators = registers == 32 ? 24 : 12;

template <class Element>
struct StridedOf {
  const Element* data;
  std::int64_t row, step;  // A(n, k) = data[n * row + k * step]
};
using Strided = StridedOf<float>;

// Rows of whole vectors, `stride` floats apart; a panel's rows follow each other directly.
template <class Element>
struct Panel {
  Element* data;
  std::int64_t stride;
};

enum class Into { overwrite, add, scale_and_add };

template <int vectors, int rows, Into into, class Element>
ROCFLASH_INLINE void gemm_rows(std::int64_t k, StridedOf<Element> a, Panel<const Element> b,
                               Panel<float> c, const float* scale) {
  Float sum[rows][vectors] = {};
  for (std::int64_t i = 0; i < k; ++i, a.data += a.step, b.data += b.stride) {
    decltype(load(b.data)) right[vectors];
    for (int m = 0; m < vectors; ++m) right[m] = load(b.data + m * width);
    for (int n = 0; n < rows; ++n) {
      const auto left = splat(a.data[n * a.row]);
      for (int m = 0; m < vectors; ++m) sum[n][m] = add_products(sum[n][m], left, right[m]);
    }
  }
  // What was in C is added last: a sum that starts at 0 loses less.
  for (int n = 0; n < rows; ++n) {
    for (int m = 0; m < vectors; ++m) {
      float* at = c.data + n * c.stride + m * width;
      if (into == Into::add) sum[n][m] += load(at);
      if (into == Into::scale_and_add) sum[n][m] += load(at) * load(scale + m * width);
      store(at, sum[n][m]);
    }
  }
}

// scale: one factor per lane for what is in C already; only read with Into::scale_and_add. Elements
// are floats, or words that hold a pair of bf16 numbers each; k then counts pairs.
template <int vectors, Into into, class Element = float>
[[gnu::noinline]] static void gemm(std::int64_t n, std::int64_t k, StridedOf<Element> a,
                                   Panel<const Element> b, Panel<float> c, const float* scale) {
  constexpr int rows = most_accumulators / vectors < 12 ? most_accumulators / vectors : 12;
  std::int64_t left = n;
  const auto run = [&]<int count>() {
    gemm_rows<vectors, count, into>(k, a, b, c, scale);
    a.data += count * a.row;
    c.data += count * c.stride;
    left -= count;
  };
  while (left >= rows) run.template operator()<rows>();
  if (left >= 8) run.template operator()<8>();
  if (left >= 4) run.template operator()<4>();
  if (left >= 2) run.template operator()<2>();
  if (left >= 1) run.template operator()<1>();
}

// Terms that a dot product adds up before it starts a new sum. Short runs lose less, which f32
// problems need to hold their own against plain attention; f16 and bf16 have other errors to worry
// about.
ROCFLASH_INLINE int run_of_terms(DType dtype) { return dtype == DType::f32 ? 16 : max_head_dim; }

// C = A * B, in such runs.
template <int vectors>
ROCFLASH_INLINE void dot_products(int run, std::int64_t n, std::int64_t k, Strided a,
                                  Panel<const float> b, Panel<float> c) {
  gemm<vectors, Into::overwrite>(n, smaller(k, run), a, b, c, nullptr);
  for (std::int64_t i = run; i < k; i += run) {
    gemm<vectors, Into::add>(n, smaller(k - i, run), {a.data + i * a.step, a.row, a.step},
                             {b.data + i * b.stride, b.stride}, c, nullptr);
  }
}

// Which operand holds the weights, where that matters.
enum class Weights { left, right };

// The same, but a weight of exactly 0 contributes nothing even to an infinite value or NaN: what a
// mask or dropout took out must not come back that way. For the rare tiles that hold such values.
template <int vectors, Into into, Weights weights>
[[gnu::noinline]] static void gemm_skipping_zeros(std::int64_t n, std::int64_t k, Strided a,
                                                  Panel<const float> b, Panel<float> c,
                                                  const float* scale) {
  for (std::int64_t i = 0; i < n; ++i) {
    for (int m = 0; m < vectors * width; m += width) {
      float* at = c.data + i * c.stride + m;
      Float sum = into == Into::overwrite ? Float{} : load(at);
      if (into == Into::scale_and_add) sum *= load(scale + m);
      for (std::int64_t j = 0; j < k; ++j) {
        const Float left = splat(a.data[i * a.row + j * a.step]),
                    right = load(b.data + j * b.stride + m);
        sum = select((weights == Weights::left ? left : right) != 0.0f, sum + left * right, sum);
      }
      store(at, sum);
    }
  }
}

// Weights on the right, in lanes: the usual case, in runs as above. `finite` tells of the values on
// the left.
template <int vectors, Into into>
ROCFLASH_INLINE void weigh(bool finite, int run, std::int64_t n, std::int64_t k, Strided values,
                           Panel<const float> weights, Panel<float> c,
                           const float* scale = nullptr) {
  auto multiply = finite ? gemm<vectors, into> : gemm_skipping_zeros<vectors, into, Weights::right>;
  for (std::int64_t i = 0; i < k; i += run) {
    multiply(n, smaller(k - i, run), {values.data + i * values.step, values.row, values.step},
             {weights.data + i * weights.stride, weights.stride}, c, scale);
    multiply =
        finite ? gemm<vectors, Into::add> : gemm_skipping_zeros<vectors, Into::add, Weights::right>;
  }
}

// Weights on the left: C[n][column] += weights(n, k) * values[k][column], lanes along the columns
// of both. Rows of values and C are padded to whole vectors.
ROCFLASH_INLINE void weigh_columns(bool finite, int run, std::int64_t n, std::int64_t k,
                                   Strided weights, Panel<const float> values, Panel<float> c,
                                   int columns) {
  for (int at = 0; at < columns;) {
    const auto go = [&]<int vectors>() {
      const auto multiply = finite ? gemm<vectors, Into::add>
                                   : gemm_skipping_zeros<vectors, Into::add, Weights::left>;
      for (std::int64_t i = 0; i < k; i += run) {
        multiply(n, smaller(k - i, run),
                 {weights.data + i * weights.step, weights.row, weights.step},
                 {values.data + i * values.stride + at, values.stride}, {c.data + at, c.stride},
                 nullptr);
      }
      at += vectors * width;
    };
    const int left = columns - at;
    if (most_vectors == 4 && left > 3 * width) {
      go.template operator()<most_vectors>();
    } else if (left > width) {
      go.template operator()<2>();
    } else {
      go.template operator()<1>();
    }
  }
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
