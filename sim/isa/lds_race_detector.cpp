// Race detector for LDS. Logical time is the epoch: the number of barriers that a wave has
// passed. Two accesses of one epoch by two waves race when one of them writes. A write belongs to
// the epoch of its issue; one whose wait comes after a barrier may complete at any time
// until then, so no other wave may access its bytes before the wait or later in the same epoch.
#include "isa/lds_race_detector.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/launch.h"

namespace rocflash::sim {
namespace {

constexpr u8 kMany = 0xfe;  // several waves in this epoch
constexpr u8 kLate = 0x80;  // in write_bytes: the write was waited for after a barrier

u32 bit_of(int wave) { return 1u << (wave & 31); }
bool wrote(const LdsAccessRecord& t, int wave) {
  return t.writer == wave || (t.co_writers & bit_of(wave)) != 0;
}
// Some wave but this one. With several writers of one dword (kMany) each owns its bytes.
bool others_wrote(const LdsAccessRecord& t, int wave) {
  return (t.writer != wave && t.writer != kMany) || (t.co_writers & ~bit_of(wave)) != 0;
}

// Two waves met on this byte without a barrier between.
void conflict(const Wave& w, const LdsAccessRecord& t, u32 at, int lane, const char* what,
              int other) {
  if ((t.write_bytes & kLate) != 0) {
    if (!w.checks->wait) return;
    raise_at(Fault::MissingWait,
             fmt::format("{} LDS byte {}, but wave {} had not waited for its write before the "
                         "barrier",
                         what, at, other),
             lane, at);
  }
  if (!w.checks->lds_race) return;
  raise_at(Fault::LdsRace,
           fmt::format("{} LDS byte {} without a barrier since wave {}", what, at, other), lane,
           at);
}

int other_writer(const LdsAccessRecord& t, int wave) {
  return t.writer != wave ? t.writer : std::countr_zero(t.co_writers & ~bit_of(wave));
}

// One dword or a part of it: `mask` has a bit for each byte.
void touch_dword(Wave& w, u32 at, u8 mask, int lane, bool write, bool same_value) {
  LdsAccessRecord& t = w.group->lds_access_records[at >> 2];
  const auto self = static_cast<u8>(w.index);
  const u32 epoch = w.epoch + 1;  // 0 means never
  const bool written_now = t.write_epoch == epoch && (t.write_bytes & mask) != 0;
  if (written_now && others_wrote(t, self)) {
    if (write && same_value) {
      if (t.writer != self) t.co_writers |= bit_of(self);
      return;
    }
    if (write || !wrote(t, self)) {
      conflict(w, t, at, lane, write ? "writes" : "reads", other_writer(t, self));
    }
  }
  if (!write) {
    const bool again = t.read_epoch == epoch;
    t.reader = !again || t.reader == self ? self : kMany;
    t.read_bytes = again ? t.read_bytes | mask : mask;
    t.read_epoch = epoch;
    return;
  }
  if (t.read_epoch == epoch && t.reader != self && (t.read_bytes & mask) != 0 &&
      w.checks->lds_race) {
    raise_at(Fault::LdsRace,
             fmt::format("writes LDS byte {} without a barrier since wave {}", at,
                         t.reader == kMany ? -1 : t.reader),
             lane, at);
  }
  if (t.write_epoch == epoch && t.writer != self) {
    t.writer = kMany;  // several waves write bytes of one dword
    t.co_writers = 0;
    return;
  }
  t.write_bytes = t.write_epoch == epoch ? t.write_bytes | mask : mask;
  if (t.write_epoch != epoch) t.co_writers = 0;
  t.writer = self;
  t.write_epoch = epoch;
}

// Calls `f` with each dword of the range, the bytes of it that belong to the range, and how far the
// first of them is into the range.
template <typename F>
void for_each_dword(u32 offset, u32 bytes, F f) {
  u32 done = 0;
  while (done < bytes) {
    const u32 at = offset + done;
    const u32 here = std::min(4 - (at & 3), bytes - done);
    f(at, u8(((1u << here) - 1) << (at & 3)), done, here);
    done += here;
  }
}

bool overlaps(const LdsWrite& write, u32 offset, u32 bytes) {
  for (u64 m = write.lanes; m != 0; m &= m - 1) {
    for (u32 piece = 0; piece < write.pieces; ++piece) {
      const u64 at = write.address.lane[std::countr_zero(m)] + write.offsets[piece];
      if (at < u64{offset} + bytes && at + write.bytes > offset) return true;
    }
  }
  return false;
}

// Both waves have stored the same value there in this epoch: whichever is last changes nothing.
bool both_stored_the_same(const Wave& w, const Wave& other, u32 offset, u32 bytes) {
  bool all = true;
  for_each_dword(offset, bytes, [&](u32 at, u8 mask, u32, u32) {
    const LdsAccessRecord& t = w.group->lds_access_records[at >> 2];
    all = all && t.write_epoch == w.epoch + 1 && (t.write_bytes & mask) == mask &&
          wrote(t, w.index) && wrote(t, other.index);
  });
  return all;
}

}  // namespace

void touch_lds(Wave& w, u32 offset, u32 bytes, int lane, bool write, const u8* written) {
  Workgroup& g = *w.group;
  const auto self = static_cast<u8>(w.index);
  const u32 epoch = w.epoch + 1;
  u32 done = 0;
  // Fast path: whole dwords without another writer.
  if (!write && (offset & 3) == 0) {
    for (LdsAccessRecord* t = &g.lds_access_records[offset >> 2]; bytes - done >= 4;
         ++t, done += 4) {
      if (t->write_epoch == epoch && t->writer != self) break;
      t->reader = t->read_epoch != epoch || t->reader == self ? self : kMany;
      t->read_epoch = epoch;
      t->read_bytes = 15;
    }
  }
  for_each_dword(offset + done, bytes - done, [&](u32 at, u8 mask, u32 into, u32 here) {
    const bool same =
        written != nullptr && std::memcmp(g.lds.data() + at, written + done + into, here) == 0;
    touch_dword(w, at, mask, lane, write, same);
  });
}

void check_lds_in_flight(Wave& w, u32 offset, u32 bytes, int lane, Access access,
                         const u8* written) {
  if (!w.checks->wait) return;
  const bool same_value =
      written != nullptr && std::memcmp(w.group->lds.data() + offset, written, bytes) == 0;
  if (same_value) return;
  for (const Wave& other : waves_of(*w.group)) {
    for (const WaitCounter which : {WaitCounter::Load, WaitCounter::Ds}) {
      const InFlightQueue& queue = other.queues[static_cast<int>(which)];
      // A wave's own LDS instructions are carried out in order.
      if (which == WaitCounter::Ds && &other == &w) continue;
      for (u32 i = 0; i < queue.size(); ++i) {
        const InFlightAccess& p = queue.at(i);
        if (p.lds_high <= offset || p.lds_low >= offset + bytes) continue;
        if (which == WaitCounter::Ds && !p.passed_barrier) continue;
        if (!overlaps(other.lds_writes[static_cast<int>(which)][queue.slot(i)], offset, bytes)) {
          continue;
        }
        if (access == Access::Read && &other != &w &&
            both_stored_the_same(w, other, offset, bytes)) {
          continue;
        }
        raise_at(
            Fault::MissingWait,
            which == WaitCounter::Load
                ? fmt::format("LDS byte {} is touched while a load to LDS by wave {} is in flight",
                              offset, other.index)
                : fmt::format("touches LDS byte {}, but wave {} had not waited for its write "
                              "before the barrier",
                              offset, other.index),
            lane, offset);
      }
    }
  }
}

void carry_lds_writes(Wave& w) {
  InFlightQueue& queue = w.queues[static_cast<int>(WaitCounter::Ds)];
  for (u32 i = 0; i < queue.size(); ++i) {
    InFlightAccess& p = queue.at(i);
    if (p.lds_high == 0 || p.passed_barrier) continue;
    p.passed_barrier = true;
    ++w.group->lds_in_flight;
  }
}

void publish_after_barrier(Wave& w, const LdsWrite& write) {
  if (w.group->waves == 1) return;
  const u32 epoch = w.epoch + 1;
  for (u64 m = write.lanes; m != 0; m &= m - 1) {
    for (u32 piece = 0; piece < write.pieces; ++piece) {
      const u32 from = write.address.lane[std::countr_zero(m)] + write.offsets[piece];
      if (u64{from} + write.bytes > w.group->lds_allocated) continue;
      for_each_dword(from, write.bytes, [&](u32 at, u8 mask, u32, u32) {
        LdsAccessRecord& t = w.group->lds_access_records[at >> 2];
        // Later writes of other waves were checked when they were issued.
        if (t.write_epoch == epoch && t.writer != w.index) return;
        t.write_bytes = u8((t.write_epoch == epoch ? t.write_bytes : 0) | mask | kLate);
        t.write_epoch = epoch;
        t.writer = static_cast<u8>(w.index);
        t.co_writers = 0;
      });
    }
  }
}

}  // namespace rocflash::sim
