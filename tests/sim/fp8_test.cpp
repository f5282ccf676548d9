// Conversions of 8-bit floats: every code and every rounding neighborhood against values computed
// from the formats' definitions, with none of the simulator's code.
#include <cmath>
#include <optional>

#include "instruction_harness.h"
#include "isa/fp8.h"

namespace rocflash::sim::test {
namespace {

// A format as its document gives it.
struct Definition {
  bool bf8;
  bool fnuz;
  [[nodiscard]] int fraction() const { return bf8 ? 2 : 3; }
  [[nodiscard]] int bias() const { return (bf8 ? 15 : 7) + (fnuz ? 1 : 0); }
  // Nothing for NaN.
  [[nodiscard]] std::optional<double> value(u32 code) const {
    const int e = int(code & 0x7f) >> fraction();
    const int m = int(code & ((1u << fraction()) - 1));
    if (fnuz && code == 0x80) return std::nullopt;
    if (!fnuz && bf8 && e == 31) {
      if (m != 0) return std::nullopt;
      return (code & 0x80) != 0 ? -INFINITY : INFINITY;
    }
    if (!fnuz && !bf8 && (code & 0x7f) == 0x7f) return std::nullopt;
    const double x = e == 0 ? std::ldexp(m, 1 - bias() - fraction())
                            : std::ldexp(m + (1 << fraction()), e - bias() - fraction());
    return (code & 0x80) != 0 ? -x : x;
  }
  [[nodiscard]] u32 largest_code() const {
    u32 code = 127;
    while (!value(code) || !std::isfinite(*value(code))) --code;
    return code;
  }
  [[nodiscard]] double largest() const { return *value(largest_code()); }
  // Nearest code by search, ties to the even code; beyond the last half step it overflows.
  [[nodiscard]] u32 nearest(float x, bool saturate) const {
    const u32 sign = std::signbit(x) ? 0x80 : 0;
    const u32 nan = fnuz ? 0x80 : bf8 ? 0xfe : 0xff;
    if (std::isnan(x)) return nan;
    const u32 overflow = fnuz ? 0x80 : sign | (bf8 ? 0x7c : 0x7f);
    if (std::isinf(x)) return overflow;
    const double magnitude = std::abs(double(x));
    // Beyond half a step above the largest number; a tie goes to what would follow when that is
    // even.
    const u32 top = largest_code();
    const double edge = largest() + (largest() - *value(top - 1)) / 2;
    if (magnitude > edge || (magnitude == edge && top % 2 != 0)) {
      return saturate ? sign | top : overflow;
    }
    u32 best = 0;
    for (u32 code = 1; code <= top; ++code) {
      const double now = std::abs(*value(code) - magnitude);
      const double before = std::abs(*value(best) - magnitude);
      if (now < before || (now == before && code % 2 == 0)) best = code;
    }
    return fnuz && best == 0 ? 0 : sign | best;
  }
};

Float8 format(const Definition& d) { return d.bf8 ? Float8::Bf8 : Float8::Fp8; }

TEST(Fp8, EveryCodeHasItsValue) {
  for (const Definition d :
       {Definition{false, false}, {true, false}, {false, true}, {true, true}}) {
    const auto& table = float8_values(format(d), d.fnuz);
    for (u32 code = 0; code < 256; ++code) {
      const auto want = d.value(code);
      if (!want) {
        EXPECT_TRUE(std::isnan(table[code])) << code;
      } else {
        EXPECT_EQ(std::bit_cast<u32>(table[code]), std::bit_cast<u32>(float(*want))) << code;
      }
    }
  }
}

TEST(Fp8, RoundsToNearestEven) {
  for (const Definition d :
       {Definition{false, false}, {true, false}, {false, true}, {true, true}}) {
    std::vector<u32> inputs = float_edges();
    for (u32 code = 0; code < 127; ++code) {
      const auto lo = d.value(code);
      const auto hi = d.value(code + 1);
      if (!lo || !hi || !std::isfinite(*hi)) continue;
      const u32 middle = std::bit_cast<u32>(float((*lo + *hi) / 2));
      for (const u32 bits : {middle - 1, middle, middle + 1, std::bit_cast<u32>(float(*lo))}) {
        inputs.push_back(bits);
        inputs.push_back(bits | 0x80000000u);
      }
    }
    const double top = d.largest();
    for (const double x :
         {top, top * 1.03, top * 1.05, top * 1.0625, top * 1.07, top * 1.13, top * 1.2, top * 2}) {
      inputs.push_back(std::bit_cast<u32>(float(x)));
    }
    for (const bool saturate : {false, true}) {
      for (const u32 bits : inputs) {
        EXPECT_EQ(to_float8(bits, format(d), d.fnuz, saturate),
                  d.nearest(std::bit_cast<float>(bits), saturate))
            << std::bit_cast<float>(bits) << " bf8 " << d.bf8 << " fnuz " << d.fnuz << " saturate "
            << saturate;
      }
    }
  }
}

TEST(Fp8, StochasticRoundingTakesTheSeedsTopBits) {
  // 1.0 + 3/32 is at three quarters of the step between 1.0 (0x38) and 1.125 (0x39) of E4M3.
  const u32 x = std::bit_cast<u32>(1.09375f);
  EXPECT_EQ(to_float8_stochastic(x, 0x3fffffff, Float8::Fp8, false, false), 0x38u);
  EXPECT_EQ(to_float8_stochastic(x, 0x40000000, Float8::Fp8, false, false), 0x39u);
  EXPECT_EQ(to_float8_stochastic(x, 0, Float8::Fp8, false, false), 0x38u);
  EXPECT_EQ(to_float8_stochastic(std::bit_cast<u32>(-INFINITY), 5, Float8::Bf8, false, true),
            0xfcu);
  EXPECT_EQ(to_float8_stochastic(std::bit_cast<u32>(500.0f), ~0u, Float8::Fp8, false, true), 0x7eu);
}

u32 bits_at(double x) { return std::bit_cast<u32>(float(x)); }

const std::vector<InstructionCase>& cases() {
  const auto widen = [](bool bf8, bool fnuz, u32 byte) {
    const auto v = Definition{bf8, fnuz}.value(byte & 0xff);
    return v ? bits_at(*v) : 0x7fc00000u;
  };
  static const std::vector<InstructionCase> list = {
      {"widen_byte_sdwa",
       {"gfx942", "gfx950"},
       "  v_cvt_f32_fp8_e32 v10, v2\n  v_cvt_f32_fp8_sdwa v11, v2 src0_sel:BYTE_2\n"
       "  v_cvt_f32_bf8_sdwa v12, v2 src0_sel:BYTE_3\n",
       nullptr},
      {"widen_byte_sel",
       {"gfx1201", "gfx1200"},
       "  v_cvt_f32_fp8_e32 v10, v2\n  v_cvt_f32_fp8_e64 v11, v2 byte_sel:2\n"
       "  v_cvt_f32_bf8_e64 v12, v2 byte_sel:3\n",
       nullptr},
      {"widen_pair",
       {"gfx942", "gfx950"},
       "  v_cvt_pk_f32_fp8_e32 v[10:11], v2\n"
       "  v_cvt_pk_f32_bf8_sdwa v[12:13], v2 src0_sel:WORD_1\n",
       nullptr},
      {"widen_pair_op_sel",
       {"gfx1201"},
       "  v_cvt_pk_f32_fp8_e32 v[10:11], v2\n  v_cvt_pk_f32_bf8_e64 v[12:13], v2 op_sel:[1,0]\n",
       nullptr},
      {"narrow_pair",
       {"gfx942", "gfx950", "gfx1201"},
       "  v_cvt_pk_fp8_f32 v10, v2, v3\n  v_cvt_pk_bf8_f32 v11, v2, -v3 op_sel:[0,0,1]\n",
       nullptr,
       0,
       true},
  };
  static std::vector<InstructionCase> filled;
  if (!filled.empty()) return filled;
  for (InstructionCase c : list) {
    for (const char* target : c.targets) {
      InstructionCase one = c;
      one.targets = {target};
      const bool fnuz = std::string(target) == "gfx942";
      const std::string name = c.name;
      one.expect = [=](const Lane& l, u32* out) {
        const u32 x = l.v[0];
        if (name.starts_with("widen_byte")) {
          out[0] = widen(false, fnuz, x);
          out[1] = widen(false, fnuz, x >> 16);
          out[2] = widen(true, fnuz, x >> 24);
        } else if (name.starts_with("widen_pair")) {
          out[0] = widen(false, fnuz, x);
          out[1] = widen(false, fnuz, x >> 8);
          out[2] = widen(true, fnuz, x >> 16);
          out[3] = widen(true, fnuz, x >> 24);
        } else {
          const Definition fp8{false, fnuz};
          const Definition bf8{true, fnuz};
          out[0] = (kPreset[0] & 0xffff0000u) | fp8.nearest(l.f(0), false) |
                   fp8.nearest(l.f(1), false) << 8;
          const u32 pair = bf8.nearest(l.f(0), false) | bf8.nearest(-l.f(1), false) << 8;
          out[1] = (kPreset[1] & 0xffffu) | pair << 16;
        }
      };
      filled.push_back(one);
    }
  }
  // One byte of the destination is written.
  const auto second_and_fourth = [](const Lane&, u32* out) {
    out[0] = (kPreset[0] & 0xffff00ffu) | 0x3900u;
    out[1] = (kPreset[1] & 0x00ffffffu) | 0x3c000000u;
  };
  filled.push_back({"stochastic_byte",
                    {"gfx950"},
                    "  v_mov_b32 v14, 0x3f8c0000\n  v_mov_b32 v15, 0x40000000\n"
                    "  v_cvt_sr_fp8_f32 v10, v14, v15 op_sel:[0,0,1,0]\n"
                    "  v_cvt_sr_bf8_f32 v11, v14, v15 op_sel:[0,0,1,1]\n",
                    second_and_fourth});
  filled.push_back({"stochastic_byte",
                    {"gfx1201"},
                    "  v_mov_b32 v14, 0x3f8c0000\n  v_mov_b32 v15, 0x40000000\n"
                    "  v_cvt_sr_fp8_f32 v10, v14, v15 byte_sel:1\n"
                    "  v_cvt_sr_bf8_f32 v11, v14, v15 byte_sel:3\n",
                    second_and_fourth});
  filled.push_back({"mode_saturates",
                    {"gfx942", "gfx950", "gfx1201"},
                    "  s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1\n"
                    "  v_mov_b32 v14, 0x49742400\n  v_mov_b32 v15, 0x7bff\n"
                    "  v_cvt_pk_fp8_f32 v10, v14, -v14\n  v_add_f16 v11, v15, v15\n"
                    "  v_pk_add_f16 v12, v15, v15\n",
                    nullptr});
  InstructionCase saturates = filled.back();
  filled.pop_back();
  for (const char* target : saturates.targets) {
    InstructionCase one = saturates;
    one.targets = {target};
    const bool gfx942 = std::string(target) == "gfx942";
    const bool gfx9 = std::string(target) != "gfx1201";
    one.expect = [=](const Lane&, u32* out) {
      out[0] = (kPreset[0] & 0xffff0000u) | (gfx942 ? 0xff7fu : 0xfe7eu);
      out[1] = (gfx9 ? 0 : kPreset[1] & 0xffff0000u) | 0x7bffu;
      out[2] = 0x7bffu;
    };
    filled.push_back(one);
  }
  return filled;
}

class Conversion : public testing::TestWithParam<CaseOnTarget> {};
TEST_P(Conversion, GivesTheDefinedCode) { run_case(*GetParam().c, GetParam().target); }
INSTANTIATE_TEST_SUITE_P(Fp8, Conversion, testing::ValuesIn(flatten(cases())), case_name);

}  // namespace
}  // namespace rocflash::sim::test
