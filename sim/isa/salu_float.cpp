// The scalar float unit of gfx11.5 and gfx12, and transcendentals with scalar operands.
#include <cmath>

#include "isa/comparisons.h"
#include "isa/lane_math.h"
#include "isa/salu.h"

namespace rocflash::sim {
namespace {

inline float flush(float x) {
  return std::abs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}
inline float narrow(double x) { return flush(float(x)); }

#define ROCFLASH_SIM_SCMPF(name, T, expression) \
  r.add("s_cmp_" name,                          \
        scalar<[](T a, T b, bool& scc) { scc = expression; }, Propagation::Any, Scc::Writes>())

}  // namespace

void add_scalar_float(Registry& r) {
  r.add("s_add_f32", scalar<[](float a, float b) { return a + b; }>());
  r.add("s_sub_f32", scalar<[](float a, float b) { return a - b; }>());
  r.add("s_mul_f32", scalar<[](float a, float b) { return a * b; }>());
  r.add("s_min_f32|s_min_num_f32", scalar<[](float a, float b) { return number_min(a, b); }>());
  r.add("s_max_f32|s_max_num_f32", scalar<[](float a, float b) { return number_max(a, b); }>());
  r.add("s_minimum_f32", scalar<[](float a, float b) { return nan_min(a, b); }>());
  r.add("s_maximum_f32", scalar<[](float a, float b) { return nan_max(a, b); }>());
  r.add("s_fmac_f32", scalar<[](float a, float b, float c) { return __builtin_fmaf(a, b, c); }>(
                          flag::kAccumulate));
  r.add("s_fmaak_f32|s_fmamk_f32",
        scalar<[](float a, float b, float c) { return __builtin_fmaf(a, b, c); }>());
  r.add("s_add_f16", scalar<[](f16 a, f16 b) { return f16(float(a) + float(b)); }>());
  r.add("s_sub_f16", scalar<[](f16 a, f16 b) { return f16(float(a) - float(b)); }>());
  r.add("s_mul_f16", scalar<[](f16 a, f16 b) { return f16(float(a) * float(b)); }>());
  r.add("s_min_f16|s_min_num_f16", scalar<[](f16 a, f16 b) { return number_min(a, b); }>());
  r.add("s_max_f16|s_max_num_f16", scalar<[](f16 a, f16 b) { return number_max(a, b); }>());
  r.add("s_minimum_f16", scalar<[](f16 a, f16 b) { return nan_min(a, b); }>());
  r.add("s_maximum_f16", scalar<[](f16 a, f16 b) { return nan_max(a, b); }>());
  r.add("s_fmac_f16",
        scalar<[](f16 a, f16 b, f16 c) { return fma_half(a, b, c); }>(flag::kAccumulate));

  r.add("s_cvt_f32_i32", scalar<[](i32 x) { return float(x); }>());
  r.add("s_cvt_f32_u32", scalar<[](u32 x) { return float(x); }>());
  r.add("s_cvt_i32_f32", scalar<[](float x) { return saturate<i32>(std::trunc(x)); }>());
  r.add("s_cvt_u32_f32", scalar<[](float x) { return saturate<u32>(std::trunc(x)); }>());
  r.add("s_cvt_f16_f32", scalar<[](float x) { return f16(x); }>());
  r.add("s_cvt_f32_f16", scalar<[](f16 x) { return float(x); }>());
  r.add("s_cvt_hi_f32_f16",
        scalar<[](u32 x) { return float(std::bit_cast<f16>(u16(x >> 16))); }>());
  r.add("s_cvt_pk_rtz_f16_f32", scalar<[](float a, float b) {
          return u32(bits_of(half_toward_zero(a))) | u32(bits_of(half_toward_zero(b))) << 16;
        }>());
  r.add("s_ceil_f32", scalar<[](float x) { return std::ceil(x); }>());
  r.add("s_floor_f32", scalar<[](float x) { return std::floor(x); }>());
  r.add("s_trunc_f32", scalar<[](float x) { return std::trunc(x); }>());
  r.add("s_rndne_f32", scalar<[](float x) { return __builtin_roundevenf(x); }>());
  r.add("s_ceil_f16", scalar<[](f16 x) { return f16(std::ceil(float(x))); }>());
  r.add("s_floor_f16", scalar<[](f16 x) { return f16(std::floor(float(x))); }>());
  r.add("s_trunc_f16", scalar<[](f16 x) { return f16(std::trunc(float(x))); }>());
  r.add("s_rndne_f16", scalar<[](f16 x) { return f16(__builtin_roundevenf(float(x))); }>());

  r.add("v_s_exp_f32", scalar<[](float x) { return narrow(std::exp2(double(flush(x)))); }>());
  r.add("v_s_log_f32", scalar<[](float x) { return narrow(std::log2(double(flush(x)))); }>());
  r.add("v_s_rcp_f32", scalar<[](float x) { return narrow(1.0 / double(flush(x))); }>());
  r.add("v_s_rsq_f32", scalar<[](float x) { return narrow(1.0 / std::sqrt(double(flush(x)))); }>());
  r.add("v_s_sqrt_f32", scalar<[](float x) { return narrow(std::sqrt(double(flush(x)))); }>());
  r.add("v_s_exp_f16", scalar<[](f16 x) { return to_half(std::exp2(double(x))); }>());
  r.add("v_s_log_f16", scalar<[](f16 x) { return to_half(std::log2(double(x))); }>());
  r.add("v_s_rcp_f16", scalar<[](f16 x) { return to_half(1.0 / double(x)); }>());
  r.add("v_s_rsq_f16", scalar<[](f16 x) { return to_half(1.0 / std::sqrt(double(x))); }>());
  r.add("v_s_sqrt_f16", scalar<[](f16 x) { return to_half(std::sqrt(double(x))); }>());

  ROCFLASH_SIM_FLOAT_COMPARISONS(ROCFLASH_SIM_SCMPF, "f32", float);
  ROCFLASH_SIM_FLOAT_COMPARISONS(ROCFLASH_SIM_SCMPF, "f16", f16);
}

}  // namespace rocflash::sim
