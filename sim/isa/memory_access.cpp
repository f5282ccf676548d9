// Bounds and definedness of memory accesses.
#include "isa/memory_access.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "core/fill_pattern.h"
#include "core/launch.h"
#include "cycle_model/trace.h"
#include "isa/lds_banks.h"
#include "isa/lds_race_detector.h"

namespace rocflash::sim {
namespace {

// Direct writes of the host do not update the shadow; they replace the fill pattern.
bool written_by_host(u64 address, u32 bytes) {
  for (u64 at = address & ~3ull; at < address + bytes; at += 4) {
    u32 word;
    std::memcpy(&word, reinterpret_cast<const void*>(at), sizeof word);
    if (word == kFillDword) return false;
  }
  return true;
}

const char* verb(Access access) {
  return access == Access::Read ? "read" : access == Access::Write ? "write" : "atomic";
}

[[noreturn]] void bad_address(u64 address, u32 bytes, int lane, Access access) {
  const bool freed = Memory::instance().was_freed(address);
  raise_at(freed ? Fault::FreedMemory : Fault::OutOfBounds,
           fmt::format("{} of {} bytes {}", verb(access), bytes,
                       freed ? "in freed memory" : "outside any allocation"),
           lane, address);
}

}  // namespace

Location device_location(Wave& w, u64 address, u32 bytes, int lane, Access access) {
  const Allocation* a = w.worker->last_allocation;
  if (a == nullptr || !a->contains(address, bytes)) {
    a = Memory::instance().find(address);
    if (a == nullptr || !a->contains(address, bytes)) bad_address(address, bytes, lane, access);
    w.worker->last_allocation = a;
  }
  Location p;
  p.data = reinterpret_cast<u8*>(address);
  p.address = address;
  p.device = true;
  p.shadow_is_defined = true;
  if (w.strict && a->defined != nullptr) p.shadow = a->defined + (address - a->base);
  if (w.checks->global_race) [[unlikely]] {
    note_global_access(w, address, bytes, lane, access);
  }
  return p;
}

Location lds_location(Wave& w, u64 offset, u32 bytes, int lane, Access access,
                      const void* written) {
  Workgroup& g = *w.group;
  Location p;
  p.address = offset;
  if (offset + bytes > g.lds_allocated) {
    if (w.checks->lds_bounds) {
      raise_at(Fault::LdsOutOfBounds,
               fmt::format("{} of {} bytes at LDS offset {}, the workgroup has {}", verb(access),
                           bytes, offset, g.lds_allocated),
               lane, offset);
    }
    return p;
  }
  p.data = g.lds.data() + offset;
  if (w.strict) {
    p.shadow = g.lds_undefined.data() + offset;
    const bool follow = w.checks->lds_race || w.checks->wait;
    if (access != Access::Atomic && follow && g.waves > 1) {
      touch_lds(w, u32(offset), bytes, lane, access == Access::Write,
                static_cast<const u8*>(written));
    }
    if (g.lds_in_flight != 0) {
      check_lds_in_flight(w, u32(offset), bytes, lane, access, static_cast<const u8*>(written));
    }
  }
  return p;
}

Location scratch_location(Wave& w, u64 offset, u32 bytes, int lane) {
  if (offset + bytes > w.scratch_lane_bytes) {
    raise_at(Fault::OutOfBounds,
             fmt::format("scratch access of {} bytes at {}, the lane has {}", bytes, offset,
                         w.scratch_lane_bytes),
             lane, offset);
  }
  const u64 at = (offset / 4 * static_cast<u64>(w.size) + static_cast<u64>(lane)) * 4 + offset % 4;
  Location p;
  p.data = w.scratch.data() + at;
  p.address = offset;
  if (w.strict) p.shadow = w.scratch_undefined.data() + at;
  return p;
}

Location flat_location(Wave& w, u64 address, u32 bytes, int lane, Access access,
                       const void* written) {
  const u64 high = address & kApertureMask;
  if (high == kSharedAperture) return lds_location(w, u32(address), bytes, lane, access, written);
  if (high == kPrivateAperture) return scratch_location(w, u32(address), bytes, lane);
  return device_location(w, address, bytes, lane, access);
}

u32 confirm_undefined(const Location& location, u32 at, u32 bytes, u32 bits) {
  if (location.device && written_by_host(location.address + at, bytes)) return 0;
  return bytes == 4 ? bits : bits & ((1u << (8 * bytes)) - 1);
}

void store_bytes(Wave& w, const Location& location, u32 at, u32 bytes, u32 value, u32 undefined,
                 int lane) {
  if (location.data == nullptr) return;
  std::memcpy(location.data + at, &value, bytes);
  if (!w.strict) return;
  const u32 relevant = bytes == 4 ? undefined : undefined & ((1u << (8 * bytes)) - 1);
  if (location.device) {
    if (relevant != 0 && w.checks->undefined) {
      raise_at(Fault::Undefined, "an undefined value is stored to device memory", lane,
               location.address + at);
    }
    if (location.shadow != nullptr) std::memset(location.shadow + at, 0xff, bytes);
  } else if (location.shadow != nullptr) {
    std::memcpy(location.shadow + at, &undefined, bytes);
  }
}

void count_device_traffic(Wave& w, const u64* addresses, u64 active, u32 bytes, bool store) {
  if (w.trace != nullptr) w.trace->note_device(addresses, active, bytes);
  Traffic& t = w.worker->traffic;
  u64 lines[kMaxLanes * 2];
  int count = 0;
  for (u64 m = active; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    (store ? t.store_bytes : t.load_bytes) += bytes;
    const u64 first = addresses[lane] / 64;
    const u64 last = (addresses[lane] + bytes - 1) / 64;
    lines[count++] = first;
    if (last != first) lines[count++] = last;
  }
  std::sort(lines, lines + count);
  t.transactions += static_cast<u64>(std::unique(lines, lines + count) - lines);
}

void count_lds_traffic(Wave& w, const u32* addresses, u64 active, u32 bytes, bool write) {
  Traffic& t = w.worker->traffic;
  t.lds_bytes += bytes * static_cast<u64>(std::popcount(active));
  const LdsCost cost =
      lds_cost(lds_phases(*w.target, bytes, write), addresses, active, w.size, bytes);
  if (w.trace != nullptr) {
    w.trace->note_lds(cost.cycles, bytes * static_cast<u32>(std::popcount(active)));
  }
  t.lds_cycles += cost.cycles;
  t.lds_conflict_cycles += cost.conflicts;
}

}  // namespace rocflash::sim
