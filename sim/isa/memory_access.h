// Address to bytes: bounds checks and shadow memory. Shared by all memory instructions.
#pragma once

#include "core/wave.h"
#include "isa/valu.h"

namespace rocflash::sim {

// Address of a lane's access. `shadow` runs parallel to `data` when undefinedness is tracked.
struct Location {
  u8* data = nullptr;  // null: loads return zero, stores are dropped
  u8* shadow = nullptr;
  bool shadow_is_defined =
      false;  // device memory keeps what IS defined, scratch and LDS what is not
  bool device = false;
  u64 address = 0;
};

enum class Access : u8 { Read, Write, Atomic };

// Device memory at `address`, or a fault.
Location device_location(Wave& w, u64 address, u32 bytes, int lane, Access access);
// LDS at `offset`, or a fault (or nothing, when the check is off).
// `written` is what a write is about to store: two waves storing the same value do not race.
Location lds_location(Wave& w, u64 offset, u32 bytes, int lane, Access access,
                      const void* written = nullptr);
// A flat address: device memory, or LDS or scratch through their apertures.
Location flat_location(Wave& w, u64 address, u32 bytes, int lane, Access access,
                       const void* written = nullptr);

// Scratch is swizzled by dword and lane, so a wide access has several locations.
Location scratch_location(Wave& w, u64 offset, u32 bytes, int lane);

// Undefined bits of the shadow, unless the host has written there directly.
u32 confirm_undefined(const Location& location, u32 at, u32 bytes, u32 bits);
inline u32 load_undefined(const Location& location, u32 at, u32 bytes) {
  if (location.shadow == nullptr) return 0;
  u32 bits = location.shadow_is_defined ? ~0u : 0u;
  std::memcpy(&bits, location.shadow + at, bytes);
  if (location.shadow_is_defined) bits = ~bits;
  return bits == 0 ? 0 : confirm_undefined(location, at, bytes, bits);
}
// Whether all dwords here are known to be defined; the common case, decided without a call.
inline bool wholly_defined(const Location& location, u32 bytes) {
  if (location.shadow == nullptr) return true;
  const u32 clean = location.shadow_is_defined ? ~0u : 0u;
  u32 difference = 0;
  for (u32 i = 0; i + 4 <= bytes; i += 4) {
    u32 bits;
    std::memcpy(&bits, location.shadow + i, 4);
    difference |= bits ^ clean;
  }
  return difference == 0;
}
// Stores `bytes` (1, 2 or 4) with their undefined bits; raises a fault when device memory would get
// undefined bits.
void store_bytes(Wave& w, const Location& location, u32 at, u32 bytes, u32 value, u32 undefined,
                 int lane);

// The buffer that four scalar registers describe to scalar loads and stores.
struct ScalarBuffer {
  u64 base, size;
};
template <bool Strict>
ScalarBuffer scalar_buffer(const Wave& w, int at) {
  if constexpr (Strict) {
    need_sgpr(w, at, 4);
    check_defined(w, (w.sgpr_undef[at] | w.sgpr_undef[at + 1] | w.sgpr_undef[at + 2]) != 0,
                  "a buffer descriptor");
  }
  const u32 stride = w.sgpr[at + 1] >> 16 & 0x3fff;
  return {w.sgpr64(at) & 0xffffffffffffull,
          stride == 0 ? w.sgpr[at + 2] : u64{stride} * w.sgpr[at + 2]};
}

// Semantics::parameter of loads and stores.
namespace width {
inline constexpr u32 kBytes = 0xff;
inline constexpr u32 kSigned = 1u << 8;
inline constexpr u32 kD16 = 1u << 9;       // into the low half, the high one is kept
inline constexpr u32 kD16High = 1u << 10;  // into or from the high half
}  // namespace width

// Records the memory traffic of a VMEM instruction.
void count_device_traffic(Wave& w, const u64* addresses, u64 active, u32 bytes, bool store);
// LDS cycles of an access; see isa/lds_banks.h.
void count_lds_traffic(Wave& w, const u32* addresses, u64 active, u32 bytes, bool write);

}  // namespace rocflash::sim
