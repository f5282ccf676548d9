// The vector type of the CPU kernels: one source, compiled once per ISA.
//
// Vectors are GNU vector extensions, which clang and GCC both support. Everything here is always
// inlined or in the ISA's namespace. The standard library is not used, because the linker could
// keep the copy of an inline function that needs a newer ISA (core/inline.hpp).
#pragma once

// The file of this ISA, selected by CMake. It defines the vector width, the number of registers,
// and the functions that need its own instructions.
#include ROCFLASH_SIMD

namespace rocflash::cpu::ROCFLASH_ISA {

ROCFLASH_INLINE Float select(Int mask, Float a, Float b) { return mask ? a : b; }
// If either is NaN the result is b, as in MAXPS.
ROCFLASH_INLINE Float larger(Float a, Float b) { return a > b ? a : b; }
using rocflash::larger;  // of integers
ROCFLASH_INLINE Float absolute(Float x) { return (Float)((Word)x & 0x7fffffffu); }

// v * factor, rounded once.
ROCFLASH_INLINE Float scaled(Float v, const double* factor) {
  return __builtin_convertvector(__builtin_convertvector(v, Double) * load_as<Double>(factor),
                                 Float);
}

ROCFLASH_INLINE Float to_float(Int x) { return __builtin_convertvector(x, Float); }

ROCFLASH_INLINE Int lane_index() {
  Int v;
  for (int n = 0; n < width; ++n) v[n] = n;
  return v;
}

ROCFLASH_INLINE float sum_of(Float v) {
  return fold(v, [](Float a, Float b) { return a + b; });
}

ROCFLASH_INLINE bool any(Int mask) {
  std::int32_t set = 0;
  for (int n = 0; n < width; ++n) set |= mask[n];
  return set != 0;
}
ROCFLASH_INLINE bool any_nan(Float v) { return any(v != v); }

// Folds each of `width` vectors into one lane: pairs of vectors are folded until one is left.
template <int count, class Merge>
ROCFLASH_INLINE Float fold_each(const Float (&v)[count], Merge merge) {
  if constexpr (count == 1) {
    return v[0];
  } else {
    Float half[count / 2];
    for (int n = 0; n < count / 2; ++n) half[n] = fold_two<count>(v[2 * n], v[2 * n + 1], merge);
    return fold_each(half, merge);
  }
}
ROCFLASH_INLINE Float sum_each(const Float (&v)[width]) {
  return fold_each(v, [](Float a, Float b) { return a + b; });
}
ROCFLASH_INLINE Float largest_each(const Float (&v)[width]) {
  return fold_each(v, [](Float a, Float b) { return larger(a, b); });
}

// Transposes: blocks of 1, 2, 4 ... lanes are exchanged across the diagonal.
template <int step, class Vector, int... lane>
ROCFLASH_INLINE void exchange(Vector& a, Vector& b, std::integer_sequence<int, lane...>) {
  const Vector first =
      __builtin_shufflevector(a, b, ((lane & step) != 0 ? width + lane - step : lane)...);
  b = __builtin_shufflevector(a, b, ((lane & step) != 0 ? width + lane : lane + step)...);
  a = first;
}
template <int step = 1, class Vector>
ROCFLASH_INLINE void transpose(Vector (&v)[width]) {
  if constexpr (step < width) {
    for (int n = 0; n < width; ++n)
      if ((n & step) == 0)
        exchange<step>(v[n], v[n + step], std::make_integer_sequence<int, width>{});
    transpose<2 * step>(v);
  }
}

// body(n) for every lane, unrolled: arrays of vectors stay in registers only without a loop index.
template <class Body, int... lane>
ROCFLASH_INLINE void written_out(std::integer_sequence<int, lane...>, Body body) {
  (body(lane), ...);
}
template <class Body>
ROCFLASH_INLINE void over_lanes(Body body) {
  written_out(std::make_integer_sequence<int, width>{}, body);
}

ROCFLASH_INLINE Float from_bf16(Short x) { return (Float)(__builtin_convertvector(x, Word) << 16); }
// Round to nearest even; NaN stays NaN.
ROCFLASH_INLINE Short to_bf16(Float x) {
  const Word bits = (Word)x;
  const Word rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Word quiet = (bits >> 16) | 0x40u;
  return __builtin_convertvector((Word)select(x != x, (Float)quiet, (Float)rounded), Short);
}

ROCFLASH_INLINE Float fused(Float a, Float b, float c) { return fused(a, b, splat(c)); }
ROCFLASH_INLINE Float fused(Float a, float b, Float c) { return fused(a, splat(b), c); }
ROCFLASH_INLINE Float add_products(Float sum, Float a, Float b) { return fused(a, b, sum); }

ROCFLASH_INLINE Float clamp_exponent(Float x) {
  x = x < -127.0f ? splat(-127.0f) : x;
  return x > 128.0f ? splat(128.0f) : x;
}
// 2^fraction for |fraction| <= 1/2, times 2 to the integer in `shifted` above to_integer.
ROCFLASH_INLINE Float scaled_exp2(Float fraction, Float shifted) {
  Float p = splat(1.53458121613e-4f);
  p = fused(p, fraction, 1.33999311772e-3f);
  p = fused(p, fraction, 9.61848895633e-3f);
  p = fused(p, fraction, 5.55032877711e-2f);
  p = fused(p, fraction, 2.40226468906e-1f);
  p = fused(p, fraction, 6.93147205737e-1f);
  p = fused(p, fraction, 1.0f);
  return p * power_of_two(shifted);
}

// 2^x within 1 ulp; 0 below 2^-126; NaN stays NaN.
ROCFLASH_INLINE Float exp2(Float x) {
  x = clamp_exponent(x);
  const Float shifted = x + to_integer;
  return scaled_exp2(x - (shifted - to_integer), shifted);
}

// 2^(a * factor) for a <= 0, without rounding the product. Arguments below `least` are clamped and
// give 0.
struct Exponential {
  // Powers of two by which arguments may exceed 0. f32 needs the largest weight to be exactly 1.
  static constexpr float slack = 0.0f;
  float factor, least;

  ROCFLASH_INLINE explicit Exponential(float positive_factor) : factor(positive_factor) {
    const float bound = -127.0f / factor;
    least = bound == -infinity ? -0x1.fffffep127f : bound;
  }
  // 2^((a - b) * factor), given base(b).
  ROCFLASH_INLINE static Float base(Float b) { return b; }
  ROCFLASH_INLINE Float above(Float base, Float a) const { return (*this)(a - base); }
  ROCFLASH_INLINE Float operator()(Float a) const {
    a = a < least ? splat(least) : a;
    const Float shifted = fused(a, factor, splat(to_integer));
    return scaled_exp2(fused(a, factor, to_integer - shifted), shifted);
  }
  ROCFLASH_INLINE float operator()(float a) const { return (*this)(splat(a))[0]; }
};

// The same for results that are rounded to 16 bits: a shorter polynomial, within 2^-18.
struct QuickExponential {
  static constexpr float slack = 8.0f;
  float factor;

  ROCFLASH_INLINE explicit QuickExponential(float positive_factor) : factor(positive_factor) {}
  // The running max is subtracted before scaling: its product would overflow for maxima of 3e38,
  // and the product's rounding error would become an exponent for those of 1e9.
  ROCFLASH_INLINE static Float base(Float b) { return b; }
  ROCFLASH_INLINE Float above(Float base, Float a) const { return (*this)(a - base); }
  ROCFLASH_INLINE Float operator()(Float a) const { return power(a * factor); }
  ROCFLASH_INLINE float operator()(float a) const { return (*this)(splat(a))[0]; }

 private:
  ROCFLASH_INLINE static Float power(Float x) {
    return quick_exp2(x, [](Float fraction) {
      Float p = splat(9.582852e-3f);
      p = fused(p, fraction, 5.59064262e-2f);
      p = fused(p, fraction, 2.40240991e-1f);
      p = fused(p, fraction, 6.93124175e-1f);
      return fused(p, fraction, 1.0f);
    });
  }
};

// tanh(x), and scaled * tanh(x) / x: softcap of `scaled` = softcap * x. The latter is `scaled`
// itself if x is negligible, even if it underflows.
struct Tanh {
  Float value, capped;
};
// Within a few ulp, also for small results.
ROCFLASH_INLINE Tanh tanh(Float x, Float scaled, float cap) {
  const Float z = x * x;
  Float q = splat(2.1227455673e-3f);
  q = fused(q, z, -8.1562801964e-3f);
  q = fused(q, z, 2.16926069656e-2f);
  q = fused(q, z, -5.39453783872e-2f);
  q = fused(q, z, 1.33331959113e-1f);
  q = fused(q, z, -3.33333305714e-1f);
  const Float near = fused(x * z, q, x), capped = fused(scaled * z, q, scaled);
  const Float size = absolute(x);
  constexpr float middle = 0.6f;
  if (!any(size >= middle)) return {near, capped};  // most vectors of capped scores
  const Float far = 1.0f - 2.0f / (exp2(size * (2.0f * log2_e)) + 1.0f);
  const Float signed_far = (Float)((Word)far | ((Word)x & 0x80000000u));
  return {select(size < middle, near, signed_far), select(size < middle, capped, signed_far * cap)};
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
