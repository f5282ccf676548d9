// Features of gfx9 only: registers indexed relative to M0 in every vector instruction, skipped
// vector instructions, and scalar stores and atomics.
#include "instruction_harness.h"

namespace rocflash::sim::test {
namespace {

u32 sum_f(u32 a, u32 b) {
  return std::bit_cast<u32>(std::bit_cast<float>(a) + std::bit_cast<float>(b));
}

const std::vector<InstructionCase>& cases() {
  static const std::vector<InstructionCase> list = {
      {"index_selects_each_source", kCdna,
       "  s_mov_b32 s40, 2\n  s_set_gpr_idx_on s40, gpr_idx(SRC0)\n  v_add_u32 v10, v2, v3\n"
       "  s_set_gpr_idx_mode gpr_idx(SRC1)\n  v_sub_u32 v11, v2, v3\n"
       "  s_set_gpr_idx_mode gpr_idx(SRC0,SRC1,SRC2)\n  v_add3_u32 v12, v2, v3, v4\n"
       "  s_set_gpr_idx_mode gpr_idx(SRC2)\n  s_set_gpr_idx_idx 4\n  v_xad_u32 v13, v2, v3, v4\n"
       "  s_set_gpr_idx_off\n",
       [](const Lane& l, u32* out) {
         out[0] = l.v[2] + l.v[1];
         out[1] = l.v[0] - l.v[3];
         out[2] = l.v[2] + l.v[3] + l.v[4];
         out[3] = (l.v[0] ^ l.v[1]) + l.v[6];
       }},
      {"index_selects_the_destination", kCdna,
       "  s_mov_b32 s40, 3\n  s_set_gpr_idx_on s40, gpr_idx(DST)\n  v_xor_b32 v7, v2, v3\n"
       "  v_lshlrev_b64 v[8:9], 7, v[4:5]\n  s_set_gpr_idx_off\n  v_and_b32 v13, v2, v3\n",
       [](const Lane& l, u32* out) {
         const u64 wide = (u64{l.v[2]} | u64{l.v[3]} << 32) << 7;
         out[0] = l.v[0] ^ l.v[1];
         out[1] = u32(wide);
         out[2] = u32(wide >> 32);
         out[3] = l.v[0] & l.v[1];
       }},
      // The accumulator is the destination; it moves with that.
      {"index_moves_accumulators", kCdna,
       "  v_mov_b32 v10, 1.0\n  v_mov_b32 v11, 2.0\n  v_mov_b32 v20, 2.0\n  v_mov_b32 v21, 4.0\n"
       "  s_mov_b32 s40, 1\n  s_set_gpr_idx_on s40, gpr_idx(DST,SRC0)\n"
       "  v_fmac_f32 v10, v20, v20\n  s_set_gpr_idx_off\n",
       [](const Lane&, u32* out) {
         out[0] = 0x3f800000;
         out[1] = std::bit_cast<u32>(10.0f);
       }},
      {"index_reaches_compares_and_lanes", kCdna,
       "  s_mov_b32 s40, 5\n  s_set_gpr_idx_on s40, gpr_idx(SRC0)\n"
       "  v_cmp_gt_u32 vcc, v2, v3\n  v_readlane_b32 s41, v2, 7\n  v_readfirstlane_b32 s42, v3\n"
       "  s_set_gpr_idx_mode gpr_idx(DST)\n  v_writelane_b32 v6, s41, 3\n  s_set_gpr_idx_off\n"
       "  v_cndmask_b32 v10, v2, v3, vcc\n  v_mov_b32 v12, s41\n  v_mov_b32 v13, s42\n",
       [](const Lane& l, u32* out) {
         out[0] = l.v[5] > l.v[1] ? l.v[1] : l.v[0];
         if (l.index == 3) out[1] = l.of(7, 5);  // v6 + 5 is v11
         out[2] = l.of(7, 5);
         out[3] = l.of(0, 6);
       }},
      {"index_reaches_packed_sdwa_and_dpp", kCdna,
       "  s_mov_b32 s40, 3\n  s_set_gpr_idx_on s40, gpr_idx(SRC0)\n"
       "  v_pk_add_u16 v10, v2, v3\n"
       "  v_add_u32_sdwa v11, v2, v3 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_1 "
       "src1_sel:DWORD\n"
       "  v_mov_b32_dpp v12, v2 quad_perm:[1,2,3,0] row_mask:0xf bank_mask:0xf\n"
       "  v_cvt_f32_u32 v13, v2\n  s_set_gpr_idx_off\n",
       [](const Lane& l, u32* out) {
         out[0] = ((l.v[3] + l.v[1]) & 0xffff) | ((l.v[3] >> 16) + (l.v[1] >> 16)) << 16;
         out[1] = (l.v[3] >> 8 & 0xff) + l.v[1];
         out[2] = l.of(int((l.index & ~3u) | ((l.index + 1) & 3)), 3);
         out[3] = std::bit_cast<u32>(float(l.v[3]));
       }},
      // Matrix operands in architectural registers move, accumulation registers do not.
      {"index_reaches_matrices", kCdna,
       "  v_mov_b32 v30, 0\n  v_mov_b32 v31, 0\n  v_mov_b32 v32, 1.0\n  v_mov_b32 v33, 1.0\n"
       "  s_mov_b32 s40, 2\n  s_set_gpr_idx_on s40, gpr_idx(SRC0,SRC1)\n"
       "  v_mfma_f32_4x4x1f32 v[10:13], v30, v30, 0\n  s_set_gpr_idx_off\n  s_nop 7\n",
       [](const Lane&, u32* out) { std::fill_n(out, 4, 0x3f800000u); }},
      {"index_leaves_memory_and_scalars_alone", kCdna,
       "  v_lshlrev_b32 v15, 2, v0\n  s_mov_b32 s40, 1\n"
       "  s_set_gpr_idx_on s40, gpr_idx(SRC0,SRC1,SRC2,DST)\n  ds_write_b32 v15, v2\n"
       "  s_waitcnt lgkmcnt(0)\n  ds_read_b32 v10, v15\n  v_mov_b32 v10, s22\n"
       "  s_add_u32 s41, s22, s22\n  s_set_gpr_idx_off\n  v_mov_b32 v12, s41\n"
       "  s_waitcnt lgkmcnt(0)\n",
       [](const Lane& l, u32* out) {
         out[0] = l.v[0];
         out[1] = 5;
         out[2] = 10;
       },
       0, false, false, 256},
      // MODE's own bits do the same.
      {"index_by_setreg", kCdna,
       "  s_mov_b32 m0, 0x1004\n  s_setreg_imm32_b32 hwreg(HW_REG_MODE, 27, 1), 1\n"
       "  v_add_f32 v10, v2, v3\n  s_setreg_imm32_b32 hwreg(HW_REG_MODE, 27, 1), 0\n"
       "  v_add_f32 v11, v2, v3\n",
       [](const Lane& l, u32* out) {
         out[0] = sum_f(l.v[4], l.v[1]);
         out[1] = sum_f(l.v[0], l.v[1]);
       },
       0, true},
      {"skip_issues_no_vector_instruction", kCdna,
       "  v_lshlrev_b32 v15, 2, v0\n  ds_write_b32 v15, v2\n  s_waitcnt lgkmcnt(0)\n"
       "  s_setvskip s22, 2\n"  // bit 2 of 5
       "  v_mov_b32 v10, v2\n  ds_write_b32 v15, v3\n  global_store_dword v15, v2, s[14:15]\n"
       "  v_readfirstlane_b32 s44, v2\n  v_cmp_eq_u32 vcc, v0, v0\n  s_mov_b32 s41, 7\n"
       "  s_setvskip s22, 1\n"  // bit 1 of 5
       "  v_mov_b32 v11, s41\n  ds_read_b32 v12, v15\n",
       [](const Lane& l, u32* out) {
         out[1] = 7;
         out[2] = l.v[0];
       },
       0, false, false, 256},
  };
  return list;
}

class Gfx9 : public testing::TestWithParam<CaseOnTarget> {};
TEST_P(Gfx9, FollowsTheManual) { run_case(*GetParam().c, GetParam().target); }
INSTANTIATE_TEST_SUITE_P(All, Gfx9, testing::ValuesIn(flatten(cases())), case_name);

LaunchResult run(const char* target, const std::string& body, const Arguments& arguments) {
  AsmKernel k;
  k.target = target;
  k.body = "  s_load_dwordx8 s[8:15], s[0:1], 0x0\n  s_waitcnt lgkmcnt(0)\n" + body;
  return launch(*build(k), "k", Shape{}, arguments);
}

class ScalarStore : public testing::TestWithParam<const char*> {};

TEST_P(ScalarStore, WritesDwords) {
  Buffer<u32> out(16);
  out.fill(9);
  const auto result =
      run(GetParam(),
          "  s_mov_b32 s20, 1\n  s_mov_b32 s21, 2\n  s_mov_b32 s22, 3\n  s_mov_b32 s23, 4\n"
          "  s_mov_b32 s30, 40\n  s_store_dword s20, s[8:9], 0x4\n"
          "  s_store_dwordx2 s[20:21], s[8:9], 0x10\n  s_store_dwordx4 s[20:23], s[8:9], s30\n"
          "  s_mov_b32 s16, s8\n  s_mov_b32 s17, s9\n  s_mov_b32 s18, 12\n  s_mov_b32 s19, 0\n"
          "  s_buffer_store_dwordx2 s[22:23], s[16:19], 0x8\n  s_dcache_wb\n",
          Arguments(out.data(), u64{0}, u64{0}, u64{0}));
  ASSERT_TRUE(result.ok()) << result.report->text();
  // The buffer ends at 12 bytes: its second dword is dropped.
  EXPECT_EQ(out.values(), (std::vector<u32>{9, 1, 3, 9, 1, 2, 9, 9, 9, 9, 1, 2, 3, 4, 9, 9}));
}

TEST_P(ScalarStore, IsChecked) {
  Buffer<u32> out(4);
  const Arguments arguments(out.data(), u64{0}, u64{0}, u64{0});
  auto result =
      run(GetParam(), "  s_mov_b32 s20, 1\n  s_store_dword s20, s[8:9], 0x10\n", arguments);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.report->fault, Fault::OutOfBounds);
  result = run(GetParam(), "  s_store_dword s40, s[8:9], 0x0\n", arguments);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.report->fault, Fault::Undefined);
  result = run(GetParam(), "  s_mov_b32 s20, 1\n  s_store_dword s20, s[8:9], 0x2\n", arguments);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.report->fault, Fault::Misaligned);
  result = run(GetParam(),
               "  s_mov_b32 s20, 1\n  s_store_dword s20, s[8:9], 0x0\n"
               "  s_atomic_add s20, s[8:9], 0x0 glc\n  s_mov_b32 s21, s20\n",
               arguments);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.report->fault, Fault::MissingWait);
}

TEST_P(ScalarStore, Atomics) {
  Buffer<u32> data(std::vector<u32>{5, 5, 0, 100, 7, 0xffffffff, 0, 8, 1, 0});
  Buffer<u32> old(6);
  const auto result =
      run(GetParam(),
          "  s_mov_b32 s20, 5\n  s_mov_b32 s21, 6\n"
          "  s_atomic_inc s20, s[8:9], 0x0 glc\n"  // 5 >= 5: wraps to 0
          "  s_waitcnt lgkmcnt(0)\n  s_store_dword s20, s[10:11], 0x0\n  s_waitcnt lgkmcnt(0)\n"
          "  s_atomic_inc s21, s[8:9], 0x4\n"      // 5 -> 6, nothing returned
          "  s_atomic_dec s21, s[8:9], 0x8 glc\n"  // 0 -> 6
          "  s_waitcnt lgkmcnt(0)\n  s_store_dword s21, s[10:11], 0x4\n"
          "  s_mov_b32 s22, -1\n  s_atomic_smin s22, s[8:9], 0xc\n"
          "  s_mov_b32 s24, 11\n  s_mov_b32 s25, 7\n"
          "  s_atomic_cmpswap s[24:25], s[8:9], 0x10 glc\n"  // 7 == 7: becomes 11
          "  s_waitcnt lgkmcnt(0)\n  s_store_dword s24, s[10:11], 0x8\n"
          // The pair at byte 24: 8 << 32, plus 1 << 32 | 1.
          "  s_mov_b32 s26, 1\n  s_mov_b32 s27, 1\n  s_atomic_add_x2 s[26:27], s[8:9], 0x18 glc\n"
          "  s_waitcnt lgkmcnt(0)\n  s_store_dwordx2 s[26:27], s[10:11], 0x10\n"
          "  s_mov_b32 s16, s8\n  s_mov_b32 s17, s9\n  s_mov_b32 s18, 36\n  s_mov_b32 s19, 0\n"
          "  s_mov_b32 s28, 6\n  s_buffer_atomic_or s28, s[16:19], 0x20 glc\n"
          "  s_waitcnt lgkmcnt(0)\n  s_store_dword s28, s[10:11], 0xc\n"
          "  s_mov_b32 s28, 6\n  s_buffer_atomic_swap s28, s[16:19], 0x24\n",  // outside
          Arguments(data.data(), old.data(), u64{0}, u64{0}));
  ASSERT_TRUE(result.ok()) << result.report->text();
  EXPECT_EQ(data.values(), (std::vector<u32>{0, 6, 6, 0xffffffff, 11, 0xffffffff, 1, 9, 7, 0}));
  EXPECT_EQ(old.values(), (std::vector<u32>{5, 0, 7, 1, 0, 8}));
}

INSTANTIATE_TEST_SUITE_P(All, ScalarStore, testing::Values("gfx90a", "gfx942", "gfx950"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace rocflash::sim::test
