// VOP1: moves, bit counting, rounding to integral values.
#include <cmath>

#include "isa/elementwise.h"
#include "isa/lane_math.h"
#include "isa/small_float.h"

namespace rocflash::sim {
namespace {

// Leading or trailing zero counts are -1 for zero on this ISA.
constexpr auto kFindHigh = [](u32 x) { return x == 0 ? ~0u : u32(std::countl_zero(x)); };
constexpr auto kFindLow = [](u32 x) { return x == 0 ? ~0u : u32(std::countr_zero(x)); };
constexpr auto kFindSign = [](u32 x) {
  const u32 y = x ^ (u32(i32(x) >> 31));
  return y == 0 ? ~0u : u32(std::countl_zero(y));
};

template <typename T>
T fraction(T x) {
  // Kept below one: x - floor(x) can round up to it for tiny negative x.
  const T f = x - std::floor(x);
  using B = typename FloatLayout<T>::Bits;
  const T largest = std::bit_cast<T>(B(bits_of(T(1)) - 1));
  return f < T(1) || f != f ? f : largest;
}

template <typename T>
i32 exponent(T x) {
  if (x == 0 || x != x || std::isinf(x)) return 0;
  int e = 0;
  (void)std::frexp(x, &e);
  return e;
}

template <typename T>
T mantissa(T x) {
  if (x == 0 || x != x || std::isinf(x)) return x;
  int e = 0;
  return std::frexp(x, &e);
}

template <bool Strict>
void run_swap(Wave& w, const Op& op) {
  const int a = op.dst[0].index;
  const int b = op.src[0].index;
  const Vgpr first = w.vgpr[a];
  const u64 exec = w.exec();
  if constexpr (Strict) {
    need_vgpr(w, a);
    need_vgpr(w, b);
    const Vgpr first_undef = w.vgpr_undef[a];
    const Vgpr second_undef = w.vgpr_undef[b];
    write_row<true>(w, a, Vgpr(w.vgpr[b]).lane, second_undef.lane, exec);
    write_row<true>(w, b, first.lane, first_undef.lane, exec);
  } else {
    write_row<false>(w, a, w.vgpr[b].lane, nullptr, exec);
    write_row<false>(w, b, first.lane, nullptr, exec);
  }
}

template <bool Strict>
void run_swap16(Wave& w, const Op& op) {
  const int a = op.dst[0].index;
  const int b = op.src[0].index;
  const int shift_a = op.dst_high ? 16 : 0;
  const int shift_b = op.src[0].high ? 16 : 0;
  const u64 exec = w.exec();
  const auto swap_in = [&](Vgpr* rows) {
    for (int i = 0; i < w.size; ++i) {
      if ((exec >> i & 1) == 0) continue;
      const u32 x = rows[a].lane[i] >> shift_a & 0xffff;
      const u32 y = rows[b].lane[i] >> shift_b & 0xffff;
      rows[a].lane[i] = (rows[a].lane[i] & ~(0xffffu << shift_a)) | y << shift_a;
      rows[b].lane[i] = (rows[b].lane[i] & ~(0xffffu << shift_b)) | x << shift_b;
    }
  };
  swap_in(w.vgpr);
  if constexpr (Strict) {
    need_vgpr(w, a);
    need_vgpr(w, b);
    swap_in(w.vgpr_undef);
    w.vgpr_dirty[a] = w.vgpr_dirty[b] = 1;
  }
}

// v_movrels / v_movreld: M0 is added to the source or destination register number.
template <bool Strict>
void run_mov_relative(Wave& w, const Op& op) {
  Op moved = op;
  if constexpr (Strict) check_defined(w, w.sgpr_undef[sreg::kM0] != 0, "a register index");
  const u32 m0 = w.sgpr[sreg::kM0];
  const u32 source_shift = op.parameter == 2 ? m0 & 0x3ff : m0;
  const u32 target_shift = op.parameter == 2 ? m0 >> 16 & 0x3ff : m0;
  const auto move = [&](Source& s, u32 shift) {
    if (s.index + shift >= w.rows.size()) {
      raise(Fault::BadProgram, "the M0-relative register index is outside the register file");
    }
    s.index = static_cast<u16>(s.index + shift);
  };
  if (op.parameter != 1 && moved.src[0].file == File::Vgpr) move(moved.src[0], source_shift);
  if (op.parameter != 0) move(moved.dst[0], target_shift);
  run_vop<Strict>(w, moved);
}

Semantics with_run(Semantics s, ExecFn run, ExecFn strict, u32 parameter = 0) {
  s.run = run;
  s.run_strict = strict;
  s.parameter = parameter;
  return s;
}

constexpr auto kMove = [](u32 x) { return x; };

void run_nop(Wave&, const Op&) {}

}  // namespace

void add_vop1(Registry& r) {
  Semantics nop;
  nop.run = nop.run_strict = run_nop;
  nop.flags = flag::kNoDestination;
  r.add("v_nop|v_clrexcp|v_pipeflush", nop);

  r.add("v_mov_b32", vop<kMove>(Propagation::Copy));
  r.add("v_mov_b64", vop<[](u64 x) { return x; }>(Propagation::Copy));
  r.add("v_mov_b16", vop<[](u16 x) { return x; }>(Propagation::Copy));
  r.add("v_accvgpr_read_b32|v_accvgpr_write_b32|v_accvgpr_mov_b32|v_accvgpr_read|v_accvgpr_write",
        vop<kMove>(Propagation::Copy));
  r.add("v_movrels_b32", with_run(vop<kMove>(Propagation::Copy), run_mov_relative<false>,
                                  run_mov_relative<true>, 0));
  r.add("v_movreld_b32", with_run(vop<kMove>(Propagation::Copy), run_mov_relative<false>,
                                  run_mov_relative<true>, 1));
  r.add("v_movrelsd_2_b32", with_run(vop<kMove>(Propagation::Copy), run_mov_relative<false>,
                                     run_mov_relative<true>, 2));
  r.add("v_movrelsd_b32", with_run(vop<kMove>(Propagation::Copy), run_mov_relative<false>,
                                   run_mov_relative<true>, 3));
  r.add("v_swap_b32", with_run(vop<kMove>(Propagation::Copy), run_swap<false>, run_swap<true>));
  r.add("v_swap_b16", with_run(vop<[](u16 x) { return x; }>(Propagation::Copy), run_swap16<false>,
                               run_swap16<true>));

  r.add("v_not_b32", vop<[](u32 x) { return ~x; }>(Propagation::Copy));
  r.add("v_not_b16", vop<[](u16 x) { return u16(~x); }>(Propagation::Copy));
  r.add("v_bfrev_b32", vop<[](u32 x) { return reverse_bits(x); }>(Propagation::Route));
  r.add("v_ffbh_u32|v_clz_i32_u32", vop<kFindHigh>());
  r.add("v_ffbl_b32|v_ctz_i32_b32", vop<kFindLow>());
  r.add("v_ffbh_i32|v_cls_i32", vop<kFindSign>());
  r.add("v_prng_b32", vop<[](u32 x) { return next_random(x); }>());

  r.add("v_trunc_f32", vop<[](float x) { return std::trunc(x); }>());
  r.add("v_ceil_f32", vop<[](float x) { return std::ceil(x); }>());
  r.add("v_floor_f32", vop<[](float x) { return std::floor(x); }>());
  r.add("v_rndne_f32", vop<[](float x) { return __builtin_roundevenf(x); }>());
  r.add("v_fract_f32", vop<[](float x) { return fraction(x); }>());
  r.add("v_trunc_f64", vop<[](double x) { return std::trunc(x); }>());
  r.add("v_ceil_f64", vop<[](double x) { return std::ceil(x); }>());
  r.add("v_floor_f64", vop<[](double x) { return std::floor(x); }>());
  r.add("v_rndne_f64", vop<[](double x) { return __builtin_roundeven(x); }>());
  r.add("v_fract_f64", vop<[](double x) { return fraction(x); }>());
  r.add("v_trunc_f16", vop<[](f16 x) { return f16(std::trunc(float(x))); }>());
  r.add("v_ceil_f16", vop<[](f16 x) { return f16(std::ceil(float(x))); }>());
  r.add("v_floor_f16", vop<[](f16 x) { return f16(std::floor(float(x))); }>());
  r.add("v_rndne_f16", vop<[](f16 x) { return f16(__builtin_roundevenf(float(x))); }>());
  r.add("v_fract_f16", vop<[](f16 x) {
          const f16 f = f16(float(x) - std::floor(float(x)));
          return float(f) < 1.0f || f != f ? f : std::bit_cast<f16>(u16{0x3bff});
        }>());

  r.add("v_frexp_exp_i32_f32", vop<[](float x) { return exponent(x); }>());
  r.add("v_frexp_mant_f32", vop<[](float x) { return mantissa(x); }>());
  r.add("v_frexp_exp_i32_f64", vop<[](double x) { return exponent(x); }>());
  r.add("v_frexp_mant_f64", vop<[](double x) { return mantissa(x); }>());
  r.add("v_frexp_exp_i16_f16", vop<[](f16 x) { return i16(exponent(float(x))); }>());
  r.add("v_frexp_mant_f16", vop<[](f16 x) { return f16(mantissa(float(x))); }>());
}

}  // namespace rocflash::sim
