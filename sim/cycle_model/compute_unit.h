// Cycle model of one CU (RDNA: WGP): replays traces of the workgroups that are resident on it
// and reports the issue cycle of each instruction and the stall cycles of each wave and SIMD.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "cycle_model/memory_system.h"
#include "cycle_model/timed_op.h"
#include "cycle_model/trace.h"

namespace rocflash::sim {

// Stall reasons of a wave, and the state of a SIMD whose matrix core is idle.
enum class StallReason : u8 {
  Valu,        // SIMDs only: the VALU is busy
  Issue,       // a functional unit, a queue or the issue slot is busy
  Dependency,  // scoreboard: a register is not ready
  Lds,
  Memory,
  Barrier,
  Idle,  // SIMDs only: no wave, or s_sleep
};
inline constexpr int kStallReasons = 7;
std::string_view stall_reason_name(StallReason c);

using StallCycles = std::array<Clock, kStallReasons>;

struct OpTime {
  u64 count = 0;
  Clock issue = 0;      // clocks of its functional unit or issue slot
  StallCycles waits{};  // before it issued, summed over waves
};

struct CuTime {
  Clock clocks = 0;  // until the last wave ends
  struct Group {
    u64 linear;
    Clock start, end;
  };
  std::vector<Group> groups;
  int simds = 4;
  Clock matrix_busy = 0;  // summed over SIMDs
  Clock vector_busy = 0;
  StallCycles waits{};  // of SIMDs whose matrix unit is idle, summed
  Clock lds_busy = 0;
  std::vector<OpTime> ops;
  MemorySystem::Traffic traffic;
};

// An instruction or a stall of the timeline.
struct TimelineEvent {
  Clock start, end;
  int simd;
  int wave;  // number on this unit
  u64 group;
  u32 op;      // Op::index
  bool waits;  // before `op`, for `cause`
  StallReason cause;
};
using Timeline = std::function<void(const TimelineEvent&)>;

struct CuSetup {
  const CycleModelParameters& parameters;
  const std::vector<TimedOp>& ops;
  const Sharing& sharing;
  double clock_mhz;
  int resident;  // workgroups at once
};

// Workgroups start in order, the first `resident` at once, each other one when a slot is free.
CuTime replay(const CuSetup& setup, std::span<const WorkgroupTrace* const> groups,
              const Timeline& timeline = {});

}  // namespace rocflash::sim
