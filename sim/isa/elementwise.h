// Converts a per-lane lambda, written as the ISA manual's pseudo-code, into a loop
// over all lanes and the table entry that describes its operands. The lambda's parameter types are
// the operand types.
#pragma once

#include <immintrin.h>

#include <tuple>
#include <type_traits>
#include <utility>

#include "isa/lanes.h"
#include "isa/valu.h"

namespace rocflash::sim {

template <typename T>
inline T load_lane(const u32* lo, const u32* hi, int i) {
  if constexpr (sizeof(T) == 8) {
    return std::bit_cast<T>(u64{lo[i]} | u64{hi[i]} << 32);
  } else if constexpr (sizeof(T) == 2) {
    return std::bit_cast<T>(static_cast<u16>(lo[i]));
  } else {
    return std::bit_cast<T>(lo[i]);
  }
}

template <typename T>
inline void store_lane(u32* lo, u32* hi, int i, T value) {
  if constexpr (sizeof(T) == 8) {
    const u64 bits = std::bit_cast<u64>(value);
    lo[i] = static_cast<u32>(bits);
    hi[i] = static_cast<u32>(bits >> 32);
  } else if constexpr (sizeof(T) == 2) {
    lo[i] = std::bit_cast<u16>(value);
  } else {
    lo[i] = std::bit_cast<u32>(value);
  }
}

template <typename T>
constexpr Type type_of() {
  if constexpr (std::is_same_v<T, u16>) return Type::B16;
  if constexpr (std::is_same_v<T, i16>) return Type::I16;
  if constexpr (std::is_same_v<T, f16>) return Type::F16;
  if constexpr (std::is_same_v<T, bf16>) return Type::BF16;
  if constexpr (std::is_same_v<T, u32>) return Type::B32;
  if constexpr (std::is_same_v<T, i32>) return Type::I32;
  if constexpr (std::is_same_v<T, float>) return Type::F32;
  if constexpr (std::is_same_v<T, u64>) return Type::B64;
  if constexpr (std::is_same_v<T, i64>) return Type::I64;
  if constexpr (std::is_same_v<T, double>) return Type::F64;
  return Type::None;
}

template <typename T>
inline constexpr bool is_float_v =
    std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, f16>;

template <typename T>
inline bool is_nan(T x) {
  if constexpr (is_float_v<T>) {
    return x != x;
  } else {
    return false;
  }
}

// NaN of an invalid operation: positive and quiet on AMD GPUs, negative on x86.
template <typename T>
inline T default_nan() {
  if constexpr (std::is_same_v<T, float>) return std::bit_cast<float>(0x7fc00000u);
  if constexpr (std::is_same_v<T, double>) return std::bit_cast<double>(0x7ff8000000000000ull);
  if constexpr (std::is_same_v<T, f16>) return std::bit_cast<f16>(u16{0x7e00});
}

template <typename T>
struct FunctionTraits;
template <typename C, typename R, typename... A>
struct FunctionTraits<R (C::*)(A...) const> {
  using Result = R;
  using Arguments = std::tuple<A...>;
  static constexpr std::size_t kArity = sizeof...(A);
};
template <auto F>
using TraitsOf = FunctionTraits<decltype(&decltype(F)::operator())>;

// One mask bit per lane from one dword per lane.
inline u64 pack_mask(const u32* values, int n) {
  u64 mask = 0;
  for (int i = 0; i < n; i += 8) {
    const __m256i v = _mm256_load_si256(reinterpret_cast<const __m256i*>(values + i));
    mask |= u64(u32(_mm256_movemask_ps(_mm256_castsi256_ps(v)))) << i;
  }
  return mask;
}

template <auto F, std::size_t... K>
inline void elementwise_over(Lanes& l, std::index_sequence<K...>) {
  using Traits = TraitsOf<F>;
  using R = typename Traits::Result;
  using A = typename Traits::Arguments;
  const u32* lo[] = {l.lo[K]...};
  const u32* hi[] = {l.hi[K]...};
  const int n = l.n;
  if constexpr (std::is_same_v<R, bool>) {
    Vgpr flags;
#pragma clang loop vectorize(assume_safety)
    for (int i = 0; i < n; ++i) {
      flags.lane[i] = F(load_lane<std::tuple_element_t<K, A>>(lo[K], hi[K], i)...) ? ~0u : 0u;
    }
    l.mask_out = pack_mask(flags.lane, n);
  } else {
    u32* d = l.d;
    u32* dh = l.dh;
#pragma clang loop vectorize(assume_safety)
    for (int i = 0; i < n; ++i) {
      R r = F(load_lane<std::tuple_element_t<K, A>>(lo[K], hi[K], i)...);
      if constexpr (is_float_v<R>) {
        const bool nan_in =
            (is_nan(load_lane<std::tuple_element_t<K, A>>(lo[K], hi[K], i)) | ... | false);
        r = ((r != r) & !nan_in) ? default_nan<R>() : r;
      }
      store_lane<R>(d, dh, i, r);
    }
  }
}

template <auto F>
void elementwise(Lanes& l) {
  elementwise_over<F>(l, std::make_index_sequence<TraitsOf<F>::kArity>());
}

template <auto F, std::size_t... K>
constexpr Semantics describe(std::index_sequence<K...>) {
  using Traits = TraitsOf<F>;
  using R = typename Traits::Result;
  using A = typename Traits::Arguments;
  Semantics s;
  s.compute = elementwise<F>;
  s.dst = std::is_same_v<R, bool> ? Type::Mask : type_of<R>();
  s.src = {type_of<std::tuple_element_t<K, A>>()...};
  s.sources = sizeof...(K);
  if constexpr (is_float_v<R> || (is_float_v<std::tuple_element_t<K, A>> || ...)) {
    s.flags |= flag::kFloatMode;
  }
  return s;
}

// A vector instruction whose arithmetic is a function of all lanes.
inline Semantics computed(ComputeFn compute, Type dst, Types src, u8 sources) {
  Semantics s = executed(run_vop<false>, run_vop<true>, InstructionClass::Valu);
  s.compute = compute;
  s.dst = dst;
  s.src = src;
  s.sources = sources;
  return s;
}

// A VALU instruction with sources, one destination and the same operation in all lanes.
template <auto F>
Semantics vop(Propagation propagation = Propagation::Any, u32 flags = 0, u8 selectors = 0) {
  Semantics s = describe<F>(std::make_index_sequence<TraitsOf<F>::kArity>());
  s.propagation = propagation;
  s.flags |= flags;
  s.selectors = selectors;
  if (s.dst == Type::Mask) {
    s.run = run_compare<false>;
    s.run_strict = run_compare<true>;
  } else {
    s.run = run_vop<false>;
    s.run_strict = run_vop<true>;
  }
  return s;
}

// As vop, with a second lambda for the saturating form that `clamp` selects.
template <auto F, auto Clamped>
Semantics vop_clamp(Propagation propagation = Propagation::Any, u32 flags = 0) {
  Semantics s = vop<F>(propagation, flags);
  s.compute_clamped = elementwise<Clamped>;
  return s;
}

template <auto F>
Semantics transcendental(u32 flags = 0) {
  Semantics s = vop<F>(Propagation::Any, flags);
  s.kind = InstructionClass::Transcendental;
  return s;
}

// VOP3P on pairs of 16-bit elements, or of 32-bit ones where the lambda's types are 32-bit.
template <auto F>
Semantics packed(u32 flags = 0) {
  Semantics s = describe<F>(std::make_index_sequence<TraitsOf<F>::kArity>());
  const bool wide = s.dst == Type::F32 || s.dst == Type::B32 || s.dst == Type::I32;
  s.flags |= flags | (wide ? flag::kPacked32 : flag::kPacked16);
  s.run = wide ? run_packed32<false> : run_packed16<false>;
  s.run_strict = wide ? run_packed32<true> : run_packed16<true>;
  return s;
}

template <auto F, auto Clamped>
Semantics packed_clamp(u32 flags = 0) {
  Semantics s = packed<F>(flags);
  s.compute_clamped = elementwise<Clamped>;
  return s;
}

}  // namespace rocflash::sim
