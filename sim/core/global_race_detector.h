// Happens-before race detector for device memory. Two workgroups race if both write the same bytes
// without atomics and no synchronization orders the writes. An atomic after the write releases;
// a read of, or an atomic on, the same word before the second write acquires. The detector does not
// check that the releasing wave waited for its stores (vmcnt or vscnt) before the atomic.
//
// Not thread safe: a launch with this check runs on one thread.
#pragma once

#include <optional>
#include <unordered_map>

#include "core/types.h"

namespace rocflash::sim {

class GlobalRaceDetector {
 public:
  // The workgroup whose earlier write to some of these bytes does not happen before this one.
  std::optional<u64> write(u64 group, u64 address, u32 bytes);
  void read(u64 group, u64 address);
  void atomic(u64 group, u64 address);

 private:
  // Of each other workgroup, the last release that this one has acquired.
  using VectorClock = std::unordered_map<u64, u64>;
  struct WorkgroupClock {
    VectorClock clock;
    u64 release = 0;                        // releases so far
    std::unordered_map<u64, u64> versions;  // of synchronization words, as last read
  };
  struct SyncWord {
    VectorClock clock;
    u64 version = 0;
  };
  struct Writer {
    u64 group = 0, release = 0;
    u8 bytes = 0;
  };
  static void join(VectorClock& to, const VectorClock& from);

  std::unordered_map<u64, Writer> writers_;       // the last writer of each dword
  std::unordered_map<u64, SyncWord> sync_words_;  // words that atomics have changed
  std::unordered_map<u64, WorkgroupClock> groups_;
};

}  // namespace rocflash::sim
