// Execution trace of a workgroup: the instructions of each wave in order, and for
// each access to memory or LDS the lines and bank clocks it needs. Execution writes it, the cycle
// model (compute_unit.h) reads it; neither knows the other.
#pragma once

#include <vector>

#include "core/types.h"

namespace rocflash::sim {

// Cache line size of the traces: the L1 and L2 line of CDNA3, two sectors of RDNA.
inline constexpr u64 kLineBytes = 128;

// Longer waves are traced up to here; the rest is extrapolated.
inline constexpr std::size_t kMostTraced = 1 << 20;       // instructions of a wave
inline constexpr std::size_t kMostTracedLines = 1 << 22;  // lines of a wave

struct TracedAccess {
  u32 event = 0;        // which instruction of the wave, counted from its start
  u32 first_line = 0;   // in WaveTrace::lines
  u16 lines = 0;        // distinct lines of device memory
  u16 bank_clocks = 0;  // clocks of the LDS banks, conflicts included
  u32 bytes = 0;        // moved to or from device memory
  u32 lds_bytes = 0;    // moved to or from LDS
};

struct WaveTrace {
  bool detailed = true;    // false: only the lines it touches
  bool truncated = false;  // it was detailed up to kMostTraced
  std::vector<u32> ops;    // Op::index, in the order of execution
  std::vector<TracedAccess> accesses;
  std::vector<u64> lines;  // addresses / kLineBytes

  void note(u32 op) {
    if (!detailed) return;
    if (ops.size() < kMostTraced && lines.size() < kMostTracedLines) {
      ops.push_back(op);
    } else {
      detailed = false;
      truncated = true;
    }
  }
  void note_device(const u64* addresses, u64 active, u32 bytes);
  void note_lds(u32 bank_clocks, u32 bytes);

 private:
  TracedAccess& access();
};

struct WorkgroupTrace {
  u64 linear = 0;
  bool detailed = true;
  std::vector<WaveTrace> waves;
};

inline constexpr u64 kNoGroup = ~0ull;

// Decides what is executed and traced; called by the threads that run a launch.
class TraceSink {
 public:
  virtual ~TraceSink() = default;
  // The workgroup at this index of the dispatch order; beyond the last one: kNoGroup.
  virtual u64 workgroup_at(u64 dispatch_index) = 0;
  // Where its trace goes; null: it is not traced.
  virtual WorkgroupTrace* trace(u64 linear) = 0;
  virtual void executed(u64 linear, u64 instructions) = 0;
};

}  // namespace rocflash::sim
