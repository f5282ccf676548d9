// 8-bit floats: values, rounding, and the conversions outside matrix instructions.
// Special values and stochastic alignment follow measurements on gfx1201; gfx950 is assumed to
// be equal, and gfx942 to differ in the encoding only.
#include "isa/fp8.h"

#include <cmath>
#include <limits>

#include "isa/elementwise.h"
#include "isa/small_float.h"

namespace rocflash::sim {
namespace {

// The fnuz variants have one NaN, where others have -0. Values beyond their range become it, too; a
// bit that no code has marks it until the sign has been dealt with.
constexpr u32 kNoNumber = 0x100;

constexpr SmallFormat format_of(Float8 f, bool fnuz) {
  const bool bf8 = f == Float8::Bf8;
  if (fnuz) return {8, bf8 ? 2 : 3, bf8 ? 16 : 8, 0x7f, kNoNumber, 0x80};
  return small_format(bf8 ? Small::Bf8 : Small::Fp8);
}

// Both roundings share everything but how the bits below the last place are treated.
template <typename Round>
u32 narrow(u32 bits, Float8 f, bool fnuz, bool saturate, Round round) {
  const SmallFormat format = format_of(f, fnuz);
  const u32 magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return format.nan;
  const u32 beyond = saturate && magnitude != 0x7f800000u ? format.largest : format.overflow;
  const u32 code = narrow_small(bits, format, beyond, round);
  if (!fnuz) return code;
  if ((code & kNoNumber) != 0) return format.nan;
  return code == 0x80 ? 0 : code;
}

// Byte or word selection happens when the operand is fetched.
template <Float8 F>
void widen_one(Lanes& l) {
  const auto& values = float8_values(F, uses_fnuz(*l.target));
  for (int i = 0; i < l.n; ++i) l.d[i] = std::bit_cast<u32>(values[l.lo[0][i] & 0xff]);
}

template <Float8 F>
void widen_two(Lanes& l) {
  const auto& values = float8_values(F, uses_fnuz(*l.target));
  for (int i = 0; i < l.n; ++i) {
    const u32 pair = l.lo[0][i];
    l.d[i] = std::bit_cast<u32>(values[pair & 0xff]);
    l.dh[i] = std::bit_cast<u32>(values[pair >> 8 & 0xff]);
  }
}

bool saturates(const Lanes& l) { return (l.mode >> kModeOverflowBit & 1) != 0; }

template <Float8 F>
void narrow_two(Lanes& l) {
  const bool fnuz = uses_fnuz(*l.target);
  for (int i = 0; i < l.n; ++i) {
    l.d[i] = to_float8(l.lo[0][i], F, fnuz, saturates(l)) |
             to_float8(l.lo[1][i], F, fnuz, saturates(l)) << 8;
  }
}

template <Float8 F>
void narrow_stochastic(Lanes& l) {
  const bool fnuz = uses_fnuz(*l.target);
  for (int i = 0; i < l.n; ++i) {
    l.d[i] = to_float8_stochastic(l.lo[0][i], l.lo[1][i], F, fnuz, saturates(l));
  }
}

Semantics conversion(ComputeFn compute, Type dst, Type first, Type second, u32 flags) {
  Semantics s;
  s.run = run_vop<false>;
  s.run_strict = run_vop<true>;
  s.compute = compute;
  s.dst = dst;
  s.src = {first, second};
  s.sources = second == Type::None ? 1 : 2;
  s.flags = flags;
  return s;
}

template <Float8 F>
void add_format(Registry& r, std::string_view widen, std::string_view widen_pair,
                std::string_view narrow_pair, std::string_view stochastic) {
  r.add(widen, conversion(widen_one<F>, Type::F32, Type::B32, Type::None, flag::kReadsByte));
  r.add(widen_pair, conversion(widen_two<F>, Type::B64, Type::B16, Type::None, 0));
  r.add(narrow_pair, conversion(narrow_two<F>, Type::B16, Type::F32, Type::F32, flag::kKeepsHigh9));
  r.add(stochastic,
        conversion(narrow_stochastic<F>, Type::B32, Type::F32, Type::B32, flag::kWritesByte));
}

}  // namespace

bool uses_fnuz(const Target& target) { return target.name == "gfx942"; }

const std::array<float, 256>& float8_values(Float8 f, bool fnuz) {
  const auto build = [](Float8 which, bool nuz) {
    const SmallFormat format = format_of(which, nuz);
    std::array<float, 256> table{};
    for (u32 code = 0; code < 256; ++code) {
      const u32 magnitude = code & 0x7f;
      const int exponent = int(magnitude >> format.fraction);
      const int fraction = int(magnitude & ((1u << format.fraction) - 1));
      const int one = exponent == 0 ? 0 : 1 << format.fraction;
      float x =
          std::ldexp(float(fraction + one), std::max(exponent, 1) - format.bias - format.fraction);
      const bool infinite = !nuz && which == Float8::Bf8 && magnitude == 0x7c;
      if (infinite) x = std::numeric_limits<float>::infinity();
      const bool nan = nuz ? code == 0x80 : magnitude > format.largest && !infinite;
      if (nan) x = std::bit_cast<float>(0x7fc00000u);
      table[code] = code >= 0x80 && !nan ? -x : x;
    }
    return table;
  };
  static const std::array<std::array<float, 256>, 4> tables = {
      build(Float8::Fp8, false), build(Float8::Bf8, false), build(Float8::Fp8, true),
      build(Float8::Bf8, true)};
  return tables[(f == Float8::Bf8 ? 1u : 0u) + (fnuz ? 2u : 0u)];
}

u32 to_float8(u32 bits, Float8 f, bool fnuz, bool saturate) {
  return narrow(bits, f, fnuz, saturate, kNearestEven);
}

u32 to_float8_stochastic(u32 bits, u32 seed, Float8 f, bool fnuz, bool saturate) {
  return narrow(bits, f, fnuz, saturate, Stochastic{seed});
}

void add_float8(Registry& r) {
  add_format<Float8::Fp8>(r, "v_cvt_f32_fp8", "v_cvt_pk_f32_fp8", "v_cvt_pk_fp8_f32",
                          "v_cvt_sr_fp8_f32");
  add_format<Float8::Bf8>(r, "v_cvt_f32_bf8", "v_cvt_pk_f32_bf8", "v_cvt_pk_bf8_f32",
                          "v_cvt_sr_bf8_f32");
}

}  // namespace rocflash::sim
