// The one matrix product of the CPU kernels: C[n][lane] (+)= sum over k of A(n, k) * B[k][lane].
//
// Lanes hold rows of one operand side by side (64 queries, say), packed so that B[k] is a few whole
// vectors; A is read one number at a time and broadcast. So neither operand is ever transposed in
// an inner loop, and everything done to the result between two products (softmax, masks) works on
// whole vectors without a step across lanes. A is a matrix of any two strides: products with A's
// transpose cost the same.
#pragma once

#include "core/problem.hpp"
#include "cpu/simd/simd.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// Vectors side by side in a panel at most: as many as leave room for enough accumulators to hide
// latency.
inline constexpr int most_vectors = registers == 32 ? 4 : 2;
inline constexpr int most_accumulators = registers == 32 ? 24 : 12;

template <class Element>
struct StridedOf {
  const Element* data;
  std::int64_t row, step;  // A(n, k) = data[n * row + k * step]

  ROCFLASH_INLINE StridedOf at(std::int64_t n, std::int64_t k) const {
    return {data + n * row + k * step, row, step};
  }
};
using Strided = StridedOf<float>;

// Rows of whole vectors, `stride` elements apart.
template <class Element>
struct Panel {
  Element* data;
  std::int64_t stride;

  ROCFLASH_INLINE Panel at(std::int64_t row, std::int64_t lane) const {
    return {data + row * stride + lane, stride};
  }
};

enum class Into { overwrite, add };

// How many terms a dot product adds up before it starts a new sum: all of them, or a few. Short
// runs lose less, which f32 problems need to hold their own against plain attention; f16 and bf16
// have other errors to worry about.
enum class Sums { whole, in_runs };

template <class Element>
inline constexpr bool is_float = false;
template <>
inline constexpr bool is_float<float> = true;

template <int vectors, int rows, Into into, Sums sums, class Element>
ROCFLASH_INLINE void gemm_rows(std::int64_t k, StridedOf<Element> a, Panel<const Element> b,
                               Panel<float> c) {
  // Sums of pairs go on from what is in C, so that results do not depend on where such a sum is
  // interrupted: other lanes decide that.
  constexpr bool go_on = into == Into::add && sizeof(Element) == 4 && !is_float<Element>;
  Float total[rows][vectors] = {};
  if constexpr (go_on)
    for (int n = 0; n < rows; ++n)
      for (int m = 0; m < vectors; ++m) total[n][m] = load(c.data + n * c.stride + m * width);
  const auto add_run = [&](std::int64_t terms, Float(&sum)[rows][vectors]) {
    for (std::int64_t i = 0; i < terms; ++i, a.data += a.step, b.data += b.stride) {
      decltype(load(b.data)) right[vectors];
      for (int m = 0; m < vectors; ++m) right[m] = load(b.data + m * width);
      for (int n = 0; n < rows; ++n) {
        const auto left = splat(a.data[n * a.row]);
        for (int m = 0; m < vectors; ++m) sum[n][m] = add_products(sum[n][m], left, right[m]);
      }
    }
  };
  if constexpr (sums == Sums::whole) {
    add_run(k, total);
  } else {
    for (; k > 0; k -= run_of_terms) {
      Float sum[rows][vectors] = {};
      add_run(smaller(k, run_of_terms), sum);
      for (int n = 0; n < rows; ++n)
        for (int m = 0; m < vectors; ++m) total[n][m] += sum[n][m];
    }
  }
  // What was in C of floats is added last: a sum that starts at 0 loses less.
  for (int n = 0; n < rows; ++n) {
    for (int m = 0; m < vectors; ++m) {
      float* at = c.data + n * c.stride + m * width;
      store(at, into == Into::add && !go_on ? total[n][m] + load(at) : total[n][m]);
    }
  }
}

// Elements are floats, or words that hold a pair of bf16 numbers each; k then counts pairs.
template <int vectors, Into into, Sums sums = Sums::whole, class Element = float>
[[gnu::noinline]] static void gemm(std::int64_t n, std::int64_t k, StridedOf<Element> a,
                                   Panel<const Element> b, Panel<float> c) {
  if constexpr (sums == Sums::in_runs && !runs_in_registers) {
    gemm<vectors, into>(n, smaller(k, run_of_terms), a, b, c);
    for (std::int64_t i = run_of_terms; i < k; i += run_of_terms)
      gemm<vectors, Into::add>(n, smaller(k - i, run_of_terms), a.at(0, i), b.at(i, 0), c);
  } else {
    constexpr int fitting = most_accumulators / vectors / (sums == Sums::in_runs ? 2 : 1);
    constexpr int rows = fitting < 12 ? fitting : 12;
    std::int64_t done = 0;
    const auto run = [&]<int count>() {
      gemm_rows<vectors, count, into, sums>(k, a.at(done, 0), b, c.at(done, 0));
      done += count;
    };
    while (n - done >= rows) run.template operator()<rows>();
    const auto rest = [&]<int count>() {
      if constexpr (rows > count)
        if (n - done >= count) run.template operator()<count>();
    };
    rest.template operator()<8>();
    rest.template operator()<4>();
    rest.template operator()<2>();
    rest.template operator()<1>();
  }
}

// Calls body<vectors>(column) for panels that cover columns padded to whole vectors.
template <class Body>
ROCFLASH_INLINE void over_columns(int columns, Body body) {
  for (int at = 0; at < columns;) {
    const int left = columns - at;
    if (most_vectors == 4 && left > 3 * width) {
      body.template operator()<most_vectors>(at);
      at += most_vectors * width;
    } else if (left > width) {
      body.template operator()<2>(at);
      at += 2 * width;
    } else {
      body.template operator()<1>(at);
      at += width;
    }
  }
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
