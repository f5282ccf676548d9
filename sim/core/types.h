// Integer and float types by the ISA manuals' names, and the constants that all parts share.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace rocflash::sim {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i8 = std::int8_t;
using i16 = std::int16_t;
using i32 = std::int32_t;
using i64 = std::int64_t;
using f16 = _Float16;

// Registers are stored with the lanes of a wave64; a wave32 uses the first half.
inline constexpr int kMaxLanes = 64;

// One VGPR: a dword per lane.
struct alignas(64) Vgpr {
  u32 lane[kMaxLanes];
};

// bfloat16 is a distinct type so that the traits in isa/elementwise.h separate it from u16.
struct bf16 {
  u16 bits;
  explicit operator float() const { return std::bit_cast<float>(u32{bits} << 16); }
};

}  // namespace rocflash::sim
