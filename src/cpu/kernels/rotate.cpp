// Rotary embedding, vectorized over pairs, in float. Products are rounded before they are added, so
// that results are bit-identical to core/append.cpp and the GPU kernel.
#include "core/packed.hpp"
#include "cpu/gemm/rows.hpp"
#include "cpu/kernels/entries.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {
namespace {

// Cosines and sines of one position, as floats.
struct Angles {
  const float *cos, *sin;
};

// Interleaved pairs of one row: `width` of them in two vectors.
template <class Element, int... lane>
ROCFLASH_INLINE void rotate_interleaved(const Element* from, Element* to, Float c, Float s,
                                        std::integer_sequence<int, lane...>) {
  const Float a = load_vector(from), b = load_vector(from + width);
  const Float x = __builtin_shufflevector(a, b, (2 * lane)...),
              y = __builtin_shufflevector(a, b, (2 * lane + 1)...);
  const Float left = x * c - y * s, right = x * s + y * c;
  store_vector(to, __builtin_shufflevector(left, right, (lane / 2 + (lane % 2) * width)...));
  store_vector(to + width,
               __builtin_shufflevector(left, right, ((lane + width) / 2 + (lane % 2) * width)...));
}

template <class Element>
ROCFLASH_INLINE void rotate_row(const Rotary& r, Angles angles, const Element* from, Element* to,
                                int columns) {
  const int half = r.dim / 2, step = r.interleaved ? 2 : 1, partner = r.interleaved ? 1 : half;
  int n = 0;
  for (; n + width <= half; n += width) {
    const Float c = load(angles.cos + n), s = load(angles.sin + n);
    if (r.interleaved) {
      rotate_interleaved(from + 2 * n, to + 2 * n, c, s, std::make_integer_sequence<int, width>{});
    } else {
      const Float x = load_vector(from + n), y = load_vector(from + n + half);
      store_vector(to + n, x * c - y * s);
      store_vector(to + n + half, x * s + y * c);
    }
  }
  for (; n < half; ++n) {
    const float c = angles.cos[n], s = angles.sin[n], x = load_scalar(from + n * step),
                y = load_scalar(from + n * step + partner);
    store_scalar(to + n * step, x * c - y * s);
    store_scalar(to + n * step + partner, x * s + y * c);
  }
  if (from == to) return;
  for (n = r.dim; n < columns; ++n) to[n] = from[n];
}

constexpr int max_pairs = max_head_dim / 2;

}  // namespace

void rotate(const Problem& p, const Rotary& r, const Rows& to, Range rows) {
  const Lengths& l = p.lengths;
  float cosines[max_pairs], sines[max_pairs];
  for (std::int64_t n = rows.begin; n < rows.end; ++n) {
    const std::int64_t b = l.packed_q() ? sequence_of(l.cu_q, l.batch, n) : n / l.rows_q;
    if (b < 0) continue;
    const std::int64_t row = l.packed_q() ? n : n % l.rows_q,
                       position = (r.first ? r.first[b] : 0) + row - (l.packed_q() ? l.cu_q[b] : 0);
    const auto size = static_cast<std::int64_t>(size_of(r.dtype));
    convert_row(cosines, r.cos + position * r.cos_stride * size, r.dtype, r.dim / 2);
    convert_row(sines, r.sin + position * r.sin_stride * size, r.dtype, r.dim / 2);
    for (std::int64_t h = 0; h < p.heads; ++h) {
      with_elements(p.dtype, to.row(b, row, h), [&](auto* into) {
        using Element = std::remove_pointer_t<decltype(into)>;
        rotate_row(r, {cosines, sines}, reinterpret_cast<const Element*>(p.q.row(b, row, h)), into,
                   p.head_dim);
      });
    }
  }
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
