// VOP2 and its VOP3 encodings: two-operand VALU arithmetic.
#include <array>

#include "isa/elementwise.h"
#include "isa/lane_math.h"

namespace rocflash::sim {
namespace {

// Sum with carry in lane masks. F yields 33 bits: the result and, in bit 32, carry or borrow.
template <auto F>
void carry(Lanes& l) {
  Vgpr flags;
  for (int i = 0; i < l.n; ++i) {
    const u64 r = F(l.lo[0][i], l.lo[1][i], u32(l.mask_in >> i & 1));
    l.d[i] = u32(r);
    flags.lane[i] = (r >> 32) & 1 ? ~0u : 0u;
    if (l.clamp && flags.lane[i] != 0) l.d[i] = F(0u, 1u, 0u) >> 32 != 0 ? 0u : ~0u;
  }
  l.mask_out = pack_mask(flags.lane, l.n);
}

template <auto F>
Semantics carry_out(bool mask_in) {
  Semantics s = computed(carry<F>, Type::B32, {Type::B32, Type::B32, Type::Mask}, mask_in ? 3 : 2);
  s.propagation = Propagation::Add;
  s.flags = flag::kMaskOut | (mask_in ? flag::kMaskIn : 0);
  return s;
}

template <typename T>
void select(Lanes& l) {
  const u64 mask = l.mask_in;
  for (int i = 0; i < l.n; ++i) l.d[i] = (mask >> i & 1) != 0 ? l.lo[1][i] : l.lo[0][i];
}

Semantics conditional(Type type) {
  Semantics s = computed(select<u32>, type, {type, type, Type::Mask}, 3);
  s.propagation = Propagation::Route;
  s.flags = flag::kMaskIn;
  return s;
}

constexpr auto kFmaF32 = [](float a, float b, float c) { return __builtin_fmaf(a, b, c); };
constexpr auto kMadF32 = [](float a, float b, float c) { return a * b + c; };
constexpr auto kFmaF16 = [](f16 a, f16 b, f16 c) { return fma_half(a, b, c); };

// Names in this order: min, max, min_num, max_num, minimum, maximum.
template <typename T>
void add_extremes(Registry& r, const std::array<std::string_view, 6>& names) {
  r.add(names[0], vop<[](T a, T b) { return ieee_min(a, b); }>());
  r.add(names[1], vop<[](T a, T b) { return ieee_max(a, b); }>());
  r.add(names[2], vop<[](T a, T b) { return number_min(a, b); }>());
  r.add(names[3], vop<[](T a, T b) { return number_max(a, b); }>());
  r.add(names[4], vop<[](T a, T b) { return nan_min(a, b); }>());
  r.add(names[5], vop<[](T a, T b) { return nan_max(a, b); }>());
}

void add_float(Registry& r) {
  r.add("v_add_f32", vop<[](float a, float b) { return a + b; }>());
  r.add("v_sub_f32", vop<[](float a, float b) { return a - b; }>());
  r.add("v_subrev_f32", vop<[](float a, float b) { return b - a; }>());
  r.add("v_mul_f32", vop<[](float a, float b) { return a * b; }>());
  r.add("v_mul_legacy_f32|v_mul_dx9_zero_f32",
        vop<[](float a, float b) { return a == 0 || b == 0 ? 0.0f : a * b; }>());
  add_extremes<float>(r, {"v_min_f32", "v_max_f32", "v_min_num_f32", "v_max_num_f32",
                          "v_minimum_f32", "v_maximum_f32"});
  r.add("v_fmac_f32", vop<kFmaF32>(Propagation::Any, flag::kAccumulate));
  r.add("v_mac_f32", vop<kMadF32>(Propagation::Any, flag::kAccumulate));
  r.add(
      "v_fmac_dx9_zero_f32|v_fmac_legacy_f32",
      vop<[](float a, float b, float c) { return a == 0 || b == 0 ? c : __builtin_fmaf(a, b, c); }>(
          Propagation::Any, flag::kAccumulate));
  r.add("v_fmaak_f32|v_fmamk_f32", vop<kFmaF32>());
  r.add("v_madak_f32|v_madmk_f32", vop<kMadF32>());
  r.add("v_ldexp_f32", vop<[](float a, i32 e) { return scale_float(a, e); }>());

  r.add("v_add_f16", vop<[](f16 a, f16 b) { return f16(float(a) + float(b)); }>());
  r.add("v_sub_f16", vop<[](f16 a, f16 b) { return f16(float(a) - float(b)); }>());
  r.add("v_subrev_f16", vop<[](f16 a, f16 b) { return f16(float(b) - float(a)); }>());
  r.add("v_mul_f16", vop<[](f16 a, f16 b) { return f16(float(a) * float(b)); }>());
  add_extremes<f16>(r, {"v_min_f16", "v_max_f16", "v_min_num_f16", "v_max_num_f16", "v_minimum_f16",
                        "v_maximum_f16"});
  r.add("v_fmac_f16|v_mac_f16",
        vop<kFmaF16>(Propagation::Any, flag::kAccumulate | flag::kKeepsHigh9));
  r.add("v_fmaak_f16|v_fmamk_f16|v_madak_f16|v_madmk_f16",
        vop<kFmaF16>(Propagation::Any, flag::kKeepsHigh9));
  r.add("v_ldexp_f16", vop<[](f16 a, i16 e) {
          return to_half(std::ldexp(double(a), std::clamp(int(e), -100, 100)));
        }>());

  r.add("v_add_f64", vop<[](double a, double b) { return a + b; }>());
  r.add("v_mul_f64", vop<[](double a, double b) { return a * b; }>());
  add_extremes<double>(r, {"v_min_f64", "v_max_f64", "v_min_num_f64", "v_max_num_f64",
                           "v_minimum_f64", "v_maximum_f64"});
  r.add("v_fmac_f64", vop<[](double a, double b, double c) { return __builtin_fma(a, b, c); }>(
                          Propagation::Any, flag::kAccumulate));
  r.add("v_ldexp_f64", vop<[](double a, i32 e) { return std::ldexp(a, e); }>());
}

void add_integer(Registry& r) {
  r.add("v_add_u32|v_add_nc_u32",
        vop_clamp<[](u32 a, u32 b) { return a + b; },
                  [](u32 a, u32 b) { return a + b < a ? ~0u : a + b; }>(Propagation::Add));
  r.add("v_sub_u32|v_sub_nc_u32",
        vop_clamp<[](u32 a, u32 b) { return a - b; },
                  [](u32 a, u32 b) { return a < b ? 0u : a - b; }>(Propagation::Add));
  r.add("v_subrev_u32|v_subrev_nc_u32",
        vop_clamp<[](u32 a, u32 b) { return b - a; },
                  [](u32 a, u32 b) { return b < a ? 0u : b - a; }>(Propagation::Add));
  r.add("v_add_i32|v_add_nc_i32",
        vop_clamp<[](i32 a, i32 b) { return i32(u32(a) + u32(b)); },
                  [](i32 a, i32 b) { return clamp_to<i32>(i64(a) + b); }>(Propagation::Add));
  r.add("v_sub_i32|v_sub_nc_i32",
        vop_clamp<[](i32 a, i32 b) { return i32(u32(a) - u32(b)); },
                  [](i32 a, i32 b) { return clamp_to<i32>(i64(a) - b); }>(Propagation::Add));
  r.add("v_add_nc_u64|v_add_u64", vop<[](u64 a, u64 b) { return a + b; }>(Propagation::Add));
  r.add("v_add_co_u32", carry_out<[](u32 a, u32 b, u32) { return u64{a} + b; }>(false));
  r.add("v_sub_co_u32", carry_out<[](u32 a, u32 b, u32) { return u64{a} - b; }>(false));
  r.add("v_subrev_co_u32", carry_out<[](u32 a, u32 b, u32) { return u64{b} - a; }>(false));
  r.add("v_addc_co_u32|v_add_co_ci_u32",
        carry_out<[](u32 a, u32 b, u32 c) { return u64{a} + b + c; }>(true));
  r.add("v_subb_co_u32|v_sub_co_ci_u32",
        carry_out<[](u32 a, u32 b, u32 c) { return u64{a} - b - c; }>(true));
  r.add("v_subbrev_co_u32|v_subrev_co_ci_u32",
        carry_out<[](u32 a, u32 b, u32 c) { return u64{b} - a - c; }>(true));

  r.add("v_and_b32", vop<[](u32 a, u32 b) { return a & b; }>(Propagation::And));
  r.add("v_or_b32", vop<[](u32 a, u32 b) { return a | b; }>(Propagation::Or));
  r.add("v_xor_b32", vop<[](u32 a, u32 b) { return a ^ b; }>(Propagation::Bitwise));
  r.add("v_xnor_b32", vop<[](u32 a, u32 b) { return ~(a ^ b); }>(Propagation::Bitwise));
  r.add("v_and_b16", vop<[](u16 a, u16 b) { return u16(a & b); }>(Propagation::And));
  r.add("v_or_b16", vop<[](u16 a, u16 b) { return u16(a | b); }>(Propagation::Or));
  r.add("v_xor_b16", vop<[](u16 a, u16 b) { return u16(a ^ b); }>(Propagation::Bitwise));

  r.add("v_lshlrev_b32", vop<[](u32 s, u32 v) { return v << (s & 31); }>(Propagation::Route, 0, 1));
  r.add("v_lshrrev_b32", vop<[](u32 s, u32 v) { return v >> (s & 31); }>(Propagation::Route, 0, 1));
  r.add("v_ashrrev_i32", vop<[](u32 s, i32 v) { return v >> (s & 31); }>(Propagation::Route, 0, 1));
  r.add("v_lshlrev_b16",
        vop<[](u16 s, u16 v) { return u16(v << (s & 15)); }>(Propagation::Route, 0, 1));
  r.add("v_lshrrev_b16",
        vop<[](u16 s, u16 v) { return u16(v >> (s & 15)); }>(Propagation::Route, 0, 1));
  r.add("v_ashrrev_i16",
        vop<[](u16 s, i16 v) { return i16(v >> (s & 15)); }>(Propagation::Route, 0, 1));
  r.add("v_lshlrev_b64", vop<[](u32 s, u64 v) { return v << (s & 63); }>(Propagation::Route, 0, 1));
  r.add("v_lshrrev_b64", vop<[](u32 s, u64 v) { return v >> (s & 63); }>(Propagation::Route, 0, 1));
  r.add("v_ashrrev_i64", vop<[](u32 s, i64 v) { return v >> (s & 63); }>(Propagation::Route, 0, 1));

  r.add("v_min_i32", vop<[](i32 a, i32 b) { return a < b ? a : b; }>());
  r.add("v_max_i32", vop<[](i32 a, i32 b) { return a > b ? a : b; }>());
  r.add("v_min_u32", vop<[](u32 a, u32 b) { return a < b ? a : b; }>());
  r.add("v_max_u32", vop<[](u32 a, u32 b) { return a > b ? a : b; }>());
  r.add("v_min_i16", vop<[](i16 a, i16 b) { return a < b ? a : b; }>());
  r.add("v_max_i16", vop<[](i16 a, i16 b) { return a > b ? a : b; }>());
  r.add("v_min_u16", vop<[](u16 a, u16 b) { return a < b ? a : b; }>());
  r.add("v_max_u16", vop<[](u16 a, u16 b) { return a > b ? a : b; }>());

  r.add("v_mul_i32_i24", vop<[](u32 a, u32 b) { return u32(i64(sext24(a)) * sext24(b)); }>());
  r.add("v_mul_hi_i32_i24",
        vop<[](u32 a, u32 b) { return u32(u64(i64(sext24(a)) * sext24(b)) >> 32); }>());
  r.add("v_mul_u32_u24",
        vop<[](u32 a, u32 b) { return u32(u64(a & 0xffffff) * (b & 0xffffff)); }>());
  r.add("v_mul_hi_u32_u24",
        vop<[](u32 a, u32 b) { return u32((u64(a & 0xffffff) * (b & 0xffffff)) >> 32); }>());

  r.add("v_add_u16|v_add_nc_u16", vop_clamp<kSum<u16>, kClampedSum<u16>>());
  r.add("v_sub_u16|v_sub_nc_u16", vop_clamp<kDifference<u16>, kClampedDifference<u16>>());
  r.add("v_subrev_u16", vop_clamp<[](u16 a, u16 b) { return u16(b - a); },
                                  [](u16 a, u16 b) { return clamp_to<u16>(i64(b) - a); }>());
  r.add("v_add_i16|v_add_nc_i16", vop_clamp<kSum<i16>, kClampedSum<i16>>());
  r.add("v_sub_i16|v_sub_nc_i16", vop_clamp<kDifference<i16>, kClampedDifference<i16>>());
  r.add("v_mul_lo_u16", vop<[](u16 a, u16 b) { return u16(u32(a) * b); }>());
}

}  // namespace

void add_vop2(Registry& r) {
  add_float(r);
  add_integer(r);
  r.add("v_cndmask_b32", conditional(Type::F32));
  r.add("v_cndmask_b16", conditional(Type::F16));
}

}  // namespace rocflash::sim
