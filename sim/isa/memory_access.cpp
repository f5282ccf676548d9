// Bounds, definedness and races of memory accesses.
#include "isa/memory_access.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "core/fresh.h"
#include "core/launch.h"
#include "isa/lds_banks.h"

namespace rocflash::sim {
namespace {

constexpr u8 kMany = 0xfe;  // several waves read this dword in this epoch

// The host can write device memory without telling; then the pattern of fresh memory is gone.
bool written_by_host(u64 address, u32 bytes) {
  for (u64 at = address & ~3ull; at < address + bytes; at += 4) {
    u32 word;
    std::memcpy(&word, reinterpret_cast<const void*>(at), sizeof word);
    if (word == kFreshDword) return false;
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

// Two waves met on this dword without a barrier between.
[[noreturn]] void race(u64 offset, int lane, const char* what, int other) {
  raise_at(Fault::LdsRace,
           fmt::format("{} LDS byte {} without a barrier since wave {}", what, offset, other), lane,
           offset);
}

void touch_lds(Wave& w, u64 offset, u32 bytes, int lane, bool write, const u8* written) {
  Workgroup& g = *w.group;
  const auto self = static_cast<u8>(w.index);
  const u32 epoch = w.epoch + 1;  // 0 means never
  u64 at = offset;
  u32 left = bytes;
  // Whole dwords that nobody else has written: nearly every read.
  if (!write && (offset & 3) == 0) {
    for (LdsTouch* t = &g.lds_touch[offset >> 2]; left >= 4; ++t, at += 4, left -= 4) {
      if (t->write_epoch == epoch && t->writer != self) break;
      t->reader = t->read_epoch != epoch || t->reader == self ? self : kMany;
      t->read_epoch = epoch;
      t->read_bytes = 15;
    }
  }
  while (left > 0) {
    const u32 in = at & 3;
    const u32 here = std::min(4 - in, left);
    const u8 mask = u8(((1u << here) - 1) << in);
    LdsTouch& t = g.lds_touch[at >> 2];
    if (t.write_epoch == epoch && t.writer != self && t.writer != kMany &&
        (t.write_bytes & mask) != 0) {
      if (written != nullptr &&
          std::memcmp(g.lds.data() + at, written + (at - offset), here) == 0) {
        at += here;
        left -= here;
        continue;
      }
      race(at, lane, write ? "writes" : "reads", t.writer);
    }
    if (write) {
      if (t.read_epoch == epoch && t.reader != self && (t.read_bytes & mask) != 0) {
        race(at, lane, "writes", t.reader == kMany ? -1 : t.reader);
      }
      if (t.write_epoch == epoch && t.writer != self) {
        t.writer = kMany;  // neighbours in one dword: each owns its bytes
      } else {
        t.write_bytes = t.write_epoch == epoch ? t.write_bytes | mask : mask;
        t.writer = self;
        t.write_epoch = epoch;
      }
    } else if (t.read_epoch == epoch) {
      if (t.reader != self) t.reader = kMany;
      t.read_bytes |= mask;
    } else {
      t.read_epoch = epoch;
      t.reader = self;
      t.read_bytes = mask;
    }
    at += here;
    left -= here;
  }
}

}  // namespace

Place device_place(Wave& w, u64 address, u32 bytes, int lane, Access access) {
  const Allocation* a = w.worker->last_allocation;
  if (a == nullptr || !a->contains(address, bytes)) {
    a = Memory::instance().find(address);
    if (a == nullptr || !a->contains(address, bytes)) bad_address(address, bytes, lane, access);
    w.worker->last_allocation = a;
  }
  Place p;
  p.data = reinterpret_cast<u8*>(address);
  p.address = address;
  p.device = true;
  p.shadow_is_defined = true;
  if (w.strict && a->defined != nullptr) p.shadow = a->defined + (address - a->base);
  if (access == Access::Write && w.checks->global_race) [[unlikely]] {
    note_global_write(w, address, bytes, lane);
  }
  return p;
}

Place lds_place(Wave& w, u64 offset, u32 bytes, int lane, Access access, const void* written) {
  Workgroup& g = *w.group;
  Place p;
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
    if (access != Access::Atomic && w.checks->lds_race && g.waves > 1) {
      touch_lds(w, offset, bytes, lane, access == Access::Write, static_cast<const u8*>(written));
    }
    if (g.pending_lds_loads != 0) check_lds_in_flight(w, offset, bytes, lane);
  }
  return p;
}

Place scratch_place(Wave& w, u64 offset, u32 bytes, int lane) {
  if (offset + bytes > w.scratch_lane_bytes) {
    raise_at(Fault::OutOfBounds,
             fmt::format("scratch access of {} bytes at {}, the lane has {}", bytes, offset,
                         w.scratch_lane_bytes),
             lane, offset);
  }
  const u64 at = (offset / 4 * static_cast<u64>(w.size) + static_cast<u64>(lane)) * 4 + offset % 4;
  Place p;
  p.data = w.scratch.data() + at;
  p.address = offset;
  if (w.strict) p.shadow = w.scratch_undefined.data() + at;
  return p;
}

Place flat_place(Wave& w, u64 address, u32 bytes, int lane, Access access) {
  const u64 high = address & kApertureMask;
  if (high == kSharedAperture) return lds_place(w, u32(address), bytes, lane, access);
  if (high == kPrivateAperture) return scratch_place(w, u32(address), bytes, lane);
  return device_place(w, address, bytes, lane, access);
}

u32 confirm_undefined(const Place& place, u32 at, u32 bytes, u32 bits) {
  if (place.device && written_by_host(place.address + at, bytes)) return 0;
  return bytes == 4 ? bits : bits & ((1u << (8 * bytes)) - 1);
}

void store_bytes(Wave& w, const Place& place, u32 at, u32 bytes, u32 value, u32 undefined,
                 int lane) {
  if (place.data == nullptr) return;
  std::memcpy(place.data + at, &value, bytes);
  if (!w.strict) return;
  const u32 relevant = bytes == 4 ? undefined : undefined & ((1u << (8 * bytes)) - 1);
  if (place.device) {
    if (relevant != 0 && w.checks->undefined) {
      raise_at(Fault::Undefined, "an undefined value is stored to device memory", lane,
               place.address + at);
    }
    if (place.shadow != nullptr) std::memset(place.shadow + at, 0xff, bytes);
  } else if (place.shadow != nullptr) {
    std::memcpy(place.shadow + at, &undefined, bytes);
  }
}

void count_device_traffic(Wave& w, const u64* addresses, u64 active, u32 bytes, bool store) {
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
  t.lds_cycles += cost.cycles;
  t.lds_conflict_cycles += cost.conflicts;
}

void check_lds_in_flight(Wave& w, u64 offset, u32 bytes, int lane) {
  if (!w.checks->wait) return;
  for (const Wave& other : waves_of(*w.group)) {
    const PendingQueue& queue = other.queues[static_cast<int>(Queue::Load)];
    for (u32 i = 0; i < queue.size(); ++i) {
      const Pending& p = queue.at(i);
      if (p.lds_high > offset && p.lds_low < offset + bytes) {
        raise_at(Fault::MissingWait,
                 fmt::format("LDS byte {} is touched while a load to LDS by wave {} is in flight",
                             offset, other.index),
                 lane, offset);
      }
    }
  }
}

}  // namespace rocflash::sim
