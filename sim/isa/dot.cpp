// Dot products of packed operands.
#include "isa/elementwise.h"
#include "isa/lane_math.h"

namespace rocflash::sim {
namespace {

inline float f16_at(u32 x, int i) { return float(std::bit_cast<f16>(u16(x >> (16 * i)))); }
inline float bf16_at(u32 x, int i) { return float(bf16{u16(x >> (16 * i))}); }

template <auto F>
Semantics pairs(u32 flags = 0) {
  Semantics s = describe<F>(std::make_index_sequence<3>());
  s.run = run_packed_dot<false>;
  s.run_strict = run_packed_dot<true>;
  s.flags |= flags | flag::kPacked16;
  return s;
}

// Rounding of the dot products. The ISA manuals (CDNA3, CDNA4, RDNA3, RDNA4) write them as
//   tmp = S2; tmp += S0[0] * S1[0]; tmp += S0[1] * S1[1]; D0 = tmp
// in the type of the accumulator, and write fma() where an operation is fused. So every addition
// rounds to that type. Products of f16 and bf16 are exact in f32 unless they leave its range.

// llvm/lib/Target/AMDGPU/SIISelLowering.cpp (performFMACombine): v_dot2_f32_f16 flushes f32
// denormals regardless of MODE. f16 products are multiples of 2^-48, so that a denormal can come
// from the accumulator only.
constexpr float flush_denormal(float x) {
  return std::bit_cast<u32>(x) << 1 < 0x01000000u
             ? std::bit_cast<float>(std::bit_cast<u32>(x) & 0x80000000u)
             : x;
}

constexpr auto kDot2F16 = [](u32 a, u32 b, float c) {
  const float low = flush_denormal(c) + f16_at(a, 0) * f16_at(b, 0);
  return low + f16_at(a, 1) * f16_at(b, 1);
};
constexpr auto kDot2Bf16 = [](u32 a, u32 b, float c) {
  const float low = c + bf16_at(a, 0) * bf16_at(b, 0);
  return low + bf16_at(a, 1) * bf16_at(b, 1);
};
// The CDNA4 manual adds the accumulator last in V_DOT2_F32_BF16, but first in V_DOT2C_F32_BF16.
constexpr auto kDot2Bf16Cdna4 = [](u32 a, u32 b, float c) {
  return bf16_at(a, 0) * bf16_at(b, 0) + bf16_at(a, 1) * bf16_at(b, 1) + c;
};
void dot2_f32_bf16(Lanes& l) {
  if (l.target->is_cdna()) {
    elementwise<kDot2Bf16Cdna4>(l);
  } else {
    elementwise<kDot2Bf16>(l);
  }
}

constexpr auto kDot2Half = [](u32 a, u32 b, f16 c) {
  const auto product = [&](int i) { return f16(f16_at(a, i) * f16_at(b, i)); };
  const f16 low = f16(float(c) + float(product(0)));
  return f16(float(low) + float(product(1)));
};
// The RDNA3 and RDNA4 manuals: V_DOT2_F16_F16 and V_DOT2_BF16_BF16 round to nearest even regardless
// of MODE; the former supports denormals, the latter disables all of them.
constexpr u16 flush_denormal_bf16(u16 x) { return (x & 0x7f80) == 0 ? u16(x & 0x8000) : x; }
constexpr auto kDot2Brain = [](u32 a, u32 b, u16 c) {
  const auto number = [](u32 x) { return float(bf16{flush_denormal_bf16(u16(x))}); };
  const auto rounded = [&](float x) { return number(to_bf16(x)); };
  const auto product = [&](int i) {
    return rounded(number(a >> (16 * i)) * number(b >> (16 * i)));
  };
  const float sum = rounded(rounded(number(c) + product(0)) + product(1));
  return u16(std::bit_cast<u32>(sum) >> 16);
};

template <bool SignA, bool SignB, int Bits>
i64 dot_integer(u32 a, u32 b) {
  i64 sum = 0;
  for (int i = 0; i < 32; i += Bits) {
    const u32 x = a >> i & ((1u << Bits) - 1);
    const u32 y = b >> i & ((1u << Bits) - 1);
    const i64 p = SignA ? i64(i32(x << (32 - Bits)) >> (32 - Bits)) : i64(x);
    const i64 q = SignB ? i64(i32(y << (32 - Bits)) >> (32 - Bits)) : i64(y);
    sum += p * q;
  }
  return sum;
}

template <bool Signed, int Bits>
void integer_dot(Lanes& l) {
  for (int i = 0; i < l.n; ++i) {
    const i64 c = Signed ? i64(i32(l.lo[2][i])) : i64(l.lo[2][i]);
    const i64 sum = dot_integer<Signed, Signed, Bits>(l.lo[0][i], l.lo[1][i]) + c;
    if (l.clamp) {
      l.d[i] = Signed ? u32(clamp_to<i32>(sum)) : u32(clamp_to<u32>(sum));
    } else {
      l.d[i] = u32(sum);
    }
  }
}

// In the "iu" forms neg_lo selects signed sources; the accumulator is always signed.
template <int Bits>
void mixed_sign_dot(Lanes& l) {
  const u8 neg = l.op->neg_lo;
  for (int i = 0; i < l.n; ++i) {
    const u32 a = l.lo[0][i];
    const u32 b = l.lo[1][i];
    i64 sum = 0;
    switch (neg & 3) {
      case 0:
        sum = dot_integer<false, false, Bits>(a, b);
        break;
      case 1:
        sum = dot_integer<true, false, Bits>(a, b);
        break;
      case 2:
        sum = dot_integer<false, true, Bits>(a, b);
        break;
      default:
        sum = dot_integer<true, true, Bits>(a, b);
        break;
    }
    sum += i32(l.lo[2][i]);
    l.d[i] = l.clamp ? u32(clamp_to<i32>(sum)) : u32(sum);
  }
}

Semantics integers(ComputeFn compute, u32 flags = 0) {
  Semantics s = computed(compute, Type::I32, {Type::B32, Type::B32, Type::B32}, 3);
  s.flags = flags;
  return s;
}

}  // namespace

void add_dot(Registry& r) {
  r.add("v_dot2_f32_f16", pairs<kDot2F16>());
  Semantics dot2_bf16 = pairs<kDot2Bf16>();
  dot2_bf16.compute = dot2_f32_bf16;
  r.add("v_dot2_f32_bf16", dot2_bf16);
  r.add("v_dot2c_f32_f16|v_dot2acc_f32_f16", pairs<kDot2F16>(flag::kAccumulate));
  r.add("v_dot2c_f32_bf16|v_dot2acc_f32_bf16", pairs<kDot2Bf16>(flag::kAccumulate));
  r.add("v_dot2_f16_f16", pairs<kDot2Half>());
  r.add("v_dot2_bf16_bf16", pairs<kDot2Brain>());
  r.add("v_dot4_i32_i8", integers(integer_dot<true, 8>));
  r.add("v_dot4_u32_u8", integers(integer_dot<false, 8>));
  r.add("v_dot8_i32_i4", integers(integer_dot<true, 4>));
  r.add("v_dot8_u32_u4", integers(integer_dot<false, 4>));
  r.add("v_dot2_i32_i16", integers(integer_dot<true, 16>));
  r.add("v_dot2_u32_u16", integers(integer_dot<false, 16>));
  r.add("v_dot4c_i32_i8", integers(integer_dot<true, 8>, flag::kAccumulate));
  r.add("v_dot8c_i32_i4", integers(integer_dot<true, 4>, flag::kAccumulate));
  r.add("v_dot2c_i32_i16", integers(integer_dot<true, 16>, flag::kAccumulate));
  r.add("v_dot4_i32_iu8", integers(mixed_sign_dot<8>));
  r.add("v_dot8_i32_iu4", integers(mixed_sign_dot<4>));
}

}  // namespace rocflash::sim
