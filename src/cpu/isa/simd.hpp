// The vector vocabulary of the CPU kernels: one source, compiled once per instruction set.
//
// Vectors are the compilers' own (GNU vector extensions), so operators just work and clang and GCC
// both build it. Everything here is always inlined or lives in the instruction set's namespace;
// nothing of the standard library is used, because the linker could pick its copy of a shared
// inline function (see core/inline.hpp).
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <cstdint>
#include <utility>

#include "core/inline.hpp"
#include "core/visibility.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

#if defined(__AVX512F__)
inline constexpr int width = 16, registers = 32;
#elif defined(__AVX2__)
inline constexpr int width = 8, registers = 16;
#else
inline constexpr int width = 4, registers = 16;
#endif

using Float = float __attribute__((vector_size(4 * width)));
using Int = std::int32_t __attribute__((vector_size(4 * width)));
using Word = std::uint32_t __attribute__((vector_size(4 * width)));
using Wide = std::uint64_t __attribute__((vector_size(4 * width)));
using Double = double __attribute__((vector_size(8 * width)));
using Half = _Float16 __attribute__((vector_size(2 * width)));
using Short = std::uint16_t __attribute__((vector_size(2 * width)));

inline constexpr float infinity = __builtin_inff();
inline constexpr float log2_e = 1.44269504088896340736f;

template <class Vector, class Scalar>
ROCFLASH_INLINE Vector load_as(const Scalar* from) {
  Vector v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}
ROCFLASH_INLINE Float load(const float* from) { return load_as<Float>(from); }
ROCFLASH_INLINE Word load(const std::uint32_t* from) { return load_as<Word>(from); }
ROCFLASH_INLINE void store(float* to, Float v) { __builtin_memcpy(to, &v, sizeof v); }
ROCFLASH_INLINE void store(std::uint32_t* to, Word v) { __builtin_memcpy(to, &v, sizeof v); }

// x - 0 is x for every x, which the compiler knows; x + 0 is not (for -0).
ROCFLASH_INLINE Float splat(float x) { return x - Float{}; }
ROCFLASH_INLINE Int splat(std::int32_t x) { return x - Int{}; }
ROCFLASH_INLINE Word splat(std::uint32_t x) { return x - Word{}; }

ROCFLASH_INLINE Float select(Int mask, Float a, Float b) { return mask ? a : b; }
// Where either is NaN it is b, as the instruction has it.
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

// Across lanes: the second half is laid over the first until one is left.
template <class Merge>
ROCFLASH_INLINE float fold(Float v, Merge merge) {
#if defined(__AVX512F__)
  v = merge(v, __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
  v = merge(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
  v = merge(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
  v = merge(v, __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
#elif defined(__AVX2__)
  v = merge(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3));
  v = merge(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5));
  v = merge(v, __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6));
#else
  v = merge(v, __builtin_shufflevector(v, v, 2, 3, 0, 1));
  v = merge(v, __builtin_shufflevector(v, v, 1, 0, 3, 2));
#endif
  return v[0];
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

// Turns rows into columns: blocks of 1, 2, 4 ... lanes change places across the diagonal.
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

// The same vector, of which the compiler no longer knows where it came from.
ROCFLASH_INLINE Float opaque(Float x) {
#if defined(__AVX512F__)
  __asm__("" : "+v"(x));
#else
  __asm__("" : "+x"(x));
#endif
  return x;
}

// body(n) for every lane, written out: arrays of vectors stay in registers only if no loop counts
// through them.
template <class Body, int... lane>
ROCFLASH_INLINE void written_out(std::integer_sequence<int, lane...>, Body body) {
  (body(lane), ...);
}
template <class Body>
ROCFLASH_INLINE void over_lanes(Body body) {
  written_out(std::make_integer_sequence<int, width>{}, body);
}

ROCFLASH_INLINE Float from_bf16(Short x) { return (Float)(__builtin_convertvector(x, Word) << 16); }
// To the nearest, ties to even; NaN stays NaN.
ROCFLASH_INLINE Short to_bf16(Float x) {
  const Word bits = (Word)x;
  const Word rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Word quiet = (bits >> 16) | 0x40u;
  return __builtin_convertvector((Word)select(x != x, (Float)quiet, (Float)rounded), Short);
}

// Pairs of bf16 numbers, two in each 32-bit lane.
#if defined(__AVX512BF16__)
// Both products of each lane's pairs, added to its sum. Products are exact; numbers below the
// smallest normal one count as 0.
ROCFLASH_INLINE Float add_products(Float sum, Word a, Word b) {
  return (Float)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}
// 2 * width numbers rounded to bf16, in their order.
ROCFLASH_INLINE Word side_by_side(Float first, Float second) {
  return (Word)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
}
// From words of neighbours in two rows to pairs of one number from each, for the first `width`
// columns and for the others.
ROCFLASH_INLINE Word pair_first(Word lower, Word upper) {
  const __m512i order = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40,
                                         8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  return (Word)_mm512_permutex2var_epi16((__m512i)lower, order, (__m512i)upper);
}
ROCFLASH_INLINE Word pair_second(Word lower, Word upper) {
  const __m512i order =
      _mm512_set_epi16(63, 31, 62, 30, 61, 29, 60, 28, 59, 27, 58, 26, 57, 25, 56, 24, 55, 23, 54,
                       22, 53, 21, 52, 20, 51, 19, 50, 18, 49, 17, 48, 16);
  return (Word)_mm512_permutex2var_epi16((__m512i)lower, order, (__m512i)upper);
}
// Rounded to bf16, the first in the lower halves.
ROCFLASH_INLINE Word pair_up(Float lower, Float upper) {
  const Word both = side_by_side(lower, upper);
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return (Word)_mm512_permutexvar_epi16(order, (__m512i)both);
}
#endif
// a * b + c without rounding the product, where the CPU can do that in one step. The compiler fuses
// nothing by itself.
ROCFLASH_INLINE Float fused(Float a, Float b, Float c) {
#if defined(__AVX512F__)
  return (Float)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Float)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}
ROCFLASH_INLINE Float fused(Float a, Float b, float c) { return fused(a, b, splat(c)); }
ROCFLASH_INLINE Float fused(Float a, float b, Float c) { return fused(a, splat(b), c); }
ROCFLASH_INLINE float fused(float a, float b, float c) {
#if defined(__FMA__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
ROCFLASH_INLINE Float add_products(Float sum, Float a, Float b) { return fused(a, b, sum); }

// 2^x in two steps: rounding to an integer by adding 1.5 * 2^23, and a polynomial for the fraction.
inline constexpr float to_integer = 12582912.0f;

ROCFLASH_INLINE Float clamp_exponent(Float x) {
  x = x < -127.0f ? splat(-127.0f) : x;
  return x > 128.0f ? splat(128.0f) : x;
}
// 2 to the integer that `shifted` holds above to_integer; 0 for -127.
ROCFLASH_INLINE Float power_of_two(Float shifted) {
  return (Float)(((Word)shifted - (Word)splat(to_integer) + 127u) << 23);
}
// 2^fraction for |fraction| <= 1/2, times 2 to the integer that `shifted` holds above to_integer.
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

// 2^x. Within 1 ulp; below 2^-126 it is 0; NaN stays NaN.
ROCFLASH_INLINE Float exp2(Float x) {
  x = clamp_exponent(x);
  const Float shifted = x + to_integer;
  return scaled_exp2(x - (shifted - to_integer), shifted);
}

// 2^(a * factor) for a <= 0, without rounding the product. What is below `least` counts as it, and
// gives 0.
struct Exponential {
  // By how many powers of two arguments may exceed 0: f32 needs the highest weight to be exactly 1.
  static constexpr float slack = 0.0f;
  float factor, least;

  ROCFLASH_INLINE explicit Exponential(float positive_factor) : factor(positive_factor) {
    const float bound = -127.0f / factor;
    least = bound == -infinity ? -0x1.fffffep127f : bound;
  }
  // 2^((a - b) * factor), given base(b)
  ROCFLASH_INLINE static Float base(Float b) { return b; }
  ROCFLASH_INLINE Float above(Float base, Float a) const { return (*this)(a - base); }
  ROCFLASH_INLINE Float operator()(Float a) const {
    a = a < least ? splat(least) : a;
    const Float shifted = fused(a, factor, splat(to_integer));
    return scaled_exp2(fused(a, factor, to_integer - shifted), shifted);
  }
  ROCFLASH_INLINE float operator()(float a) const { return (*this)(splat(a))[0]; }
};

// The same for results that will be rounded to 16 bits or fewer: fewer steps, to within 2^-18.
struct QuickExponential {
  static constexpr float slack = 8.0f;
  float factor;

  ROCFLASH_INLINE explicit QuickExponential(float positive_factor) : factor(positive_factor) {}
  // The base's product is rounded, but all weights above it have that in common.
  ROCFLASH_INLINE Float base(Float b) const { return b * factor; }
  ROCFLASH_INLINE Float above(Float base, Float a) const { return power(fused(a, factor, -base)); }
  ROCFLASH_INLINE Float operator()(Float a) const { return power(a * factor); }
  ROCFLASH_INLINE float operator()(float a) const { return (*this)(splat(a))[0]; }

 private:
  ROCFLASH_INLINE static Float power(Float x) {
#if defined(__AVX512F__)
    const Float whole = (Float)_mm512_roundscale_ps((__m512)x, 0);
#else
    x = x < -127.0f ? splat(-127.0f) : x;
    const Float shifted = x + to_integer, whole = shifted - to_integer;
#endif
    const Float fraction = x - whole;
    Float p = splat(9.582852e-3f);
    p = fused(p, fraction, 5.59064262e-2f);
    p = fused(p, fraction, 2.40240991e-1f);
    p = fused(p, fraction, 6.93124175e-1f);
    p = fused(p, fraction, 1.0f);
#if defined(__AVX512F__)
    return (Float)_mm512_scalef_ps((__m512)p, (__m512)whole);
#else
    return p * power_of_two(shifted);
#endif
  }
};

// Within a few ulp of the result, also where it is small.
ROCFLASH_INLINE Float tanh(Float x) {
  const Float z = x * x;
  Float q = splat(2.1227455673e-3f);
  q = fused(q, z, -8.1562801964e-3f);
  q = fused(q, z, 2.16926069656e-2f);
  q = fused(q, z, -5.39453783872e-2f);
  q = fused(q, z, 1.33331959113e-1f);
  q = fused(q, z, -3.33333305714e-1f);
  const Float near = fused(x * z, q, x);
  const Float size = absolute(x);
  constexpr float middle = 0.6f;
  if (!any(size >= middle)) return near;  // most vectors of scores that are capped at all
  const Float far = 1.0f - 2.0f / (exp2(size * (2.0f * log2_e)) + 1.0f);
  const Float signed_far = (Float)((Word)far | ((Word)x & 0x80000000u));
  return select(size < middle, near, signed_far);
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
