// VOP3-only instructions: three operands, wide multiplies, bit fields, permutes of bytes.
#include <array>
#include <cmath>

#include "isa/elementwise.h"
#include "isa/lane_math.h"

namespace rocflash::sim {
namespace {

u32 permute_bytes(u32 high, u32 low, u32 selector) {
  const u64 data = u64{high} << 32 | low;
  u32 result = 0;
  for (int i = 0; i < 4; ++i) {
    const u32 s = selector >> (8 * i) & 0xff;
    u32 byte;
    if (s >= 13) {
      byte = 0xff;
    } else if (s == 12) {
      byte = 0;
    } else if (s >= 8) {
      // The sign of one of the four words.
      byte = (data >> (16 * (s - 8) + 15) & 1) != 0 ? 0xff : 0;
    } else {
      byte = u32(data >> (8 * s)) & 0xff;
    }
    result |= byte << (8 * i);
  }
  return result;
}

u32 field_u(u32 x, u32 offset, u32 width) {
  offset &= 31;
  width &= 31;
  return (x >> offset) & ((1u << width) - 1);
}

i32 field_i(u32 x, u32 offset, u32 width) {
  offset &= 31;
  width &= 31;
  if (width == 0) return 0;
  const u32 field = (x >> offset) & ((1u << width) - 1);
  return static_cast<i32>(field << (32 - width)) >> (32 - width);
}

u32 sad_bytes(u32 a, u32 b, u32 c, bool skip_zero) {
  for (int i = 0; i < 4; ++i) {
    const int x = int(a >> (8 * i) & 0xff);
    const int y = int(b >> (8 * i) & 0xff);
    if (!skip_zero || y != 0) c += u32(std::abs(x - y));
  }
  return c;
}

// A wide multiply-add whose carry goes to a lane mask.
template <bool Signed>
void wide_multiply_add(Lanes& l) {
  Vgpr flags;
  for (int i = 0; i < l.n; ++i) {
    const u64 product =
        Signed ? u64(i64(i32(l.lo[0][i])) * i32(l.lo[1][i])) : u64(l.lo[0][i]) * l.lo[1][i];
    const u64 addend = load_lane<u64>(l.lo[2], l.hi[2], i);
    const u64 sum = product + addend;
    bool overflow;
    if constexpr (Signed) {
      i64 ignored;
      overflow = __builtin_add_overflow(i64(product), i64(addend), &ignored);
    } else {
      overflow = sum < product;
    }
    store_lane<u64>(l.d, l.dh, i, sum);
    flags.lane[i] = overflow ? ~0u : 0u;
  }
  l.mask_out = pack_mask(flags.lane, l.n);
}

Semantics wide_mad(ComputeFn compute) {
  Semantics s = computed(compute, Type::B64, {Type::B32, Type::B32, Type::B64}, 3);
  s.flags = flag::kMaskOut;
  s.propagation = Propagation::MulAdd;
  return s;
}

// Bit (a*4 + b*2 + c) of an immediate truth table is the result.
template <typename T>
void by_truth_table(Lanes& l) {
  const u32 truth = l.op->parameter;
  for (int i = 0; i < l.n; ++i) {
    u32 d = 0;
    for (u32 t = 0; t < 8; ++t) {
      if ((truth >> t & 1) == 0) continue;
      d |= ((t & 4) != 0 ? l.lo[0][i] : ~l.lo[0][i]) & ((t & 2) != 0 ? l.lo[1][i] : ~l.lo[1][i]) &
           ((t & 1) != 0 ? l.lo[2][i] : ~l.lo[2][i]);
    }
    l.d[i] = T(d);
  }
}

// The lambda gives the types only.
template <auto Typed>
Semantics bitop3() {
  Semantics s = vop<Typed>(Propagation::Bitwise);
  s.compute = by_truth_table<typename TraitsOf<Typed>::Result>;
  return s;
}

void cube(Lanes& l, int part) {
  for (int i = 0; i < l.n; ++i) {
    const float x = load_lane<float>(l.lo[0], nullptr, i);
    const float y = load_lane<float>(l.lo[1], nullptr, i);
    const float z = load_lane<float>(l.lo[2], nullptr, i);
    const float ax = std::abs(x);
    const float ay = std::abs(y);
    const float az = std::abs(z);
    const int axis = az >= ax && az >= ay ? 2 : ay >= ax ? 1 : 0;
    float sc;
    float tc;
    float ma;
    float id;
    if (axis == 2) {
      id = z < 0 ? 5.0f : 4.0f;
      sc = z < 0 ? -x : x;
      tc = -y;
      ma = 2 * z;
    } else if (axis == 1) {
      id = y < 0 ? 3.0f : 2.0f;
      sc = x;
      tc = y < 0 ? -z : z;
      ma = 2 * y;
    } else {
      id = x < 0 ? 1.0f : 0.0f;
      sc = x < 0 ? z : -z;
      tc = -y;
      ma = 2 * x;
    }
    const std::array<float, 4> parts = {id, sc, tc, ma};
    store_lane<float>(l.d, nullptr, i, parts[static_cast<std::size_t>(part)]);
  }
}
template <int Part>
void cube_part(Lanes& l) {
  cube(l, Part);
}

Semantics cube_semantics(ComputeFn compute) {
  Semantics s = vop<[](float a, float b, float c) { return a + b + c; }>();
  s.compute = compute;
  return s;
}

void add_float(Registry& r) {
  r.add("v_fma_f32", vop<[](float a, float b, float c) { return __builtin_fmaf(a, b, c); }>());
  r.add("v_mad_f32", vop<[](float a, float b, float c) { return a * b + c; }>());
  r.add("v_fma_legacy_f32|v_fma_dx9_zero_f32|v_mad_legacy_f32", vop<[](float a, float b, float c) {
          return a == 0 || b == 0 ? c : __builtin_fmaf(a, b, c);
        }>());
  r.add("v_fma_f64", vop<[](double a, double b, double c) { return __builtin_fma(a, b, c); }>());
  r.add("v_fma_f16|v_mad_f16", vop<[](f16 a, f16 b, f16 c) { return fma_half(a, b, c); }>(
                                   Propagation::Any, flag::kKeepsHigh9));
  r.add("v_min3_f32", vop<[](float a, float b, float c) { return ieee_min(ieee_min(a, b), c); }>());
  r.add("v_max3_f32", vop<[](float a, float b, float c) { return ieee_max(ieee_max(a, b), c); }>());
  r.add("v_med3_f32|v_med3_num_f32",
        vop<[](float a, float b, float c) { return median(a, b, c); }>());
  r.add("v_min3_f16", vop<[](f16 a, f16 b, f16 c) { return ieee_min(ieee_min(a, b), c); }>());
  r.add("v_max3_f16", vop<[](f16 a, f16 b, f16 c) { return ieee_max(ieee_max(a, b), c); }>());
  r.add("v_med3_f16|v_med3_num_f16", vop<[](f16 a, f16 b, f16 c) { return median(a, b, c); }>());
  r.add("v_minmax_f32",
        vop<[](float a, float b, float c) { return ieee_max(ieee_min(a, b), c); }>());
  r.add("v_maxmin_f32",
        vop<[](float a, float b, float c) { return ieee_min(ieee_max(a, b), c); }>());
  r.add("v_minmax_f16", vop<[](f16 a, f16 b, f16 c) { return ieee_max(ieee_min(a, b), c); }>());
  r.add("v_maxmin_f16", vop<[](f16 a, f16 b, f16 c) { return ieee_min(ieee_max(a, b), c); }>());
#define ROCFLASH_SIM_THREE(suffix, T)                                                          \
  r.add("v_min3_num_" suffix,                                                                  \
        vop<[](T a, T b, T c) { return number_min(number_min(a, b), c); }>());                 \
  r.add("v_max3_num_" suffix,                                                                  \
        vop<[](T a, T b, T c) { return number_max(number_max(a, b), c); }>());                 \
  r.add("v_minimum3_" suffix, vop<[](T a, T b, T c) { return nan_min(nan_min(a, b), c); }>()); \
  r.add("v_maximum3_" suffix, vop<[](T a, T b, T c) { return nan_max(nan_max(a, b), c); }>()); \
  r.add("v_minmax_num_" suffix,                                                                \
        vop<[](T a, T b, T c) { return number_max(number_min(a, b), c); }>());                 \
  r.add("v_maxmin_num_" suffix,                                                                \
        vop<[](T a, T b, T c) { return number_min(number_max(a, b), c); }>());                 \
  r.add("v_minimummaximum_" suffix,                                                            \
        vop<[](T a, T b, T c) { return nan_max(nan_min(a, b), c); }>());                       \
  r.add("v_maximumminimum_" suffix, vop<[](T a, T b, T c) { return nan_min(nan_max(a, b), c); }>())
  ROCFLASH_SIM_THREE("f32", float);
  ROCFLASH_SIM_THREE("f16", f16);
#undef ROCFLASH_SIM_THREE
  r.add("v_cubeid_f32", cube_semantics(cube_part<0>));
  r.add("v_cubesc_f32", cube_semantics(cube_part<1>));
  r.add("v_cubetc_f32", cube_semantics(cube_part<2>));
  r.add("v_cubema_f32", cube_semantics(cube_part<3>));
  r.add("v_mullit_f32", vop<[](float a, float b, float c) {
          if (b == -std::numeric_limits<float>::max() ||
              b == -std::numeric_limits<float>::infinity() || b != b || c <= 0 || c != c) {
            return -std::numeric_limits<float>::max();
          }
          return a == 0 || b == 0 ? 0.0f : a * b;
        }>());
}

void add_multiply(Registry& r) {
  r.add("v_mul_lo_u32|v_mul_lo_i32", vop<[](u32 a, u32 b) { return a * b; }>(Propagation::Add));
  r.add("v_mul_hi_u32", vop<[](u32 a, u32 b) { return u32(u64{a} * b >> 32); }>());
  r.add("v_mul_hi_i32", vop<[](i32 a, i32 b) { return i32(i64{a} * b >> 32); }>());
  r.add("v_mul_u64|v_mul_nc_u64", vop<[](u64 a, u64 b) { return a * b; }>());
  r.add("v_mad_u64_u32|v_mad_co_u64_u32", wide_mad(wide_multiply_add<false>));
  r.add("v_mad_i64_i32|v_mad_co_i64_i32", wide_mad(wide_multiply_add<true>));
  r.add(
      "v_mad_u32_u24",
      vop_clamp<[](u32 a, u32 b, u32 c) { return u32(u64(a & 0xffffff) * (b & 0xffffff)) + c; },
                [](u32 a, u32 b, u32 c) {
                  return u32(std::min<u64>(u64(u32(u64(a & 0xffffff) * (b & 0xffffff))) + c, ~0u));
                }>());
  r.add("v_mad_i32_i24",
        vop_clamp<[](u32 a, u32 b, u32 c) { return u32(i64(sext24(a)) * sext24(b)) + c; },
                  [](u32 a, u32 b, u32 c) {
                    return u32(clamp_to<i32>(i64(sext24(a)) * sext24(b) + i32(c)));
                  }>());
  r.add("v_mad_u16", vop_clamp<[](u16 a, u16 b, u16 c) { return u16(u32(a) * b + c); },
                               [](u16 a, u16 b, u16 c) { return clamp_to<u16>(i64(a) * b + c); }>(
                         Propagation::Any, flag::kKeepsHigh9));
  r.add("v_mad_i16", vop_clamp<[](i16 a, i16 b, i16 c) { return i16(i32(a) * b + c); },
                               [](i16 a, i16 b, i16 c) { return clamp_to<i16>(i64(a) * b + c); }>(
                         Propagation::Any, flag::kKeepsHigh9));
  // gfx9 kept gfx8's forms under this name: they clear the upper half.
  r.add("v_mad_legacy_u16",
        vop_clamp<[](u16 a, u16 b, u16 c) { return u32(u16(u32(a) * b + c)); },
                  [](u16 a, u16 b, u16 c) { return u32(clamp_to<u16>(i64(a) * b + c)); }>());
  r.add("v_mad_legacy_i16",
        vop_clamp<[](i16 a, i16 b, i16 c) { return u32(u16(i32(a) * b + c)); },
                  [](i16 a, i16 b, i16 c) { return u32(u16(clamp_to<i16>(i64(a) * b + c))); }>());
  r.add("v_mad_u32_u16", vop<[](u16 a, u16 b, u32 c) { return u32(a) * b + c; }>());
  r.add("v_mad_i32_i16", vop<[](i16 a, i16 b, i32 c) { return i32(u32(i32(a) * b) + u32(c)); }>());
}

void add_bits(Registry& r) {
  r.add("v_bfe_u32",
        vop<[](u32 x, u32 o, u32 n) { return field_u(x, o, n); }>(Propagation::Route, 0, 6));
  r.add("v_bfe_i32",
        vop<[](u32 x, u32 o, u32 n) { return field_i(x, o, n); }>(Propagation::Route, 0, 6));
  r.add("v_bfi_b32",
        vop<[](u32 m, u32 a, u32 b) { return (m & a) | (~m & b); }>(Propagation::Route, 0, 1));
  r.add("v_bfm_b32", vop<[](u32 n, u32 o) { return ((1u << (n & 31)) - 1) << (o & 31); }>());
  r.add("v_alignbit_b32",
        vop<[](u32 a, u32 b, u32 s) { return u32((u64{a} << 32 | b) >> (s & 31)); }>(
            Propagation::Route, 0, 4));
  r.add("v_alignbyte_b32",
        vop<[](u32 a, u32 b, u32 s) { return u32((u64{a} << 32 | b) >> (8 * (s & 3))); }>(
            Propagation::Route, 0, 4));
  r.add("v_perm_b32",
        vop<[](u32 a, u32 b, u32 s) { return permute_bytes(a, b, s); }>(Propagation::Route, 0, 4));
  r.add("v_lerp_u8", vop<[](u32 a, u32 b, u32 c) {
          u32 d = 0;
          for (int i = 0; i < 32; i += 8) {
            d |= (((a >> i & 0xff) + (b >> i & 0xff) + (c >> i & 1)) >> 1 & 0xff) << i;
          }
          return d;
        }>());
  r.add("v_sad_u8", vop<[](u32 a, u32 b, u32 c) { return sad_bytes(a, b, c, false); }>());
  r.add("v_msad_u8", vop<[](u32 a, u32 b, u32 c) { return sad_bytes(a, b, c, true); }>());
  r.add("v_sad_hi_u8",
        vop<[](u32 a, u32 b, u32 c) { return (sad_bytes(a, b, 0, false) << 16) + c; }>());
  r.add("v_sad_u16", vop<[](u32 a, u32 b, u32 c) {
          return c + u32(std::abs(int(a & 0xffff) - int(b & 0xffff))) +
                 u32(std::abs(int(a >> 16) - int(b >> 16)));
        }>());
  r.add("v_sad_u32", vop<[](u32 a, u32 b, u32 c) { return (a > b ? a - b : b - a) + c; }>());
  r.add("v_add3_u32", vop<[](u32 a, u32 b, u32 c) { return a + b + c; }>(Propagation::Add));
  r.add("v_lshl_add_u32", vop<[](u32 a, u32 s, u32 c) { return (a << (s & 31)) + c; }>());
  r.add("v_add_lshl_u32", vop<[](u32 a, u32 b, u32 s) { return (a + b) << (s & 31); }>());
  r.add("v_lshl_or_b32",
        vop<[](u32 a, u32 s, u32 c) { return (a << (s & 31)) | c; }>(Propagation::Route, 0, 2));
  r.add("v_lshl_add_u64", vop<[](u64 a, u32 s, u64 c) { return (a << (s & 63)) + c; }>());
  r.add("v_and_or_b32", vop<[](u32 a, u32 b, u32 c) { return (a & b) | c; }>(Propagation::And));
  r.add("v_or3_b32", vop<[](u32 a, u32 b, u32 c) { return a | b | c; }>(Propagation::Bitwise));
  r.add("v_xor3_b32", vop<[](u32 a, u32 b, u32 c) { return a ^ b ^ c; }>(Propagation::Bitwise));
  r.add("v_xad_u32", vop<[](u32 a, u32 b, u32 c) { return (a ^ b) + c; }>(Propagation::Add));
  r.add("v_bcnt_u32_b32", vop<[](u32 x, u32 c) { return u32(std::popcount(x)) + c; }>());
  r.add("v_lshl_b32", vop<[](u32 v, u32 s) { return v << (s & 31); }>(Propagation::Route, 0, 2));
  r.add("v_bitop3_b32", bitop3<[](u32 a, u32 b, u32 c) { return a ^ b ^ c; }>());
  r.add("v_bitop3_b16", bitop3<[](u16 a, u16 b, u16 c) { return u16(a ^ b ^ c); }>());
  r.add("v_ashr_pk_i8_i32", vop<[](i32 a, i32 b, u32 s) {
          const i32 x = std::clamp(a >> (s & 31), -128, 127);
          const i32 y = std::clamp(b >> (s & 31), -128, 127);
          return u16((u32(x) & 0xff) | (u32(y) & 0xff) << 8);
        }>());
  r.add("v_ashr_pk_u8_i32", vop<[](i32 a, i32 b, u32 s) {
          const i32 x = std::clamp(a >> (s & 31), 0, 255);
          const i32 y = std::clamp(b >> (s & 31), 0, 255);
          return u16((u32(x) & 0xff) | (u32(y) & 0xff) << 8);
        }>());
}

#define ROCFLASH_SIM_INT3(suffix, T)                                                           \
  r.add("v_min3_" suffix, vop<[](T a, T b, T c) { return std::min(std::min(a, b), c); }>());   \
  r.add("v_max3_" suffix, vop<[](T a, T b, T c) { return std::max(std::max(a, b), c); }>());   \
  r.add("v_med3_" suffix, vop<[](T a, T b, T c) { return median_int(a, b, c); }>());           \
  r.add("v_minmax_" suffix, vop<[](T a, T b, T c) { return std::max(std::min(a, b), c); }>()); \
  r.add("v_maxmin_" suffix, vop<[](T a, T b, T c) { return std::min(std::max(a, b), c); }>())

void add_three_integer(Registry& r) {
  ROCFLASH_SIM_INT3("i32", i32);
  ROCFLASH_SIM_INT3("u32", u32);
  ROCFLASH_SIM_INT3("i16", i16);
  ROCFLASH_SIM_INT3("u16", u16);
}

}  // namespace

void add_vop3(Registry& r) {
  add_float(r);
  add_multiply(r);
  add_bits(r);
  add_three_integer(r);
}

}  // namespace rocflash::sim
