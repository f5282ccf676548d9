// Each check: a faulty kernel gets the right report, and its correct counterpart runs
// without one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "asm_syntax.h"
#include "harness.h"

namespace rocflash::sim::test {
namespace {

// Pointers of the four arguments are in s[8:15], four times the work-item id in v1.
std::string prologue(const AsmSyntax& d) {
  return d.scalar_load8(8, 0, 0) + "  v_lshlrev_b32 v1, 2, v0\n" + d.wait_all();
}

struct Violation {
  const char* name;
  const char* target;
  int wave;
  std::string faulty;
  std::string correct;
  Fault fault;
  const char* message;      // part of the expected message
  const char* instruction;  // must begin the reported instruction
  u32 threads = 64;
  u32 groups = 1;
  int lds = 0;
  const char* checks = "all";
};

std::string expand_syntax(const char* target, int wave, const std::string& text) {
  const AsmSyntax d{target, wave};
  std::string out = text;
  const auto replace = [&](const std::string& from, const std::string& to) {
    for (auto at = out.find(from); at != out.npos; at = out.find(from, at + to.size())) {
      out.replace(at, from.size(), to);
    }
  };
  replace("@wait", d.wait_all());
  replace("@barrier", d.barrier());
  replace("@load", d.legacy_mnemonics() ? "global_load_dword" : "global_load_b32");
  replace("@store", d.legacy_mnemonics() ? "global_store_dword" : "global_store_b32");
  replace("@ds_write", d.legacy_mnemonics() ? "ds_write_b32" : "ds_store_b32");
  replace("@ds_read", d.legacy_mnemonics() ? "ds_read_b32" : "ds_load_b32");
  replace("@saved", wave == 32 ? "s20" : "s[20:21]");
  replace("@exec", d.exec());
  replace("@vcc", d.vcc());
  replace("@mask", d.mask_bits());
  return out;
}

std::vector<Violation> violations() {
  std::vector<Violation> list;
  for (const auto& [target, wave] :
       {std::pair{"gfx942", 64}, {"gfx1030", 32}, {"gfx1100", 32}, {"gfx1201", 32}}) {
    list.push_back({"store_past_the_end", target, wave,
                    "  v_mov_b32 v2, 7\n  @store v1, v2, s[14:15] offset:4\n",
                    "  v_mov_b32 v2, 7\n  @store v1, v2, s[14:15]\n", Fault::OutOfBounds,
                    "outside any allocation", "global_store"});
    list.push_back({"lds_beyond_allocation", target, wave, "  @ds_write v1, v0 offset:256\n",
                    "  @ds_write v1, v0\n", Fault::LdsOutOfBounds, "the workgroup has 256", "ds_",
                    64, 1, 256});
    list.push_back({"undefined_address", target, wave, "  @load v3, v9, s[8:9]\n@wait",
                    "  v_mov_b32 v9, 0\n  @load v3, v9, s[8:9]\n@wait", Fault::Undefined,
                    "an address", "global_load"});
    list.push_back({"undefined_branch", target, wave,
                    "  s_cmp_eq_u32 s40, 0\n  s_cbranch_scc1 .Lhere\n  s_nop 0\n.Lhere:\n",
                    "  s_mov_b32 s40, 0\n  s_cmp_eq_u32 s40, 0\n  s_cbranch_scc1 .Lhere\n  s_nop "
                    "0\n.Lhere:\n",
                    Fault::Undefined, "a branch", "s_cbranch_scc1"});
    list.push_back({"undefined_exec", target, wave,
                    "  v_cmp_eq_u32 @vcc, v9, v0\n  s_and_saveexec_@mask @saved, @vcc\n",
                    "  v_mov_b32 v9, 3\n  v_cmp_eq_u32 @vcc, v9, v0\n"
                    "  s_and_saveexec_@mask @saved, @vcc\n",
                    Fault::Undefined, "the exec mask", "s_and_saveexec"});
    list.push_back({"undefined_stored", target, wave, "  @store v1, v9, s[14:15]\n",
                    "  v_mov_b32 v9, 1\n  @store v1, v9, s[14:15]\n", Fault::Undefined,
                    "stored to device memory", "global_store"});
    list.push_back({"fresh_memory_stored", target, wave,
                    "  @load v3, v1, s[12:13]\n@wait  v_add_f32 v3, 1.0, v3\n  @store v1, v3, "
                    "s[14:15]\n",
                    "  @load v3, v1, s[8:9]\n@wait  v_add_f32 v3, 1.0, v3\n  @store v1, v3, "
                    "s[14:15]\n",
                    Fault::Undefined, "stored to device memory", "global_store"});
    list.push_back({"fresh_lds_stored", target, wave,
                    "  @ds_read v3, v1\n@wait  @store v1, v3, s[14:15]\n",
                    "  @ds_write v1, v0\n@wait  @ds_read v3, v1\n@wait  @store v1, v3, s[14:15]\n",
                    Fault::Undefined, "stored to device memory", "global_store", 64, 1, 256});
    list.push_back({"load_used_before_wait", target, wave,
                    "  @load v3, v1, s[8:9]\n  v_add_f32 v4, v3, v3\n",
                    "  @load v3, v1, s[8:9]\n@wait  v_add_f32 v4, v3, v3\n", Fault::MissingWait,
                    "v3", "v_add_f32"});
    list.push_back({"lds_used_before_wait", target, wave,
                    "  @ds_write v1, v0\n  @ds_read v3, v1\n  v_mov_b32 v4, v3\n",
                    "  @ds_write v1, v0\n  @ds_read v3, v1\n@wait  v_mov_b32 v4, v3\n",
                    Fault::MissingWait, "v3", "v_mov_b32", 64, 1, 256});
    list.push_back({"lds_race", target, wave, "  v_mov_b32 v5, 0\n  @ds_write v5, v0\n@wait",
                    "  v_mov_b32 v5, 0\n  v_cmp_eq_u32 @vcc, 0, v0\n"
                    "  s_and_saveexec_@mask @saved, @vcc\n  @ds_write v5, v0\n@wait"
                    "  s_mov_@mask @exec, @saved\n@barrier  @ds_read v6, v5\n@wait",
                    Fault::LdsRace, "without a barrier", "ds_", 128, 1, 256});
    list.push_back({"lds_write_not_waited_at_barrier", target, wave,
                    "  v_and_b32 v5, 0x3ff, v0\n  v_lshlrev_b32 v5, 2, v5\n  @ds_write v5, v0\n"
                    "@barrier  v_xor_b32 v5, 0x1fc, v5\n  @ds_read v6, v5\n@wait",
                    "  v_and_b32 v5, 0x3ff, v0\n  v_lshlrev_b32 v5, 2, v5\n  @ds_write v5, v0\n"
                    "@wait@barrier  v_xor_b32 v5, 0x1fc, v5\n  @ds_read v6, v5\n@wait",
                    Fault::MissingWait, "before the barrier", "ds_", 128, 1, 512});
    list.push_back({"barrier_of_some_lanes", target, wave, "  s_mov_@mask @exec, 3\n@barrier",
                    "@barrier", Fault::DivergentBarrier, "only some lanes", "s_barrier", 128});
    list.push_back({"no_progress", target, wave, ".Lloop:\n  s_branch .Lloop\n", "  s_nop 0\n",
                    Fault::NoProgress, "without ending", "s_branch"});
    list.push_back(
        {"scalar_load_misaligned", target, wave,
         std::string("  s_add_u32 s8, s8, 2\n") +
             (AsmSyntax{target, wave}.legacy_mnemonics() ? "  s_load_dword" : "  s_load_b32") +
             " s40, s[8:9], 0x0\n@wait",
         std::string("  s_add_u32 s8, s8, 4\n") +
             (AsmSyntax{target, wave}.legacy_mnemonics() ? "  s_load_dword" : "  s_load_b32") +
             " s40, s[8:9], 0x0\n@wait",
         Fault::Misaligned, "dropped", "s_load"});
    list.push_back({"groups_write_the_same", target, wave,
                    "  v_mov_b32 v2, 1\n  @store v1, v2, s[14:15]\n",
                    "  v_mov_b32 v2, 1\n  s_cmp_lg_u32 @group, 0\n  s_cbranch_scc1 .Lskip\n"
                    "  @store v1, v2, s[14:15]\n.Lskip:\n",
                    Fault::GlobalRace, "both write", "global_store", 64, 2, 0, "all,global-race"});
    list.push_back(
        {"trap", target, wave, "  s_trap 2\n", "  s_nop 0\n", Fault::Trap, "aborted", "s_trap"});
  }
  // The barrier that is waited for but was never signaled.
  list.push_back({"wait_without_signal", "gfx1201", 32, "  s_barrier_wait 0xffff\n",
                  "  s_barrier_signal -1\n  s_barrier_wait 0xffff\n", Fault::DivergentBarrier,
                  "not signaled", "s_barrier_wait", 64});
  list.push_back({"scalar_used_before_wait", "gfx942", 64,
                  "  s_load_dword s40, s[8:9], 0x0\n  s_add_u32 s41, s40, 1\n",
                  "  s_load_dword s40, s[8:9], 0x0\n  s_waitcnt lgkmcnt(0)\n  s_add_u32 s41, s40, "
                  "1\n",
                  Fault::MissingWait, "s40", "s_add_u32"});
  // vmcnt(1) lets the younger of two loads be in flight.
  list.push_back({"wait_too_short", "gfx942", 64,
                  "  global_load_dword v3, v1, s[8:9]\n  global_load_dword v4, v1, s[10:11]\n"
                  "  s_waitcnt vmcnt(1)\n  v_mov_b32 v5, v4\n",
                  "  global_load_dword v3, v1, s[8:9]\n  global_load_dword v4, v1, s[10:11]\n"
                  "  s_waitcnt vmcnt(1)\n  v_mov_b32 v5, v3\n",
                  Fault::MissingWait, "v4", "v_mov_b32"});
  // Two instructions between a write and a read by DPP; RDNA waits itself.
  for (const char* target : {"gfx906", "gfx90a"}) {
    const std::string write = "  v_mov_b32 v3, 1\n  v_mov_b32 v4, 2\n",
                      read =
                          "  v_mov_b32_dpp v5, v3 quad_perm:[0,0,0,0] row_mask:0xf bank_mask:0xf\n";
    list.push_back({"dpp_too_early", target, 64, write + read, write + "  s_nop 0\n" + read,
                    Fault::MissingWait, "v3 is read by DPP", "v_mov_b32_dpp"});
  }
  list.push_back(
      {"load_to_lds_not_waited", "gfx950", 64,
       "  s_mov_b32 m0, 0\n  v_lshlrev_b32 v5, 2, v0\n  global_load_lds_dword v1, s[8:9]\n"
       "  ds_read_b32 v6, v5\n  s_waitcnt lgkmcnt(0)\n",
       "  s_mov_b32 m0, 0\n  v_lshlrev_b32 v5, 2, v0\n  global_load_lds_dword v1, s[8:9]\n"
       "  s_waitcnt vmcnt(0)\n  ds_read_b32 v6, v5\n  s_waitcnt lgkmcnt(0)\n",
       Fault::MissingWait, "in flight", "ds_read_b32", 64, 1, 1024});
  list.push_back({"atomic_misaligned", "gfx942", 64,
                  "  v_mov_b32 v2, 1\n  v_mov_b32 v3, 2\n  global_atomic_add v3, v2, s[8:9]\n",
                  "  v_mov_b32 v2, 1\n  v_mov_b32 v3, 4\n  global_atomic_add v3, v2, s[8:9]\n",
                  Fault::Misaligned, "aligned", "global_atomic_add"});
  return list;
}

class Check : public testing::TestWithParam<Violation> {};

LaunchResult run(const Violation& s, const std::string& body) {
  const AsmSyntax d{s.target, s.wave};
  AsmKernel k;
  k.target = s.target;
  k.wave = s.wave;
  std::string text = expand_syntax(s.target, s.wave, body);
  for (auto at = text.find("@group"); at != text.npos; at = text.find("@group")) {
    text.replace(at, 6, group_id_register(s.target));
  }
  k.body = prologue(d) + text;
  k.lds = s.lds;
  k.debug = true;
  const auto module = build(k);
  Buffer<u32> a(64), b(64), fresh(64), out(64);
  a.fill(1);
  b.fill(2);
  Shape shape;
  shape.block[0] = s.threads;
  shape.grid[0] = s.groups;
  Checks checks = parse_checks(s.checks);
  checks.budget = 100000;
  return launch(*module, "k", shape, Arguments(a.data(), b.data(), fresh.data(), out.data()),
                checks);
}

TEST_P(Check, ViolationIsReported) {
  const Violation& s = GetParam();
  const auto result = run(s, s.faulty);
  ASSERT_FALSE(result.ok()) << "nothing was reported";
  const Report& r = *result.report;
  EXPECT_EQ(fault_name(r.fault), fault_name(s.fault)) << r.text();
  EXPECT_NE(r.message.find(s.message), std::string::npos) << r.text();
  EXPECT_TRUE(r.instruction.starts_with(s.instruction)) << r.text();
  EXPECT_EQ(r.kernel, "k");
  EXPECT_GE(r.wave, 0);
  EXPECT_TRUE(r.location.starts_with("k+0x")) << r.text();
  EXPECT_NE(r.source.find(".s:"), std::string::npos) << "no source line: " << r.text();
}

TEST_P(Check, CorrectCounterpartPasses) {
  const Violation& s = GetParam();
  const auto result = run(s, s.correct);
  EXPECT_TRUE(result.ok()) << result.report->text();
}

std::string violation_name(const testing::TestParamInfo<Violation>& info) {
  return std::string(info.param.target) + "_" + info.param.name;
}
INSTANTIATE_TEST_SUITE_P(Violations, Check, testing::ValuesIn(violations()), violation_name);

// gfx11's WMMA needs A and B replicated in both halves of a wave32; hardware does not check it.
TEST(ChecksMatrix, WmmaOperandsAreInBothHalves) {
  const auto run_with = [](const char* copies) {
    AsmKernel k;
    k.target = "gfx1100";
    k.wave = 32;
    k.body = std::string(copies);
    for (int i = 2; i < 10; ++i) k.body += fmt::format("  v_mov_b32 v{}, v1\n", i);
    k.body += "  v_wmma_f32_16x16x16_f16 v[16:23], v[2:9], v[2:9], 0\n";
    const auto module = build(k);
    Shape shape;
    shape.block[0] = 32;
    return launch(*module, "k", shape, Arguments(u64{0}, u64{0}, u64{0}, u64{0}));
  };
  const auto faulty = run_with("  v_and_b32 v1, 31, v0\n");
  ASSERT_FALSE(faulty.ok());
  EXPECT_EQ(faulty.report->fault, Fault::BadProgram);
  EXPECT_EQ(faulty.report->lane, 16);
  EXPECT_NE(faulty.report->message.find("every sixteen lanes"), std::string::npos);
  EXPECT_TRUE(run_with("  v_and_b32 v1, 15, v0\n").ok());
}

TEST(ChecksReport, NamesLaneAddressAndAllocation) {
  AsmKernel k;
  k.body = prologue({"gfx942", 64}) + "  v_mov_b32 v2, 7\n  global_store_dword v1, v2, s[14:15]\n";
  const auto module = build(k);
  Buffer<u32> out(40);
  const auto result = launch(*module, "k", Shape{}, Arguments(u64{0}, u64{0}, u64{0}, out.data()));
  ASSERT_FALSE(result.ok());
  const Report& r = *result.report;
  EXPECT_EQ(r.lane, 40);
  EXPECT_EQ(r.address, reinterpret_cast<u64>(out.data() + 40));
  EXPECT_NE(r.allocation.find("0 bytes past the end of buffer"), std::string::npos) << r.text();
  EXPECT_NE(r.allocation.find("160 bytes"), std::string::npos) << r.text();
  EXPECT_NE(r.json().find("\"lane\":40"), std::string::npos);
}

// An out-of-bounds access that would hit another allocation: between adjacent allocations
// are red zones, so it is found whatever their sizes.
TEST(ChecksRedZone, SeparatesNeighbors) {
  AsmKernel k;
  // One store by lane 0, s[12:13] bytes away from the output.
  k.body = prologue({"gfx942", 64}) +
           "  s_add_u32 s14, s14, s12\n  s_addc_u32 s15, s15, s13\n  v_mov_b32 v2, 7\n"
           "  s_mov_b64 exec, 1\n  global_store_dword v1, v2, s[14:15]\n";
  const auto module = build(k);
  for (const std::size_t size : {std::size_t{4}, std::size_t{256}, std::size_t{4096},
                                 std::size_t{1} << 20, std::size_t{8} << 20}) {
    Buffer<u8> a(size), b(size), c(size);
    const auto store = [&](i64 distance) {
      return launch(*module, "k", Shape{}, Arguments(u64{0}, u64{0}, distance, b.data()));
    };
    EXPECT_TRUE(store(0).ok());
    const i64 reach = std::max<i64>(i64(size), 1 << 20);
    for (const i64 past : {i64{0}, i64{4}, i64{252}, i64{4096}, i64{65536}, reach - 4}) {
      for (const i64 distance : {i64(size) + past, -4 - past}) {
        const auto result = store(distance);
        ASSERT_FALSE(result.ok()) << size << " bytes, " << distance;
        EXPECT_EQ(result.report->fault, Fault::OutOfBounds);
        EXPECT_NE(result.report->allocation.find("bytes"), std::string::npos);
      }
    }
    // Never less than both red zones between two of them.
    for (u8* other : {a.data(), c.data()}) {
      EXPECT_GE(std::abs(other - b.data()) - i64(size), 2 * reach);
    }
  }
}

// hipMalloc guarantees 256 bytes; larger alignment would hide kernels that need more.
TEST(ChecksRedZone, BasesAreAlignedTo256BytesOnly) {
  for (const std::size_t size : {1, 100, 5000, 100000}) {
    Buffer<u8> a(size);
    EXPECT_EQ(reinterpret_cast<u64>(a.data()) % 512, 256u);
  }
}

TEST(ChecksReport, FreedMemoryIsNamed) {
  AsmKernel k;
  k.body = prologue({"gfx942", 64}) + "  v_mov_b32 v2, 7\n  global_store_dword v1, v2, s[14:15]\n";
  const auto module = build(k);
  u32* gone = nullptr;
  {
    Buffer<u32> out(64);
    gone = out.data();
  }
  const auto result = launch(*module, "k", Shape{}, Arguments(u64{0}, u64{0}, u64{0}, gone));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.report->fault, Fault::FreedMemory);
  EXPECT_NE(result.report->allocation.find("freed"), std::string::npos);
}

// Copies, spills to LDS and masked-off bits of undefined values are not errors.
TEST(ChecksUndefined, CopiesAndSpillsAreNotErrors) {
  AsmKernel k;
  k.lds = 512;
  k.body = prologue({"gfx942", 64}) +
           "  v_mov_b32 v5, v9\n  ds_write_b32 v1, v9\n  s_waitcnt lgkmcnt(0)\n"
           "  ds_read_b32 v6, v1\n  s_waitcnt lgkmcnt(0)\n  v_add_u32 v7, v6, v5\n"
           "  v_and_b32 v8, 0xff00, v9\n  v_and_b32 v8, 0xff, v8\n"  // no undefined bit remains
           "  v_lshlrev_b32 v10, 16, v9\n  v_lshrrev_b32 v10, 16, v10\n"
           // The permutation selects bytes of v11 only.
           "  s_mov_b32 s40, 0x03020100\n  v_mov_b32 v11, 0\n  v_perm_b32 v10, v10, v11, s40\n"
           "  global_store_dword v1, v8, s[14:15]\n  global_store_dword v1, v10, s[14:15]\n";
  const auto module = build(k);
  Buffer<u32> a(64), out(64);
  a.fill(0);
  const auto result =
      launch(*module, "k", Shape{}, Arguments(a.data(), u64{0}, u64{0}, out.data()));
  EXPECT_TRUE(result.ok()) << result.report->text();
}

// Shifts, bit fields and packs of SGPRs drop the undefined half.
TEST(ChecksUndefined, ScalarHalvesAreKeptApart) {
  AsmKernel k;
  k.body = prologue({"gfx942", 64}) +
           "  s_mov_b32 s41, 7\n  s_pack_ll_b32_b16 s42, s41, s40\n"  // s40 is undefined
           "  s_lshl_b32 s43, s42, 16\n  s_lshr_b32 s43, s43, 16\n  s_bfe_u32 s44, s42, 0x40000\n"
           "  s_cmp_eq_u32 s41, 7\n  s_cselect_b32 s45, s43, s40\n  s_add_u32 s45, s45, s44\n"
           "  v_mov_b32 v2, s45\n  global_store_dword v1, v2, s[14:15]\n";
  const auto module = build(k);
  Buffer<u32> out(64);
  const auto result = launch(*module, "k", Shape{}, Arguments(u64{0}, u64{0}, u64{0}, out.data()));
  ASSERT_TRUE(result.ok()) << result.report->text();
  EXPECT_EQ(out[0], 14u);
}

TEST(CheckSettings, CanBeDisabledOneByOne) {
  AsmKernel k;
  k.body = prologue({"gfx942", 64}) + "  global_store_dword v1, v9, s[14:15]\n";
  const auto module = build(k);
  Buffer<u32> out(64);
  const Arguments arguments(u64{0}, u64{0}, u64{0}, out.data());
  EXPECT_FALSE(launch(*module, "k", Shape{}, arguments).ok());
  EXPECT_TRUE(launch(*module, "k", Shape{}, arguments, parse_checks("-undefined")).ok());
  EXPECT_TRUE(launch(*module, "k", Shape{}, arguments, parse_checks("none")).ok());
  EXPECT_THROW(parse_checks("everything"), std::invalid_argument);
}

}  // namespace
}  // namespace rocflash::sim::test
