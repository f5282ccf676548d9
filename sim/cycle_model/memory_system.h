// LDS and the memory hierarchy of one CU: servers that take requests in order,
// each with a latency and a bandwidth, so that the completion is known at issue.
#pragma once

#include <deque>
#include <functional>
#include <unordered_map>
#include <vector>

#include "cycle_model/parameters.h"
#include "cycle_model/timed_op.h"
#include "cycle_model/trace.h"

namespace rocflash::sim {

using Clock = i64;

// Which cache lines of a launch other CUs share; derived from the traces of
// adjacent workgroups (model.h).
struct Sharing {
  // CUs of this XCD, itself included, that read a line at about the same time.
  std::function<double(u64 line)> cus;
  // Whether CUs of other XCDs read it, too.
  std::function<bool(u64 line)> other_xcds;
  double footprint_bytes = 0;  // of the whole launch
  int active_cus = 1;          // of the chip
  int active_cus_per_xcd = 1;  // of one XCD
};

// LDS banks. Accesses reserve bank cycles at issue, before service starts; loads to LDS
// reserve them long before they arrive. Later requests fill the gaps before reserved cycles.
class Banks {
 public:
  // Reserves `clocks` from `start` on, around existing reservations; returns their end.
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

  // When the queue of this pair of SIMDs has a free entry.
  [[nodiscard]] Clock available_at(int pair, Clock now);
  struct Served {
    Clock end;   // the port is free; the wave may issue again after wave_gap
    Clock data;  // results have arrived
  };
  Served access(int pair, Clock now, const TracedAccess& access, bool write);
  // Data of loads to LDS go through the banks only.
  Clock load_to_lds(Clock now, u32 bytes);
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
  MemorySystem(const CycleModelParameters& p, const Sharing& sharing, double clock_mhz);

  // When an access can issue: a free queue entry, and bytes in flight below the limit.
  [[nodiscard]] Clock available_at(int pair, Clock now);
  // Completion: loads have their data, stores have reached L2. `salt` separates lines of workgroups
  // that share a trace.
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
    std::deque<std::pair<Clock, u32>> in_flight;
    u64 in_flight_bytes = 0;
  };

  Clock line_end(Path& path, Clock now, u64 line, u64 salt);
  Path& path(int pair) { return paths_[two_paths_ ? pair : 0]; }

  const CycleModelParameters& p_;
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
