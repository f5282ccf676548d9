// Conversions between number types.
#include <cmath>

#include "isa/elementwise.h"
#include "isa/lane_math.h"

namespace rocflash::sim {
namespace {

constexpr auto kPackRtz = [](float a, float b) {
  return u32(bits_of(half_toward_zero(a))) | u32(bits_of(half_toward_zero(b))) << 16;
};
constexpr auto kPackHalf = [](float a, float b) {
  return u32(bits_of(f16(a))) | u32(bits_of(f16(b))) << 16;
};
constexpr auto kPackBf16 = [](float a, float b) { return u32(to_bf16(a)) | u32(to_bf16(b)) << 16; };

// Normalized integers: [-1, 1] or [0, 1] onto the whole range.
template <typename T>
T normalized(double x) {
  if (x != x) return 0;
  constexpr double kScale = static_cast<double>(std::numeric_limits<T>::max());
  const double low = std::is_signed_v<T> ? -1.0 : 0.0;
  return static_cast<T>(std::nearbyint(std::clamp(x, low, 1.0) * kScale));
}

constexpr auto kFloor = [](float x) { return saturate<i32>(std::floor(x)); };
constexpr auto kNearest = [](float x) { return saturate<i32>(std::floor(x + 0.5f)); };

}  // namespace

void add_conversions(Registry& r) {
  r.add("v_cvt_f32_i32", vop<[](i32 x) { return float(x); }>());
  r.add("v_cvt_f32_u32", vop<[](u32 x) { return float(x); }>());
  r.add("v_cvt_i32_f32", vop<[](float x) { return saturate<i32>(std::trunc(x)); }>());
  r.add("v_cvt_u32_f32", vop<[](float x) { return saturate<u32>(std::trunc(x)); }>());
  r.add("v_cvt_f64_i32", vop<[](i32 x) { return double(x); }>());
  r.add("v_cvt_f64_u32", vop<[](u32 x) { return double(x); }>());
  r.add("v_cvt_i32_f64", vop<[](double x) { return saturate<i32>(std::trunc(x)); }>());
  r.add("v_cvt_u32_f64", vop<[](double x) { return saturate<u32>(std::trunc(x)); }>());
  r.add("v_cvt_f32_f64", vop<[](double x) { return float(x); }>());
  r.add("v_cvt_f64_f32", vop<[](float x) { return double(x); }>());
  r.add("v_cvt_f16_f32", vop<[](float x) { return f16(x); }>());
  r.add("v_cvt_f32_f16", vop<[](f16 x) { return float(x); }>());
  r.add("v_cvt_f16_i16", vop<[](i16 x) { return f16(float(x)); }>());
  r.add("v_cvt_f16_u16", vop<[](u16 x) { return f16(float(x)); }>());
  r.add("v_cvt_i16_f16", vop<[](f16 x) { return saturate<i16>(std::trunc(float(x))); }>());
  r.add("v_cvt_u16_f16", vop<[](f16 x) { return saturate<u16>(std::trunc(float(x))); }>());
  r.add("v_cvt_flr_i32_f32|v_cvt_floor_i32_f32", vop<kFloor>());
  r.add("v_cvt_rpi_i32_f32|v_cvt_nearest_i32_f32", vop<kNearest>());
  r.add("v_cvt_off_f32_i4", vop<[](u32 x) { return float(i32(x << 28) >> 28) / 16.0f; }>());
  r.add("v_cvt_i32_i16", vop<[](i16 x) { return i32(x); }>());
  r.add("v_cvt_u32_u16", vop<[](u16 x) { return u32(x); }>());
  r.add("v_cvt_f32_ubyte0", vop<[](u32 x) { return float(x & 0xff); }>());
  r.add("v_cvt_f32_ubyte1", vop<[](u32 x) { return float(x >> 8 & 0xff); }>());
  r.add("v_cvt_f32_ubyte2", vop<[](u32 x) { return float(x >> 16 & 0xff); }>());
  r.add("v_cvt_f32_ubyte3", vop<[](u32 x) { return float(x >> 24); }>());
  r.add("v_cvt_f32_bf16", vop<[](u16 x) { return float(bf16{x}); }>());
  r.add("v_cvt_norm_i16_f16", vop<[](f16 x) { return normalized<i16>(double(x)); }>());
  r.add("v_cvt_norm_u16_f16", vop<[](f16 x) { return normalized<u16>(double(x)); }>());

  r.add("v_cvt_pkrtz_f16_f32|v_cvt_pk_rtz_f16_f32", vop<kPackRtz>(Propagation::PackPair));
  r.add("v_cvt_pk_f16_f32", vop<kPackHalf>(Propagation::PackPair));
  r.add("v_cvt_pk_bf16_f32", vop<kPackBf16>(Propagation::PackPair));
  r.add("v_cvt_pknorm_i16_f32|v_cvt_pk_norm_i16_f32", vop<[](float a, float b) {
          return u32(u16(normalized<i16>(a))) | u32(u16(normalized<i16>(b))) << 16;
        }>(Propagation::PackPair));
  r.add(
      "v_cvt_pknorm_u16_f32|v_cvt_pk_norm_u16_f32",
      vop<[](float a, float b) { return u32(normalized<u16>(a)) | u32(normalized<u16>(b)) << 16; }>(
          Propagation::PackPair));
  r.add("v_cvt_pknorm_i16_f16|v_cvt_pk_norm_i16_f16", vop<[](f16 a, f16 b) {
          return u32(u16(normalized<i16>(double(a)))) | u32(u16(normalized<i16>(double(b)))) << 16;
        }>(Propagation::PackPair));
  r.add("v_cvt_pknorm_u16_f16|v_cvt_pk_norm_u16_f16", vop<[](f16 a, f16 b) {
          return u32(normalized<u16>(double(a))) | u32(normalized<u16>(double(b))) << 16;
        }>(Propagation::PackPair));
  r.add("v_cvt_pk_u16_u32",
        vop<[](u32 a, u32 b) { return std::min(a, 0xffffu) | std::min(b, 0xffffu) << 16; }>(
            Propagation::PackPair));
  r.add("v_cvt_pk_i16_i32", vop<[](i32 a, i32 b) {
          return u32(u16(clamp_to<i16>(a))) | u32(u16(clamp_to<i16>(b))) << 16;
        }>(Propagation::PackPair));
  r.add("v_cvt_pk_u16_f32", vop<[](float a, float b) {
          return u32(saturate<u16>(std::trunc(a))) | u32(saturate<u16>(std::trunc(b))) << 16;
        }>(Propagation::PackPair));
  r.add("v_cvt_pk_i16_f32", vop<[](float a, float b) {
          return u32(u16(saturate<i16>(std::trunc(a)))) | u32(u16(saturate<i16>(std::trunc(b))))
                                                              << 16;
        }>(Propagation::PackPair));
  r.add("v_cvt_pk_u8_f32", vop<[](float x, u32 byte, u32 into) {
          const u32 shift = 8 * (byte & 3);
          return (into & ~(0xffu << shift)) | u32(saturate<u8>(std::trunc(x))) << shift;
        }>());
  r.add("v_cvt_pk_u16_u8", vop<[](u32 x) { return (x & 0xff) | (x >> 8 & 0xff) << 16; }>());
  r.add("v_sat_pk_u8_i16", vop<[](u32 x) {
          const auto lo = std::clamp<i32>(i16(x), 0, 255);
          const auto hi = std::clamp<i32>(i16(x >> 16), 0, 255);
          return u16(lo | hi << 8);
        }>());
  r.add("v_pack_b32_f16", vop<[](f16 a, f16 b) { return u32(bits_of(a)) | u32(bits_of(b)) << 16; }>(
                              Propagation::PackPair));
}

}  // namespace rocflash::sim
