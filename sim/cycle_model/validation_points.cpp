// Published measurements, and a microkernel for each.
//
//   PYH   tingqli/pyhip, MI308X (gfx942): coissue, qsa, mem_latency, prove_fp8_mfma_roof
//   GLU   ROCm/gfx950-gluon-tutorials, MI355X: thread traces
//   RRZE  RRZE-HPC/gpu-benches, MI300X
//   TGN   2187Nick/tinygrad, extra/sqtt, RX 7900 XTX: thread traces
//   MIC   AMD's matrix instruction calculator
//   BST   BabelStream on MI300X, as published by several
//   VF    a MI300X virtual function: reads by waves and loads in flight
//   UB    microbenchmarks of MI210 and RX 7900 XT
#include <fmt/format.h>

#include "core/target.h"
#include "cycle_model/validation.h"

namespace rocflash::sim {
namespace {

constexpr const char* kMatrix16 = "  v_mfma_f32_16x16x16_f16 a[0:3], v[2:3], v[4:5], a[0:3]\n";
constexpr const char* kMatrix16b = "  v_mfma_f32_16x16x16_f16 a[4:7], v[2:3], v[4:5], a[4:7]\n";
constexpr const char* kMatrix32 = "  v_mfma_f32_32x32x16_f16 a[0:15], v[4:7], v[8:11], a[0:15]\n";
constexpr const char* kFp8 =
    "  v_mfma_f32_16x16x32_fp8_fp8 a[{0}:{1}], v[2:3], v[4:5], a[{0}:{1}]\n";

// 4-byte encodings, so that instruction fetch is never the limit.
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
  ValidationPoint& issue(const char* target, std::string name, double measured, const char* source,
                         std::string pattern) {
    ValidationPoint& p = add(target, "issue", std::move(name), "clk", measured, source);
    p.pattern = std::move(pattern);
    return p;
  }
};

void add_issue(Points& p) {
  const char* g = "gfx942";
  const char* s = "PYH coissue";
  p.issue(g, "vector", 4.01, s, vector(1));
  p.issue(g, "exp", 16.0, s, exps(1));
  p.issue(g, "exp, vector", 20.0, s, exps(1) + vector(1)).independent = true;
  p.issue(g, "MFMA 16x16x16", 16.0, "GLU gfx942", kMatrix16);
  p.issue(g, "MFMA, 3 vector", 16.05, s, kMatrix16 + vector(3));
  p.issue(g, "MFMA, 4 vector", 20.05, s, kMatrix16 + vector(4)).independent = true;
  const double with_exps[] = {20.06, 36.05, 52.05, 68.05};
  for (int n = 1; n <= 4; ++n) {
    p.issue(g, fmt::format("MFMA, {} exp", n), with_exps[n - 1], s, kMatrix16 + exps(n))
        .independent = true;
  }
  p.issue(g, "MFMA, 1 packed", 28.04, s, kMatrix16 + packed(1));
  p.issue(g, "MFMA, 2 packed", 32.04, s, kMatrix16 + packed(2)).independent = true;
  p.issue(g, "MFMA, 4 packed", 40.04, s, kMatrix16 + packed(4)).independent = true;
  p.issue(g, "MFMA, 3 vector, MFMA, exp", 36.05, s, kMatrix16 + vector(3) + kMatrix16b + exps(1))
      .independent = true;
  p.issue(g, "MFMA, MFMA, 3 vector, exp", 48.05, s,
          std::string(kMatrix16) + kMatrix16b + vector(3) + exps(1))
      .independent = true;
  const double loops[] = {48.0, 28.0, 22.0, 19.0, 17.5};
  for (int i = 0; i < 5; ++i) {
    const int n = 1 << i;
    std::string body;
    for (int k = 0; k < n; ++k)
      body += fmt::format(fmt::runtime(kFp8), 4 * (k % 4), 4 * (k % 4) + 3);
    // Measures the taken branch, which skips one instruction.
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
  p.issue(n, "MFMA, 3 exp", 32.0, t, kMatrix32 + exps(3)).independent = true;
  p.issue(n, "MFMA, 1 packed", 44.0, t, kMatrix32 + packed(1)).independent = true;
  p.issue(n, "exp", 8.0, t, exps(1));
  p.issue(g, "s_nop 10", 44.0, "PYH qsa", "  s_nop 10\n");
  p.issue(g, "scalar, dependent", 4.0, "CLRX", "  s_add_u32 s12, s12, 1\n");
  p.issue(g, "MFMA 32x32x8", 32.0, "MIC",
          "  v_mfma_f32_32x32x8_f16 a[0:15], v[2:3], v[4:5], a[0:15]\n");
  p.issue(n, "MFMA 16x16x32", 16.0, "MIC",
          "  v_mfma_f32_16x16x32_f16 a[0:3], v[4:7], v[8:11], a[0:3]\n");
  p.issue(n, "MFMA 16x16x128 of 8-bit floats", 32.0, "MIC",
          "  v_mfma_f32_16x16x128_f8f6f4 a[0:3], v[4:11], v[12:19], a[0:3]\n");
  p.issue("gfx90a", "MFMA 32x32x8", 64.0, "MIC",
          "  v_mfma_f32_32x32x8f16 a[0:15], v[2:3], v[4:5], a[0:15]\n");
  p.issue("gfx90a", "MFMA 16x16x16", 32.0, "MIC",
          "  v_mfma_f32_16x16x16f16 a[0:3], v[2:3], v[4:5], a[0:3]\n");
  // Two waves of a SIMD: 3 VALU instructions of one overlap each MFMA of the other, a
  // fourth takes its 4 clocks.
  for (const int vectors : {3, 4}) {
    ValidationPoint& v = p.issue(g, fmt::format("MFMA of one wave, {} vector of another", vectors),
                                 vectors == 3 ? 16.0 : 20.0, s, "");
    v.waves = 8;
    v.other = vector(vectors);
    v.pattern = kMatrix16;
    v.independent = true;
  }
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
    v.independent = !(one && waves == 1);
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
  rate(4, 16, false, 116, 0.12);
  rate(8, 16, false, 124, 0.06);
  ValidationPoint& conflict =
      p.add(g, "lds", "read b32, every lane the same bank", "clk", 64, "PYH qsa");
  conflict.prologue = "  v_lshlrev_b32 v1, 7, v0\n";
  conflict.pattern = lds_read(4);
  conflict.waves = 4;
  conflict.instructions = 4 * 4;  // of four waves
  conflict.independent = true;
  ValidationPoint& late =
      p.add(g, "lds", "latency b32, 4-way conflict", "clk", 120, "PYH mem_latency");
  late.prologue = "  v_lshlrev_b32 v1, 4, v0\n";
  late.pattern = "  ds_read_b32 v4, v1\n  s_waitcnt lgkmcnt(0)\n";
  late.subtract = 4;
  late.tolerance = 0;
  late.independent = true;
  const auto latency = [&](int bytes, double measured) {
    ValidationPoint& v =
        p.add(g, "lds", fmt::format("latency b{}", 8 * bytes), "clk", measured, "PYH mem_latency");
    v.prologue = fmt::format("  v_mul_u32_u24 v1, {}, v0\n", bytes);
    v.pattern = fmt::format("  ds_read_b{} v{}, v1\n  s_waitcnt lgkmcnt(0)\n", 8 * bytes,
                            bytes == 16 ? "[4:7]" : "4");
    v.subtract = 4;      // the wait's own slot
    v.tolerance = 0.08;  // a stall ends at an issue slot
  };
  latency(4, 52);
  latency(16, 64);
  ValidationPoint& w = p.add(g, "lds", "write b128, 2 waves on one SIMD", "B/clk", 38, "PYH qsa");
  w.prologue = "  v_lshlrev_b32 v1, 4, v0\n";
  w.pattern = "  ds_write_b128 v1, v[4:7]\n";
  w.waves = 5;
  w.one_simd = true;
  w.bytes = 1024;
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
    v.independent = true;
  }
  for (const int bytes : {8, 4}) {
    ValidationPoint& v = p.add("gfx950", "lds", fmt::format("read b{}, 4 SIMDs", 8 * bytes), "clk",
                               bytes, "GLU lds_throughput");
    v.prologue = fmt::format("  v_and_b32 v1, 63, v0\n  v_mul_u32_u24 v1, {}, v1\n", bytes);
    v.pattern = lds_read(bytes);
    v.waves = 4;
    v.instructions = 4;
    v.independent = true;
  }
  ValidationPoint& alone =
      p.add("gfx950", "lds", "read b128, 1 wave on one SIMD", "clk", 8, "GLU lds_throughput");
  alone.prologue = "  v_lshlrev_b32 v1, 4, v0\n";
  alone.pattern = lds_read(16);
  alone.instructions = 4;
}

void add_latencies(Points& p) {
  const auto latency = [&](const char* target, const char* name, double measured,
                           const char* source, std::string step, u64 bytes, int few, int many,
                           double slots) {
    ValidationPoint& v = p.add(target, "memory", name, "clk", measured, source);
    v.prologue = "  v_mov_b32 v1, 0\n";
    v.pattern = "  global_load_dword v4, v1, s[4:5]\n  s_waitcnt vmcnt(0)\n" + step;
    v.buffer_bytes = bytes;
    v.repeats[0] = few;
    v.repeats[1] = many;
    v.subtract = slots;
    v.tolerance = 0.05;  // a stall ends at an issue slot
  };
  const std::string next = "  v_add_u32 v1, 0x80, v1\n";
  const std::string around = next + "  v_and_b32 v1, 0xffff, v1\n";
  const char* g = "gfx942";
  latency(g, "latency, L1 hit", 120, "RRZE", "", 1 << 20, 64, 192, 4);
  latency(g, "latency, L2 hit", 213, "RRZE", around, 1 << 20, 600, 1100, 12);
  latency(g, "latency, last-level cache", 455, "RRZE", next, 1 << 20, 64, 192, 8);
  latency(g, "latency, memory", 880, "RRZE", next, 512ull << 20, 64, 192, 8);
  const char* n = "gfx90a";
  latency(n, "latency, L1 hit", 128, "UB", "", 1 << 20, 64, 192, 4);
  latency(n, "latency, L2 hit", 250, "UB", around, 1 << 20, 600, 1100, 12);
  latency(n, "latency, memory", 638, "UB, RRZE", next, 512ull << 20, 64, 192, 8);
}

// Reads of one compute unit.
void add_unit_rates(Points& p) {
  const char* g = "gfx942";
  ValidationPoint& l1 =
      p.add(g, "memory", "L1 hits, dwordx4, 1 wave on each SIMD", "B/clk", 64, "PYH");
  l1.prologue = "  v_and_b32 v1, 63, v0\n  v_lshlrev_b32 v1, 4, v1\n";
  l1.pattern = "  global_load_dwordx4 v[4:7], v1, s[4:5]\n";
  l1.waves = 4;
  l1.bytes = 1024;
  l1.tolerance = 0.05;
  // Three loads of each wave in flight limit the bandwidth of a single wave.
  const auto l2 = [&](int per_simd, bool one, double measured, double tolerance) {
    ValidationPoint& v = p.add(g, "memory",
                               fmt::format("L2 hits, dwordx4, {} wave{} on {}", per_simd,
                                           per_simd > 1 ? "s" : "", one ? "one SIMD" : "each SIMD"),
                               "B/clk", measured, "PYH qsa");
    // Lines are reused after more than the L1 capacity.
    v.prologue = one ? "  v_and_b32 v1, 63, v0\n  v_lshlrev_b32 v1, 4, v1\n"
                       "  v_lshrrev_b32 v2, 8, v0\n  v_lshlrev_b32 v2, 15, v2\n"
                       "  v_add_u32 v1, v1, v2\n"
                     : "  v_lshlrev_b32 v1, 4, v0\n";
    v.pattern = fmt::format(
        "  global_load_dwordx4 v[4:7], v1, s[4:5]\n  v_add_u32 v1, {}, v1\n"
        "  v_and_b32 v1, 0x1ffff, v1\n  s_waitcnt vmcnt(2)\n",
        one ? 0x400 : 0x1000 * per_simd);
    v.waves = one ? 4 * per_simd - 3 : 4 * per_simd;
    v.one_simd = one;
    v.bytes = 1024;
    v.repeats[0] = 256;
    v.repeats[1] = 512;
    v.tolerance = tolerance;
    v.independent = !one || per_simd > 1;
  };
  l2(1, false, 48, 0.15);
  l2(2, false, 64, 0.08);
  l2(4, false, 64, 0.08);
  l2(1, true, 12, 0.15);
  l2(2, true, 24, 0);
  l2(4, true, 48, 0.15);
  for (const auto& [name, clocks] :
       {std::pair{"dword", 4.0}, {"dwordx2", 16.0}, {"dwordx4", 16.0}}) {
    const std::string registers = clocks == 4 ? "v4" : name[6] == '2' ? "v[4:5]" : "v[4:7]";
    ValidationPoint& v =
        p.add(g, "memory", fmt::format("{} of consecutive lanes", name), "clk", clocks, "GLU v8");
    v.prologue =
        fmt::format("  v_and_b32 v1, 63, v0\n  v_lshlrev_b32 v1, {}, v1\n", clocks == 4      ? 2
                                                                            : name[6] == '2' ? 3
                                                                                             : 4);
    v.pattern = fmt::format("  global_load_{} {}, v1, s[4:5]\n", name, registers);
    v.waves = 4;
    v.instructions = 4;
  }
}

// Streams over the whole chip.
void add_streams(Points& p) {
  const auto stream = [&](const char* target, const char* name, double measured, const char* source,
                          std::string body, int waves, int groups, u64 bytes_per_group,
                          double bytes) -> ValidationPoint& {
    ValidationPoint& v = p.add(target, "chip", name, "TB/s", measured, source);
    const bool gfx9 = std::string_view(target).starts_with("gfx9");
    v.prologue = "  v_lshlrev_b32 v1, 4, v0\n";
    // The next piece follows those of the workgroup's other waves.
    v.pattern = std::move(body) + fmt::format("  v_add_{} v1, {}, v1\n", gfx9 ? "u32" : "nc_u32",
                                              (gfx9 ? 1024 : 512) * waves);
    v.waves = waves;
    v.bytes = bytes;
    v.groups_per_unit = groups;
    const auto units = static_cast<u64>(find_target(target)->compute_units);
    v.buffer_bytes = units * static_cast<u64>(groups) * bytes_per_group;
    v.repeats[0] = 64;
    v.repeats[1] = 192;
    v.tolerance = 0.15;
    v.independent = true;
    return v;
  };
  const auto load = [](const char* registers, const char* base) {
    return fmt::format("  global_load_dwordx4 {}, v1, {}\n", registers, base);
  };
  const std::string first = load("v[4:7]", "s[4:5]");
  const std::string second = load("v[8:11]", "s[8:9]");
  const std::string store = "  global_store_dwordx4 v1, v[12:15], s[8:9]\n";
  const std::string wait = "  s_waitcnt vmcnt(8)\n";
  const char* g = "gfx942";
  stream(g, "read from memory", 4.0, "BST dot", first + wait, 4, 2, 1 << 20, 1024);
  stream(g, "copy", 4.12, "BST", first + store + wait, 4, 2, 2 << 20, 2048);
  stream(g, "two reads and a write (triad)", 4.03, "BST", first + second + store + wait, 4, 2,
         2 << 20, 3072);
  // Memory bandwidth by loads in flight and waves.
  const auto in_flight = [&](int per_simd, int loads, double measured) {
    ValidationPoint& v =
        stream(g, "", measured, "VF", first + fmt::format("  s_waitcnt vmcnt({})\n", loads - 1),
               4 * per_simd, 1, 1 << 21, 1024);
    v.name = fmt::format("read, {} wave{} on a SIMD, {} load{} in flight", per_simd,
                         per_simd > 1 ? "s" : "", loads, loads > 1 ? "s" : "");
  };
  in_flight(1, 1, 2.6);
  in_flight(1, 8, 3.79);
  in_flight(2, 4, 4.11);
  // All CUs read the same lines: from L2 or from MALL.
  ValidationPoint& l1 = stream(g, "read from L1", 38.8, "RRZE", first, 4, 1, 1 << 16, 1024);
  l1.prologue += "  v_and_b32 v1, 0xfff, v1\n";
  l1.pattern = first;
  stream(g, "read from the last-level cache", 11.9, "CC", first + wait, 4, 2, 1 << 18, 1024)
      .independent = false;
  ValidationPoint& newer =
      stream("gfx950", "read from memory", 6.5, "GLU", first + wait, 4, 2, 1 << 21, 1024);
  newer.independent = false;
  ValidationPoint& older =
      stream("gfx90a", "read from memory", 1.3, "UB", first + wait, 4, 2, 1 << 20, 1024);
  older.independent = false;
  ValidationPoint& desktop =
      stream("gfx1100", "read from memory", 0.8, "UB",
             "  global_load_b128 v[4:7], v1, s[4:5]\n  s_waitcnt vmcnt(8)\n", 8, 2, 1 << 21, 512);
  desktop.independent = false;
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
  p.issue(g, "exp, dependent", 27.0, "TGN", exps(1));
  p.issue(g, "scalar, dependent", 2.0, "TGN", "  s_add_u32 s12, s12, 1\n");
  p.issue(g, "barrier of 4 waves", 6.0, "TGN", "  s_barrier\n").waves = 4;
  p.all.back().tolerance = 0.5;  // the barrier's own slot is in it
  ValidationPoint& wide = p.add(g, "lds", "latency b128", "clk", 36, "TGN");
  wide.prologue = "  v_lshlrev_b32 v1, 4, v0\n";
  wide.pattern = "  ds_load_b128 v[4:7], v1\n  s_waitcnt lgkmcnt(0)\n";
  wide.subtract = 1;
  wide.tolerance = 0.1;
  wide.independent = true;
  p.issue("gfx1201", "WMMA 16x16x16 fp8", 8.0, "MIC",
          "  v_wmma_f32_16x16x16_fp8_fp8 v[24:31], v[2:3], v[10:11], v[24:31]\n");
  p.issue("gfx1201", "WMMA 16x16x16 f16", 16.0, "MIC",
          "  v_wmma_f32_16x16x16_f16 v[24:31], v[2:5], v[10:13], v[24:31]\n");
}

}  // namespace

std::vector<ValidationPoint> validation_points() {
  Points p;
  add_issue(p);
  add_lds(p);
  add_latencies(p);
  add_unit_rates(p);
  add_streams(p);
  add_rdna(p);
  return std::move(p.all);
}

}  // namespace rocflash::sim
