// Rows of quantized keys and values as f32: the decoding of core/dtype8.hpp, a vector at a time.
#pragma once

#include "core/dtype.hpp"
#include "cpu/simd/simd.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

using Codes = std::uint8_t __attribute__((vector_size(width)));

template <Float8 f>
ROCFLASH_INLINE Float decode(Codes codes) {
  constexpr auto rebias = static_cast<std::uint32_t>(127 - f.bias);
  constexpr float least =
      float_of_bits((rebias + 1 - static_cast<std::uint32_t>(f.mantissa_bits)) << 23);
  const Int code = __builtin_convertvector(codes, Int), magnitude = code & 0x7f;
  const Float normal = (Float)(((Word)magnitude << (23 - f.mantissa_bits)) + (rebias << 23));
  const Float value =
      select(magnitude < (1 << f.mantissa_bits), to_float(magnitude) * least, normal);
  const Float with_sign = (Float)((Word)value | ((Word)(code & 0x80) << 24));
  const Float nan = splat(__builtin_nanf(""));
  if constexpr (f.fnuz) {
    return select(code == 0x80, nan, with_sign);
  } else if constexpr (f.has_infinity) {
    // The first code above the largest finite one is infinity, the others are NaN.
    const Float infinite = with_sign * infinity;
    const Float past = select(magnitude == static_cast<int>(f.largest) + 1, infinite, nan);
    return select(magnitude > static_cast<int>(f.largest), past, with_sign);
  } else {
    return select(magnitude > static_cast<int>(f.largest), nan, with_sign);
  }
}
ROCFLASH_INLINE Float decode_i8(Codes codes) {
  using Signed = std::int8_t __attribute__((vector_size(width)));
  return __builtin_convertvector((Signed)codes, Float);
}

// to = the values of `columns` codes; returns the taint of rows.hpp's convert_row.
template <class Decode>
ROCFLASH_INLINE Float dequantize(float* to, const std::uint8_t* from, int columns, float scale,
                                 Decode decode_codes) {
  Float taint{};
  int c = 0;
  for (; c + width <= columns; c += width) {
    const Float v = decode_codes(load_as<Codes>(from + c)) * scale;
    taint = fused(v, Float{}, taint);
    store(to + c, v);
  }
  if (c == columns) return taint;
  Codes rest{};
  for (int n = 0; n < columns - c; ++n) rest[n] = from[c + n];
  const Float v = decode_codes(rest) * scale;
  for (int n = 0; n < columns - c; ++n) {
    to[c + n] = v[n];
    taint[0] = fused(v[n], 0.0f, taint[0]);
  }
  return taint;
}
[[maybe_unused, gnu::noinline]] static Float dequantize_row(float* to, const std::byte* from,
                                                            DType dtype, int columns, float scale) {
  const auto* codes = reinterpret_cast<const std::uint8_t*>(from);
  switch (dtype) {
    case DType::e4m3fn:
      return dequantize(to, codes, columns, scale, decode<float8::e4m3fn>);
    case DType::e4m3fnuz:
      return dequantize(to, codes, columns, scale, decode<float8::e4m3fnuz>);
    case DType::e5m2:
      return dequantize(to, codes, columns, scale, decode<float8::e5m2>);
    case DType::e5m2fnuz:
      return dequantize(to, codes, columns, scale, decode<float8::e5m2fnuz>);
    default:
      return dequantize(to, codes, columns, scale, decode_i8);
  }
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
