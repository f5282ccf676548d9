// gfx950's floats of 8, 6 and 4 bits: scaled conversions and block-scaled matrices, against the
// formats' definitions and the layouts of the ISA document, with none of the simulator's code.
#include <cmath>
#include <deque>

#include "instruction_harness.h"

namespace rocflash::sim::test {
namespace {

// A format as OCP's document gives it.
struct Definition {
  const char* name;
  int bits;
  int fraction;
  int bias;
  u32 largest;   // code
  u32 overflow;  // code
  u32 nan;       // code; without a NaN of its own, the largest number

  [[nodiscard]] double value(u32 code) const {
    const u32 magnitude = code & ((1u << (bits - 1)) - 1);
    const bool negative = code != magnitude;
    double x;
    if (magnitude > largest) {
      x = magnitude == overflow && bits == 8 && fraction == 2 ? INFINITY : NAN;
    } else {
      const int e = int(magnitude >> fraction);
      const int m = int(magnitude & ((1u << fraction) - 1));
      x = e == 0 ? std::ldexp(m, 1 - bias - fraction)
                 : std::ldexp(m + (1 << fraction), e - bias - fraction);
    }
    return negative ? -x : x;
  }
  // Nearest code by search, ties to the even code.
  [[nodiscard]] u32 nearest(double x) const {
    const u32 sign = std::signbit(x) ? 1u << (bits - 1) : 0;
    if (std::isnan(x)) return bits == 8 ? nan : sign | nan;
    const double magnitude = std::abs(x);
    const double edge = value(largest) + (value(largest) - value(largest - 1)) / 2;
    if (magnitude > edge || (magnitude == edge && largest % 2 != 0)) return sign | overflow;
    u32 best = 0;
    for (u32 code = 1; code <= largest; ++code) {
      const double now = std::abs(value(code) - magnitude);
      const double before = std::abs(value(best) - magnitude);
      if (now < before || (now == before && code % 2 == 0)) best = code;
    }
    return sign | best;
  }
};

// In the order of cbsz and blgp.
constexpr Definition kFormats[] = {
    {"fp8", 8, 3, 7, 0x7e, 0x7f, 0xff}, {"bf8", 8, 2, 15, 0x7b, 0x7c, 0xfe},
    {"fp6", 6, 3, 1, 0x1f, 0x1f, 0x1f}, {"bf6", 6, 2, 3, 0x1f, 0x1f, 0x1f},
    {"fp4", 4, 1, 1, 0x07, 0x07, 0x07},
};

TEST(SmallFloat, DefinitionsAreOcps) {
  EXPECT_EQ(kFormats[0].value(0x7e), 448.0);
  EXPECT_EQ(kFormats[1].value(0x7b), 57344.0);
  EXPECT_EQ(kFormats[2].value(0x1f), 7.5);
  EXPECT_EQ(kFormats[2].value(0x01), 0.125);
  EXPECT_EQ(kFormats[3].value(0x1f), 28.0);
  EXPECT_EQ(kFormats[3].value(0x01), 0.0625);
  constexpr double kFp4[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (u32 code = 0; code < 8; ++code) {
    EXPECT_EQ(kFormats[4].value(code), kFp4[code]);
    EXPECT_EQ(kFormats[4].value(code | 8), -kFp4[code]);
  }
}

// --- conversions -----------------------------------------------------------------------------

double power(u32 scale) {
  const u32 exponent = scale >> 23 & 0xff;
  return exponent == 255 ? NAN : std::ldexp(1.0, int(exponent) - 127);
}
u32 down(const Definition& f, u32 x, u32 scale) {
  const double y = std::bit_cast<float>(x);
  const double p = power(scale);
  return f.nearest(std::isnan(p) ? std::copysign(NAN, y) : y / p);
}
double half(u32 x) { return double(std::bit_cast<f16>(u16(x))); }
double brain(u32 x) { return std::bit_cast<float>(x << 16); }
u32 up(const Definition& f, u32 code, u32 scale) {
  return std::bit_cast<u32>(float(f.value(code) * power(scale)));
}
u32 half_up(const Definition& f, u32 code, u32 scale) {
  return std::bit_cast<u16>(f16(f.value(code) * power(scale)));
}
bool nan_half(u32 h) { return (h & 0x7fff) > 0x7c00; }

const std::vector<const char*> k950 = {"gfx950"};

auto appender(std::vector<InstructionCase>& list) {
  return [&list](const std::string& name, const std::string& body, Expect expect,
                 bool halves = false) {
    static std::deque<std::string> names;  // cases keep pointers to them
    list.push_back(
        {names.emplace_back(name).c_str(), k950, body, std::move(expect), 0, !halves, halves, 0});
  };
}

void append_packed_conversions(std::vector<InstructionCase>& list) {
  const auto add = appender(list);
  for (const Definition& f : {kFormats[0], kFormats[1]}) {
    const std::string s = f.name;
    const std::string cvt = "  v_cvt_scalef32_";
    // 16 bits of the destination, 8 by 8, the others stay.
    add("narrow_" + s,
        cvt + "pk_" + s + "_f32 v10, v2, v3, v4\n" + cvt + "pk_" + s +
            "_f32 v11, -v2, |v3|, v4 op_sel:[0,0,0,1]\n" + cvt + "pk_" + s +
            "_f32 v12, v5, v6, 1.0\n",
        [f](const Lane& l, u32* out) {
          out[0] =
              (kPreset[0] & 0xffff0000) | down(f, l.v[0], l.v[2]) | down(f, l.v[1], l.v[2]) << 8;
          const u32 a = down(f, l.v[0] ^ 0x80000000, l.v[2]);
          const u32 b = down(f, l.v[1] & 0x7fffffff, l.v[2]);
          out[1] = (kPreset[1] & 0xffff) | a << 16 | b << 24;
          out[2] = (kPreset[2] & 0xffff0000) | down(f, l.v[3], 0x3f800000) |
                   down(f, l.v[4], 0x3f800000) << 8;
        });
    add("widen_" + s,
        cvt + "pk_f32_" + s + " v[10:11], v2, v3\n" + cvt + "pk_f32_" + s +
            " v[12:13], v2, v3 op_sel:[1,0,0]\n",
        [f](const Lane& l, u32* out) {
          for (u32 i = 0; i < 4; ++i) out[i] = up(f, l.v[0] >> (8 * i) & 0xff, l.v[1]);
        });
    add("widen_one_" + s,
        cvt + "f32_" + s + " v10, v2, v3 op_sel:[1,0,0]\n" + cvt + "f32_" + s +
            " v11, v2, v3 op_sel:[0,1,0]\n" + cvt + "f32_" + s + " v12, v2, v3 op_sel:[1,1,0]\n" +
            cvt + "f32_" + s + " v13, v2, v3\n",
        [f](const Lane& l, u32* out) {
          for (u32 i = 0; i < 4; ++i) out[i] = up(f, l.v[0] >> (8 * ((i + 1) & 3)) & 0xff, l.v[1]);
        });
    add(
        "halves_" + s,
        "  v_mov_b32 v15, 4.0\n" + cvt + "pk_" + s + "_f16 v10, v2, v15\n" + cvt + "pk_" + s +
            "_bf16 v11, v3, v15 op_sel:[0,0,1]\n" + cvt + "pk_f16_" + s + " v12, v4, v15\n" + cvt +
            "f16_" + s + " v13, v5, v15 op_sel:[1,1,1]\n",
        [f](const Lane& l, u32* out) {
          out[0] = (kPreset[0] & 0xffff0000) | f.nearest(half(l.v[0]) / 4) |
                   f.nearest(half(l.v[0] >> 16) / 4) << 8;
          out[1] = (kPreset[1] & 0xffff) | f.nearest(brain(l.v[1] & 0xffff) / 4) << 16 |
                   f.nearest(brain(l.v[1] >> 16) / 4) << 24;
          const u32 four = 0x40800000;
          out[2] = half_up(f, l.v[2] & 0xff, four) | half_up(f, l.v[2] >> 8 & 0xff, four) << 16;
          out[3] = (kPreset[3] & 0xffff) | half_up(f, l.v[3] >> 24, four) << 16;
          for (const u32 i : {2u, 3u}) {
            if (nan_half(out[i] & 0xffff) && i == 2) out[i] = (out[i] & ~0xffffu) | 0x7e00;
            if (nan_half(out[i] >> 16)) out[i] = (out[i] & 0xffff) | 0x7e000000;
          }
        },
        true);
    // Representable numbers do not depend on the seed.
    add("stochastic_" + s,
        "  v_mov_b32 v15, -1\n  v_mov_b32 v16, 0\n  v_mov_b32 v17, 0x3fc00000\n" + cvt + "sr_" + s +
            "_f32 v10, v17, v15, 0.5 op_sel:[0,0,1,0]\n" + cvt + "sr_" + s +
            "_f32 v11, v17, v16, 0.5 op_sel:[0,0,1,1]\n  v_mov_b32 v17, 0x3f880000\n" +  // 1.0625
            cvt + "sr_" + s + "_f32 v12, v17, v16, 1.0\n" + cvt + "sr_" + s +
            "_f32 v13, v17, v15, 1.0\n",
        [f](const Lane&, u32* out) {
          const u32 three = f.nearest(3.0);
          const u32 one = f.nearest(1.0);
          out[0] = (kPreset[0] & 0xffff00ff) | three << 8;
          out[1] = (kPreset[1] & 0x00ffffff) | three << 24;
          out[2] = (kPreset[2] & 0xffffff00) | one;
          out[3] = (kPreset[3] & 0xffffff00) | (one + 1);
        });
  }
  static constexpr Definition fp4 = kFormats[4];
  add("narrow_fp4",
      "  v_cvt_scalef32_pk_fp4_f32 v10, v2, v3, v4\n"
      "  v_cvt_scalef32_pk_fp4_f32 v11, v2, v3, v4 op_sel:[0,0,1,0]\n"
      "  v_cvt_scalef32_pk_fp4_f32 v12, v2, v3, 2.0 op_sel:[0,0,0,1]\n"
      "  v_cvt_scalef32_pk_fp4_f32 v13, v2, v3, 2.0 op_sel:[0,0,1,1]\n",
      [](const Lane& l, u32* out) {
        const u32 pair = down(fp4, l.v[0], l.v[2]) | down(fp4, l.v[1], l.v[2]) << 4;
        const u32 other = down(fp4, l.v[0], 0x40000000) | down(fp4, l.v[1], 0x40000000) << 4;
        for (u32 i = 0; i < 4; ++i) {
          out[i] = (kPreset[i] & ~(0xffu << (8 * i))) | (i < 2 ? pair : other) << (8 * i);
        }
      });
  add("widen_fp4",
      "  v_cvt_scalef32_pk_f32_fp4 v[10:11], v2, v3 op_sel:[1,0,0]\n"
      "  v_cvt_scalef32_pk_f32_fp4 v[12:13], v2, v3 op_sel:[0,1,0]\n",
      [](const Lane& l, u32* out) {
        for (u32 i = 0; i < 4; ++i) out[i] = up(fp4, l.v[0] >> (8 + 4 * i) & 15, l.v[1]);
      });
  add(
      "halves_fp4",
      "  v_mov_b32 v15, 0.5\n  v_cvt_scalef32_pk_fp4_f16 v10, v2, v15 op_sel:[0,0,1,0]\n"
      "  v_cvt_scalef32_pk_fp4_bf16 v11, v3, v15 op_sel:[0,0,0,1]\n"
      "  v_cvt_scalef32_pk_f16_fp4 v12, v4, v15 op_sel:[1,1,0]\n"
      "  v_mov_b32 v16, -1\n  v_cvt_scalef32_pk_f32_fp4 v[18:19], v4, v15\n"
      "  v_cvt_scalef32_sr_pk_fp4_f32 v13, v[18:19], v16, v15 op_sel:[0,0,1,1]\n",
      [](const Lane& l, u32* out) {
        const auto both = [&](double a, double b) {
          return fp4.nearest(a * 2) | fp4.nearest(b * 2) << 4;
        };
        out[0] = (kPreset[0] & 0xffff00ff) | both(half(l.v[0]), half(l.v[0] >> 16)) << 8;
        out[1] = (kPreset[1] & 0xff00ffff) | both(brain(l.v[1] & 0xffff), brain(l.v[1] >> 16))
                                                 << 16;
        out[2] = half_up(fp4, l.v[2] >> 24 & 15, 0x3f000000) |
                 half_up(fp4, l.v[2] >> 28, 0x3f000000) << 16;
        out[3] = (kPreset[3] & 0x00ffffff) | (l.v[2] & 0xff) << 24;  // round trip
      },
      true);
}

void append_32_element_conversions(std::vector<InstructionCase>& list) {
  const auto add = appender(list);
  // VGPRs v[40:71] repeat the eight inputs.
  std::string spread;
  for (int i = 0; i < 32; ++i) spread += fmt::format("  v_mov_b32 v{}, v{}\n", 40 + i, 2 + i % 8);
  const auto bits_at = [](const std::vector<u32>& codes, u32 word) {
    u32 value = 0;
    for (u32 bit = 0; bit < 32; ++bit) {
      const u32 at = 32 * word + bit;
      value |= (codes[at / 6] >> (at % 6) & 1) << bit;
    }
    return value;
  };
  for (const Definition& f : {kFormats[2], kFormats[3]}) {
    const std::string s = f.name;
    add("narrow_" + s,
        spread + "  v_cvt_scalef32_2xpk16_" + s +
            "_f32 v[80:85], v[40:55], v[56:71], v9\n  v_mov_b32 v10, v80\n  v_mov_b32 v11, v81\n"
            "  v_mov_b32 v12, v84\n  v_mov_b32 v13, v85\n",
        [f, bits_at](const Lane& l, u32* out) {
          std::vector<u32> codes(32);
          // Elements alternate between the two sources; both repeat the inputs.
          for (u32 i = 0; i < 32; ++i) codes[i] = down(f, l.v[i / 2 % 8], l.v[7]);
          for (u32 i = 0; i < 4; ++i) out[i] = bits_at(codes, i < 2 ? i : i + 2);
        });
    add("widen_" + s,
        "  v_cvt_scalef32_pk32_f32_" + s +
            " v[80:111], v[2:7], v9\n  v_mov_b32 v10, v80\n  v_mov_b32 v11, v85\n"
            "  v_mov_b32 v12, v100\n  v_mov_b32 v13, v111\n",
        [f](const Lane& l, u32* out) {
          const u32 which[] = {0, 5, 20, 31};
          for (u32 i = 0; i < 4; ++i) {
            u32 code = 0;
            for (u32 bit = 0; bit < 6; ++bit) {
              const u32 at = 6 * which[i] + bit;
              code |= (l.v[at / 32] >> (at % 32) & 1) << bit;
            }
            out[i] = up(f, code, l.v[7]);
          }
        });
    // Round trip: representable numbers survive, with a seed too.
    add(
        "halves_" + s,
        "  v_cvt_scalef32_pk32_f16_" + s + " v[80:95], v[2:7], 1.0\n  v_cvt_scalef32_pk32_" + s +
            "_f16 v[100:105], v[80:95], 1.0\n  v_cvt_scalef32_pk32_bf16_" + s +
            " v[80:95], v[2:7], 2.0\n  v_mov_b32 v15, -1\n  v_cvt_scalef32_sr_pk32_" + s +
            "_bf16 v[106:111], v[80:95], v15, 2.0\n  v_mov_b32 v10, v100\n  v_mov_b32 v11, v104\n"
            "  v_mov_b32 v12, v107\n  v_mov_b32 v13, v111\n",
        [](const Lane& l, u32* out) {
          out[0] = l.v[0];
          out[1] = l.v[4];
          out[2] = l.v[1];
          out[3] = l.v[5];
        },
        true);
  }
}

const std::vector<InstructionCase>& conversion_cases() {
  static const std::vector<InstructionCase> list = [] {
    std::vector<InstructionCase> all;
    append_packed_conversions(all);
    append_32_element_conversions(all);
    return all;
  }();
  return list;
}

class ScaledConversion : public testing::TestWithParam<CaseOnTarget> {};
TEST_P(ScaledConversion, IsRoundedOnce) { run_case(*GetParam().c, GetParam().target); }
INSTANTIATE_TEST_SUITE_P(All, ScaledConversion, testing::ValuesIn(flatten(conversion_cases())),
                         case_name);

// --- matrices --------------------------------------------------------------------------------

struct Shape2 {
  const char* name;
  int side;
  int depth;
};

// Where the ISA document's tables put a value: lane and number within the lane.
struct Where {
  int lane;
  int element;
};
Where where(const Shape2& s, const Definition& f, int row, int k) {
  if (f.bits != 8) return {row + s.side * (k / 32), k % 32};
  const int half_depth = s.depth / 2;
  return {row + s.side * (k % half_depth / 16), k / half_depth * 16 + k % 16};
}

// Rows of 64 dwords, one for each register.
using Registers = std::vector<std::array<u32, 64>>;

Registers pack(const Shape2& s, const Definition& f, const std::vector<u32>& codes) {
  Registers out(8);
  for (auto& row : out) row.fill(0);
  for (int row = 0; row < s.side; ++row) {
    for (int k = 0; k < s.depth; ++k) {
      const Where at = where(s, f, row, k);
      for (int bit = 0; bit < f.bits; ++bit) {
        const int to = at.element * f.bits + bit;
        const u32 code = codes[std::size_t(row * s.depth + k)];
        out[std::size_t(to / 32)][std::size_t(at.lane)] |= (code >> bit & 1) << (to % 32);
      }
    }
  }
  return out;
}

class F8f6f4 : public testing::TestWithParam<Shape2> {};

TEST_P(F8f6f4, EveryPairOfFormatsWithAndWithoutScales) {
  const Shape2 s = GetParam();
  const int registers = s.side * s.side / 64;
  const int blocks = s.depth / 32;
  std::mt19937 random(3);
  std::string body =
      "  s_load_dwordx8 s[8:15], s[0:1], 0x0\n  v_lshlrev_b32 v1, 2, v0\n"
      "  s_waitcnt lgkmcnt(0)\n";
  const auto step = [](int base, int bytes) {
    return fmt::format("  s_add_u32 s{0}, s{0}, {2}\n  s_addc_u32 s{1}, s{1}, 0\n", base, base + 1,
                       bytes);
  };
  std::vector<u32> input;
  const auto feed = [&](const std::array<u32, 64>& row, int reg) {
    input.insert(input.end(), row.begin(), row.end());
    body += fmt::format("  global_load_dword v{}, v1, s[8:9]\n", reg) + step(8, 256);
  };
  struct Problem {
    std::vector<u32> a, b;  // codes [row or column][k]
    std::vector<u32> c;     // [row][column], f32
    std::array<u32, 64> sa, sb;
    u32 byte_a, byte_b;
    const Definition *fa, *fb;
  };
  std::vector<Problem> problems;
  for (u32 fa = 0; fa < 5; ++fa) {
    for (u32 fb = 0; fb < 5; ++fb) {
      Problem p;
      p.fa = &kFormats[fa];
      p.fb = &kFormats[fb];
      const auto draw = [&](const Definition& f) {
        for (;;) {
          const u32 code = u32(random()) & ((1u << f.bits) - 1);
          const double x = std::abs(f.value(code));
          // Within a range whose products and sums a double holds exactly.
          if (x <= 1024 && (x == 0 || x >= 1.0 / 512)) return code;
        }
      };
      for (int i = 0; i < s.side * s.depth; ++i) {
        p.a.push_back(draw(*p.fa));
        p.b.push_back(draw(*p.fb));
      }
      for (int i = 0; i < s.side * s.side; ++i) {
        p.c.push_back(std::bit_cast<u32>(float(int(random() % 64) - 32)));
      }
      for (auto* scales : {&p.sa, &p.sb}) {
        for (u32& word : *scales) {
          word = 0;
          for (int byte = 0; byte < 4; ++byte) word |= (124 + u32(random()) % 7) << (8 * byte);
        }
      }
      p.byte_a = (fa + fb) % 4;
      p.byte_b = (fa + 2 * fb + 1) % 4;
      const Registers a = pack(s, *p.fa, p.a);
      const Registers b = pack(s, *p.fb, p.b);
      for (int r = 0; r < p.fa->bits; ++r) feed(a[std::size_t(r)], 8 + r);
      for (int r = 0; r < p.fb->bits; ++r) feed(b[std::size_t(r)], 16 + r);
      feed(p.sa, 24);
      feed(p.sb, 25);
      for (int r = 0; r < registers; ++r) {
        std::array<u32, 64> row;
        for (int l = 0; l < 64; ++l) {
          const int i = s.side == 32 ? 8 * (r / 4) + 4 * (l / 32) + r % 4 : 4 * (l / 16) + r;
          row[std::size_t(l)] = p.c[std::size_t(i * s.side + l % s.side)];
        }
        feed(row, 32 + r);
      }
      const std::string operands = fmt::format("v[8:{}], v[16:{}], v[32:{}]", 7 + p.fa->bits,
                                               15 + p.fb->bits, 31 + registers);
      body += "  s_waitcnt vmcnt(0)\n";
      body += fmt::format("  v_mfma_f32_{} v[48:{}], {} cbsz:{} blgp:{}\n", s.name, 47 + registers,
                          operands, fa, fb);
      body += fmt::format(
          "  v_mfma_scale_f32_{} v[64:{}], {}, v24, v25 op_sel:[{},{},0] op_sel_hi:[{},{},0] "
          "cbsz:{} blgp:{}\n",
          s.name, 63 + registers, operands, p.byte_a & 1, p.byte_b & 1, p.byte_a >> 1,
          p.byte_b >> 1, fa, fb);
      for (const int first : {48, 64}) {
        for (int r = 0; r < registers; ++r) {
          body +=
              fmt::format("  global_store_dword v1, v{}, s[14:15]\n", first + r) + step(14, 256);
        }
      }
      body += "  s_waitcnt vmcnt(0)\n";
      problems.push_back(std::move(p));
    }
  }
  AsmKernel k;
  k.target = "gfx950";
  k.body = body;
  Buffer<u32> in(input);
  Buffer<u32> out(problems.size() * 2 * std::size_t(registers) * 64);
  const auto result =
      launch(*build(k), "k", Shape{}, Arguments(in.data(), u64{0}, u64{0}, out.data()));
  ASSERT_TRUE(result.ok()) << result.report->text();
  std::size_t at = 0;
  for (const Problem& p : problems) {
    for (const bool scaled : {false, true}) {
      for (int r = 0; r < registers; ++r) {
        for (int l = 0; l < 64; ++l, ++at) {
          const int i = s.side == 32 ? 8 * (r / 4) + 4 * (l / 32) + r % 4 : 4 * (l / 16) + r;
          const int j = l % s.side;
          double want = std::bit_cast<float>(p.c[std::size_t(i * s.side + j)]);
          for (int block = 0; block < blocks; ++block) {
            double dot = 0;
            for (int x = 32 * block; x < 32 * (block + 1); ++x) {
              dot += p.fa->value(p.a[std::size_t(i * s.depth + x)]) *
                     p.fb->value(p.b[std::size_t(j * s.depth + x)]);
            }
            const auto scale = [&](const std::array<u32, 64>& words, int row, u32 byte) {
              return int(words[std::size_t(row + s.side * block)] >> (8 * byte) & 0xff) - 127;
            };
            const int exponent = scaled ? scale(p.sa, i, p.byte_a) + scale(p.sb, j, p.byte_b) : 0;
            want += std::ldexp(dot, exponent);
          }
          ASSERT_EQ(std::bit_cast<float>(out[at]), float(want))
              << s.name << " " << p.fa->name << " " << p.fb->name << (scaled ? " scaled" : "")
              << " row " << i << " column " << j;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, F8f6f4,
                         testing::Values(Shape2{"16x16x128_f8f6f4", 16, 128},
                                         Shape2{"32x32x64_f8f6f4", 32, 64}),
                         [](const auto& info) { return std::string(info.param.name); });

// Four pointers in s[8:15], the lane's byte offset in v1.
AsmKernel with_pointers() {
  AsmKernel k;
  k.target = "gfx950";
  k.body =
      "  s_load_dwordx8 s[8:15], s[0:1], 0x0\n  v_lshlrev_b32 v1, 2, v0\n"
      "  s_waitcnt lgkmcnt(0)\n";
  return k;
}

// One row of A, and its scale, reach exactly one row of D.
TEST(F8f6f4Strict, UndefinedInputsMakeTheirRowUndefined) {
  const auto run = [](const std::string& setup, const std::string& lane_of_store) {
    AsmKernel k = with_pointers();
    for (int i = 8; i < 28; ++i) k.body += fmt::format("  v_mov_b32 v{}, 0\n", i);
    k.body += setup +
              "  v_mfma_scale_f32_16x16x128_f8f6f4 v[32:35], v[8:11], v[12:15], v[16:19], v20, v21 "
              "op_sel_hi:[0,0,0] cbsz:4 blgp:4\n"
              "  s_mov_b64 exec, " +
              lane_of_store + "\n  global_store_dword v1, v32, s[14:15]\n";
    Buffer<u32> out(64);
    return launch(*build(k), "k", Shape{}, Arguments(u64{0}, u64{0}, u64{0}, out.data())).ok();
  };
  // v100 is undefined; register 0 of D holds rows 0, 4, 8 and 12 in lanes 0, 16, 32 and 48.
  const std::string a = "  s_mov_b64 exec, 0x10\n  v_mov_b32 v9, v100\n  s_mov_b64 exec, -1\n";
  const std::string scale = "  s_mov_b64 exec, 0x10\n  v_mov_b32 v20, v100\n  s_mov_b64 exec, -1\n";
  EXPECT_TRUE(run("", "-1"));
  for (const std::string& setup : {a, scale}) {
    EXPECT_TRUE(run(setup, "0xffff"));
    EXPECT_FALSE(run(setup, "0x10000"));
  }
  EXPECT_FALSE(run("  v_mov_b32 v16, v100\n", "1"));
}

TEST(F8f6f4Edges, ScalesAndOverflow) {
  AsmKernel k = with_pointers();
  // All of A and B are 1: each of 128 products is 2^(sa + sb).
  for (int i = 8; i < 12; ++i) k.body += fmt::format("  v_mov_b32 v{}, 0x22222222\n", i);
  const auto use = [](u32 sa, u32 sb) {
    return fmt::format("  v_mov_b32 v20, {}\n  v_mov_b32 v21, {}\n", sa, sb) +
           "  v_mfma_scale_f32_16x16x128_f8f6f4 v[32:35], v[8:11], v[8:11], 1.0, v20, v21 "
           "op_sel_hi:[0,0,0] cbsz:4 blgp:4\n  global_store_dword v1, v32, s[14:15]\n"
           "  s_add_u32 s14, s14, 0x100\n  s_addc_u32 s15, s15, 0\n  s_waitcnt vmcnt(0)\n";
  };
  k.body += use(127, 127) + use(254, 0) + use(0, 0) + use(255, 127) + use(254, 127);
  k.body += "  s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1\n" + use(254, 127);
  Buffer<u32> out(6 * 64);
  const auto result =
      launch(*build(k), "k", Shape{}, Arguments(u64{0}, u64{0}, u64{0}, out.data()));
  ASSERT_TRUE(result.ok()) << result.report->text();
  const auto got = [&](std::size_t i) { return std::bit_cast<float>(out[64 * i + 5]); };
  EXPECT_EQ(got(0), 129.0f);
  EXPECT_EQ(got(1), 129.0f);  // 2^127 and 2^-127 meet
  EXPECT_EQ(got(2), 1.0f);
  EXPECT_TRUE(std::isnan(got(3)));
  EXPECT_EQ(got(4), INFINITY);
  EXPECT_EQ(got(5), std::numeric_limits<float>::max());
}

TEST(F8f6f4Edges, FormatsDecideTheCycles) {
  AsmKernel k;
  k.target = "gfx950";
  for (int i = 8; i < 40; ++i) k.body += fmt::format("  v_mov_b32 v{}, 0\n", i);
  k.body +=
      "  v_mfma_f32_16x16x128_f8f6f4 v[32:35], v[8:15], v[16:19], v[32:35] blgp:4\n"
      "  v_mfma_f32_16x16x128_f8f6f4 v[32:35], v[8:13], v[16:19], v[32:35] cbsz:2 blgp:4\n";
  const auto result =
      launch(*build(k), "k", Shape{}, Arguments(u64{0}, u64{0}, u64{0}, u64{0}), {}, true);
  ASSERT_TRUE(result.ok()) << result.report->text();
  EXPECT_EQ(result.counters.matrix_cycles, 48u);
}

}  // namespace
}  // namespace rocflash::sim::test
