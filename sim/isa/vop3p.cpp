// VOP3P: packed pairs and mixed precision.
#include "isa/elementwise.h"
#include "isa/lane_math.h"

namespace rocflash::sim {
namespace {

constexpr auto kFma = [](float a, float b, float c) { return __builtin_fmaf(a, b, c); };

// v_fma_mix: the result of the f32 FMA, or that result converted to f16.
Semantics fma_mix(Type dst) {
  Semantics s = describe<kFma>(std::make_index_sequence<3>());
  s.run = run_mixed<false>;
  s.run_strict = run_mixed<true>;
  s.flags |= flag::kMixed;
  s.dst = dst;
  return s;
}

// v_pk_mov_b32 picks one register of each source: op_sel chooses for each source, not each result.
template <bool Strict>
void run_pk_mov(Wave& w, const Op& op) {
  Vgpr out[2];
  Vgpr unknown[2];
  for (int k = 0; k < 2; ++k) {
    const Source& s = op.src[static_cast<std::size_t>(k)];
    const bool second = (op.op_sel >> k & 1) != 0;
    if constexpr (Strict) need_source(w, s);
    std::fill_n(unknown[k].lane, w.size, 0u);
    if (s.file == File::Vgpr) {
      out[k] = w.vgpr[s.index + (second ? 1 : 0)];
      if constexpr (Strict) unknown[k] = w.vgpr_undef[s.index + (second ? 1 : 0)];
    } else if (s.file == File::Sgpr) {
      std::fill_n(out[k].lane, w.size, w.sgpr[s.index + (second ? 1 : 0)]);
      if constexpr (Strict) {
        std::fill_n(unknown[k].lane, w.size, w.sgpr_undef[s.index + (second ? 1 : 0)]);
      }
    } else {
      std::fill_n(out[k].lane, w.size, u32(s.value));
    }
  }
  const u64 exec = w.exec();
  for (int k = 0; k < 2; ++k) {
    write_row<Strict>(w, op.dst[0].index + k, out[k].lane, unknown[k].lane, exec);
  }
}

void add_half(Registry& r) {
  r.add("v_pk_add_f16", packed<[](f16 a, f16 b) { return f16(float(a) + float(b)); }>());
  r.add("v_pk_mul_f16", packed<[](f16 a, f16 b) { return f16(float(a) * float(b)); }>());
  r.add("v_pk_fma_f16", packed<[](f16 a, f16 b, f16 c) { return fma_half(a, b, c); }>());
  r.add("v_pk_fmac_f16",
        packed<[](f16 a, f16 b, f16 c) { return fma_half(a, b, c); }>(flag::kAccumulate));
  r.add("v_pk_min_f16", packed<[](f16 a, f16 b) { return ieee_min(a, b); }>());
  r.add("v_pk_max_f16", packed<[](f16 a, f16 b) { return ieee_max(a, b); }>());
  r.add("v_pk_min_num_f16", packed<[](f16 a, f16 b) { return number_min(a, b); }>());
  r.add("v_pk_max_num_f16", packed<[](f16 a, f16 b) { return number_max(a, b); }>());
  r.add("v_pk_minimum_f16", packed<[](f16 a, f16 b) { return nan_min(a, b); }>());
  r.add("v_pk_maximum_f16", packed<[](f16 a, f16 b) { return nan_max(a, b); }>());
  r.add("v_pk_minimum3_f16",
        packed<[](f16 a, f16 b, f16 c) { return nan_min(nan_min(a, b), c); }>());
  r.add("v_pk_maximum3_f16",
        packed<[](f16 a, f16 b, f16 c) { return nan_max(nan_max(a, b), c); }>());
}

void add_integer(Registry& r) {
  r.add("v_pk_add_u16", packed_clamp<kSum<u16>, kClampedSum<u16>>());
  r.add("v_pk_sub_u16", packed_clamp<kDifference<u16>, kClampedDifference<u16>>());
  r.add("v_pk_add_i16", packed_clamp<kSum<i16>, kClampedSum<i16>>());
  r.add("v_pk_sub_i16", packed_clamp<kDifference<i16>, kClampedDifference<i16>>());
  r.add("v_pk_mul_lo_u16", packed<[](u16 a, u16 b) { return u16(u32(a) * b); }>());
  r.add("v_pk_mad_u16",
        packed_clamp<[](u16 a, u16 b, u16 c) { return u16(u32(a) * b + c); },
                     [](u16 a, u16 b, u16 c) { return clamp_to<u16>(i64(a) * b + c); }>());
  r.add("v_pk_mad_i16",
        packed_clamp<[](i16 a, i16 b, i16 c) { return i16(i32(a) * b + c); },
                     [](i16 a, i16 b, i16 c) { return clamp_to<i16>(i64(a) * b + c); }>());
  r.add("v_pk_min_i16", packed<[](i16 a, i16 b) { return a < b ? a : b; }>());
  r.add("v_pk_max_i16", packed<[](i16 a, i16 b) { return a > b ? a : b; }>());
  r.add("v_pk_min_u16", packed<[](u16 a, u16 b) { return a < b ? a : b; }>());
  r.add("v_pk_max_u16", packed<[](u16 a, u16 b) { return a > b ? a : b; }>());
  r.add("v_pk_lshlrev_b16", packed<[](u16 s, u16 v) { return u16(v << (s & 15)); }>());
  r.add("v_pk_lshrrev_b16", packed<[](u16 s, u16 v) { return u16(v >> (s & 15)); }>());
  r.add("v_pk_ashrrev_i16", packed<[](u16 s, i16 v) { return i16(v >> (s & 15)); }>());
}

}  // namespace

void add_vop3p(Registry& r) {
  add_half(r);
  add_integer(r);
  r.add("v_pk_add_f32", packed<[](float a, float b) { return a + b; }>());
  r.add("v_pk_mul_f32", packed<[](float a, float b) { return a * b; }>());
  r.add("v_pk_fma_f32",
        packed<[](float a, float b, float c) { return __builtin_fmaf(a, b, c); }>());
  Semantics move = packed<[](u32 a, u32 b) { return a | b; }>();
  move.run = run_pk_mov<false>;
  move.run_strict = run_pk_mov<true>;
  r.add("v_pk_mov_b32", move);

  r.add("v_fma_mix_f32|v_mad_mix_f32", fma_mix(Type::F32));
  r.add("v_fma_mixlo_f16|v_fma_mixhi_f16|v_mad_mixlo_f16|v_mad_mixhi_f16", fma_mix(Type::F16));
}

}  // namespace rocflash::sim
