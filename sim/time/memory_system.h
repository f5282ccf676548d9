// LDS and the memory hierarchy as one compute unit sees them: servers that take requests in order,
// each with a latency and a rate, so that an access's end is known when it is issued.
#pragma once

#include <deque>
#include <functional>
#include <unordered_map>
#include <vector>

#include "time/parameters.h"
#include "time/timed_op.h"
#include "time/trace.h"

namespace rocflash::sim {

using Clock = i64;

// Where the lines of a launch lie beyond this unit's own caches; worked out from the traces of
// neighbouring workgroups (chip.h).
struct Sharing {
  // How many units of this XCD, itself included, want a line at about the same time.
  std::function<double(u64 line)> units;
  // Whether units of other XCDs want it, too.
  std::function<bool(u64 line)> other_xcds;
  double footprint_bytes = 0;  // of the whole launch
  int active_units = 1;        // of the chip
  int active_units_xcd = 1;    // of one XCD
};

// LDS banks. Accesses are known when they are issued, before their service starts, and data of loads
// long before they arrive: time is reserved ahead, and what comes first takes what is left before it.
class Banks {
 public:
  // Reserves `clocks` from `start` on, in pieces where others are in between; when they are over.
  Clock take(Clock start, Clock clocks);

 private:
  struct Taken {
    Clock begin, end;
  };
  std::vector<Taken> taken_;  // in order, none touching
};

class LdsServer {
 public:
  explicit LdsServer(const LdsParameters& p) : p_(p) {}

  // When the queue of this pair of SIMDs has room.
  [[nodiscard]] Clock room(int pair, Clock now);
  struct Served {
    Clock end;   // the port is free, the wave may ask again after its gap
    Clock data;  // results have arrived
  };
  Served access(int pair, Clock now, const TracedAccess& access, bool write);
  // Data of loads to LDS go through the banks only.
  Clock deposit(Clock now, u32 bytes);
  [[nodiscard]] Clock busy() const { return busy_; }

 private:
  const LdsParameters& p_;
  Clock port_free_[2] = {};
  Banks banks_[2];
  std::deque<Clock> waiting_[2];  // starts of service
  Clock busy_ = 0;                // clocks of the banks
};

class MemorySystem {
 public:
  MemorySystem(const TimeParameters& p, const Sharing& sharing, double clock_mhz);

  // When an access can be taken: room in the queue and among the bytes in flight.
  [[nodiscard]] Clock room(int pair, Clock now);
  // Its end: loads have their data, stores have been taken by L2. `salt` tells lines of workgroups
  // apart that were traced as one.
  Clock access(int pair, Clock now, const TimedOp& op, const TracedAccess& access, const u64* lines,
               u64 salt);

  struct Traffic {
    u64 l1_hits = 0, l2_hits = 0, mall_hits = 0, memory = 0;  // lines
  };
  [[nodiscard]] const Traffic& traffic() const { return traffic_; }

 private:
  struct Server {
    Clock latency = 0;
    double clocks_per_line = 0;
    double free = 0;
    Clock take(Clock now);
  };
  struct Path {  // one on CDNA; a WGP has two
    Clock address_free = 0;
    std::deque<Clock> waiting;
    std::unordered_map<u64, u64> l1;  // line -> fills when it was last used
    u64 l1_fills = 0;
    std::deque<std::pair<Clock, u32>> flying;
    u64 flying_bytes = 0;
  };

  Clock line_end(Path& path, Clock now, u64 line, u64 salt);
  Path& path(int pair) { return paths_[two_paths_ ? pair : 0]; }

  const TimeParameters& p_;
  const Sharing& sharing_;
  bool two_paths_;
  bool fits_mall_;
  Path paths_[2];
  Server l2_, mall_, memory_, atomics_;
  std::unordered_map<u64, u64> l2_lines_;
  u64 l2_fills_ = 0;
  Traffic traffic_;
};

}  // namespace rocflash::sim
