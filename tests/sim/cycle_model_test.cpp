// The cycle model: microkernels against published measurements, reports of launches, and sampling
// modes.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "asm_syntax.h"
#include "cycle_model/model.h"
#include "cycle_model/validation.h"
#include "harness.h"

namespace rocflash::sim::test {
namespace {

TEST(Validation, MicrokernelsMatchPublishedMeasurements) {
  const auto points = validation_points();
  EXPECT_GT(points.size(), 50u);
  const auto results = validate(points, [](const std::string& text, const std::string& target) {
    return assemble(text, target);
  });
  for (const Validated& r : results) {
    if (r.point.tolerance == 0) continue;
    EXPECT_TRUE(r.holds()) << r.point.target << " " << r.point.name << ": measured "
                           << r.point.measured << ", model " << r.model;
  }
}

// A launch of `body` on gfx942 with `waves` waves in each workgroup.
struct Timed {
  PredictedTime time;
  LaunchResult result;
  std::vector<TimelineEvent> events;
  std::unique_ptr<Module> module;
};

Timed timed(const std::string& body, u32 waves, u32 groups, bool only_sampled = false,
            int vgprs = 128) {
  AsmKernel k;
  k.body = body;
  k.lds = 4096;
  k.vgprs = vgprs;
  Timed t;
  t.module = build(k);
  Buffer<u32> buffer(std::size_t{groups} * 4096);
  buffer.fill(1);
  const Arguments arguments(buffer.data(), u64{0}, u64{0}, u64{0});
  LaunchRequest request;
  request.module = t.module.get();
  request.kernel = t.module->object().find_kernel("k");
  request.grid[0] = groups;
  request.block[0] = 64 * waves;
  request.arguments = arguments.bytes();
  request.checks.undefined = request.checks.lds_race = request.checks.wait = false;
  CycleModel model(request,
                   {only_sampled, 0, [&](const TimelineEvent& e) { t.events.push_back(e); }});
  request.traces = &model;
  t.result = run_kernel(request);
  EXPECT_TRUE(t.result.ok()) << (t.result.ok() ? "" : t.result.report->text());
  t.time = model.predict();
  return t;
}

std::string repeated(int n, const std::string& text) {
  return fmt::format(".rept {}\n{}\n.endr\n", n, text);
}

constexpr const char* kMatrix = "  v_mfma_f32_32x32x8_f16 a[0:15], v[2:3], v[4:5], a[0:15]";

TEST(Model, TwoWavesOfASimdShareTheMatrixCore) {
  const double one = timed(repeated(200, kMatrix), 4, 1).time.cycles;
  const double two = timed(repeated(200, kMatrix), 8, 1).time.cycles;
  EXPECT_NEAR(one, 200 * 32, 60);
  EXPECT_NEAR(two, 400 * 32, 60);
}

TEST(Model, ValuOfOneWaveOverlapsMfmaOfAnother) {
  // Wave 0 multiplies, wave 4, on the same SIMD, adds: seven additions fit each product.
  const std::string split =
      "  v_readfirstlane_b32 s7, v0\n  s_cmp_ge_u32 s7, 256\n  s_cbranch_scc1 .Lvector\n";
  const auto both = [&](int additions) {
    return timed(split + repeated(100, kMatrix) + "  s_endpgm\n.Lvector:\n" +
                     repeated(additions, "  v_add_f32 v9, v10, v11"),
                 8, 1)
        .time.cycles;
  };
  EXPECT_NEAR(both(690), 100 * 32, 150);
  EXPECT_GT(both(1200), 1200 * 4 + 100 * 4 - 100);
}

TEST(Model, BarriersWaitForTheLastWave) {
  // Wave 1 sleeps; the others wait at the barrier for it.
  const Timed t = timed(
      "  v_readfirstlane_b32 s7, v0\n  s_cmp_lg_u32 s7, 64\n  s_cbranch_scc1 .Lgo\n"
      "  s_sleep 32\n.Lgo:\n  s_barrier\n",
      4, 1);
  EXPECT_GT(t.time.cycles, 64 * 32);
  EXPECT_GT(t.time.waits[static_cast<std::size_t>(StallReason::Barrier)], 0.5);
}

TEST(Model, PrioritySelectsTheIssuingWave) {
  // Two waves of a SIMD compete for the VALU; the one that raises its priority ends first.
  const Timed t = timed(
      "  v_readfirstlane_b32 s7, v0\n  s_cmp_lt_u32 s7, 256\n  s_cbranch_scc1 .Lgo\n"
      "  s_setprio 3\n.Lgo:\n" +
          repeated(200, "  v_add_f32 v9, v10, v11"),
      8, 1);
  Clock low = 0;
  Clock high = 0;
  for (const TimelineEvent& e : t.events) {
    if (e.waits || e.simd != 0) continue;
    (e.wave < 4 ? low : high) = std::max(e.wave < 4 ? low : high, e.end);
  }
  EXPECT_LT(high + 700, low);
}

TEST(Model, WaitsAreAttributed) {
  const Timed t = timed(
      "  s_load_dwordx2 s[4:5], s[0:1], 0x0\n  v_and_b32 v1, 63, v0\n  v_lshlrev_b32 v1, 2, v1\n"
      "  s_waitcnt lgkmcnt(0)\n" +
          repeated(50, "  global_load_dword v4, v1, s[4:5]\n  s_waitcnt vmcnt(0)"),
      1, 1);
  EXPECT_GT(t.time.waits[static_cast<std::size_t>(StallReason::Memory)], 0.2);
  const nlohmann::json j = nlohmann::json::parse(t.time.json());
  for (const char* field : {"kernel", "target", "cycles", "clock_mhz", "time_us", "matrix_busy",
                            "waits", "workgroups", "lines"}) {
    EXPECT_TRUE(j.contains(field)) << field;
  }
  double all = j["unit_matrix_busy"];
  for (const auto& [name, share] : j["waits"].items()) all += share.get<double>();
  EXPECT_NEAR(all, 1, 0.01);
  const Program& program = t.module->program(64);
  EXPECT_NE(instruction_report(t.time, *t.module, program).find("s_waitcnt vmcnt(0)"),
            std::string::npos);
  EXPECT_NE(line_report(t.time, *t.module, program).find("?:0"), std::string::npos);
}

TEST(Model, SamplesRepresentAllWorkgroups) {
  const std::string body = repeated(300, kMatrix);
  const Timed all = timed(body, 4, 700);
  const Timed some = timed(body, 4, 700, true);
  EXPECT_NEAR(some.time.time_us, all.time.time_us, 0.01 * all.time.time_us);
  // 304 compute units: some have three workgroups of 700, all have two of 608.
  EXPECT_NEAR(all.time.cycles, 3 * 300 * 32, 1000);
  EXPECT_NEAR(timed(body, 4, 608).time.cycles, 2 * 300 * 32, 1000);
}

TEST(Model, SharesOfAnEmptyKernelAreNumbers) {
  const Timed t = timed("", 1, 1);
  EXPECT_GT(t.time.cycles, 0);
  double all = t.time.unit_matrix_busy;
  for (const double share : t.time.waits) all += share;
  EXPECT_NEAR(all, 1, 1e-6);
}

TEST(Model, LongWavesAreTruncated) {
  const auto loop = [](int iterations) {
    return fmt::format(
        "  s_mov_b32 s8, {}\n.Lturn:\n  v_add_f32 v9, v10, v11\n  v_add_f32 v12, v10, v11\n"
        "  s_sub_u32 s8, s8, 1\n  s_cmp_lg_u32 s8, 0\n  s_cbranch_scc1 .Lturn\n",
        iterations);
  };
  const Timed few = timed(loop(20000), 1, 1);
  const Timed many = timed(loop(400000), 1, 1);
  EXPECT_FALSE(few.time.truncated);
  EXPECT_TRUE(many.time.truncated);
  EXPECT_NEAR(many.time.cycles, 20 * few.time.cycles, 0.01 * many.time.cycles);
}

TEST(Model, HugeGridsAreDispatchedByTheirRate) {
  AsmKernel k;
  k.body = repeated(10, kMatrix);
  const auto module = build(k);
  LaunchRequest request;
  request.module = module.get();
  request.kernel = module->object().find_kernel("k");
  const Arguments arguments(u64{0}, u64{0}, u64{0}, u64{0});
  request.arguments = arguments.bytes();
  request.checks.undefined = false;
  request.block[0] = 256;
  const auto cycles = [&](u32 x, u32 y) {
    request.grid[0] = x;
    request.grid[1] = y;
    CycleModel model(request, {true, 0, {}});
    request.traces = &model;
    EXPECT_TRUE(run_kernel(request).ok());
    return model.predict().cycles;
  };
  const double some = cycles(1 << 20, 1);
  EXPECT_NEAR(cycles(1 << 23, 65535), 8 * 65535 * some, 0.01 * 8 * 65535 * some);
  request.grid[0] = 1 << 25;  // times 256 work-items
  EXPECT_THROW(check_launch(request), std::invalid_argument);
}

// On devices with a power of two of compute units per XCD, the model took a workgroup of the same
// compute unit for one that shares its cache lines.
TEST(Model, UnsharedLinesComeFromMemory) {
  AsmKernel k;
  k.target = "gfx950";
  k.vgprs = 128;
  k.body =
      "  s_load_dwordx2 s[4:5], s[0:1], 0x0\n  v_lshlrev_b32 v1, 4, v0\n"
      "  s_mul_i32 s6, " +
      group_id_register("gfx950") +
      ", 0x100000\n  s_waitcnt lgkmcnt(0)\n  s_add_u32 s4, s4, s6\n  s_addc_u32 s5, s5, 0\n" +
      repeated(16, "  global_load_dwordx4 v[4:7], v1, s[4:5]\n  v_add_u32 v1, 0x1000, v1") +
      "  s_waitcnt vmcnt(0)\n";
  const auto module = build(k);
  Buffer<u32> buffer(std::size_t{512} << 18);
  const Arguments arguments(buffer.data(), u64{0}, u64{0}, u64{0});
  LaunchRequest request;
  request.module = module.get();
  request.kernel = module->object().find_kernel("k");
  request.arguments = arguments.bytes();
  request.checks.undefined = request.checks.wait = false;
  request.grid[0] = 512;
  request.block[0] = 256;
  CycleModel model(request, {true, 0, {}});
  request.traces = &model;
  ASSERT_TRUE(run_kernel(request).ok());
  const PredictedTime t = model.predict();
  EXPECT_EQ(t.resident, 2);
  EXPECT_GT(t.lines.memory, 0u);
  EXPECT_EQ(t.lines.l2_hits, 0u);
}

// Data of a load to LDS arrive long after it was issued; reads until then do not wait for them.
TEST(Model, LoadsToLdsDoNotBlockItsBanks) {
  const std::string reads = repeated(16, "  ds_read_b128 v[4:7], v1") + "  s_waitcnt lgkmcnt(0)\n";
  const std::string head =
      "  s_load_dwordx2 s[4:5], s[0:1], 0x0\n  v_and_b32 v1, 63, v0\n  v_lshlrev_b32 v1, 4, v1\n"
      "  s_mov_b32 m0, 0\n  s_waitcnt lgkmcnt(0)\n";
  const std::string load = "  global_load_lds_dword v1, s[4:5]\n";
  const double alone = timed(head + reads + "  s_waitcnt vmcnt(0)\n", 1, 1).time.cycles;
  const Timed both = timed(head + load + reads + "  s_waitcnt vmcnt(0)\n", 1, 1);
  // The load takes longer and hides the reads.
  EXPECT_LT(alone, 800);
  EXPECT_LT(both.time.waits[static_cast<std::size_t>(StallReason::Lds)] * both.time.cycles * 4,
            alone + 100);
}

TEST(Model, TimelinesAreReadByTraceViewers) {
  const Timed t = timed(
      repeated(20, std::string(kMatrix) + "\n  v_exp_f32 v9, v9\n  v_exp_f32 v10, v10"), 8, 1);
  const std::string path = testing::TempDir() + "timeline.json";
  TimelineFile file(path, *t.module, t.module->program(64));
  const Timeline sink = file.sink();
  for (const TimelineEvent& e : t.events) sink(e);
  file.write(t.time);
  std::ifstream in(path);
  const nlohmann::json j = nlohmann::json::parse(in);
  int matrix = 0;
  std::map<std::pair<int, int>, std::vector<std::pair<i64, i64>>> rows;
  for (const auto& e : j["traceEvents"]) {
    if (e["ph"] != "X") continue;
    EXPECT_GE(e["dur"].get<i64>(), 0);
    matrix += e["tid"] == 1000 ? 1 : 0;
    rows[{e["pid"], e["tid"]}].emplace_back(e["ts"], e["ts"].get<i64>() + e["dur"].get<i64>());
  }
  EXPECT_EQ(matrix, 160);
  // Slices of a row follow or contain each other.
  for (auto& [row, slices] : rows) {
    std::ranges::sort(slices, [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first < b.first : a.second > b.second;
    });
    std::vector<i64> open;
    for (const auto& [begin, end] : slices) {
      while (!open.empty() && open.back() <= begin) open.pop_back();
      EXPECT_TRUE(open.empty() || end <= open.back()) << row.first << " " << row.second;
      open.push_back(end);
    }
  }
  EXPECT_EQ(j["eventsLeftOut"], 0);
}

}  // namespace
}  // namespace rocflash::sim::test
