// The LDS race detector: correct kernels pass, and the same kernels with one faulty change fail.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "asm_syntax.h"
#include "harness.h"

namespace rocflash::sim::test {
namespace {

struct Outcome {
  std::string fault;  // empty: none
  std::string message;
};

// Two waves or more; s[8:15] hold the arguments, v1 is four times the work-item id, s40 is 0 in the
// first wave only, and v2 is v1 within the wave.
Outcome run(const std::string& target, const std::string& body, u32 waves = 2,
            const std::string& checks = "all") {
  const int wave = target.starts_with("gfx9") ? 64 : 32;
  const AsmSyntax d{target, wave};
  AsmKernel k;
  k.target = target;
  k.wave = wave;
  k.lds = 4096;
  k.body = d.scalar_load8(8, 0, 0) + "  v_and_b32 v0, 0x3ff, v0\n  v_lshlrev_b32 v1, 2, v0\n" +
           fmt::format("  v_readfirstlane_b32 s40, v0\n  v_and_b32 v2, {}, v1\n", wave * 4 - 1) +
           d.wait_all() + body;
  Buffer<u32> in(256), out(256);
  in.fill(3);
  Shape shape;
  shape.block[0] = waves * static_cast<u32>(wave);
  Checks chosen = parse_checks(checks);
  chosen.budget = 100000;
  const auto result =
      launch(*build(k), "k", shape, Arguments(in.data(), in.data(), u64{0}, out.data()), chosen);
  if (result.ok()) return {};
  return {std::string(fault_name(result.report->fault)), result.report->text()};
}

void expect_silent(const Outcome& o) { EXPECT_EQ(o.fault, "") << o.message; }
void expect(const Outcome& o, Fault fault) {
  EXPECT_EQ(o.fault, std::string(fault_name(fault))) << o.message;
}

// Runs the body in one wave only.
std::string only_first(const std::string& body, const std::string& label) {
  return "  s_cmp_lg_u32 s40, 0\n  s_cbranch_scc1 " + label + "\n" + body + label + ":\n";
}
std::string not_first(const std::string& body, const std::string& label) {
  return "  s_cmp_eq_u32 s40, 0\n  s_cbranch_scc1 " + label + "\n" + body + label + ":\n";
}

const std::string kWait = "  s_waitcnt lgkmcnt(0)\n";
const std::string kBarrier = "  s_barrier\n";
const std::string kWrite = "  ds_write_b32 v1, v0\n";
// The other wave's dword.
const std::string kReadOther = "  v_xor_b32 v5, 0x100, v1\n  ds_read_b32 v6, v5\n";

// Issued before the first barrier, waited for before the second: only the second publishes it.
TEST(LdsRace, AWriteMayPassABarrierThatDoesNotPublishIt) {
  expect_silent(run("gfx942", kWrite + kBarrier + kWait + kBarrier + kReadOther + kWait));
  expect_silent(
      run("gfx942", kWrite + kBarrier + kBarrier + kWait + kBarrier + kReadOther + kWait));
  // ds_write2 and the wave's own reads, which are in order.
  expect_silent(run("gfx942", "  ds_write2_b32 v1, v0, v0 offset0:0 offset1:128\n" + kBarrier +
                                  "  ds_read_b32 v6, v1\n" + kWait + kBarrier + kReadOther +
                                  kWait));
}

TEST(LdsRace, OtherWavesMayNotAccessItsBytesYet) {
  // In both wave orders: before the writer waits, and after.
  expect(run("gfx942", kWrite + kBarrier + kReadOther + kWait), Fault::MissingWait);
  expect(run("gfx942", kWrite + kBarrier + kWait + kReadOther + kWait), Fault::MissingWait);
  expect(run("gfx942", kWrite + kBarrier + kWait + kReadOther + kWait, 2, "wait"),
         Fault::MissingWait);
  expect(run("gfx942", "  ds_write2_b32 v1, v0, v0 offset0:0 offset1:128\n" + kBarrier +
                           "  v_xor_b32 v5, 0x100, v1\n  ds_read_b32 v6, v5 offset:512\n" + kWait),
         Fault::MissingWait);
  expect(run("gfx942", only_first(kWrite, ".La") + kBarrier +
                           not_first("  ds_write_b32 v2, v1\n", ".Lb") + kWait),
         Fault::MissingWait);
  // Bytes between those of a strided write are not written.
  expect_silent(run("gfx942", "  v_lshlrev_b32 v3, 1, v1\n" +
                                  only_first("  ds_write_b32 v3, v0\n", ".La") + kBarrier +
                                  not_first("  v_lshlrev_b32 v4, 1, v2\n"
                                            "  ds_write_b32 v4, v0 offset:4\n",
                                            ".Lb") +
                                  kWait));
}

// The same through flat addresses, and with the instruction that takes its address from M0.
TEST(LdsRace, HoldsForFlatStoresAndForM0) {
  const std::string flat =
      "  s_mov_b64 s[50:51], src_shared_base\n  v_mov_b32 v10, v1\n  v_mov_b32 v11, s51\n"
      "  flat_store_dword v[10:11], v0\n";
  const std::string all = "  s_waitcnt vmcnt(0) lgkmcnt(0)\n";
  expect(run("gfx942", flat + kBarrier + kReadOther + all), Fault::MissingWait);
  expect_silent(run("gfx942", flat + kBarrier + all + kBarrier + kReadOther + all));
  const std::string addtid =
      "  s_lshl_b32 s41, s40, 2\n  s_mov_b32 m0, s41\n  ds_write_addtid_b32 v0\n";
  expect(run("gfx942", addtid + kBarrier + kReadOther + kWait), Fault::MissingWait);
  expect_silent(run("gfx942", addtid + kWait + kBarrier + kReadOther + kWait));
  // Two waves store the same value to the same address.
  const std::string same =
      "  s_mov_b64 s[50:51], src_shared_base\n  v_mov_b32 v10, 0\n"
      "  v_mov_b32 v11, s51\n  v_mov_b32 v3, 7\n"
      "  flat_store_dword v[10:11], v3\n" +
      all;
  expect_silent(run("gfx942", same));
}

TEST(LdsRace, TheSameValueIsNoRace) {
  const std::string store = "  v_mov_b32 v3, 7\n  ds_write_b32 v2, v3\n" + kWait;
  expect_silent(run("gfx942", store));
  // Each wave may read its own store; a third wave may not.
  expect_silent(run("gfx942", store + "  ds_read_b32 v6, v2\n" + kWait));
  expect(run("gfx942",
             not_first("  s_cmp_eq_u32 s40, 64\n  s_cbranch_scc0 .Lc\n", ".La") + store +
                 "  s_endpgm\n.Lc:\n  ds_read_b32 v6, v2\n" + kWait,
             3),
         Fault::LdsRace);
  // A different value afterwards is a race.
  expect(
      run("gfx942", store + not_first("  v_mov_b32 v3, 8\n  ds_write_b32 v2, v3\n", ".La") + kWait),
      Fault::LdsRace);
}

class LoadToLds : public testing::TestWithParam<const char*> {};

TEST_P(LoadToLds, TheSameValueIsNoRace) {
  const std::string load = "  s_mov_b32 m0, 0\n  global_load_lds_dword v2, s[8:9]\n";
  const std::string all = "  s_waitcnt vmcnt(0) lgkmcnt(0)\n";
  expect_silent(run(GetParam(), load + all));
  expect_silent(run(GetParam(), load + all + kBarrier + "  ds_read_b32 v6, v2\n" + all));
  // A wave that has waited for its own load may read it while the other's is in flight.
  expect_silent(run(GetParam(), load + all + "  ds_read_b32 v6, v2\n" + all, 4));
  const std::string buffer =
      "  s_mov_b32 s44, s8\n  s_mov_b32 s45, s9\n  s_mov_b32 s46, 1024\n"
      "  s_mov_b32 s47, 0x00027000\n  s_mov_b32 m0, 0\n"
      "  buffer_load_dword v2, s[44:47], 0 offen lds\n";
  expect_silent(run(GetParam(), buffer + all));
}

TEST_P(LoadToLds, DifferentValuesAreARace) {
  const std::string all = "  s_waitcnt vmcnt(0) lgkmcnt(0)\n";
  // The second wave's input is changed first.
  const std::string differ =
      not_first("  v_mov_b32 v3, 8\n  global_store_dword v1, v3, s[8:9]\n" + all, ".La");
  const std::string load = "  s_mov_b32 m0, 0\n  global_load_lds_dword v1, s[8:9]\n";
  const auto o = run(GetParam(), differ + load + all);
  EXPECT_NE(o.fault, "") << "two waves loaded different values to the same bytes";
}

// A load whose wait comes after the barrier is not published by it, in any wave order.
TEST_P(LoadToLds, MustBeWaitedForBeforeTheBarrier) {
  const std::string load =
      "  s_lshl_b32 s41, s40, 2\n  s_mov_b32 m0, s41\n  global_load_lds_dword v1, s[8:9]\n";
  const std::string all = "  s_waitcnt vmcnt(0) lgkmcnt(0)\n";
  expect(run(GetParam(), load + kBarrier + kReadOther + all), Fault::MissingWait);
  expect(run(GetParam(), load + kBarrier + all + kReadOther + all), Fault::MissingWait);
  expect_silent(run(GetParam(), load + kBarrier + all + kBarrier + kReadOther + all));
  expect_silent(run(GetParam(), load + all + kBarrier + kReadOther + all));
}

INSTANTIATE_TEST_SUITE_P(All, LoadToLds, testing::Values("gfx942", "gfx950"),
                         [](const auto& info) { return std::string(info.param); });

// Barriers wait only for the waves that have not ended.
class EndedWave : public testing::TestWithParam<const char*> {};

TEST_P(EndedWave, IsNotWaitedFor) {
  const AsmSyntax d{GetParam(), std::string(GetParam()).starts_with("gfx9") ? 64 : 32};
  // It ends before the others arrive, or while they wait.
  expect_silent(run(GetParam(), only_first("  s_endpgm\n", ".La") + d.barrier() + d.barrier(), 4));
  std::string spin;
  for (int i = 0; i < 40; ++i) spin += "  s_sleep 1\n";
  expect_silent(run(GetParam(), only_first(spin + "  s_endpgm\n", ".La") + d.barrier(), 4));
}

TEST_P(EndedWave, OtherWavesStillSynchronize) {
  const AsmSyntax d{GetParam(), std::string(GetParam()).starts_with("gfx9") ? 64 : 32};
  const std::string write =
      d.legacy_mnemonics() ? "  ds_write_b32 v1, v0\n" : "  ds_store_b32 v1, v0\n";
  const std::string read =
      d.legacy_mnemonics() ? "  ds_read_b32 v6, v2\n" : "  ds_load_b32 v6, v2\n";
  // Wave 0 ends; waves 1 to 3 exchange through two barriers.
  const std::string shift =
      fmt::format("  v_add_{}u32 v2, {}, v2\n", d.gfx9() ? "" : "nc_", d.wave * 4);
  expect_silent(run(GetParam(),
                    only_first("  s_endpgm\n", ".La") + write + d.wait_all() + d.barrier() + shift +
                        read + d.wait_all() + d.barrier() + write + d.wait_all(),
                    4));
  expect(run(GetParam(),
             only_first("  s_endpgm\n", ".La") + write + d.wait_all() + shift + read + d.wait_all(),
             4),
         Fault::LdsRace);
}

INSTANTIATE_TEST_SUITE_P(All, EndedWave, testing::Values("gfx942", "gfx1030", "gfx1100", "gfx1201"),
                         [](const auto& info) { return std::string(info.param); });

// The signal of an ended wave does not count: the other three must all signal.
TEST(SplitBarrier, ASignalOfAnEndedWaveDoesNotCount) {
  const std::string leave = only_first("  s_barrier_signal -1\n  s_endpgm\n", ".La");
  const std::string meet = "  s_barrier_signal -1\n  s_barrier_wait 0xffff\n";
  expect_silent(run("gfx1201", leave + meet + meet, 4));
  expect_silent(run("gfx1201",
                    leave + "  ds_store_b32 v1, v0\n  s_wait_dscnt 0x0\n" + meet +
                        "  v_add_nc_u32 v2, 0x100, v2\n  ds_load_b32 v6, v2\n  s_wait_dscnt 0x0\n",
                    4));
}

}  // namespace
}  // namespace rocflash::sim::test
