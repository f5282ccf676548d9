// Transcendentals and division helpers. Transcendentals are computed in double and rounded
// once, within the hardware's 1 ulp; f32 ones flush denormal inputs and results, as
// the hardware does, so that tests find kernels that rely on denormals.
#include <cmath>
#include <numbers>

#include "isa/elementwise.h"
#include "isa/lane_math.h"

namespace rocflash::sim {
namespace {

inline float flush(float x) {
  return std::abs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}

inline float narrow(double x) { return flush(static_cast<float>(x)); }

constexpr auto kExp = [](float x) { return narrow(std::exp2(double(flush(x)))); };
constexpr auto kLog = [](float x) { return narrow(std::log2(double(flush(x)))); };
constexpr auto kRcp = [](float x) { return narrow(1.0 / double(flush(x))); };
constexpr auto kRsq = [](float x) { return narrow(1.0 / std::sqrt(double(flush(x)))); };
constexpr auto kSqrt = [](float x) { return narrow(std::sqrt(double(flush(x)))); };
// The argument is in revolutions.
constexpr auto kSin = [](float x) {
  const double t = double(flush(x));
  return narrow(std::sin((t - std::floor(t)) * 2 * std::numbers::pi));
};
constexpr auto kCos = [](float x) {
  const double t = double(flush(x));
  return narrow(std::cos((t - std::floor(t)) * 2 * std::numbers::pi));
};

template <typename T>
int biased_exponent(T x) {
  using L = FloatLayout<T>;
  constexpr int kBits = std::is_same_v<T, float> ? 8 : 11;
  return static_cast<int>(bits_of(x) >> L::kMantissa) & ((1 << kBits) - 1);
}

template <typename T>
bool denormal(T x) {
  return x != 0 && biased_exponent(x) == 0;
}

// V_DIV_SCALE: scales numerator or denominator so that the Newton steps neither overflow nor lose
// bits; the mask tells V_DIV_FMAS to scale the quotient back.
template <typename T>
void div_scale(Lanes& l) {
  constexpr bool kDouble = std::is_same_v<T, double>;
  constexpr int kScale = kDouble ? 128 : 64;
  constexpr int kWide = kDouble ? 768 : 96;
  constexpr int kSmall = kDouble ? 53 : 23;
  Vgpr flags;
  for (int i = 0; i < l.n; ++i) {
    const T s0 = load_lane<T>(l.lo[0], l.hi[0], i);
    const T den = load_lane<T>(l.lo[1], l.hi[1], i);
    const T num = load_lane<T>(l.lo[2], l.hi[2], i);
    const auto up = [&](T x) { return T(std::ldexp(x, kScale)); };
    const bool is_num = bits_of(s0) == bits_of(num);
    const bool is_den = bits_of(s0) == bits_of(den);
    T d = s0;
    bool vcc = false;
    if (num == 0 || den == 0) {
      d = std::numeric_limits<T>::quiet_NaN();
    } else if (biased_exponent(num) - biased_exponent(den) >= kWide) {
      vcc = true;  // the quotient is near overflow
      if (is_den) d = up(s0);
    } else if (denormal(den)) {
      d = up(s0);
    } else if (denormal(T(1) / den) && denormal(T(num / den))) {
      vcc = true;
      if (is_den) d = up(s0);
    } else if (denormal(T(1) / den)) {
      d = T(std::ldexp(s0, -kScale));
    } else if (denormal(T(num / den))) {
      vcc = true;
      if (is_num) d = up(s0);
    } else if (biased_exponent(num) <= kSmall) {
      d = up(s0);
    }
    store_lane<T>(l.d, l.dh, i, d);
    flags.lane[i] = vcc ? ~0u : 0u;
  }
  l.mask_out = pack_mask(flags.lane, l.n);
}

template <typename T>
void div_fmas(Lanes& l) {
  constexpr int kScale = std::is_same_v<T, double> ? 64 : 32;
  for (int i = 0; i < l.n; ++i) {
    const T a = load_lane<T>(l.lo[0], l.hi[0], i);
    const T b = load_lane<T>(l.lo[1], l.hi[1], i);
    const T c = load_lane<T>(l.lo[2], l.hi[2], i);
    T r = std::fma(a, b, c);
    if ((l.mask_in >> i & 1) != 0) {
      // One rounding: the scaled sum is what the hardware rounds.
      if constexpr (std::is_same_v<T, float>) {
        const double exact = double(a) * double(b) + double(c);
        r = float(std::ldexp(exact, kScale));
      } else {
        r = std::ldexp(r, kScale);
      }
    }
    store_lane<T>(l.d, l.dh, i, r);
  }
}

// V_DIV_FIXUP: the special cases of denominator s1 and numerator s2 around the quotient s0.
template <typename T>
T div_fixup(T quotient, T den, T num) {
  const bool negative = std::signbit(double(den)) != std::signbit(double(num));
  if (num != num) return quiet(num);
  if (den != den) return quiet(den);
  const bool num_inf = std::isinf(double(num));
  const bool den_inf = std::isinf(double(den));
  if ((num == 0 && den == 0) || (num_inf && den_inf)) return -default_nan<T>();
  if (den == 0 || num_inf) {
    return T(negative ? -std::numeric_limits<double>::infinity()
                      : std::numeric_limits<double>::infinity());
  }
  if (den_inf || num == 0) return T(negative ? -0.0 : 0.0);
  if (quotient != quotient) {
    return T(negative ? -std::numeric_limits<double>::infinity()
                      : std::numeric_limits<double>::infinity());
  }
  const double magnitude = std::abs(double(quotient));
  return T(negative ? -magnitude : magnitude);
}

// A separate loop because 0/0 gives a negative NaN here, unlike in all other arithmetic.
template <typename T>
void div_fixup_lanes(Lanes& l) {
  for (int i = 0; i < l.n; ++i) {
    store_lane<T>(l.d, l.dh, i,
                  div_fixup(load_lane<T>(l.lo[0], l.hi[0], i), load_lane<T>(l.lo[1], l.hi[1], i),
                            load_lane<T>(l.lo[2], l.hi[2], i)));
  }
}

template <typename T>
Semantics three(ComputeFn compute, u32 flags, Type type) {
  Semantics s;
  s.run = run_vop<false>;
  s.run_strict = run_vop<true>;
  s.compute = compute;
  s.dst = type;
  s.src = {type, type, type};
  s.sources = 3;
  s.flags = flags;
  return s;
}

// V_TRIG_PREOP: 2/pi in segments of 53 bits, for large-argument reduction.
double trig_preop(double x, u32 segment) {
  static const u64 kTwoOverPi[] = {0xA2F9836E4E441529ull,
                                   0xFC2757D1F534DDC0ull,
                                   0xDB6295993C439041ull,
                                   0xFE5163ABDEBBC561ull,
                                   0xB7246E3A424DD2E0ull,
                                   0x06492EEA09D1921Cull,
                                   0xFE1DEB1CB129A73Eull,
                                   0xE88235F52EBB4484ull,
                                   0xE99C7026B45F7E41ull,
                                   0x3991D639835339F4ull,
                                   0x9C845F8BBDF9283Bull,
                                   0x1FF897FFDE05980Full,
                                   0xEF2F118B5A0A6D1Full,
                                   0x6D367ECF27CB09B7ull,
                                   0x4F463F669E5FEA2Dull,
                                   0x7527BAC7EBE5F17Bull,
                                   0x3D0739F78A5292EAull,
                                   0x6BFB5FB18D5D0800ull,
                                   0,
                                   0};
  const int e = biased_exponent(x);
  int shift = static_cast<int>(segment & 31) * 53;
  if (e > 1077) shift += e - 1077;
  u64 bits = 0;
  for (int i = 0; i < 53; ++i) {
    const int at = shift + i;
    const u64 bit = at < 1200 ? kTwoOverPi[at / 64] >> (63 - at % 64) & 1 : 0;
    bits = bits << 1 | bit;
  }
  int scale = -53 - shift;
  if (e >= 1968) scale += 128;
  return std::ldexp(double(bits), scale);
}

}  // namespace

void add_special_math(Registry& r) {
  r.add("v_exp_f32|v_exp_legacy_f32", transcendental<kExp>());
  r.add("v_log_f32|v_log_legacy_f32", transcendental<kLog>());
  r.add("v_rcp_f32|v_rcp_iflag_f32", transcendental<kRcp>());
  r.add("v_rsq_f32", transcendental<kRsq>());
  r.add("v_sqrt_f32", transcendental<kSqrt>());
  r.add("v_sin_f32", transcendental<kSin>());
  r.add("v_cos_f32", transcendental<kCos>());
  r.add("v_tanh_f32", transcendental<[](float x) { return narrow(std::tanh(double(x))); }>());

  r.add("v_rcp_f64", transcendental<[](double x) { return 1.0 / x; }>());
  r.add("v_rsq_f64", transcendental<[](double x) { return 1.0 / std::sqrt(x); }>());
  r.add("v_sqrt_f64", transcendental<[](double x) { return std::sqrt(x); }>());

  r.add("v_exp_f16", transcendental<[](f16 x) { return to_half(std::exp2(double(x))); }>());
  r.add("v_log_f16", transcendental<[](f16 x) { return to_half(std::log2(double(x))); }>());
  r.add("v_rcp_f16", transcendental<[](f16 x) { return to_half(1.0 / double(x)); }>());
  r.add("v_rsq_f16", transcendental<[](f16 x) { return to_half(1.0 / std::sqrt(double(x))); }>());
  r.add("v_sqrt_f16", transcendental<[](f16 x) { return to_half(std::sqrt(double(x))); }>());
  r.add(
      "v_sin_f16",
      transcendental<[](f16 x) { return to_half(std::sin(double(x) * 2 * std::numbers::pi)); }>());
  r.add(
      "v_cos_f16",
      transcendental<[](f16 x) { return to_half(std::cos(double(x) * 2 * std::numbers::pi)); }>());

  r.add("v_div_scale_f32", three<float>(div_scale<float>, flag::kMaskOut, Type::F32));
  r.add("v_div_scale_f64", three<double>(div_scale<double>, flag::kMaskOut, Type::F64));
  r.add("v_div_fmas_f32",
        three<float>(div_fmas<float>, flag::kReadsVcc | flag::kFloatMode, Type::F32));
  r.add("v_div_fmas_f64",
        three<double>(div_fmas<double>, flag::kReadsVcc | flag::kFloatMode, Type::F64));
  r.add("v_div_fixup_f32", three<float>(div_fixup_lanes<float>, 0, Type::F32));
  r.add("v_div_fixup_f64", three<double>(div_fixup_lanes<double>, 0, Type::F64));
  r.add("v_div_fixup_f16", three<f16>(div_fixup_lanes<f16>, flag::kKeepsHigh9, Type::F16));
  r.add("v_trig_preop_f64", vop<[](double x, u32 s) { return trig_preop(x, s); }>());
}

}  // namespace rocflash::sim
