// Every matrix instruction of the layout tables, element by element: A and B hold small integers
// that make each product distinct, and every element of D must be at the position of the tables.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "asm_syntax.h"
#include "harness.h"
#include "isa/lane_math.h"
#include "isa/matrix.h"

namespace rocflash::sim::test {
namespace {

const std::string kData = ROCFLASH_SIM_TEST_SOURCE "/data/matrix-layouts/";

struct Entry {
  std::string file, target, name;
  int wave, m, n, k, cycles, a_regs, b_regs, d_regs;
};

std::vector<Entry> entries() {
  std::vector<Entry> list;
  nlohmann::json index;
  std::ifstream(kData + "index.json") >> index;
  for (const auto& e : index) {
    if (!e.contains("M") || !e.contains("vgprs") || e["vgprs"].is_null()) continue;
    list.push_back({e["file"], e["gfx"], e["instruction"], e["wave"], e["M"], e["N"], e["K"],
                    e["cycles"], e["vgprs"]["A"], e["vgprs"]["B"], e["vgprs"]["D"]});
  }
  return list;
}

struct Spot {
  char matrix;
  int row, col, lane, vgpr, low, high;
};

std::vector<Spot> layout(const std::string& file) {
  std::vector<Spot> spots;
  std::ifstream in(kData + file);
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    std::replace(line.begin(), line.end(), ',', ' ');
    std::istringstream words(line);
    Spot s{};
    words >> s.matrix >> s.row >> s.col >> s.lane >> s.vgpr >> s.low >> s.high;
    spots.push_back(s);
  }
  return spots;
}

// A small integer in the format the instruction reads.
u32 encode(const std::string& type, int value) {
  if (type == "f16") return bits_of(f16(float(value)));
  if (type == "bf16") return to_bf16(float(value));
  if (type == "f32") return bits_of(float(value));
  if (type == "fp8") {
    const auto& table = fp8_table(Element::FP8, true);
    for (u32 code = 0; code < 256; ++code) {
      if (table[code] == float(value) && code != 0x80) return code;
    }
  }
  throw std::runtime_error("no encoding for " + type);
}

std::string input_type(const std::string& name) {
  for (const char* type : {"bf16", "fp8", "f16", "f32"}) {
    const auto at = name.rfind(type);
    // The result type comes first in the name; the input type last.
    if (at != std::string::npos && at > 8) return type;
  }
  return "";
}

// Loads A, B and C a register at a time, runs the instruction, stores D.
AsmKernel kernel(const Entry& e, bool agprs, int c_regs) {
  const AsmSyntax d{e.target, e.wave};
  const int bytes = e.wave * 4;
  std::string body = d.scalar_load8(8, 0, 0) + "  v_lshlrev_b32 v1, 2, v0\n" + d.wait_all();
  const auto load = [&](int first, int count, int base) {
    body += "  v_mov_b32 v2, v1\n";
    for (int i = 0; i < count; ++i) body += d.load(first + i, 2, base) + d.add(2, bytes);
  };
  load(16, e.a_regs, 8);
  load(32, e.b_regs, 10);
  load(64, c_regs, 12);
  body += d.wait_all();
  std::string dst = fmt::format("v[64:{}]", 63 + c_regs);
  if (agprs) {
    for (int i = 0; i < c_regs; ++i) {
      body += fmt::format("  v_accvgpr_write_b32 a{}, v{}\n", i, 64 + i);
    }
    dst = fmt::format("a[0:{}]", c_regs - 1);
  }
  body += "  s_nop 7\n  s_nop 7\n";
  const auto range = [](int first, int count) {
    return count == 1 ? fmt::format("v{}", first)
                      : fmt::format("v[{}:{}]", first, first + count - 1);
  };
  body += fmt::format("  {} {}, {}, {}, {}\n", e.name, dst, range(16, e.a_regs),
                      range(32, e.b_regs), dst);
  body += "  s_nop 7\n  s_nop 7\n  s_nop 7\n";
  if (agprs) {
    for (int i = 0; i < c_regs; ++i) {
      body += fmt::format("  v_accvgpr_read_b32 v{}, a{}\n", 64 + i, i);
    }
  }
  body += "  v_mov_b32 v2, v1\n";
  for (int i = 0; i < c_regs; ++i) {
    body += d.store(2, fmt::format("v{}", 64 + i), 14) + d.add(2, bytes);
  }
  AsmKernel k;
  k.target = e.target;
  k.wave = e.wave;
  k.body = body;
  return k;
}

class MatrixLayout : public testing::TestWithParam<std::tuple<Entry, bool>> {};

TEST_P(MatrixLayout, MatchesTheTable) {
  const auto& [e, agprs] = GetParam();
  const auto spots = layout(e.file);
  const std::string type = input_type(e.name);
  const bool half_out = e.name.find("wmma_f16") != std::string::npos;
  std::mt19937 random(3);
  std::vector<std::vector<int>> a(size_t(e.m), std::vector<int>(size_t(e.k)));
  std::vector<std::vector<int>> b(size_t(e.k), std::vector<int>(size_t(e.n)));
  std::vector<std::vector<int>> c(size_t(e.m), std::vector<int>(size_t(e.n)));
  const int span = type == "fp8" ? 15 : 31;
  const auto draw = [&] { return int(random() % u32(span)) - span / 2; };
  for (auto& row : a) std::generate(row.begin(), row.end(), draw);
  for (auto& row : b) std::generate(row.begin(), row.end(), draw);
  for (auto& row : c) std::generate(row.begin(), row.end(), draw);

  std::vector<u32> av(size_t(e.a_regs * e.wave)), bv(size_t(e.b_regs * e.wave)),
      cv(size_t(e.d_regs * e.wave));
  const auto put = [&](std::vector<u32>& v, const Spot& s, u32 value) {
    v[size_t(s.vgpr * e.wave + s.lane)] |= value << s.low;
  };
  for (const Spot& s : spots) {
    if (s.matrix == 'A') put(av, s, encode(type, a[size_t(s.row)][size_t(s.col)]));
    if (s.matrix == 'B') put(bv, s, encode(type, b[size_t(s.row)][size_t(s.col)]));
    if (s.matrix == 'D') {
      put(cv, s, encode(half_out ? "f16" : "f32", c[size_t(s.row)][size_t(s.col)]));
    }
  }
  const auto module = build(kernel(e, agprs, e.d_regs));
  Buffer<u32> ab(av), bb(bv), cb(cv), out(cv.size());
  Shape shape;
  shape.block[0] = u32(e.wave);
  const auto result =
      launch(*module, "k", shape, Arguments(ab.data(), bb.data(), cb.data(), out.data()), {}, true);
  ASSERT_TRUE(result.ok()) << result.report->text();
  int checked = 0;
  for (const Spot& s : spots) {
    if (s.matrix != 'D') continue;
    int sum = c[size_t(s.row)][size_t(s.col)];
    for (int k = 0; k < e.k; ++k) sum += a[size_t(s.row)][size_t(k)] * b[size_t(k)][size_t(s.col)];
    const u32 word = out[size_t(s.vgpr * e.wave + s.lane)];
    const float got =
        half_out ? float(std::bit_cast<f16>(u16(word >> s.low))) : std::bit_cast<float>(word);
    const float want = half_out ? float(f16(float(sum))) : float(sum);
    ASSERT_EQ(got, want) << "D[" << s.row << "][" << s.col << "] lane " << s.lane << " v" << s.vgpr;
    ++checked;
  }
  EXPECT_EQ(checked, e.m * e.n);
  EXPECT_EQ(result.counters.matrix_cycles, u64(e.cycles));
  EXPECT_EQ(result.counters.by_class[size_t(InstructionClass::Matrix)], 1u);
}

std::vector<std::tuple<Entry, bool>> parameters() {
  std::vector<std::tuple<Entry, bool>> list;
  for (const Entry& e : entries()) {
    list.emplace_back(e, false);
    if (e.target.starts_with("gfx9")) list.emplace_back(e, true);  // AGPRs as C and D
    if (e.target == "gfx90a" && !e.name.ends_with("_1k")) {  // gfx908 has them too, and AGPRs alone
      Entry before = e;
      before.target = "gfx908";
      list.emplace_back(before, true);
    }
  }
  return list;
}

std::string layout_name(const testing::TestParamInfo<std::tuple<Entry, bool>>& info) {
  const Entry& e = std::get<0>(info.param);
  return e.target + "_w" + std::to_string(e.wave) + "_" + e.name +
         (std::get<1>(info.param) ? "_agpr" : "");
}
INSTANTIATE_TEST_SUITE_P(All, MatrixLayout, testing::ValuesIn(parameters()), layout_name);

// Instructions that are not in the tables, by the layout formulas.
struct Other {
  const char* target;
  const char* name;
  int m, k, blocks, a_regs, d_regs;
  const char* type;
};

class MatrixFormula : public testing::TestWithParam<Other> {};

TEST_P(MatrixFormula, MultipliesIntegers) {
  const Other& o = GetParam();
  const int per_lane = o.m * o.k * o.blocks / 64;
  const int groups = 64 / (o.m * o.blocks);
  std::mt19937 random(11);
  std::vector<u32> av(size_t(o.a_regs * 64)), bv(size_t(o.a_regs * 64)), cv(size_t(o.d_regs * 64));
  std::vector<int> a(size_t(o.blocks * o.m * o.k)), b(a.size());
  const bool integer = std::string(o.type) == "i8";
  const int width = integer ? 8 : std::string(o.type) == "f32" ? 32 : 16;
  for (int block = 0; block < o.blocks; ++block) {
    for (int i = 0; i < o.m; ++i) {
      for (int k = 0; k < o.k; ++k) {
        const int lane = o.blocks > 1 ? i + o.m * block : i + o.m * (k / (o.k / groups));
        const int e = o.blocks > 1 ? k : k % per_lane;
        const auto put = [&](std::vector<u32>& v, int value) {
          const u32 code = integer ? u32(value) & 0xff : encode(o.type, value);
          v[size_t(e * width / 32 * 64 + lane)] |= code << (e * width % 32);
        };
        const auto at = size_t((block * o.m + i) * o.k + k);
        put(av, a[at] = int(random() % 15) - 7);
        put(bv, b[at] = int(random() % 15) - 7);
      }
    }
  }
  Entry entry{"", o.target, o.name, 64, o.m, o.m, o.k, 0, o.a_regs, o.a_regs, o.d_regs};
  const auto module = build(kernel(entry, false, o.d_regs));
  Buffer<u32> ab(av), bb(bv), cb(cv), out(cv.size());
  const auto result =
      launch(*module, "k", Shape{}, Arguments(ab.data(), bb.data(), cb.data(), out.data()));
  ASSERT_TRUE(result.ok()) << result.report->text();
  for (int v = 0; v < o.d_regs; ++v) {
    for (int lane = 0; lane < 64; ++lane) {
      const int per_block = o.m == 4 ? 4 : o.m * o.m / 64;
      const int block = o.m == 4 ? lane / 4 : v / per_block;
      const int r = v % per_block;
      const int row = o.m == 4    ? v
                      : o.m == 32 ? 8 * (r / 4) + 4 * (lane / 32) + r % 4
                                  : 4 * (lane / 16) + r;
      int sum = 0;
      for (int k = 0; k < o.k; ++k) {
        sum += a[size_t((block * o.m + row) * o.k + k)] *
               b[size_t((block * o.m + lane % o.m) * o.k + k)];
      }
      const u32 word = out[size_t(v * 64 + lane)];
      ASSERT_EQ(integer ? double(i32(word)) : double(std::bit_cast<float>(word)), double(sum))
          << "v" << v << " lane " << lane;
    }
  }
}

constexpr Other kOthers[] = {
    {"gfx90a", "v_mfma_f32_32x32x4f16", 32, 4, 2, 2, 32, "f16"},
    {"gfx90a", "v_mfma_f32_16x16x4f16", 16, 4, 4, 2, 16, "f16"},
    {"gfx90a", "v_mfma_f32_4x4x4f16", 4, 4, 16, 2, 4, "f16"},
    {"gfx90a", "v_mfma_f32_32x32x1f32", 32, 1, 2, 1, 32, "f32"},
    {"gfx90a", "v_mfma_f32_16x16x1f32", 16, 1, 4, 1, 16, "f32"},
    {"gfx90a", "v_mfma_f32_4x4x1f32", 4, 1, 16, 1, 4, "f32"},
    {"gfx90a", "v_mfma_f32_32x32x4bf16_1k", 32, 4, 2, 2, 32, "bf16"},
    {"gfx90a", "v_mfma_i32_32x32x8i8", 32, 8, 1, 1, 16, "i8"},
    {"gfx90a", "v_mfma_i32_16x16x16i8", 16, 16, 1, 1, 4, "i8"},
    {"gfx942", "v_mfma_f32_32x32x4_2b_f16", 32, 4, 2, 2, 32, "f16"},
    {"gfx942", "v_mfma_f32_32x32x2_f32", 32, 2, 1, 1, 16, "f32"},
    {"gfx942", "v_mfma_f32_16x16x4_f32", 16, 4, 1, 1, 4, "f32"},
    {"gfx942", "v_mfma_i32_32x32x16_i8", 32, 16, 1, 2, 16, "i8"},
    {"gfx942", "v_mfma_i32_16x16x32_i8", 16, 32, 1, 2, 4, "i8"},
    {"gfx950", "v_mfma_i32_32x32x32_i8", 32, 32, 1, 4, 16, "i8"},
    {"gfx950", "v_mfma_i32_16x16x64_i8", 16, 64, 1, 4, 4, "i8"},
    {"gfx950", "v_mfma_f32_32x32x8_f16", 32, 8, 1, 2, 16, "f16"},
};

INSTANTIATE_TEST_SUITE_P(Others, MatrixFormula, testing::ValuesIn(kOthers), [](const auto& info) {
  return std::string(info.param.target) + "_" + info.param.name;
});

// RDNA's integer matrices: signs are chosen by neg_lo.
TEST(MatrixIntegers, WmmaIu8HonorsSigns) {
  for (const char* target : {"gfx1100", "gfx1201"}) {
    const bool gfx12 = std::string(target) == "gfx1201";
    const int regs = gfx12 ? 2 : 4;
    for (const bool is_signed : {false, true}) {
      Entry e{"", target, "v_wmma_i32_16x16x16_iu8", 32, 16, 16, 16, 0, regs, regs, 8};
      AsmKernel k = kernel(e, false, 8);
      if (is_signed) k.body.insert(k.body.find('\n', k.body.find("v_wmma")), " neg_lo:[1,1,0]");
      const auto module = build(k);
      Buffer<u32> a(size_t(regs * 32)), b(size_t(regs * 32)), c(256), out(256);
      a.fill(0xffffffffu);  // all 255, or all -1
      b.fill(0x02020202u);
      c.fill(5);
      Shape shape;
      shape.block[0] = 32;
      const auto result =
          launch(*module, "k", shape, Arguments(a.data(), b.data(), c.data(), out.data()));
      ASSERT_TRUE(result.ok()) << result.report->text();
      for (size_t i = 0; i < 256; ++i) {
        ASSERT_EQ(i32(out[i]), is_signed ? 5 - 32 : 5 + 16 * 510);
      }
    }
  }
}

// Only gfx90a flushes denormal inputs of 16-bit matrix instructions.
TEST(MatrixDenormals, FlushedOnGfx90aOnly) {
  for (const std::string target : {"gfx908", "gfx90a", "gfx942"}) {
    const bool flushes = target == "gfx90a";
    Entry e{"", target, target == "gfx942" ? "v_mfma_f32_16x16x16_f16" : "v_mfma_f32_16x16x16f16",
            64, 16,     16,
            16, 0,      2,
            2,  4};
    const auto module = build(kernel(e, target == "gfx908", 4));
    Buffer<u32> a(128), b(128), c(256), out(256);
    a.fill(0x00010001u);  // smallest denormal
    b.fill(0x3c003c00u);
    c.fill(0);
    const auto result =
        launch(*module, "k", Shape{}, Arguments(a.data(), b.data(), c.data(), out.data()));
    ASSERT_TRUE(result.ok()) << result.report->text();
    EXPECT_EQ(std::bit_cast<float>(out[0]), flushes ? 0.0f : 16 * 0x1p-24f);
  }
}

// f64: the layout the ISA documents derive, on integers, with BLGP's negations, which later targets
// spell differently.
class MatrixF64 : public testing::TestWithParam<const char*> {};

TEST_P(MatrixF64, MultipliesBothShapes) {
  const std::string target = GetParam();
  const bool older = target == "gfx90a";
  const std::string large = older ? "v_mfma_f64_16x16x4f64" : "v_mfma_f64_16x16x4_f64";
  const std::string small = older ? "v_mfma_f64_4x4x4f64" : "v_mfma_f64_4x4x4_4b_f64";
  AsmKernel k;
  k.target = target;
  // A and B are a dword pair for each lane; D of both shapes goes out a register at a time.
  k.body =
      "  s_load_dwordx8 s[8:15], s[0:1], 0x0\n  v_lshlrev_b32 v1, 3, v0\n"
      "  v_lshlrev_b32 v2, 2, v0\n  s_waitcnt lgkmcnt(0)\n"
      "  global_load_dwordx2 v[4:5], v1, s[8:9]\n  global_load_dwordx2 v[6:7], v1, s[10:11]\n"
      "  s_waitcnt vmcnt(0)\n  " +
      large + " v[16:23], v[4:5], v[6:7], 1.0" + (older ? " blgp:1" : " neg:[1,0,0]") + "\n  " +
      small + " v[24:25], v[4:5], v[6:7], 0\n  " + large +
      " v[32:39], v[4:5], v[6:7], v[16:23]\n  s_nop 7\n  s_nop 7\n";
  for (int i = 0; i < 10; ++i) {
    k.body += fmt::format("  global_store_dword v2, v{}, s[14:15] offset:{}\n", 16 + i, 256 * i);
  }
  k.body += "  s_add_u32 s14, s14, 0xa00\n  s_addc_u32 s15, s15, 0\n";
  for (int i = 0; i < 8; ++i) {
    k.body += fmt::format("  global_store_dword v2, v{}, s[14:15] offset:{}\n", 32 + i, 256 * i);
  }
  std::vector<double> a(64), b(64);
  for (int i = 0; i < 64; ++i) {
    a[std::size_t(i)] = (i * 7 + 3) % 31 - 15;
    b[std::size_t(i)] = (i * 11 + 5) % 29 - 14;
  }
  Buffer<double> in_a(a), in_b(b);
  Buffer<u32> out(18 * 64);
  const auto result = launch(*build(k), "k", Shape{},
                             Arguments(in_a.data(), in_b.data(), u64{0}, out.data()), {}, true);
  ASSERT_TRUE(result.ok()) << result.report->text();
  EXPECT_EQ(result.counters.matrix_cycles, target == "gfx950" ? 144u : 80u);
  const auto got = [&](std::size_t reg, std::size_t lane) {
    return std::bit_cast<double>(u64{out[reg * 64 + lane]} | u64{out[(reg + 1) * 64 + lane]} << 32);
  };
  for (std::size_t i = 0; i < 16; ++i) {
    for (std::size_t j = 0; j < 16; ++j) {
      double dot = 0;
      for (std::size_t x = 0; x < 4; ++x) dot += a[i + 16 * x] * b[j + 16 * x];
      const double first = 1 - dot;
      ASSERT_EQ(got(2 * (i / 4), j + 16 * (i % 4)), first) << i << " " << j;
      ASSERT_EQ(got(10 + 2 * (i / 4), j + 16 * (i % 4)), first + dot) << i << " " << j;
    }
  }
  for (std::size_t block = 0; block < 4; ++block) {
    for (std::size_t i = 0; i < 4; ++i) {
      for (std::size_t j = 0; j < 4; ++j) {
        double dot = 0;
        for (std::size_t x = 0; x < 4; ++x) {
          dot += a[i + 4 * (block + 4 * x)] * b[j + 4 * (block + 4 * x)];
        }
        ASSERT_EQ(got(8, j + 4 * (i + 4 * block)), dot) << block << " " << i << " " << j;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, MatrixF64, testing::Values("gfx90a", "gfx942", "gfx950"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace rocflash::sim::test
