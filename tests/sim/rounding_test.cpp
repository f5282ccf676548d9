// How often, to which type and in which order the multi-step float instructions round. Every case
// has operands for which another rule gives another result.
#include "instruction_harness.h"

namespace rocflash::sim::test {
namespace {

constexpr u32 f32(float x) { return std::bit_cast<u32>(x); }
constexpr u32 f16x2(float low, float high) {
  return u32(std::bit_cast<u16>(f16(low))) | u32(std::bit_cast<u16>(f16(high))) << 16;
}
// Exact values only: the low 16 bits of the f32 are dropped.
constexpr u32 bf16x2(float low, float high) { return f32(low) >> 16 | (f32(high) & 0xffff0000u); }

std::string mov(int vgpr, u32 value) {
  return fmt::format("  v_mov_b32 v{}, {:#x}\n", vgpr, value);
}

InstructionCase constant(const char* name, std::vector<const char*> targets, std::string body,
                         std::vector<u32> expected) {
  return {name, std::move(targets), std::move(body),
          [expected = std::move(expected)](const Lane&, u32* out) {
            std::copy(expected.begin(), expected.end(), out);
          }};
}

// f32 rounds 907.5 * 1.1f = 998.2500216... to 998.25, half-way between the f16 neighbors 998 and
// 998.5; f16 alone would round the product to 998.5.
const std::string kMixOperands = mov(15, f32(907.5f)) + mov(16, f32(1.1f));
constexpr u32 kRoundedTwice = 0x63cc;  // 998
constexpr u32 kRoundedOnce = 0x63cd;   // 998.5

const std::vector<const char*> kDot2F16 = {"gfx906", "gfx908",  "gfx90a",  "gfx942",
                                           "gfx950", "gfx1030", "gfx1100", "gfx1201"};
const std::vector<const char*> kGfx11On = {"gfx1100", "gfx1201"};

std::vector<InstructionCase> mixed_cases() {
  return {
      constant("fma_mix_f16_rounds_to_f32_then_to_f16", kAll,
               kMixOperands + "  v_fma_mixlo_f16 v10, v15, v16, 0\n"
                              "  v_fma_mixhi_f16 v11, v15, v16, 0\n"
                              "  v_fma_mix_f32 v12, v15, v16, 0\n",
               {(kPreset[0] & 0xffff0000) | kRoundedTwice,
                (kPreset[1] & 0xffff) | kRoundedTwice << 16, f32(998.25f)}),
      // MODE[1:0] rounds the FMA: up gives more than half-way. MODE[3:2] rounds the conversion.
      constant("fma_mix_f16_uses_both_rounding_modes", kAll,
               kMixOperands + "  s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), 1\n"
                              "  v_fma_mixlo_f16 v10, v15, v16, 0\n"
                              "  s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), 4\n"
                              "  v_fma_mixlo_f16 v11, v15, v16, 0\n"
                              "  s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), 8\n"
                              "  v_fma_mixlo_f16 v12, v15, v16, 0\n",
               {(kPreset[0] & 0xffff0000) | kRoundedOnce, (kPreset[1] & 0xffff0000) | kRoundedOnce,
                (kPreset[2] & 0xffff0000) | kRoundedTwice}),
      // 2.5 * 21024 + 7.5e-5 is just above an f16 midpoint; rounding to f32 first loses that.
      constant("pk_fma_f16_rounds_once", kAll,
               mov(15, 0x41004100) + mov(16, 0x75227522) + mov(17, 0x04ea04ea) +
                   "  v_pk_fma_f16 v10, v15, v16, v17\n",
               {0x7a6b7a6b}),
  };
}

std::vector<InstructionCase> dot_cases() {
  const std::string halves = mov(15, f16x2(1, 1)) + mov(16, f16x2(0, 0));
  const std::string brains = mov(15, bf16x2(1, 1)) + mov(16, bf16x2(0, 0));
  const std::string large = mov(17, f32(16777216.0f));  // 2^24: adding 1 is a tie
  return {
      constant("dot2_f32_f16_rounds_each_addition", kDot2F16,
               halves + large + "  v_dot2_f32_f16 v10, v15, v15, v17\n", {f32(16777216.0f)}),
      constant("dot2_f32_f16_flushes_the_accumulator", kDot2F16,
               halves + mov(17, 0x007fffff) + mov(18, 0x00800000) +
                   "  v_dot2_f32_f16 v10, v16, v16, v17\n"
                   "  v_dot2_f32_f16 v11, v16, v16, v18\n",
               {0, 0x00800000}),
      constant("dot2c_f32_f16_rounds_each_addition", {"gfx908", "gfx90a", "gfx942", "gfx950"},
               halves + large + "  v_mov_b32 v10, v17\n  v_dot2c_f32_f16 v10, v15, v15\n",
               {f32(16777216.0f)}),
      constant("dot2acc_f32_f16_rounds_each_addition", {"gfx1100"},
               halves + large + "  v_mov_b32 v10, v17\n  v_dot2acc_f32_f16 v10, v15, v15\n",
               {f32(16777216.0f)}),
      constant("dot2_f32_bf16_adds_the_accumulator_first", kGfx11On,
               brains + large + "  v_dot2_f32_bf16 v10, v15, v15, v17\n", {f32(16777216.0f)}),
      constant("dot2_f32_bf16_adds_the_accumulator_last", {"gfx950"},
               brains + large +
                   "  v_dot2_f32_bf16 v10, v15, v15, v17\n"
                   "  v_mov_b32 v11, v17\n  v_dot2c_f32_bf16 v11, v15, v15\n",
               {f32(16777218.0f), f32(16777216.0f)}),
      constant("dot2_f16_f16_rounds_each_step_to_f16", kGfx11On,
               halves + mov(17, f16x2(2048, 0)) + mov(18, 0x0001) +
                   "  v_dot2_f16_f16 v10, v15, v15, v17\n"
                   "  v_dot2_f16_f16 v11, v16, v16, v18\n",
               {(kPreset[0] & 0xffff0000) | f16x2(2048, 0), (kPreset[1] & 0xffff0000) | 0x0001}),
      constant("dot2_bf16_bf16_rounds_each_step_and_flushes_denormals", kGfx11On,
               brains + mov(17, bf16x2(256, 0)) + mov(18, 0x0001) +
                   "  v_dot2_bf16_bf16 v10, v15, v15, v17\n"
                   "  v_dot2_bf16_bf16 v11, v16, v16, v18\n",
               {(kPreset[0] & 0xffff0000) | bf16x2(256, 0), kPreset[1] & 0xffff0000}),
  };
}

const std::vector<InstructionCase>& cases() {
  static const std::vector<InstructionCase> list = [] {
    std::vector<InstructionCase> all = mixed_cases();
    for (InstructionCase& c : dot_cases()) all.push_back(std::move(c));
    return all;
  }();
  return list;
}

class Rounding : public testing::TestWithParam<CaseOnTarget> {};
TEST_P(Rounding, FollowsTheManual) { run_case(*GetParam().c, GetParam().target); }
INSTANTIATE_TEST_SUITE_P(All, Rounding, testing::ValuesIn(flatten(cases())), case_name);

}  // namespace
}  // namespace rocflash::sim::test
