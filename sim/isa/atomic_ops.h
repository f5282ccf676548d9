// The arithmetic of atomic operations, shared by vector, LDS and scalar instructions. Device memory
// is shared by worker threads, so these are real atomics of the host there.
#pragma once

#include <atomic>
#include <bit>
#include <cstring>
#include <type_traits>

#include "isa/lane_math.h"
#include "isa/memory_access.h"

namespace rocflash::sim::atomic {

// Semantics::parameter of atomics: an operation and flags.
enum Operation : u32 {
  kSwap,
  kCmpSwap,
  kAdd,
  kSub,
  kRsub,
  kMinI,
  kMinU,
  kMaxI,
  kMaxU,
  kAnd,
  kOr,
  kXor,
  kInc,
  kDec,
  kAddF,
  kMinF,
  kMaxF,
  kPkAddF16,
  kPkAddBf16,
  kMskor,
  kCsub,
  kCondSub,
  kSubClamp,
  kMinNumF,
  kMaxNumF,
  kCmpSwapF,
  kWrap,
  kReverseCmp = 1u << 8,  // ds_cmpst: compare value first, new value second
  kWide = 1u << 9,
  kLdsReturns = 1u << 10,
};

inline bool is_compare(u32 parameter) {
  return (parameter & 0xff) == kCmpSwap || (parameter & 0xff) == kCmpSwapF;
}
inline bool takes_two(u32 parameter) {
  const u32 operation = parameter & 0xff;
  return is_compare(parameter) || operation == kMskor || operation == kWrap;
}

inline u32 pk_add(u32 a, u32 b, bool brain) {
  u32 result = 0;
  for (int i = 0; i < 32; i += 16) {
    const u16 x = u16(a >> i);
    const u16 y = u16(b >> i);
    const u16 sum = brain
                        ? to_bf16(float(bf16{x}) + float(bf16{y}))
                        : bits_of(f16(float(std::bit_cast<f16>(x)) + float(std::bit_cast<f16>(y))));
    result |= u32{sum} << i;
  }
  return result;
}

template <typename U>
U combine(u32 operation, U old, U data, U data2) {
  using I = std::make_signed_t<U>;
  using F = std::conditional_t<sizeof(U) == 8, double, float>;
  const auto f = [](U x) { return std::bit_cast<F>(x); };
  switch (operation & 0xff) {
    case kSwap:
      return data;
    case kCmpSwap:  // data is the new value, data2 what is compared
      return old == data2 ? data : old;
    case kAdd:
      return U(old + data);
    case kSub:
      return U(old - data);
    case kRsub:
      return U(data - old);
    case kMinI:
      return I(data) < I(old) ? data : old;
    case kMinU:
      return data < old ? data : old;
    case kMaxI:
      return I(data) > I(old) ? data : old;
    case kMaxU:
      return data > old ? data : old;
    case kAnd:
      return old & data;
    case kOr:
      return old | data;
    case kXor:
      return old ^ data;
    case kInc:
      return old >= data ? U(0) : U(old + 1);
    case kDec:
      return old == 0 || old > data ? data : U(old - 1);
    case kAddF:
      return std::bit_cast<U>(F(f(old) + f(data)));
    case kMinF:
      return std::bit_cast<U>(ieee_min(f(old), f(data)));
    case kMaxF:
      return std::bit_cast<U>(ieee_max(f(old), f(data)));
    case kMinNumF:
      return std::bit_cast<U>(number_min(f(old), f(data)));
    case kMaxNumF:
      return std::bit_cast<U>(number_max(f(old), f(data)));
    case kPkAddF16:
      return U(pk_add(u32(old), u32(data), false));
    case kPkAddBf16:
      return U(pk_add(u32(old), u32(data), true));
    case kMskor:
      return (old & ~data) | data2;
    case kCsub:
    case kSubClamp:
      return old < data ? U(0) : U(old - data);
    case kCondSub:
      return old < data ? old : U(old - data);
    default:
      raise(Fault::UnknownInstruction, "unknown atomic operation");
  }
}

template <typename U>
U apply(const Location& p, u32 operation, U data, U data2) {
  if (p.device) {
    std::atomic_ref<U> cell(*reinterpret_cast<U*>(p.data));
    U old = cell.load(std::memory_order_relaxed);
    while (!cell.compare_exchange_weak(old, combine<U>(operation, old, data, data2),
                                       std::memory_order_acq_rel)) {
    }
    return old;
  }
  U old;
  std::memcpy(&old, p.data, sizeof old);
  const U next = combine<U>(operation, old, data, data2);
  std::memcpy(p.data, &next, sizeof next);
  return old;
}

}  // namespace rocflash::sim::atomic
