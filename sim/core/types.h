// The widths the ISA manuals speak in, and the two constants every part of the simulator shares.
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

// A register row always has room for a wave64; a wave32 uses its first half.
inline constexpr int kMaxLanes = 64;

// One vector register: a dword for each lane.
struct alignas(64) Row {
  u32 lane[kMaxLanes];
};

// bfloat16 is a type of its own so that the traits in isa/elementwise.h can tell it from u16.
struct bf16 {
  u16 bits;
  explicit operator float() const { return std::bit_cast<float>(u32{bits} << 16); }
};

}  // namespace rocflash::sim
