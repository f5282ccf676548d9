// Counters: the phases in which LDS serves a wave, issue clocks by class, and the totals of a
// launch.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "asm_syntax.h"
#include "core/issue_model.h"
#include "harness.h"
#include "isa/lds_banks.h"

namespace rocflash::sim::test {
namespace {

const Target& target(const char* name) { return *find_target(name); }

std::vector<std::set<int>> phases(const char* name, u32 bytes, bool write, int wave) {
  const LdsPhases& p = lds_phases(target(name), bytes, write);
  std::vector<std::set<int>> groups;
  for (int i = 0; i < wave; ++i) {
    if (i % p.lanes == 0) groups.emplace_back();
    groups.back().insert(p.order[std::size_t(i)]);
  }
  return groups;
}

std::set<int> lanes(std::initializer_list<std::pair<int, int>> ranges) {
  std::set<int> all;
  for (const auto& [first, last] : ranges) {
    for (int i = first; i <= last; ++i) all.insert(i);
  }
  return all;
}

TEST(LdsPhases, AreThePublishedOnes) {
  const auto read128 = phases("gfx942", 16, false, 64);
  ASSERT_EQ(read128.size(), 8u);
  EXPECT_EQ(read128[0], lanes({{0, 3}, {20, 23}}));
  EXPECT_EQ(read128[1], lanes({{4, 7}, {16, 19}}));
  EXPECT_EQ(read128[2], lanes({{8, 11}, {28, 31}}));
  EXPECT_EQ(read128[3], lanes({{12, 15}, {24, 27}}));
  EXPECT_EQ(read128[4], lanes({{32, 35}, {52, 55}}));
  EXPECT_EQ(read128[7], lanes({{44, 47}, {56, 59}}));
  EXPECT_EQ(phases("gfx90a", 16, false, 64), read128);
  EXPECT_EQ(phases("gfx950", 12, false, 64), read128);
  EXPECT_EQ(phases("gfx942", 16, true, 64)[1], lanes({{8, 15}}));
  EXPECT_EQ(phases("gfx942", 8, false, 64)[1], lanes({{16, 31}}));
  EXPECT_EQ(phases("gfx942", 4, false, 64)[1], lanes({{32, 63}}));

  const auto wide = phases("gfx950", 16, false, 64);
  ASSERT_EQ(wide.size(), 4u);
  EXPECT_EQ(wide[0], lanes({{0, 3}, {12, 15}, {20, 27}}));
  EXPECT_EQ(wide[1], lanes({{4, 11}, {16, 19}, {28, 31}}));
  EXPECT_EQ(wide[2], lanes({{32, 35}, {44, 47}, {52, 59}}));
  EXPECT_EQ(phases("gfx950", 8, false, 64).size(), 2u);
  EXPECT_EQ(phases("gfx950", 4, false, 64).size(), 1u);
  EXPECT_EQ(phases("gfx950", 8, true, 64).size(), 4u);
  EXPECT_EQ(lds_phases(target("gfx950"), 16, false).banks, 64);
  EXPECT_EQ(lds_phases(target("gfx950"), 16, true).banks, 32);

  EXPECT_EQ(phases("gfx1201", 16, false, 32)[1], lanes({{8, 15}}));
  EXPECT_EQ(phases("gfx1201", 4, false, 32).size(), 1u);
}

LdsCost cost(const char* name, u32 bytes, bool write, int wave, const std::function<u32(u32)>& at) {
  u32 addresses[kMaxLanes];
  for (u32 i = 0; i < kMaxLanes; ++i) addresses[i] = at(i);
  return lds_cost(lds_phases(target(name), bytes, write), addresses, ~0ull, wave, bytes);
}

TEST(LdsCost, CountsDistinctDwordsOfABank) {
  // Contiguous: no conflicts at any width, the full bandwidth of the LDS.
  EXPECT_EQ(cost("gfx942", 4, false, 64, [](u32 i) { return 4 * i; }).cycles, 2u);
  EXPECT_EQ(cost("gfx942", 8, true, 64, [](u32 i) { return 8 * i; }).cycles, 4u);
  EXPECT_EQ(cost("gfx942", 16, false, 64, [](u32 i) { return 16 * i; }).cycles, 8u);
  EXPECT_EQ(cost("gfx950", 16, false, 64, [](u32 i) { return 16 * i; }).cycles, 4u);
  EXPECT_EQ(cost("gfx950", 16, true, 64, [](u32 i) { return 16 * i; }).cycles, 8u);
  EXPECT_EQ(cost("gfx1100", 16, false, 32, [](u32 i) { return 16 * i; }).cycles, 4u);
  // The same dword in all lanes is one access; a stride of all banks conflicts in every lane.
  EXPECT_EQ(cost("gfx942", 4, false, 64, [](u32) { return 64u; }).conflicts, 0u);
  const LdsCost queue = cost("gfx942", 4, false, 64, [](u32 i) { return 128 * i; });
  EXPECT_EQ(queue.cycles, 64u);
  EXPECT_EQ(queue.conflicts, 62u);
  EXPECT_EQ(cost("gfx942", 4, false, 64, [](u32 i) { return 8 * i; }).conflicts, 2u);
  // Rows of 64 halves read by columns of 16 bytes, as MFMA operands are: lanes 0 to 15 in rows.
  // Without a swizzle all lanes of a phase access four banks; with an XOR swizzle there are no
  // conflicts.
  const auto row = [](u32 i) { return i % 16 * 128 + i / 16 * 16; };
  const auto swizzled = [](u32 i) { return i % 16 * 128 + ((i / 16) ^ (i % 8)) * 16; };
  EXPECT_EQ(cost("gfx942", 16, false, 64, row).conflicts, 8u * 3);
  EXPECT_EQ(cost("gfx942", 16, false, 64, swizzled).conflicts, 0u);
}

TEST(LdsCost, IdleLanesCostNothing) {
  u32 addresses[kMaxLanes] = {};
  for (u32 i = 0; i < kMaxLanes; ++i) addresses[i] = 128 * i;
  const LdsCost c = lds_cost(lds_phases(target("gfx942"), 4, false), addresses, 0xf, 64, 4);
  EXPECT_EQ(c.cycles, 4u);
  EXPECT_EQ(c.conflicts, 3u);
}

TEST(IssueClocks, FollowTheWidthOfTheUnits) {
  const auto clocks = [](const char* name, int wave, InstructionClass kind,
                         std::string_view mnemonic) {
    return issue_clocks(target(name), wave, kind, mnemonic);
  };
  EXPECT_EQ(clocks("gfx942", 64, InstructionClass::Valu, "v_add_f32"), 4u);
  EXPECT_EQ(clocks("gfx942", 64, InstructionClass::Valu, "v_fma_f64"), 4u);
  EXPECT_EQ(clocks("gfx942", 64, InstructionClass::Valu, "v_mul_lo_u32"), 16u);
  EXPECT_EQ(clocks("gfx942", 64, InstructionClass::Transcendental, "v_exp_f32"), 16u);
  EXPECT_EQ(clocks("gfx942", 64, InstructionClass::Salu, "s_add_u32"), 4u);
  EXPECT_EQ(clocks("gfx1100", 32, InstructionClass::Valu, "v_add_f32"), 1u);
  EXPECT_EQ(clocks("gfx1100", 64, InstructionClass::Valu, "v_add_f32"), 2u);
  EXPECT_EQ(clocks("gfx1100", 32, InstructionClass::Valu, "v_fma_f64"), 16u);
  EXPECT_EQ(clocks("gfx1201", 32, InstructionClass::Transcendental, "v_exp_f32"), 4u);
  EXPECT_EQ(clocks("gfx1030", 32, InstructionClass::Salu, "s_add_u32"), 1u);
}

// A kernel whose counters can be computed by hand.
nlohmann::json count(const std::string& name, int wave, const std::string& body) {
  const AsmSyntax d{name, wave};
  AsmKernel k;
  k.target = name;
  k.wave = wave;
  k.lds = 4096;
  k.body = d.scalar_load8(8, 0, 0) + d.wait_all() + body;
  const auto module = build(k);
  Buffer<u32> data(std::vector<u32>(4096, 1));
  Shape shape;
  shape.grid[0] = 3;
  shape.block[0] = 2 * u32(wave);
  const auto result =
      launch(*module, "k", shape, Arguments(data.data(), data.data(), u64{0}, u64{0}),
             parse_checks("none"), true);
  EXPECT_TRUE(result.ok()) << result.report->text();
  EXPECT_FALSE(result.counters.table().empty());
  return nlohmann::json::parse(result.counters.json());
}

TEST(Counters, TotalsOnCdna) {
  const auto j = count("gfx942", 64,
                       "  v_and_b32 v0, 63, v0\n  v_lshlrev_b32 v1, 4, v0\n"
                       "  global_load_dwordx4 v[4:7], v1, s[8:9]\n  s_waitcnt vmcnt(0)\n"
                       "  ds_write_b128 v1, v[4:7]\n  s_waitcnt lgkmcnt(0)\n"
                       "  ds_read_b128 v[4:7], v1\n  v_lshlrev_b32 v2, 6, v0\n"
                       "  ds_read_b32 v8, v2\n  s_waitcnt lgkmcnt(0)\n  v_exp_f32 v9, v8\n"
                       "  v_mfma_f32_32x32x8_f16 v[16:31], v[4:5], v[6:7], 0\n"
                       "  global_store_dwordx4 v1, v[4:7], s[8:9]\n");
  const u64 waves = 6;
  EXPECT_EQ(j["waves"], waves);
  EXPECT_EQ(j["by_class"]["vector"], 3 * waves);
  EXPECT_EQ(j["issue_cycles"]["vector"], 3 * 4 * waves);
  EXPECT_EQ(j["issue_cycles_per_wave"]["vector"], 12.0);
  EXPECT_EQ(j["issue_cycles"]["transcendental"], 16 * waves);
  EXPECT_EQ(j["matrix_cycles"], 32 * waves);
  EXPECT_EQ(j["issue_cycles"]["matrix"], 32 * waves);
  EXPECT_EQ(j["memory_instructions"]["load_b128"], waves);
  EXPECT_EQ(j["memory_instructions"]["store_b128"], waves);
  EXPECT_EQ(j["lds_instructions"]["read_b128"], waves);
  EXPECT_EQ(j["lds_instructions"]["write_b128"], waves);
  EXPECT_EQ(j["lds_instructions"]["read_b32"], waves);
  // 8 for each 128-bit access; 64-byte strides put 32 lanes into two banks: 2 x 16.
  EXPECT_EQ(j["lds_cycles"], (8 + 8 + 32) * waves);
  EXPECT_EQ(j["lds_bank_conflict_cycles"], 30 * waves);
  EXPECT_EQ(j["lds_bytes_accessed"], (2 * 16 + 4) * 64 * waves);
  EXPECT_EQ(j["global_load_bytes"], 16 * 64 * waves);
  EXPECT_EQ(j["global_transactions_64B"], 2 * 16 * waves);
}

TEST(Counters, TotalsOnRdna) {
  const auto j = count("gfx1100", 32,
                       "  v_and_b32 v0, 31, v0\n  v_lshlrev_b32 v1, 2, v0\n"
                       "  v_mul_lo_u32 v3, v1, v0\n  v_exp_f32 v9, v1\n"
                       "  ds_store_b32 v1, v9\n  ds_bpermute_b32 v4, v1, v9\n"
                       "  s_waitcnt lgkmcnt(0)\n  global_load_b32 v5, v1, s[8:9]\n");
  const u64 waves = 6;
  EXPECT_EQ(j["issue_cycles"]["vector"], (1 + 1 + 4) * waves);
  EXPECT_EQ(j["issue_cycles"]["transcendental"], 4 * waves);
  EXPECT_EQ(j["lds_cycles"], 2 * waves);
  EXPECT_EQ(j["lds_bank_conflict_cycles"], 0);
  EXPECT_EQ(j["lds_instructions"]["permute"], waves);
  EXPECT_EQ(j["memory_instructions"]["load_b32"], waves);
}

}  // namespace
}  // namespace rocflash::sim::test
