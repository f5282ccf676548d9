// Dot products of packed operands.
#include "isa/elementwise.h"
#include "isa/scalar_math.h"

namespace rocflash::sim {
namespace {

inline float half_at(u32 x, int i) { return float(std::bit_cast<f16>(u16(x >> (16 * i)))); }
inline float brain_at(u32 x, int i) { return float(bf16{u16(x >> (16 * i))}); }

template <auto F>
Semantics pairs(u32 flags = 0) {
  Semantics s = describe<F>(std::make_index_sequence<3>());
  s.run = run_packed_dot<false>;
  s.run_strict = run_packed_dot<true>;
  s.flags |= flags | flag::kPacked16;
  return s;
}

// The products are exact in f32; hardware keeps more bits between the two additions than f32 does,
// so the sum is formed in double and rounded once.
constexpr auto kDot2F16 = [](u32 a, u32 b, float c) {
  return float(double(half_at(a, 0)) * half_at(b, 0) + double(half_at(a, 1)) * half_at(b, 1) +
               double(c));
};
constexpr auto kDot2Bf16 = [](u32 a, u32 b, float c) {
  return float(double(brain_at(a, 0)) * brain_at(b, 0) + double(brain_at(a, 1)) * brain_at(b, 1) +
               double(c));
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

// The "iu" forms say by neg_lo whether each source is signed; the accumulator is.
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
  r.add("v_dot2_f32_bf16", pairs<kDot2Bf16>());
  r.add("v_dot2c_f32_f16|v_dot2acc_f32_f16", pairs<kDot2F16>(flag::kAccumulate));
  r.add("v_dot2c_f32_bf16|v_dot2acc_f32_bf16", pairs<kDot2Bf16>(flag::kAccumulate));
  r.add("v_dot2_f16_f16", pairs<[](u32 a, u32 b, f16 c) {
          return to_half(double(half_at(a, 0)) * half_at(b, 0) +
                         double(half_at(a, 1)) * half_at(b, 1) + double(c));
        }>());
  r.add("v_dot2_bf16_bf16", pairs<[](u32 a, u32 b, u16 c) {
          return to_bf16(float(double(brain_at(a, 0)) * brain_at(b, 0) +
                               double(brain_at(a, 1)) * brain_at(b, 1) + double(float(bf16{c}))));
        }>());
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
