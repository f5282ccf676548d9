// Scalar instructions as lambdas: parameter types give the operand widths, a trailing `bool& scc`
// gives access to the condition bit, a void result means there is no destination.
#pragma once

#include "isa/elementwise.h"
#include "isa/valu.h"

namespace rocflash::sim {

// What an instruction does with SCC; undefinedness follows.
enum class Scc : u8 { None, Writes, Reads, Both };

template <typename T>
inline T read_operand(const Wave& w, const Source& s, u64& undefined) {
  if constexpr (sizeof(T) == 8) {
    return std::bit_cast<T>(read_scalar64(w, s, &undefined));
  } else {
    u32 unknown = 0;
    const u32 value = read_scalar(w, s, &unknown);
    undefined = unknown;
    if constexpr (sizeof(T) == 2) {
      return std::bit_cast<T>(u16(s.high ? value >> 16 : value));
    } else {
      return std::bit_cast<T>(value);
    }
  }
}

template <typename T>
inline T apply_sign(T x, const Source& s) {
  if constexpr (is_float_v<T>) {
    if (s.abs) x = T(x < 0 ? -x : x);
    if (s.neg) x = T(-x);
  }
  return x;
}

template <bool Strict, auto F, Propagation Rule, Scc Uses, std::size_t... K>
inline void scalar_over(Wave& w, const Op& op, std::index_sequence<K...>) {
  using Traits = TraitsOf<F>;
  using R = typename Traits::Result;
  using A = typename Traits::Arguments;
  constexpr bool kHasScc = Traits::kArity > sizeof...(K);
  u64 unknown[sizeof...(K) + 1] = {};
  std::tuple<std::tuple_element_t<K, A>...> a{
      apply_sign(read_operand<std::tuple_element_t<K, A>>(w, op.src[K], unknown[K]), op.src[K])...};
  bool scc = w.scc;
  const auto call = [&] {
    if constexpr (kHasScc) {
      return F(std::get<K>(a)..., scc);
    } else {
      return F(std::get<K>(a)...);
    }
  };
  u64 undefined = 0;
  if constexpr (Strict) {
    if constexpr (Rule == Propagation::Route && Uses == Scc::Reads) {
      undefined = unknown[scc ? 0 : 1];  // a selection: only what is chosen matters
    } else if constexpr (Rule == Propagation::Route || Rule == Propagation::PackPair) {
      // Shifts and fields send undefined bits the way they send the data; packs send both.
      using First = std::tuple_element_t<0, A>;
      using Second = std::tuple_element_t<1, A>;
      const auto first = static_cast<First>(unknown[0]);
      const auto second =
          Rule == Propagation::PackPair ? static_cast<Second>(unknown[1]) : std::get<1>(a);
      if constexpr (kHasScc) {
        bool ignored = false;
        undefined = static_cast<u64>(F(first, second, ignored));
      } else {
        undefined = static_cast<u64>(F(first, second));
      }
      if (Rule == Propagation::Route && unknown[1] != 0) undefined = ~0ull;
    } else if constexpr (Rule == Propagation::And || Rule == Propagation::Or) {
      const u64 x = std::bit_cast<u64>(u64(std::get<0>(a)));
      const u64 y = std::bit_cast<u64>(u64(std::get<1>(a)));
      const u64 flip = Rule == Propagation::Or ? ~0ull : 0;
      undefined =
          (unknown[0] & (unknown[1] | (y ^ flip))) | (unknown[1] & (unknown[0] | (x ^ flip)));
    } else {
      for (std::size_t k = 0; k < sizeof...(K); ++k) undefined |= unknown[k];
      if (Rule == Propagation::Any && undefined != 0) undefined = ~0ull;
      if (Rule == Propagation::Add && undefined != 0) undefined |= 0 - undefined;
    }
    if ((Uses == Scc::Reads || Uses == Scc::Both) && w.scc_undef) undefined = ~0ull;
  }
  if constexpr (std::is_void_v<R>) {
    call();
  } else {
    const R r = call();
    const int d = op.dst[0].index;
    if constexpr (sizeof(R) == 8) {
      write_sgpr64<Strict>(w, d, std::bit_cast<u64>(r), undefined);
    } else if constexpr (sizeof(R) == 2) {
      // Scalar 16-bit results occupy the low half.
      write_sgpr<Strict>(w, d, std::bit_cast<u16>(r), u32(undefined));
    } else {
      write_sgpr<Strict>(w, d, std::bit_cast<u32>(r), u32(undefined));
    }
  }
  if constexpr (Uses == Scc::Writes || Uses == Scc::Both) {
    w.scc = scc;
    if constexpr (Strict) w.scc_undef = undefined != 0;
  }
}

template <bool Strict, auto F, Propagation Rule, Scc Uses>
void run_scalar(Wave& w, const Op& op) {
  using A = typename TraitsOf<F>::Arguments;
  constexpr std::size_t kArity = TraitsOf<F>::kArity;
  constexpr bool kHasScc = std::is_same_v<std::tuple_element_t<kArity - 1, A>, bool&>;
  scalar_over<Strict, F, Rule, Uses>(w, op, std::make_index_sequence<kArity - (kHasScc ? 1 : 0)>());
}

template <auto F, std::size_t... K>
constexpr void scalar_types(Semantics& s, std::index_sequence<K...>) {
  using A = typename TraitsOf<F>::Arguments;
  s.src = {type_of<std::tuple_element_t<K, A>>()...};
  s.sources = sizeof...(K);
}

template <auto F, Propagation Rule = Propagation::Any, Scc Uses = Scc::None>
Semantics scalar(u32 flags = 0) {
  using Traits = TraitsOf<F>;
  using A = typename Traits::Arguments;
  constexpr bool kHasScc = std::is_same_v<std::tuple_element_t<Traits::kArity - 1, A>, bool&>;
  Semantics s;
  s.run = run_scalar<false, F, Rule, Uses>;
  s.run_strict = run_scalar<true, F, Rule, Uses>;
  s.kind = InstructionClass::Salu;
  s.flags = flags;
  scalar_types<F>(s, std::make_index_sequence<Traits::kArity - (kHasScc ? 1 : 0)>());
  if constexpr (std::is_void_v<typename Traits::Result>) {
    s.flags |= flag::kNoDestination;
  } else {
    s.dst = type_of<typename Traits::Result>();
  }
  return s;
}

}  // namespace rocflash::sim
