// The published figures, and a kernel for each.
//
//   PYH   tingqli/pyhip, MI308X (gfx942): coissue, qsa, mem_latency, prove_fp8_mfma_roof
//   GLU   ROCm/gfx950-gluon-tutorials, MI355X: thread traces
//   RRZE  RRZE-HPC/gpu-benches, MI300X
//   TGN   2187Nick/tinygrad, extra/sqtt, RX 7900 XTX: thread traces
//   MIC   AMD's matrix instruction calculator
//   BST   BabelStream on MI300X, as published by several
#include <fmt/format.h>

#include "time/validation.h"

namespace rocflash::sim {
namespace {

constexpr const char* kMatrix16 = "  v_mfma_f32_16x16x16_f16 a[0:3], v[2:3], v[4:5], a[0:3]\n";
constexpr const char* kMatrix16b = "  v_mfma_f32_16x16x16_f16 a[4:7], v[2:3], v[4:5], a[4:7]\n";
constexpr const char* kMatrix32 = "  v_mfma_f32_32x32x16_f16 a[0:15], v[4:7], v[8:11], a[0:15]\n";
constexpr const char* kFp8 =
    "  v_mfma_f32_16x16x32_fp8_fp8 a[{0}:{1}], v[2:3], v[4:5], a[{0}:{1}]\n";

// Short encodings, so that fetching never decides.
std::string vector(int n) {
  std::string all;
  for (int i = 0; i < n; ++i) all += fmt::format("  v_add_f32 v{0}, v{0}, v12\n", 13 + i % 8);
  return all;
}
std::string exps(int n) {
  std::string all;
  for (int i = 0; i < n; ++i) all += fmt::format("  v_exp_f32 v{0}, v{0}\n", 13 + i % 8);
  return all;
}
std::string packed(int n) {
  std::string all;
  for (int i = 0; i < n; ++i) {
    all += fmt::format("  v_pk_mul_f32 v[{0}:{1}], v[{0}:{1}], v[22:23]\n", 12 + 2 * (i % 4),
                       13 + 2 * (i % 4));
  }
  return all;
}

class Points {
 public:
  std::vector<ValidationPoint> all;

  ValidationPoint& add(const char* target, const char* group, std::string name, const char* unit,
                       double measured, const char* source) {
    ValidationPoint p;
    p.target = target;
    p.group = group;
    p.name = std::move(name);
    p.unit = unit;
    p.measured = measured;
    p.source = source;
    all.push_back(std::move(p));
    return all.back();
  }
  void issue(const char* target, std::string name, double measured, const char* source,
             std::string pattern) {
    add(target, "issue", std::move(name), "clk", measured, source).pattern = std::move(pattern);
  }
};

void add_issue(Points& p) {
  const char* g = "gfx942";
  const char* s = "PYH coissue";
  p.issue(g, "vector", 4.01, s, vector(1));
  p.issue(g, "exp", 16.0, s, exps(1));
  p.issue(g, "exp, vector", 20.0, s, exps(1) + vector(1));
  p.issue(g, "MFMA 16x16x16", 16.0, "GLU gfx942", kMatrix16);
  p.issue(g, "MFMA, 3 vector", 16.05, s, kMatrix16 + vector(3));
  p.issue(g, "MFMA, 4 vector", 20.05, s, kMatrix16 + vector(4));
  const double with_exps[] = {20.06, 36.05, 52.05, 68.05};
  for (int n = 1; n <= 4; ++n) {
    p.issue(g, fmt::format("MFMA, {} exp", n), with_exps[n - 1], s, kMatrix16 + exps(n));
  }
  p.issue(g, "MFMA, 1 packed", 28.04, s, kMatrix16 + packed(1));
  p.issue(g, "MFMA, 2 packed", 32.04, s, kMatrix16 + packed(2));
  p.issue(g, "MFMA, 4 packed", 40.04, s, kMatrix16 + packed(4));
  p.issue(g, "MFMA, 3 vector, MFMA, exp", 36.05, s, kMatrix16 + vector(3) + kMatrix16b + exps(1));
  p.issue(g, "MFMA, MFMA, 3 vector, exp", 48.05, s,
          std::string(kMatrix16) + kMatrix16b + vector(3) + exps(1));
  const double loops[] = {48.0, 28.0, 22.0, 19.0, 17.5};
  for (int i = 0; i < 5; ++i) {
    const int n = 1 << i;
    std::string body;
    for (int k = 0; k < n; ++k)
      body += fmt::format(fmt::runtime(kFp8), 4 * (k % 4), 4 * (k % 4) + 3);
    // The taken branch is what is measured: it jumps over one instruction.
    body += "  s_add_u32 s8, s8, 1\n  s_cmp_lg_u32 s8, 0\n  s_branch 1\n  s_nop 0\n";
    ValidationPoint& v = p.add(g, "issue", fmt::format("loop of {} MFMA 16x16x32 fp8", n), "clk",
                               loops[i], "PYH prove_fp8_mfma_roof");
    v.prologue = "  s_mov_b32 s8, 0\n";
    v.pattern = body;
    v.instructions = n;
    if (n == 1) v.tolerance = 0;
  }
  const char* n = "gfx950";
  const char* t = "GLU mfma_coissue";
  p.issue(n, "MFMA 32x32x16", 32.0, t, kMatrix32);
  p.issue(n, "MFMA, 6 vector", 32.0, t, kMatrix32 + vector(6));
  p.issue(n, "MFMA, 3 exp", 32.0, t, kMatrix32 + exps(3));
  p.issue(n, "MFMA, 1 packed", 44.0, t, kMatrix32 + packed(1));
  p.issue(n, "exp", 8.0, t, exps(1));
}

std::string lds_read(int bytes) {
  const char* width = bytes == 16 ? "b128 v[{0}:{1}]" : bytes == 8 ? "b64 v[{0}:{1}]" : "b32 v{0}";
  std::string all;
  for (int i = 0; i < 4; ++i) {
    const int first = 4 + 4 * i;
    all += "  ds_read_" + fmt::format(fmt::runtime(width), first, first + bytes / 4 - 1) + ", v1\n";
  }
  return all;
}

void add_lds(Points& p) {
  const char* g = "gfx942";
  const auto rate = [&](int bytes, int waves, bool one, double measured, double tolerance) {
    const int per_simd = one ? (waves + 3) / 4 : waves / 4;
    ValidationPoint& v = p.add(g, "lds",
                               fmt::format("read b{}, {} wave{} on {}", 8 * bytes, per_simd,
                                           per_simd > 1 ? "s" : "", one ? "one SIMD" : "each SIMD"),
                               "B/clk", measured, "PYH qsa");
    v.prologue = fmt::format("  v_and_b32 v1, 63, v0\n  v_mul_u32_u24 v1, {}, v1\n", bytes);
    v.pattern = lds_read(bytes);
    v.waves = waves;
    v.one_simd = one;
    v.bytes = 4.0 * 64 * bytes;
    v.tolerance = tolerance;
  };
  rate(4, 1, true, 17, 0.08);
  rate(8, 1, true, 28, 0.03);
  rate(16, 1, true, 39, 0.03);
  rate(4, 5, true, 33, 0.12);
  rate(8, 5, true, 55, 0.06);
  rate(16, 5, true, 64, 0.03);
  rate(4, 4, false, 58, 0);
  rate(8, 4, false, 111, 0.03);
  rate(16, 4, false, 128, 0.03);
  rate(4, 8, false, 117, 0.12);
  rate(8, 8, false, 120, 0.08);
  rate(16, 8, false, 128, 0.03);
  const auto latency = [&](int bytes, double measured) {
    ValidationPoint& v =
        p.add(g, "lds", fmt::format("latency b{}", 8 * bytes), "clk", measured, "PYH mem_latency");
    v.prologue = fmt::format("  v_mul_u32_u24 v1, {}, v0\n", bytes);
    v.pattern = fmt::format("  ds_read_b{} v{}, v1\n  s_waitcnt lgkmcnt(0)\n", 8 * bytes,
                            bytes == 16 ? "[4:7]" : "4");
    v.subtract = 4;      // the wait's own slot
    v.tolerance = 0.08;  // a wait ends at a turn
  };
  latency(4, 52);
  latency(16, 64);
  ValidationPoint& w = p.add(g, "lds", "write b128, 1 wave on one SIMD", "B/clk", 38, "PYH qsa");
  w.prologue = "  v_lshlrev_b32 v1, 4, v0\n";
  w.pattern = "  ds_write_b128 v1, v[4:7]\n";
  w.waves = 5;
  w.one_simd = true;
  w.bytes = 1024;
  w.name = "write b128, 2 waves on one SIMD";
  ValidationPoint& all =
      p.add(g, "lds", "write b128, 2 waves on each SIMD", "B/clk", 76, "PYH qsa");
  all.prologue = "  v_and_b32 v1, 63, v0\n  v_lshlrev_b32 v1, 4, v1\n";
  all.pattern = "  ds_write_b128 v1, v[4:7]\n";
  all.waves = 8;
  all.bytes = 1024;
  const double ladder[] = {16, 32, 64, 128};
  for (int i = 0; i < 4; ++i) {
    ValidationPoint& v = p.add("gfx950", "lds", fmt::format("read b128, {}-way conflict", 1 << i),
                               "clk", ladder[i], "GLU lds_throughput");
    v.prologue = fmt::format("  v_and_b32 v1, 63, v0\n  v_mul_u32_u24 v1, {}, v1\n", 16 << i);
    v.pattern = lds_read(16);
    v.waves = 4;
    v.instructions = 4;
  }
  ValidationPoint& alone =
      p.add("gfx950", "lds", "read b128, 1 wave on one SIMD", "clk", 8, "GLU lds_throughput");
  alone.prologue = "  v_lshlrev_b32 v1, 4, v0\n";
  alone.pattern = lds_read(16);
  alone.instructions = 4;
}

void add_memory(Points& p) {
  const char* g = "gfx942";
  const std::string load = "  global_load_dword v4, v1, s[4:5]\n  s_waitcnt vmcnt(0)\n";
  const auto latency = [&](const char* name, double measured, std::string step, u64 bytes, int few,
                           int many, double slots) {
    ValidationPoint& v = p.add(g, "memory", name, "clk", measured, "RRZE latency");
    v.prologue = "  v_mov_b32 v1, 0\n";
    v.pattern = load + step;
    v.buffer_bytes = bytes;
    v.repeats[0] = few;
    v.repeats[1] = many;
    v.subtract = slots;
    v.tolerance = 0.05;  // a wait ends at a turn
  };
  const std::string next = "  v_add_u32 v1, 0x80, v1\n";
  latency("latency, L1 hit", 120, "", 1 << 20, 64, 192, 4);
  latency("latency, L2 hit", 213, next + "  v_and_b32 v1, 0xffff, v1\n", 1 << 20, 600, 1100, 12);
  latency("latency, last-level cache", 455, next, 1 << 20, 64, 192, 8);
  latency("latency, memory", 880, next, 512ull << 20, 64, 192, 8);
  ValidationPoint& l1 =
      p.add(g, "memory", "L1 hits, dwordx4, 1 wave on each SIMD", "B/clk", 64, "PYH");
  l1.prologue = "  v_and_b32 v1, 63, v0\n  v_lshlrev_b32 v1, 4, v1\n";
  l1.pattern = "  global_load_dwordx4 v[4:7], v1, s[4:5]\n";
  l1.waves = 4;
  l1.bytes = 1024;
  l1.tolerance = 0.05;
  ValidationPoint& l2 =
      p.add(g, "memory", "L2 hits, dwordx4, 2 waves on each SIMD", "B/clk", 64, "PYH qsa");
  l2.prologue = "  v_lshlrev_b32 v1, 4, v0\n";
  l2.pattern =
      "  global_load_dwordx4 v[4:7], v1, s[4:5]\n  v_add_u32 v1, 0x2000, v1\n"
      "  v_and_b32 v1, 0x1ffff, v1\n  s_waitcnt vmcnt(4)\n";
  l2.waves = 8;
  l2.bytes = 1024;
  l2.repeats[0] = 32;
  l2.repeats[1] = 96;
  l2.tolerance = 0.08;
  ValidationPoint& memory = p.add(g, "chip", "streaming read from memory", "TB/s", 4.0, "BST dot");
  memory.prologue = "  v_lshlrev_b32 v1, 4, v0\n";
  memory.pattern =
      "  global_load_dwordx4 v[4:7], v1, s[4:5]\n  v_add_u32 v1, 0x1000, v1\n  s_waitcnt "
      "vmcnt(8)\n";
  memory.waves = 4;
  memory.bytes = 1024;
  memory.groups_per_unit = 2;
  memory.buffer_bytes = 304ull * 2 << 20;
  memory.repeats[0] = 64;
  memory.repeats[1] = 192;
  memory.tolerance = 0.15;
}

void add_rdna(Points& p) {
  const char* g = "gfx1100";
  p.issue(g, "vector, independent", 1.0, "TGN", vector(8));
  p.all.back().instructions = 8;
  p.issue(g, "vector, dependent", 5.0, "TGN", vector(1));
  p.issue(g, "exp, independent", 4.0, "TGN", exps(8));
  p.all.back().instructions = 8;
  p.issue(g, "WMMA 16x16x16 f16", 32.0, "MIC",
          "  v_wmma_f32_16x16x16_f16 v[24:31], v[2:9], v[10:17], v[24:31]\n");
  ValidationPoint& v = p.add(g, "lds", "latency b32", "clk", 32, "TGN");
  v.prologue = "  v_lshlrev_b32 v1, 2, v0\n";
  v.pattern = "  ds_load_b32 v4, v1\n  s_waitcnt lgkmcnt(0)\n";
  v.subtract = 1;      // the wait's own slot
  v.tolerance = 0.05;  // 31 to 33
  p.issue("gfx1201", "WMMA 16x16x16 f16", 16.0, "MIC",
          "  v_wmma_f32_16x16x16_f16 v[24:31], v[2:5], v[10:13], v[24:31]\n");
}

}  // namespace

std::vector<ValidationPoint> validation_points() {
  Points p;
  add_issue(p);
  add_lds(p);
  add_memory(p);
  add_rdna(p);
  return std::move(p.all);
}

}  // namespace rocflash::sim
