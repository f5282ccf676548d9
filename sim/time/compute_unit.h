// One compute unit (or WGP) in detail: replays traces of the workgroups that are resident on it
// together, and says when each instruction issues and what each wave and SIMD waited for.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "time/memory_system.h"
#include "time/timed_op.h"
#include "time/trace.h"

namespace rocflash::sim {

// What a wave waits for before it can issue, and what a SIMD whose matrix unit is idle does instead.
enum class Cause : u8 {
  Vector,      // SIMDs only: the vector port works
  Issue,       // a port or queue is taken, or the turn is
  Dependency,  // a register is not ready
  Lds,
  Memory,
  Barrier,
  Idle,  // SIMDs only: no wave, or it sleeps
};
inline constexpr int kCauses = 7;
std::string_view cause_name(Cause c);

using Causes = std::array<Clock, kCauses>;

struct OpTime {
  u64 count = 0;
  Clock issue = 0;  // clocks its port or slot was held
  Causes waits{};   // before it issued, summed over waves
};

struct UnitTime {
  Clock clocks = 0;  // until the last wave ends
  struct Group {
    u64 linear;
    Clock start, end;
  };
  std::vector<Group> groups;
  int simds = 4;
  Clock matrix_busy = 0;  // summed over SIMDs
  Clock vector_busy = 0;
  Causes waits{};  // of SIMDs whose matrix unit is idle, summed
  Clock lds_busy = 0;
  std::vector<OpTime> ops;
  MemorySystem::Traffic traffic;
};

// An instruction or a wait, for those who draw it.
struct TimelineEvent {
  Clock start, end;
  int simd;
  int wave;  // number on this unit
  u64 group;
  u32 op;      // Op::index
  bool waits;  // before `op`, for `cause`
  Cause cause;
};
using Timeline = std::function<void(const TimelineEvent&)>;

struct UnitSetup {
  const TimeParameters& parameters;
  const std::vector<TimedOp>& ops;
  const Sharing& sharing;
  double clock_mhz;
  int resident;  // workgroups at once
};

// Workgroups start in order, the first `resident` at once, the others as places become free.
UnitTime replay(const UnitSetup& setup, std::span<const GroupTrace* const> groups,
                const Timeline& timeline = {});

}  // namespace rocflash::sim
