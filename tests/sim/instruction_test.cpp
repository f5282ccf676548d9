// Instruction semantics at their edges, table-driven. Expected values are computed here from the
// manuals' definitions, not by the simulator's code.
#include <cmath>

#include "instruction_harness.h"

namespace rocflash::sim::test {
namespace {

u32 bits(float x) { return std::bit_cast<u32>(x); }
u32 bits(f16 x) { return std::bit_cast<u16>(x); }
f16 half(u32 x) { return std::bit_cast<f16>(u16(x)); }
bool nan(u32 x) { return (x & 0x7fffffff) > 0x7f800000; }
bool signaling(u32 x) { return nan(x) && (x & 0x400000) == 0; }

u32 ieee_min(u32 a, u32 b) {
  if (signaling(a)) return a | 0x400000;
  if (signaling(b)) return b | 0x400000;
  if (nan(a)) return b;
  if (nan(b)) return a;
  const float x = std::bit_cast<float>(a);
  const float y = std::bit_cast<float>(b);
  if (x == y) return (a >> 31) != 0 ? a : b;
  return x < y ? a : b;
}

i32 to_i32(float x) {
  if (x != x) return 0;
  if (x >= 2147483648.0f) return std::numeric_limits<i32>::max();
  if (x <= -2147483648.0f) return std::numeric_limits<i32>::min();
  return i32(x);
}
u32 to_u32(float x) {
  if (!(x > 0)) return 0;
  if (x >= 4294967296.0f) return ~0u;
  return u32(x);
}

// Round a non-negative double to a multiple of 2^-24 ... as half, ties to even, by scaling.
u32 half_of(double x) {
  if (x != x) return 0x7e00;
  const u32 sign = std::signbit(x) ? 0x8000 : 0;
  double m = std::abs(x);
  if (m >= 65520) return sign | 0x7c00;
  int e = 0;
  std::frexp(m, &e);
  const int lsb = std::max(e - 11, -24);
  m = std::nearbyint(std::ldexp(m, -lsb));
  return sign | bits(f16(std::ldexp(m, lsb)));
}

bool flushes(u32 x) { return (x & 0x7f800000) == 0 && (x & 0x7fffff) != 0; }

const std::vector<const char*> kOldCarry = {"gfx90a", "gfx942"};

// Of 64-bit numbers in pairs of registers.
void sum_and_difference(const Lane& l, u32* out) {
  const u64 a = u64{l.v[0]} | u64{l.v[1]} << 32, b = u64{l.v[2]} | u64{l.v[3]} << 32;
  out[0] = u32(a + b);
  out[1] = u32((a + b) >> 32);
  out[2] = u32(a - b);
  out[3] = u32((a - b) >> 32);
}

std::vector<InstructionCase> float_cases() {
  return {
      {"add_f32", kAll, "  v_add_f32 v10, v2, v3\n  v_sub_f32 v11, v2, v3\n",
       [](const Lane& l, u32* o) {
         o[0] = bits(l.f(0) + l.f(1));
         o[1] = bits(l.f(0) - l.f(1));
       },
       0, true},
      {"mul_fma_f32", kAll, "  v_mul_f32 v10, v2, v3\n  v_fma_f32 v11, v2, v3, v4\n",
       [](const Lane& l, u32* o) {
         o[0] = bits(l.f(0) * l.f(1));
         o[1] = bits(std::fma(l.f(0), l.f(1), l.f(2)));
       },
       0, true},
      {"modifiers_f32", kAll,
       "  v_add_f32 v10, -v2, |v3|\n  v_mul_f32 v11, v2, v3 clamp\n  v_add_f32 v12, v2, v3 mul:2\n"
       "  v_add_f32 v13, -|v2|, 0.5 div:2\n",
       [](const Lane& l, u32* o) {
         o[0] = bits(-l.f(0) + std::abs(l.f(1)));
         const float p = l.f(0) * l.f(1);
         o[1] = bits(p > 0 ? std::min(p, 1.0f) : 0.0f);
         o[2] = bits((l.f(0) + l.f(1)) * 2);
         o[3] = bits((-std::abs(l.f(0)) + 0.5f) * 0.5f);
       },
       0, true},
      {"min_f32",
       {"gfx90a", "gfx942", "gfx1030", "gfx1100"},
       "  v_min_f32 v10, v2, v3\n",
       [](const Lane& l, u32* o) { o[0] = ieee_min(l.v[0], l.v[1]); },
       0,
       true},
      {"min_num_f32",
       {"gfx1201"},
       "  v_min_num_f32 v10, v2, v3\n  v_minimum_f32 v11, v2, v3\n",
       [](const Lane& l, u32* o) {
         o[0] = nan(l.v[0]) ? l.v[1] : nan(l.v[1]) ? l.v[0] : ieee_min(l.v[0], l.v[1]);
         o[1] = nan(l.v[0]) || nan(l.v[1]) ? 0x7fc00000 : ieee_min(l.v[0], l.v[1]);
       },
       0,
       true},
      {"med3_f32",
       {"gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100"},
       "  v_med3_f32 v10, v2, v3, v4\n",
       [](const Lane& l, u32* o) {
         if (nan(l.v[0]) || nan(l.v[1]) || nan(l.v[2])) {
           o[0] = ieee_min(ieee_min(l.v[0], l.v[1]), l.v[2]);
           return;
         }
         std::array<u32, 3> x = {l.v[0], l.v[1], l.v[2]};
         std::sort(x.begin(), x.end(), [](u32 a, u32 b) {
           const float p = std::bit_cast<float>(a);
           const float q = std::bit_cast<float>(b);
           return p < q || (p == q && std::signbit(p) && !std::signbit(q));
         });
         o[0] = x[1];
       },
       0,
       true},
      {"rounding_f32", kAll,
       "  v_floor_f32 v10, v2\n  v_ceil_f32 v11, v2\n  v_trunc_f32 v12, v2\n  v_rndne_f32 v13, "
       "v2\n",
       [](const Lane& l, u32* o) {
         o[0] = bits(std::floor(l.f(0)));
         o[1] = bits(std::ceil(l.f(0)));
         o[2] = bits(std::trunc(l.f(0)));
         o[3] = bits(std::nearbyint(l.f(0)));
       },
       0, true},
      {"float_to_integer", kAll, "  v_cvt_i32_f32 v10, v2\n  v_cvt_u32_f32 v11, v2\n",
       [](const Lane& l, u32* o) {
         o[0] = u32(to_i32(l.f(0)));
         o[1] = to_u32(l.f(0));
       },
       0, true},
      {"float_to_half",
       {"gfx1030", "gfx1100", "gfx1201"},
       "  v_cvt_f16_f32 v10, v2\n",
       [](const Lane& l, u32* o) {
         o[0] = (kPreset[0] & 0xffff0000) | half_of(double(l.f(0)));
         if (nan(l.v[0]))
           o[0] = (kPreset[0] & 0xffff0000) | (l.v[0] >> 16 & 0x8000) | 0x7e00 |
                  (l.v[0] >> 13 & 0x3ff);
       },
       0,
       true},
      {"float_to_half_zeroes_gfx9", kGcn, "  v_cvt_f16_f32 v10, v2\n",
       [](const Lane& l, u32* o) {
         o[0] = half_of(double(l.f(0)));
         if (nan(l.v[0])) o[0] = (l.v[0] >> 16 & 0x8000) | 0x7e00 | (l.v[0] >> 13 & 0x3ff);
       },
       0, true},
      {"compare_f32_classes", kAll,
       "  s_movk_i32 s40, 0x3\n  v_cmp_class_f32 @vcc, v2, s40\n  v_cndmask_b32 v10, 0, 1, @vcc\n"
       "  s_movk_i32 s40, 0x204\n  v_cmp_class_f32 @vcc, v2, s40\n"
       "  v_cndmask_b32 v11, 0, 1, @vcc\n  s_movk_i32 s40, 0x90\n"
       "  v_cmp_class_f32 @vcc, v2, s40\n  v_cndmask_b32 v12, 0, 1, @vcc\n"
       "  v_cmp_nlt_f32 @vcc, v2, v3\n  v_cndmask_b32 v13, 0, 1, @vcc\n",
       [](const Lane& l, u32* o) {
         o[0] = nan(l.v[0]);
         o[1] = std::isinf(l.f(0));
         o[2] = flushes(l.v[0]);
         o[3] = !(l.f(0) < l.f(1));
       },
       0, true},
      {"ldexp_frexp", kAll,
       "  v_ldexp_f32 v10, v2, 3\n  v_frexp_exp_i32_f32 v11, v2\n  v_frexp_mant_f32 v12, v2\n",
       [](const Lane& l, u32* o) {
         o[0] = bits(std::ldexp(l.f(0), 3));
         int e = 0;
         const float m = std::frexp(l.f(0), &e);
         const bool odd = !std::isfinite(l.f(0)) || l.f(0) == 0;
         o[1] = odd ? 0 : u32(e);
         o[2] = odd ? l.v[0] : bits(m);
       },
       0, true},
      {"transcendentals_flush", kAll,
       "  v_mov_b32 v15, 1\n  v_rcp_f32 v10, v15\n  v_mov_b32 v15, 0x7f000000\n"
       "  v_rcp_f32 v11, v15\n  v_mov_b32 v15, 0xc3000000\n  v_exp_f32 v12, v15\n"
       "  v_mov_b32 v15, 1.0\n  v_log_f32 v13, v15\n",
       [](const Lane&, u32* o) {
         o[0] = 0x7f800000;  // 1 / denormal
         o[1] = 0;           // a denormal result
         o[2] = 0;           // 2^-128
         o[3] = 0;
       }},
      {"mode_round_toward_zero", kAll,
       "  s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 2), 3\n  v_add_f32 v10, v2, v3\n"
       "  s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 2), 0\n  v_add_f32 v11, v2, v3\n",
       [](const Lane& l, u32* o) {
         const float nearest = l.f(0) + l.f(1);
         o[1] = bits(nearest);
         o[0] = o[1];
         // Step back where rounding went away from zero: the error term is exact (two-sum).
         const float a = l.f(0), b = l.f(1);
         const float b_part = nearest - a;
         const float error = (a - (nearest - b_part)) + (b - b_part);
         const bool overflow = std::isinf(nearest) && std::isfinite(a) && std::isfinite(b);
         if (overflow || (std::isfinite(nearest) && error != 0 &&
                          std::signbit(error) != std::signbit(nearest))) {
           --o[0];
         }
       },
       0, true},
      {"mode_flush_denormals", kAll,
       "  s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 2), 0\n  v_mul_f32 v10, 1.0, v2\n"
       "  s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 2), 3\n  v_mul_f32 v11, 1.0, v2\n",
       [](const Lane& l, u32* o) {
         o[0] = flushes(l.v[0]) ? l.v[0] & 0x80000000 : l.v[0];
         o[1] = l.v[0];
       },
       0, true},
  };
}

std::vector<InstructionCase> packed_cases() {
  return {
      {"packed_f16", kAll, "  v_pk_add_f16 v10, v2, v3\n  v_pk_mul_f16 v11, v2, v3 neg_lo:[1,0]\n",
       [](const Lane& l, u32* o) {
         for (int h = 0; h < 2; ++h) {
           const f16 a = half(l.v[0] >> (16 * h));
           const f16 b = half(l.v[1] >> (16 * h));
           const f16 sum = f16(float(a) + float(b));
           const f16 product = f16((h == 0 ? -float(a) : float(a)) * float(b));
           const u32 keep = h == 0 ? 0xffff0000u : 0xffffu;
           o[0] = (o[0] & keep) | (bits(sum) & 0xffff) << (16 * h);
           o[1] = (o[1] & keep) | (bits(product) & 0xffff) << (16 * h);
         }
       }},
      {"packed_f16_op_sel",
       {"gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1201"},
       "  v_pk_add_u16 v10, v2, v3 op_sel:[1,0] op_sel_hi:[0,1]\n  v_pk_add_u16 v11, v2, v3 clamp\n"
       "  v_pk_lshlrev_b16 v12, 4, v2\n  v_pk_max_i16 v13, v2, v3\n",
       [](const Lane& l, u32* o) {
         const u32 al = l.v[0] & 0xffff, ah = l.v[0] >> 16, bl = l.v[1] & 0xffff, bh = l.v[1] >> 16;
         o[0] = ((ah + bl) & 0xffff) | (al + bh) << 16;
         o[1] = std::min(al + bl, 0xffffu) | std::min(ah + bh, 0xffffu) << 16;
         // An integer constant is 4 in the low half and 0 in the high one.
         o[2] = ((al << 4) & 0xffff) | ah << 16;
         o[3] = u32(u16(std::max(i16(al), i16(bl)))) | u32(u16(std::max(i16(ah), i16(bh)))) << 16;
       }},
      {"fma_mix",
       {"gfx90a", "gfx942", "gfx950"},
       "  v_fma_mix_f32 v10, v2, v3, v4 op_sel:[1,0,0] op_sel_hi:[1,1,0]\n",
       [](const Lane& l, u32* o) {
         o[0] = bits(std::fma(float(half(l.v[0] >> 16)), float(half(l.v[1])), l.f(2)));
       },
       0,
       true},
  };
}

std::vector<InstructionCase> integer_cases() {
  return {
      {"shifts_mask_the_amount", kAll,
       "  v_lshlrev_b32 v10, v3, v2\n  v_ashrrev_i32 v11, 33, v2\n  v_lshrrev_b64 v[12:13], v4, "
       "v[2:3]\n",
       [](const Lane& l, u32* o) {
         o[0] = l.v[0] << (l.v[1] & 31);
         o[1] = u32(i32(l.v[0]) >> 1);
         const u64 x = (u64{l.v[0]} | u64{l.v[1]} << 32) >> (l.v[2] & 63);
         o[2] = u32(x);
         o[3] = u32(x >> 32);
       }},
      {"bit_fields", kAll,
       "  v_bfe_u32 v10, v2, v3, v4\n  v_bfe_i32 v11, v2, 4, 9\n  v_bfi_b32 v12, v2, v3, v4\n"
       "  v_alignbit_b32 v13, v2, v3, v4\n",
       [](const Lane& l, u32* o) {
         const u32 width = l.v[2] & 31;
         o[0] = (l.v[0] >> (l.v[1] & 31)) & ((1u << width) - 1);
         o[1] = u32(i32(l.v[0] << 19) >> 23);
         o[2] = (l.v[0] & l.v[1]) | (~l.v[0] & l.v[2]);
         o[3] = u32((u64{l.v[0]} << 32 | l.v[1]) >> (l.v[2] & 31));
       }},
      {"counting", kAll,
       "  v_bcnt_u32_b32 v10, v2, v3\n  v_mbcnt_lo_u32_b32 v11, v2, v3\n  v_bfrev_b32 v12, v2\n",
       [](const Lane& l, u32* o) {
         o[0] = u32(std::popcount(l.v[0])) + l.v[1];
         const u32 below = l.index >= 32 ? ~0u : (1u << l.index) - 1;
         o[1] = u32(std::popcount(l.v[0] & below)) + l.v[1];
         u32 r = 0;
         for (int i = 0; i < 32; ++i) r |= (l.v[0] >> i & 1) << (31 - i);
         o[2] = r;
       }},
      {"multiply", kAll,
       "  v_mul_lo_u32 v10, v2, v3\n  v_mul_hi_i32 v11, v2, v3\n  v_mul_u32_u24 v12, v2, v3\n"
       "  v_mad_i32_i24 v13, v2, v3, v4\n",
       [](const Lane& l, u32* o) {
         o[0] = l.v[0] * l.v[1];
         o[1] = u32(u64(i64(i32(l.v[0])) * i32(l.v[1])) >> 32);
         o[2] = u32(u64(l.v[0] & 0xffffff) * (l.v[1] & 0xffffff));
         const auto s = [](u32 x) { return i64(i32(x << 8) >> 8); };
         o[3] = u32(s(l.v[0]) * s(l.v[1])) + l.v[2];
       }},
      {"carry_chain", kOldCarry,
       "  v_add_co_u32 v10, vcc, v2, v4\n  v_addc_co_u32 v11, vcc, v3, v5, vcc\n"
       "  v_sub_co_u32 v12, vcc, v2, v4\n  v_subb_co_u32 v13, vcc, v3, v5, vcc\n",
       sum_and_difference},
      {"carry_chain",
       {"gfx1030", "gfx1100", "gfx1201"},
       "  v_add_co_u32 v10, vcc_lo, v2, v4\n  v_add_co_ci_u32 v11, vcc_lo, v3, v5, vcc_lo\n"
       "  v_sub_co_u32 v12, vcc_lo, v2, v4\n  v_sub_co_ci_u32 v13, vcc_lo, v3, v5, vcc_lo\n",
       sum_and_difference},
      {"perm_bytes", kAll,
       "  s_mov_b32 s40, 0x0c070100\n  v_perm_b32 v10, v2, v3, s40\n  s_mov_b32 s40, 0x0d0b0804\n"
       "  v_perm_b32 v11, v2, v3, s40\n",
       [](const Lane& l, u32* o) {
         o[0] = (l.v[1] & 0xffff) | (l.v[0] >> 24) << 16;
         o[1] = (l.v[0] & 0xff) | ((l.v[1] >> 15 & 1) != 0 ? 0xff00u : 0) |
                ((l.v[0] >> 31) != 0 ? 0xff0000u : 0) | 0xff000000u;
       }},
      {"saturating", kAll, "  v_add_u32_e64 v10, v2, v3 clamp\n  v_sub_u32_e64 v11, v2, v3 clamp\n",
       [](const Lane& l, u32* o) {
         o[0] = u32(std::min<u64>(u64{l.v[0]} + l.v[1], ~0u));
         o[1] = l.v[0] < l.v[1] ? 0 : l.v[0] - l.v[1];
       }},
      {"dot4",
       {"gfx90a", "gfx942", "gfx950", "gfx1030"},
       "  v_dot4_i32_i8 v10, v2, v3, v4\n  v_dot4_u32_u8 v11, v2, v3, v4\n",
       [](const Lane& l, u32* o) {
         u32 s = l.v[2];
         u32 u = l.v[2];
         for (int i = 0; i < 32; i += 8) {
           s += u32(i32(i8(l.v[0] >> i)) * i32(i8(l.v[1] >> i)));
           u += (l.v[0] >> i & 0xff) * (l.v[1] >> i & 0xff);
         }
         o[0] = s;
         o[1] = u;
       }},
  };
}

std::vector<InstructionCase> exec_cases() {
  return {
      {"exec_masks_writes", kAll,
       "  s_mov_@mask @exec, 0x00ff00f0\n  v_mov_b32 v10, 7\n  s_mov_@mask @exec, 0\n"
       "  v_mov_b32 v11, 7\n  s_mov_@mask @exec, -1\n",
       [](const Lane& l, u32* o) {
         if ((0x00ff00f0ull >> l.index & 1) != 0) o[0] = 7;
       }},
      {"compare_ignores_inactive", kAll,
       "  s_mov_@mask @exec, 15\n  v_cmp_ge_u32 @vcc, v2, v2\n  s_mov_@mask @exec, -1\n"
       "  v_cndmask_b32 v10, 0, 1, @vcc\n",
       [](const Lane& l, u32* o) { o[0] = l.index < 4; }},
      {"readlane_writelane", kAll,
       "  v_readlane_b32 s40, v2, 3\n  v_mov_b32 v10, s40\n  s_nop 4\n  v_writelane_b32 v11, s22, "
       "7\n"
       "  v_readfirstlane_b32 s41, v3\n  v_mov_b32 v12, s41\n",
       [](const Lane& l, u32* o) {
         o[0] = l.of(3, 0);
         if (l.index == 7) o[1] = 5;
         o[2] = l.of(0, 1);
       }},
      {"swizzle", kAll,
       "  ds_swizzle_b32 v10, v2 offset:swizzle(BITMASK_PERM,\"0pp1p\")\n"
       "  ds_swizzle_b32 v11, v2 offset:swizzle(QUAD_PERM,2,3,0,1)\n",
       [](const Lane& l, u32* o) {
         const u32 within = l.index & 31;
         o[0] = l.of(int((l.index & 32) | ((within & 0x0d) | 0x02)), 0);
         o[1] = l.of(int(l.index ^ 2), 0);
       }},
  };
}

std::vector<InstructionCase> dpp_and_sdwa_cases() {
  return {
      {"dpp_bounds", kAll,
       "  v_mov_b32_dpp v10, v2 row_shr:3 row_mask:0xf bank_mask:0xf bound_ctrl:1\n"
       "  v_mov_b32_dpp v11, v2 row_shl:2 row_mask:0xf bank_mask:0xf\n"
       "  v_mov_b32_dpp v12, v2 row_mirror row_mask:0x1 bank_mask:0x5\n",
       [](const Lane& l, u32* o) {
         const u32 r = l.index & 15;
         o[0] = r >= 3 ? l.of(int(l.index - 3), 0) : 0;
         if (r < 14) o[1] = l.of(int(l.index + 2), 0);
         if (l.index < 16 && (0x5 >> (r / 4) & 1) != 0) o[2] = l.of(int(15 - r), 0);
       }},
      {"dpp_broadcast", kGcn,
       "  v_mov_b32_dpp v10, v2 row_bcast:15 row_mask:0xa bank_mask:0xf\n"
       "  v_mov_b32_dpp v11, v2 row_bcast:31 row_mask:0xc bank_mask:0xf\n"
       "  v_mov_b32_dpp v12, v2 wave_shr:1 row_mask:0xf bank_mask:0xf\n",
       [](const Lane& l, u32* o) {
         if ((l.index & 16) != 0) o[0] = l.of(int((l.index & ~15u) - 1), 0);
         if (l.index >= 32) o[1] = l.of(31, 0);
         if (l.index >= 1) o[2] = l.of(int(l.index - 1), 0);
       }},
      {"dpp_rdna", kRdna,
       "  v_mov_b32_dpp v10, v2 row_share:5 row_mask:0xf bank_mask:0xf\n"
       "  v_mov_b32_dpp v11, v2 row_xmask:3 row_mask:0xf bank_mask:0xf\n"
       "  v_mov_b32_dpp v12, v2 dpp8:[7,6,5,4,3,2,1,0]\n",
       [](const Lane& l, u32* o) {
         o[0] = l.of(int((l.index & ~15u) + 5), 0);
         o[1] = l.of(int(l.index ^ 3), 0);
         o[2] = l.of(int((l.index & ~7u) + 7 - (l.index & 7)), 0);
       }},
      {"sdwa",
       {"gfx90a", "gfx942", "gfx950", "gfx1030"},
       "  v_mov_b32_sdwa v10, v2 dst_sel:BYTE_1 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_3\n"
       "  v_and_b32_sdwa v11, v2, v3 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 "
       "src1_sel:BYTE_0\n"
       "  v_mov_b32_sdwa v12, sext(v2) dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_0\n",
       [](const Lane& l, u32* o) {
         o[0] = (kPreset[0] & ~0xff00u) | (l.v[0] >> 24) << 8;
         o[1] = (l.v[0] >> 16) & (l.v[1] & 0xff);
         o[2] = u32(i32(i16(l.v[0])));
       }},
      {"dual_issue_reads_first",
       {"gfx1100", "gfx1201"},
       "  v_mov_b32 v10, v2\n  v_mov_b32 v11, v3\n"
       "  v_dual_mov_b32 v10, v11 :: v_dual_mov_b32 v11, v10\n",
       [](const Lane& l, u32* o) {
         o[0] = l.v[1];
         o[1] = l.v[0];
       }},
      {"true16_halves",
       {"gfx1100"},
       "  v_mov_b16 v10.h, v2.l\n  v_add_f16 v11.l, v2.h, v3.l\n",
       [](const Lane& l, u32* o) {
         o[0] = (kPreset[0] & 0xffff) | l.v[0] << 16;
         o[1] =
             (kPreset[1] & 0xffff0000) | bits(f16(float(half(l.v[0] >> 16)) + float(half(l.v[1]))));
       },
       0,
       false,
       false},
      {"op_sel_of_16_bit",
       {"gfx90a", "gfx942", "gfx1030"},
       "  v_mad_u16 v10, v2, v3, v4 op_sel:[1,0,0,0]\n"
       "  v_mad_u16 v11, v2, v3, v4 op_sel:[0,1,0,1]\n",
       [](const Lane& l, u32* o) {
         const u32 low = ((l.v[0] >> 16) * (l.v[1] & 0xffff) + l.v[2]) & 0xffff;
         const u32 high = ((l.v[0] & 0xffff) * (l.v[1] >> 16) + l.v[2]) & 0xffff;
         o[0] = (kPreset[0] & 0xffff0000) | low;
         o[1] = (kPreset[1] & 0xffff) | high << 16;
       }},
      {"legacy_16_bit_clears_the_upper_half",
       {"gfx90a", "gfx942", "gfx950"},
       "  v_mad_legacy_u16 v10, v2, v3, v4\n  v_mad_legacy_i16 v11, v2, v3, v4\n",
       [](const Lane& l, u32* o) {
         o[0] = ((l.v[0] & 0xffff) * (l.v[1] & 0xffff) + l.v[2]) & 0xffff;
         o[1] = o[0];
       }},
  };
}

std::vector<InstructionCase> rdna_wave64_cases() {
  return {
      {"wave64_masks", kRdna,
       "  v_cmp_gt_u32 vcc, v2, v3\n  v_cndmask_b32 v10, 0, 1, vcc\n  s_bcnt1_i32_b64 s40, exec\n"
       "  v_mov_b32 v11, s40\n  v_mbcnt_lo_u32_b32 v12, -1, 0\n  v_mbcnt_hi_u32_b32 v12, -1, v12\n",
       [](const Lane& l, u32* o) {
         o[0] = l.v[0] > l.v[1];
         o[1] = 64;
         o[2] = l.index;
       },
       64},
      {"permlane64",
       {"gfx1100", "gfx1201"},
       "  v_permlane64_b32 v10, v2\n",
       [](const Lane& l, u32* o) { o[0] = l.of(int(l.index ^ 32), 0); },
       64},
  };
}

std::vector<InstructionCase> scalar_cases() {
  return {
      {"scalar_arithmetic", kAll,
       "  s_add_u32 s40, s24, s25\n  s_addc_u32 s41, s23, s23\n  v_mov_b32 v10, s40\n"
       "  v_mov_b32 v11, s41\n  s_bfe_i32 s42, s25, 0x80008\n  v_mov_b32 v12, s42\n"
       "  s_lshl_b32 s43, s24, s27\n  v_mov_b32 v13, s43\n",
       [](const Lane& l, u32* o) {
         const auto& s = *l.s;
         const u64 sum = u64{s[4]} + s[5];
         o[0] = u32(sum);
         o[1] = s[3] + s[3] + u32(sum >> 32);
         o[2] = u32(i32(s[5] << 16) >> 24);
         o[3] = s[4] << (s[7] & 31);
       }},
      {"scalar_select_and_count", kAll,
       "  s_cmp_gt_i32 s22, s23\n  s_cselect_b32 s40, s24, s25\n  v_mov_b32 v10, s40\n"
       "  s_bcnt1_i32_b32 s41, s26\n  v_mov_b32 v11, s41\n  s_not_b32 s42, s24\n"
       "  v_mov_b32 v12, s42\n  s_sext_i32_i16 s43, s25\n  v_mov_b32 v13, s43\n",
       [](const Lane& l, u32* o) {
         const auto& s = *l.s;
         o[0] = i32(s[2]) > i32(s[3]) ? s[4] : s[5];
         o[1] = u32(std::popcount(s[6]));
         o[2] = ~s[4];
         o[3] = u32(i32(i16(s[5])));
       }},
      {"scalar_float",
       {"gfx1201", "gfx1151"},
       "  s_add_f32 s40, s20, s21\n  v_mov_b32 v10, s40\n  s_mul_f32 s41, s21, s21\n"
       "  v_mov_b32 v11, s41\n  s_cmp_lt_f32 s20, s21\n  s_cselect_b32 s42, 1, 0\n"
       "  v_mov_b32 v12, s42\n  s_cvt_i32_f32 s43, s21\n  v_mov_b32 v13, s43\n",
       [](const Lane&, u32* o) {
         o[0] = bits(3.0f);
         o[1] = bits(4.0f);
         o[2] = 1;
         o[3] = 2;
       }},
  };
}

const std::vector<InstructionCase>& cases() {
  static const std::vector<InstructionCase> list = [] {
    std::vector<InstructionCase> all;
    for (const auto group : {float_cases, packed_cases, integer_cases, exec_cases,
                             dpp_and_sdwa_cases, rdna_wave64_cases, scalar_cases}) {
      for (InstructionCase& c : group()) all.push_back(std::move(c));
    }
    return all;
  }();
  return list;
}

class InstructionTable : public testing::TestWithParam<CaseOnTarget> {};

// Masks and exec have other names in wave32.
TEST_P(InstructionTable, FollowsTheManual) {
  InstructionCase c = *GetParam().c;
  const bool cdna = std::string(GetParam().target).starts_with("gfx9");
  const AsmSyntax d{GetParam().target, c.wave != 0 ? c.wave : cdna ? 64 : 32};
  const auto replace = [&](const std::string& from, const std::string& to) {
    for (auto at = c.body.find(from); at != c.body.npos; at = c.body.find(from, at + to.size())) {
      c.body.replace(at, from.size(), to);
    }
  };
  replace("@vcc", d.vcc());
  replace("@exec", d.exec());
  replace("@mask", d.mask_bits());
  if (!d.gfx9()) {
    replace("v_add_u32_e64", "v_add_nc_u32_e64");
    replace("v_sub_u32_e64", "v_sub_nc_u32_e64");
  }
  run_case(c, GetParam().target);
}

INSTANTIATE_TEST_SUITE_P(All, InstructionTable, testing::ValuesIn(flatten(cases())), case_name);

}  // namespace
}  // namespace rocflash::sim::test
