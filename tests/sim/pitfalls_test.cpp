// Semantics that public emulators got wrong, one test each.
#include "instruction_harness.h"

namespace rocflash::sim::test {
namespace {

// float -> half toward zero, by integer arithmetic.
u16 half_rtz(u32 bits) {
  const u32 sign = bits >> 16 & 0x8000;
  const u32 magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return u16(sign | 0x7e00 | (magnitude >> 13 & 0x1ff));
  if (magnitude == 0x7f800000) return u16(sign | 0x7c00);
  if (magnitude >= 0x47800000) return u16(sign | 0x7bff);  // finite stays finite
  if (magnitude >= 0x38800000) return u16(sign | (magnitude - 0x38000000) >> 13);
  if (magnitude < 0x33800000) return u16(sign);
  const u32 shift = 126 - (magnitude >> 23);
  return u16(sign | ((magnitude & 0x7fffff) | 0x800000) >> shift);
}

bool is_nan_half(u32 h) { return (h & 0x7fff) > 0x7c00; }

float mul(u32 a, u32 b) { return std::bit_cast<float>(a) * std::bit_cast<float>(b); }
u32 bits(float x) { return x != x ? 0x7fc00000u : std::bit_cast<u32>(x); }

void keeps_the_other_half(const Lane& l, u32* out) {
  out[0] = (kPreset[0] & 0xffff0000) | (l.v[0] & 0xffff);
  out[1] = (kPreset[1] & 0xffff) | l.v[0] << 16;
  out[2] = (kPreset[2] & 0xffff0000) | (u32(i32(i8(l.v[0] >> 8))) & 0xffff);
  out[3] = (kPreset[3] & 0xffff) | (l.v[0] >> 24) << 16;
}

std::vector<InstructionCase> lds_and_cross_lane_cases() {
  return {
      {"cvt_pkrtz_rounds_toward_zero", kAll, "  v_cvt_pkrtz_f16_f32 v10, v2, v3\n",
       [](const Lane& l, u32* out) {
         out[0] = u32(half_rtz(l.v[0])) | u32(half_rtz(l.v[1])) << 16;
         if (is_nan_half(out[0] & 0xffff)) out[0] = (out[0] & ~0x1ffu) | (l.v[0] >> 13 & 0x1ff);
       },
       0, true},
      {"lds_d16_keeps_the_other_half",
       {"gfx90a", "gfx942", "gfx950", "gfx1030"},
       "  v_lshlrev_b32 v15, 2, v0\n  ds_write_b32 v15, v2\n  s_waitcnt lgkmcnt(0)\n"
       "  ds_read_u16_d16 v10, v15\n  ds_read_u16_d16_hi v11, v15\n"
       "  ds_read_i8_d16 v12, v15 offset:1\n  ds_read_u8_d16_hi v13, v15 offset:3\n",
       keeps_the_other_half,
       0,
       false,
       false,
       256},
      {"lds_d16_keeps_the_other_half",
       {"gfx1100", "gfx1201"},
       "  v_lshlrev_b32 v15, 2, v0\n  ds_store_b32 v15, v2\n"
       "  ds_load_u16_d16 v10, v15\n  ds_load_u16_d16_hi v11, v15\n"
       "  ds_load_i8_d16 v12, v15 offset:1\n  ds_load_u8_d16_hi v13, v15 offset:3\n",
       keeps_the_other_half,
       0,
       false,
       false,
       256},
      // Register and offset are added in 32 bits: a negative address comes back into range.
      {"lds_addresses_wrap", kGcn,
       "  v_lshlrev_b32 v15, 2, v0\n  ds_write_b32 v15, v2\n  s_waitcnt lgkmcnt(0)\n"
       "  v_sub_u32 v16, 0, v0\n  v_lshlrev_b32 v17, 2, v16\n"
       "  ds_read_i8 v10, v16 offset:63\n  ds_read2_b32 v[20:21], v17 offset0:63 offset1:63\n"
       "  s_waitcnt lgkmcnt(0)\n  v_mov_b32 v11, v21\n  v_mov_b32 v18, 1\n"
       "  ds_add_rtn_u32 v12, v17, v18 offset:252\n  s_waitcnt lgkmcnt(0)\n"
       "  ds_write_b32 v17, v3 offset:252\n  ds_read_b32 v13, v15\n",
       [](const Lane& l, u32* out) {
         const int mirrored = int(63 - l.index);
         const u32 byte = l.of(mirrored / 4, 0) >> (8 * (mirrored & 3));
         out[0] = u32(i32(i8(byte)));
         out[1] = l.of(mirrored, 0);
         out[2] = l.of(mirrored, 0);
         out[3] = l.of(mirrored, 1);
       },
       0, false, false, 256},
      {"lds_addresses_wrap_in_every_form",
       {"gfx1100", "gfx1201"},
       "  v_lshlrev_b32 v15, 2, v0\n  ds_store_b32 v15, v2\n  s_wait_idle\n"
       "  v_sub_nc_u32 v17, 0, v15\n  ds_store_2addr_b32 v17, v3, v4 offset0:63 offset1:31\n"
       "  s_wait_idle\n  ds_load_b32 v10, v15\n  ds_load_b32 v11, v15 offset:128\n"
       "  ds_load_2addr_b32 v[20:21], v17 offset0:31 offset1:63\n  s_wait_idle\n"
       "  v_mov_b32 v12, v20\n"
       "  ds_storexchg_2addr_rtn_b32 v[22:23], v17, v5, v6 offset0:31 offset1:63\n"
       "  s_wait_idle\n  v_mov_b32 v13, v23\n",
       [](const Lane& l, u32* out) {
         const int mirrored = int(31 - l.index);
         out[0] = l.of(mirrored, 2);
         out[1] = l.of(mirrored, 1);
         out[2] = l.v[2];
         out[3] = l.v[1];
       },
       0,
       false,
       false,
       256},
      {"dpp_reads_before_it_writes", kAll,
       "  v_mov_b32 v10, v2\n  s_nop 1\n  v_mov_b32_dpp v10, v10 row_ror:1 row_mask:0xf "
       "bank_mask:0xf\n  v_mov_b32 v11, v3\n  s_nop 1\n"
       "  v_xor_b32_dpp v11, v11, v11 quad_perm:[1,2,3,0] row_mask:0xf bank_mask:0xf\n",
       [](const Lane& l, u32* out) {
         out[0] = l.of(int((l.index & ~15u) | ((l.index + 15) & 15)), 0);
         out[1] = l.of(int((l.index & ~3u) | ((l.index + 1) & 3)), 1) ^ l.v[1];
       }},
      {"permlanex16_in_place", kRdna,
       "  v_mov_b32 v10, v2\n  s_mov_b32 s40, 0x76543210\n  s_mov_b32 s41, 0xfedcba98\n"
       "  v_permlanex16_b32 v10, v10, s40, s41\n  v_mov_b32 v11, v3\n"
       "  v_permlane16_b32 v11, v11, s41, s40\n",
       [](const Lane& l, u32* out) {
         out[0] = l.of(int(l.index ^ 16), 0);
         out[1] = l.of(int((l.index & ~15u) | ((l.index + 8) & 15)), 1);
       }},
  };
}

std::vector<InstructionCase> operand_and_memory_cases() {
  return {
      {"packed_f32_uses_both_scalars", kCdna,
       "  v_pk_mul_f32 v[10:11], s[20:21], v[2:3]\n"
       "  v_pk_fma_f32 v[12:13], v[2:3], s[20:21], v[4:5] op_sel:[1,0,0] op_sel_hi:[0,1,1]\n",
       [](const Lane& l, u32* out) {
         out[0] = bits(mul(0x3f800000, l.v[0]));
         out[1] = bits(mul(0x40000000, l.v[1]));
         out[2] = bits(__builtin_fmaf(l.f(1), 1.0f, l.f(2)));
         out[3] = bits(__builtin_fmaf(l.f(0), 2.0f, l.f(3)));
       },
       0, true},
      {"sgpr_null_swallows",
       {"gfx1030", "gfx1100", "gfx1201"},
       "  v_add_co_u32 v10, null, v2, v3\n  s_mov_b32 null, s22\n  s_mov_b64 s[40:41], null\n"
       "  v_mov_b32 v11, s40\n  v_mov_b32 v12, null\n",
       [](const Lane& l, u32* out) {
         out[0] = l.v[0] + l.v[1];
         out[1] = 0;
         out[2] = 0;
       }},
      {"bpermute_reads_inactive_lanes_as_zero", kGcn,
       "  v_xor_b32 v15, 32, v0\n  v_lshlrev_b32 v15, 2, v15\n  s_mov_b64 exec, 0x0000ffff\n"
       "  ds_bpermute_b32 v10, v15, v2\n  s_waitcnt lgkmcnt(0)\n  s_mov_b64 exec, -1\n",
       [](const Lane& l, u32* out) { out[0] = l.index < 16 ? 0 : kPreset[0]; }},
      {"bpermute_reads_active_lanes", kGcn,
       "  v_xor_b32 v15, 5, v0\n  v_lshlrev_b32 v15, 2, v15\n  ds_bpermute_b32 v10, v15, v2\n",
       [](const Lane& l, u32* out) { out[0] = l.of(int(l.index ^ 5), 0); }},
      {"dot2_takes_constants",
       {"gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201"},
       "  v_mov_b32 v15, 0x40003c00\n"  // 1.0 and 2.0
       "  v_dot2_f32_f16 v10, v15, v15, 1.0\n  v_dot2_f32_f16 v11, v15, v15, s21\n"
       "  s_nop 4\n  v_dot2_f32_f16 v12, v15, v15, v10\n",
       [](const Lane&, u32* out) {
         out[0] = bits(6.0f);
         out[1] = bits(7.0f);
         out[2] = bits(11.0f);
       }},
      {"permlane16_swap",
       {"gfx950"},
       "  v_mov_b32 v10, v2\n  v_mov_b32 v11, v3\n  v_permlane16_swap_b32 v10, v11\n"
       "  v_mov_b32 v12, v2\n  v_mov_b32 v13, v3\n  v_permlane32_swap_b32 v12, v13\n",
       [](const Lane& l, u32* out) {
         const bool odd_row = (l.index & 16) != 0;
         out[0] = odd_row ? l.of(int(l.index - 16), 1) : l.v[0];
         out[1] = odd_row ? l.v[1] : l.of(int(l.index + 16), 0);
         const bool upper = l.index >= 32;
         out[2] = upper ? l.of(int(l.index - 32), 1) : l.v[0];
         out[3] = upper ? l.v[1] : l.of(int(l.index + 32), 0);
       }},
      {"load_to_lds_from_m0",
       {"gfx950", "gfx942"},
       "  v_lshlrev_b32 v15, 2, v0\n  s_mov_b32 m0, 0x100\n"
       "  global_load_lds_dword v15, s[8:9]\n  s_waitcnt vmcnt(0)\n"
       "  ds_read_b32 v10, v15 offset:256\n",
       [](const Lane& l, u32* out) { out[0] = l.v[0]; },
       0,
       false,
       false,
       1024},
      {"buffer_load_to_lds",
       {"gfx90a", "gfx942", "gfx950"},
       "  v_lshlrev_b32 v15, 2, v0\n  s_mov_b32 m0, 0\n  s_mov_b32 s44, s8\n  s_mov_b32 s45, s9\n"
       "  s_mov_b32 s46, 128\n  s_mov_b32 s47, 0x00027000\n"
       "  buffer_load_dword v15, s[44:47], 0 offen lds\n  s_waitcnt vmcnt(0)\n"
       "  ds_read_b32 v10, v15\n",
       // Half of the lanes are beyond num_records and load zeros.
       [](const Lane& l, u32* out) { out[0] = l.index < 32 ? l.v[0] : 0; },
       0,
       false,
       false,
       1024},
      {"buffer_bounds", kGcn,
       "  v_lshlrev_b32 v15, 2, v0\n  s_mov_b32 s44, s8\n  s_mov_b32 s45, s9\n"
       "  s_mov_b32 s46, 68\n  s_mov_b32 s47, 0x00027000\n"
       "  buffer_load_dword v10, v15, s[44:47], 0 offen\n"
       "  buffer_load_dwordx2 v[12:13], v15, s[44:47], 0 offen\n",
       [](const Lane& l, u32* out) {
         out[0] = l.index < 17 ? l.v[0] : 0;
         out[2] = out[0];
         out[3] = l.index < 16 ? l.of(int(l.index + 1), 0) : 0;
       }},
      {"agprs_hold_and_return",
       {"gfx908", "gfx90a", "gfx942", "gfx950"},
       "  v_accvgpr_write_b32 a5, v2\n  v_accvgpr_write_b32 a6, 1.0\n  s_nop 4\n"
       "  v_accvgpr_read_b32 v10, a5\n  v_accvgpr_read_b32 v11, a6\n",
       [](const Lane& l, u32* out) {
         out[0] = l.v[0];
         out[1] = 0x3f800000;
       }},
      {"ds_read_b64_tr_b16",
       {"gfx950"},
       "  v_lshlrev_b32 v15, 3, v0\n  ds_write_b64 v15, v[2:3]\n  s_waitcnt lgkmcnt(0)\n"
       "  ds_read_b64_tr_b16 v[10:11], v15\n",
       [](const Lane& l, u32* out) {
         u64 r = 0;
         for (int n = 0; n < 4; ++n) {
           const int from = int(((l.index & ~15u) | (l.index >> 2 & 3)) + 4 * u32(n));
           const u64 data = u64{l.of(from, 0)} | u64{l.of(from, 1)} << 32;
           r |= (data >> (16 * (l.index & 3)) & 0xffff) << (16 * n);
         }
         out[0] = u32(r);
         out[1] = u32(r >> 32);
       },
       0,
       false,
       false,
       512},
  };
}

const std::vector<InstructionCase>& cases() {
  static const std::vector<InstructionCase> list = [] {
    std::vector<InstructionCase> all = lds_and_cross_lane_cases();
    for (InstructionCase& c : operand_and_memory_cases()) all.push_back(std::move(c));
    return all;
  }();
  return list;
}

class Pitfall : public testing::TestWithParam<CaseOnTarget> {};
TEST_P(Pitfall, IsAvoided) { run_case(*GetParam().c, GetParam().target); }
INSTANTIATE_TEST_SUITE_P(All, Pitfall, testing::ValuesIn(flatten(cases())), case_name);

}  // namespace
}  // namespace rocflash::sim::test
