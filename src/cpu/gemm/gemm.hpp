// The GEMM microkernel of the CPU kernels: C[n][lane] (+)= sum over k of A(n, k) * B[k][lane].
//
// B is packed into panels: rows of one operand (64 queries, for example) are in lanes, so that B[k]
// is a few whole vectors. A is read one element at a time and broadcast. No operand is transposed
// in an inner loop, and softmax and masks work on whole vectors without cross-lane operations. A
// has two free strides: products with its transpose cost the same.
#pragma once

#include "core/problem.hpp"
#include "cpu/simd/simd.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// Vectors per panel: as many as leave enough accumulators to hide the FMA latency.
inline constexpr int max_vectors = registers == 32 ? 4 : 2;
inline constexpr int max_accumulators = registers == 32 ? 24 : 12;

template <class Element>
struct StridedOf {
  const Element* data;
  std::int64_t row, step;  // A(n, k) = data[n * row + k * step]

  ROCFLASH_INLINE StridedOf at(std::int64_t n, std::int64_t k) const {
    return {data + n * row + k * step, row, step};
  }
};
using Strided = StridedOf<float>;

// Rows of whole vectors with a stride in elements.
template <class Element>
struct Panel {
  Element* data;
  std::int64_t stride;

  ROCFLASH_INLINE Panel at(std::int64_t row, std::int64_t lane) const {
    return {data + row * stride + lane, stride};
  }
};

enum class Into { overwrite, add };

// Terms that a dot product adds before it starts a new partial sum: all of them, or a block.
// Blocked summation loses less precision, which f32 needs to match naive attention; f16 and bf16
// are dominated by other errors.
enum class Summation { whole, blocked };

template <class Element>
inline constexpr bool is_float = false;
template <>
inline constexpr bool is_float<float> = true;

template <int vectors, int rows, Into into, Summation sums, class Element>
ROCFLASH_INLINE void gemm_rows(std::int64_t k, StridedOf<Element> a, Panel<const Element> b,
                               Panel<float> c) {
  // bf16 sums continue from C, so that results do not depend on how a sum is divided into calls,
  // which other lanes determine.
  constexpr bool advance = into == Into::add && sizeof(Element) == 4 && !is_float<Element>;
  Float total[rows][vectors] = {};
  if constexpr (advance)
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
  if constexpr (sums == Summation::whole) {
    add_run(k, total);
  } else {
    for (; k > 0; k -= summation_block) {
      Float sum[rows][vectors] = {};
      add_run(smaller(k, summation_block), sum);
      for (int n = 0; n < rows; ++n)
        for (int m = 0; m < vectors; ++m) total[n][m] += sum[n][m];
    }
  }
  // Float results add the previous C last: a sum that starts at 0 loses less.
  for (int n = 0; n < rows; ++n) {
    for (int m = 0; m < vectors; ++m) {
      float* at = c.data + n * c.stride + m * width;
      store(at, into == Into::add && !advance ? total[n][m] + load(at) : total[n][m]);
    }
  }
}

// Elements are floats, or words of a bf16 pair each; k then counts pairs.
template <int vectors, Into into, Summation sums = Summation::whole, class Element = float>
[[gnu::noinline]] static void gemm(std::int64_t n, std::int64_t k, StridedOf<Element> a,
                                   Panel<const Element> b, Panel<float> c) {
  if constexpr (sums == Summation::blocked && !blocks_in_registers) {
    gemm<vectors, into>(n, smaller(k, summation_block), a, b, c);
    for (std::int64_t i = summation_block; i < k; i += summation_block)
      gemm<vectors, Into::add>(n, smaller(k - i, summation_block), a.at(0, i), b.at(i, 0), c);
  } else {
    constexpr int fitting = max_accumulators / vectors / (sums == Summation::blocked ? 2 : 1);
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

// Calls body<vectors>(column) for panels that cover the columns, padded to whole vectors.
template <class Body>
ROCFLASH_INLINE void over_columns(int columns, Body body) {
  for (int at = 0; at < columns;) {
    const int left = columns - at;
    if (max_vectors == 4 && left > 3 * width) {
      body.template operator()<max_vectors>(at);
      at += max_vectors * width;
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
