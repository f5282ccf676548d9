// The state of a wave and of the workgroup it belongs to.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/memory.h"
#include "core/op.h"
#include "core/report.h"
#include "core/target.h"
#include "core/types.h"

namespace rocflash::sim {

// Which checks are reported. Bounds of device memory are always checked.
struct Checks {
  bool undefined = true;
  bool lds_bounds = true;
  bool lds_race = true;
  bool global_race = false;
  bool wait = true;
  bool barrier = true;
  bool misaligned = true;
  u64 budget = 1ull << 30;  // instructions a wave may execute

  // Whether registers and memory have shadow state, which costs time.
  [[nodiscard]] bool strict() const {
    return undefined || lds_bounds || lds_race || wait || global_race;
  }
};

// Counters besides executions per instruction.
struct Traffic {
  u64 lds_cycles = 0;           // clocks the LDS is busy, conflicts included
  u64 lds_conflict_cycles = 0;  // of these, because of bank conflicts
  u64 lds_bytes = 0;
  u64 load_bytes = 0;
  u64 store_bytes = 0;
  u64 transactions = 0;  // distinct 64-byte lines, an instruction at a time

  Traffic& operator+=(const Traffic& other);
};

// State of a worker thread across workgroups.
struct Worker {
  std::vector<u64> op_counts;
  Traffic traffic;
  const Allocation* last_allocation = nullptr;
  bool count_traffic = false;
};

// Loads in flight are counted for each half of a register: the low byte counts those to the low
// half.
inline constexpr u16 kLowHalf = 0x0001;
inline constexpr u16 kHighHalf = 0x0100;
inline constexpr u16 kBothHalves = 0x0101;

// A load or an LDS write that is in flight: issued and not yet waited for.
struct InFlightAccess {
  File file = File::None;
  u16 first = 0;
  u8 count = 0;
  u32 lds_low = 0;  // the range of LDS it writes; the bytes themselves are in an LdsWrite
  u32 lds_high = 0;
  u16 halves = kBothHalves;
  bool passed_barrier = false;  // an LDS write in flight across a barrier
  u32 epoch = 0;                // barriers the wave had passed when it was issued
};

// The bytes of LDS that one instruction writes.
struct LdsWrite {
  u64 lanes = 0;
  u32 bytes = 0;        // of a lane and piece
  u32 pieces = 1;       // two for ds_write2
  u32 offsets[2] = {};  // of the pieces, added to the lane's address
  Vgpr address;
};

// Wait counters: loadcnt (vmcnt), dscnt and kmcnt. lgkmcnt of gfx9..gfx11 is dscnt plus kmcnt.
enum class WaitCounter : u8 { Load, Ds, Km };

class InFlightQueue {
 public:
  static constexpr u32 kCapacity = 64;
  [[nodiscard]] u32 size() const { return tail_ - head_; }
  [[nodiscard]] const InFlightAccess& oldest() const { return entries_[head_ % kCapacity]; }
  void push(const InFlightAccess& p) { entries_[tail_++ % kCapacity] = p; }
  void pop() { ++head_; }
  [[nodiscard]] const InFlightAccess& at(u32 i) const { return entries_[slot(i)]; }
  [[nodiscard]] InFlightAccess& at(u32 i) { return entries_[slot(i)]; }
  // Slot of entry i; constant while the entry is queued.
  [[nodiscard]] u32 slot(u32 i) const { return (head_ + i) % kCapacity; }

 private:
  InFlightAccess entries_[kCapacity];
  u32 head_ = 0;
  u32 tail_ = 0;
};

// Last accesses to a dword of LDS, for the race detector. Epochs count barriers.
struct LdsAccessRecord {
  u32 write_epoch = 0;
  u32 read_epoch = 0;
  u32 co_writers = 0;  // waves that have stored the same value in this epoch, a bit each
  u8 writer = 0xff;
  u8 write_bytes = 0;
  u8 reader = 0xff;  // kMany when several waves read it in this epoch
  u8 read_bytes = 0;
};

struct LaunchState;
struct Wave;
struct WaveTrace;

struct Workgroup {
  u32 id[3] = {};
  u64 linear = 0;
  std::vector<u8> lds;
  std::vector<u8> lds_undefined;
  std::vector<LdsAccessRecord> lds_access_records;
  u32 lds_allocated = 0;
  int waves = 0;
  int arrived = 0;  // at the barrier
  int finished = 0;
  u32 barriers = 0;  // completed
  // LDS writes that no barrier orders, over all waves: loads to LDS in flight, and writes that
  // had not been waited for at a barrier.
  int lds_in_flight = 0;
  LaunchState* launch = nullptr;
  const Wave* first_wave = nullptr;
};

enum class Stop : u8 { None, Barrier, End, Yield };

struct Wave {
  Vgpr* vgpr = nullptr;
  Vgpr* vgpr_undef = nullptr;   // undefined bits; only with checks
  u8* vgpr_dirty = nullptr;     // whether a row of v_undef may be nonzero
  u16* vgpr_pending = nullptr;  // loads in flight to this row
  u32 sgpr[sreg::kCount] = {};
  u32 sgpr_undef[sreg::kCount] = {};
  u8 sgpr_pending[sreg::kCount] = {};
  bool scc = false;
  bool scc_undef = false;
  bool strict = false;
  Stop stop = Stop::None;
  int size = 64;
  int index = 0;  // index in the workgroup
  const Op* next = nullptr;
  const Op* current = nullptr;
  const Program* program = nullptr;
  Workgroup* group = nullptr;
  Worker* worker = nullptr;
  const Target* target = nullptr;
  const Checks* checks = nullptr;
  WaveTrace* trace = nullptr;  // set: the cycle model traces the wave
  u32 mode = 0;
  bool mode_default = true;  // nearest-even and denormals kept, for both widths
  u64 mask_of = ~0ull;       // exec value that lane_mask was built for
  Vgpr lane_mask{};
  u64 initial_exec = 0;
  u32 epoch = 0;          // barriers passed
  bool signaled = false;  // split barrier: signaled, not yet waited
  u32 waiting_epoch = 0;
  u64 executed = 0;
  int outstanding = 0;
  InFlightQueue queues[3];
  std::vector<LdsWrite> lds_writes[2];  // of the entries of WaitCounter::Load and Ds, by slot
  std::vector<u8> scratch;              // [dword][lane]
  std::vector<u8> scratch_undefined;    // same layout
  u64 scratch_lane_bytes = 0;

  // Storage of vgpr, vgpr_undef and so on.
  std::vector<Vgpr> rows;
  std::vector<Vgpr> undef_rows;
  std::vector<u8> row_state;
  std::vector<u16> row_pending;

  [[nodiscard]] u64 sgpr64(int i) const {
    u64 value;
    std::memcpy(&value, sgpr + i, sizeof value);
    return value;
  }
  void set_sgpr64(int i, u64 value) { std::memcpy(sgpr + i, &value, sizeof value); }
  [[nodiscard]] u64 sgpr64_undef(int i) const {
    u64 value;
    std::memcpy(&value, sgpr_undef + i, sizeof value);
    return value;
  }
  [[nodiscard]] u64 full_mask() const { return size == 64 ? ~0ull : 0xffffffffull; }
  [[nodiscard]] u64 exec() const { return sgpr64(sreg::kExec) & full_mask(); }
  [[nodiscard]] u64 read_mask(int i) const { return size == 64 ? sgpr64(i) : u64{sgpr[i]}; }
  [[nodiscard]] u64 read_mask_undef(int i) const {
    return size == 64 ? sgpr64_undef(i) : u64{sgpr_undef[i]};
  }
  [[nodiscard]] bool gfx9() const { return target->generation == Generation::Gfx9; }

  // All-ones in the lanes of `mask`, zero elsewhere; cached because exec rarely changes.
  const u32* lanes_of(u64 mask) {
    if (mask != mask_of) {
      mask_of = mask;
      for (int i = 0; i < kMaxLanes; ++i) lane_mask.lane[i] = (mask >> i) & 1 ? ~0u : 0u;
    }
    return lane_mask.lane;
  }
};

// Apertures through which flat addresses reach LDS and scratch.
inline constexpr u64 kSharedAperture = 0x0001'0000'0000'0000ull;
inline constexpr u64 kPrivateAperture = 0x0002'0000'0000'0000ull;
inline constexpr u64 kApertureMask = 0xffff'ffff'0000'0000ull;

// --- waits -----------------------------------------------------------------------------------

[[noreturn]] void missing_wait(const Wave& w, File file, int index);

inline void need_vgpr(const Wave& w, int row, int count = 1, u16 halves = kBothHalves) {
  if (w.outstanding == 0) return;
  for (int i = 0; i < count; ++i) {
    if ((w.vgpr_pending[row + i] & (halves * 0xff)) != 0) missing_wait(w, File::Vgpr, row + i);
  }
}

inline void need_sgpr(const Wave& w, int index, int count = 1) {
  if (w.outstanding == 0) return;
  for (int i = 0; i < count; ++i) {
    if (w.sgpr_pending[index + i] != 0) missing_wait(w, File::Sgpr, index + i);
  }
}

// Only with checks. `write`: the bytes of LDS that the instruction writes, or null.
void issue_load(Wave& w, WaitCounter queue, const InFlightAccess& pending,
                const LdsWrite* write = nullptr);
// Waits until at most `allowed` accesses are in flight.
void wait_for(Wave& w, WaitCounter queue, u32 allowed);
// A write whose wait came after a barrier belongs to the epoch of the wait. Defined in
// isa/lds_race_detector.cpp.
void publish_after_barrier(Wave& w, const LdsWrite& write);

// --- undefinedness ---------------------------------------------------------------------------

[[noreturn]] void undefined_use(const char* decides, int lane = -1);

// No effect when the check is disabled.
inline void check_defined(const Wave& w, bool undefined, const char* decides, int lane = -1) {
  if (undefined && w.checks->undefined) [[unlikely]]
    undefined_use(decides, lane);
}

// Writes EXEC, VCC or any SGPR; SGPR_NULL discards writes, EXEC must be defined.
template <bool Strict>
inline void write_sgpr(Wave& w, int index, u32 value, u32 undefined) {
  if (index == sreg::kNull) return;
  if constexpr (Strict) {
    if ((index & ~1) == sreg::kExec && undefined != 0) check_defined(w, true, "the exec mask");
    w.sgpr_undef[index] = undefined;
  }
  w.sgpr[index] = value;
}

template <bool Strict>
inline void write_sgpr64(Wave& w, int index, u64 value, u64 undefined) {
  if (index == sreg::kNull) return;
  write_sgpr<Strict>(w, index, u32(value), u32(undefined));
  write_sgpr<Strict>(w, index + 1, u32(value >> 32), u32(undefined >> 32));
}

// A lane mask is as wide as the wave.
template <bool Strict>
inline void write_mask(Wave& w, int index, u64 value, u64 undefined) {
  if (w.size == 64) {
    write_sgpr64<Strict>(w, index, value, undefined);
  } else {
    write_sgpr<Strict>(w, index, u32(value), u32(undefined));
  }
}

}  // namespace rocflash::sim
