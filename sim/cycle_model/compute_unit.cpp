// The replay: in each issue slot of a SIMD, waves by priority and age may issue one instruction
// each, at most one per functional unit.
#include "cycle_model/compute_unit.h"

#include <algorithm>
#include <limits>
#include <memory>

namespace rocflash::sim {
namespace {

constexpr Clock kNever = std::numeric_limits<Clock>::max() / 4;
constexpr int kSimds = 4;

// Completion times of accesses in flight. LDS and VMEM loads complete in order, SMEM loads do not.
class InFlight {
 public:
  void add(Clock end, bool in_order) {
    if (in_order && !ends_.empty()) end = std::max(end, ends_.back());
    ends_.push_back(end);
  }
  void prune(Clock now) {
    std::erase_if(ends_, [now](Clock end) { return end <= now; });
  }
  [[nodiscard]] const std::vector<Clock>& ends() const { return ends_; }

 private:
  std::vector<Clock> ends_;
};

// When at most `allowed` accesses are in flight.
Clock drained_at(std::vector<Clock> ends, u8 allowed) {
  if (allowed == kNoWait || ends.size() <= allowed) return 0;
  const auto at = ends.end() - 1 - allowed;
  std::nth_element(ends.begin(), at, ends.end());
  return *at;
}

struct TimedWorkgroup;

struct TimedWave {
  const WaveTrace* trace = nullptr;
  TimedWorkgroup* group = nullptr;
  int number = 0;
  int simd = 0;
  u64 age = 0;
  int priority = 0;
  std::size_t next = 0;
  std::size_t next_access = 0;
  Clock ready = 0;  // its next issue slot
  Clock wake = 0;   // earliest slot to check
  StallReason cause = StallReason::Issue;
  Clock next_lds_issue = 0;
  Clock barrier_release = kNever;  // gfx12: release of the barrier it has signaled
  Clock asleep_since = 0;
  bool ended = false;
  InFlight loads, lds, scalar, stores;
  std::array<Clock, kTimedRegisters> ready_at{};
  // Forwarded results. VGPRs: as the C of a matrix instruction; SGPRs: to VALU instructions.
  std::array<Clock, kTimedRegisters> ready_forwarded{};
};

struct TimedWorkgroup {
  const WorkgroupTrace* trace = nullptr;
  std::vector<std::unique_ptr<TimedWave>> waves;
  Clock start = 0;
  u64 salt = 0;  // separates its lines from those of another replay of the same trace
  int arrived = 0;
  int alive = 0;
  Clock last_arrival = 0;
};

struct Simd {
  std::vector<TimedWave*> waves;  // by priority, then age
  Clock port = 0;                 // VALU free
  Clock matrix = 0;               // matrix core free
  Clock matrix_end = 0;           // end of the last matrix instruction
  Clock transcendental = 0;
  const TimedWave* matrix_wave = nullptr;  // wave of the last matrix instruction
  Clock next_slot = kNever;                // next issue slot with a wave to check
  Clock accounted = 0;
  StallReason cause = StallReason::Idle;
  Clock slot_until = 0;  // something was issued
};

class Replay {
 public:
  Replay(const CuSetup& setup, std::span<const WorkgroupTrace* const> groups,
         const Timeline& timeline)
      : setup_(setup),
        p_(setup.parameters),
        pending_(groups),
        timeline_(timeline),
        lds_(p_.lds),
        memory_(p_, setup.sharing, setup.clock_mhz) {
    result_.ops.resize(setup.ops.size());
    result_.simds = kSimds;
  }

  CuTime run() {
    for (int i = 0; i < setup_.resident && started_ < pending_.size(); ++i) start_workgroup(0);
    while (alive_groups_ > 0) {
      Simd* next = &simds_[0];
      for (Simd& s : simds_) {
        if (s.next_slot < next->next_slot) next = &s;
      }
      issue_slot(*next, next->next_slot);
    }
    for (Simd& s : simds_) account(s, result_.clocks);
    result_.lds_busy = lds_.busy();
    result_.traffic = memory_.traffic();
    return std::move(result_);
  }

 private:
  // --- workgroups ----------------------------------------------------------------------------

  void start_workgroup(Clock now) {
    auto group = std::make_unique<TimedWorkgroup>();
    group->salt = (started_ / static_cast<std::size_t>(setup_.resident)) << 56;
    group->trace = pending_[started_++];
    group->start = now;
    for (const WaveTrace& trace : group->trace->waves) {
      auto wave = std::make_unique<TimedWave>();
      wave->trace = &trace;
      wave->group = group.get();
      wave->number = waves_started_;
      wave->age = static_cast<u64>(waves_started_++);
      wave->ready = wave->wake = now;
      const auto fewest =
          std::ranges::min_element(simds_, {}, [](const Simd& s) { return s.waves.size(); });
      wave->simd = static_cast<int>(fewest - simds_.begin());
      fewest->waves.push_back(wave.get());
      schedule(*fewest, now);
      ++group->alive;
      group->waves.push_back(std::move(wave));
    }
    ++alive_groups_;
    groups_.push_back(std::move(group));
  }

  void end_wave(TimedWave& w, Clock now) {
    w.ended = true;
    Simd& s = simds_[static_cast<std::size_t>(w.simd)];
    std::erase(s.waves, &w);
    if (s.matrix_wave == &w) s.matrix_wave = nullptr;
    TimedWorkgroup& g = *w.group;
    --g.alive;
    release_if_all_arrived(g);
    if (g.alive > 0) return;
    // Stores drain without the wave; the slot is free when all waves have ended.
    const Clock end = now + p_.issue.issue_period;
    result_.groups.push_back({g.trace->linear, g.start, end});
    result_.clocks = std::max(result_.clocks, end);
    std::erase_if(groups_, [&](const auto& other) { return other.get() == &g; });
    --alive_groups_;
    if (started_ < pending_.size()) start_workgroup(end + p_.chip.replacement);
  }

  void release_if_all_arrived(TimedWorkgroup& g) {
    if (g.arrived == 0 || g.arrived < g.alive) return;
    g.arrived = 0;
    const Clock release = g.last_arrival + p_.issue.barrier;
    for (auto& wave : g.waves) {
      TimedWave& w = *wave;
      if (w.ended || w.barrier_release != 0) continue;
      w.barrier_release = release;
      if (w.wake != kNever) continue;
      record_stall(w, w.next - 1, w.asleep_since, release, StallReason::Barrier);
      w.ready = std::max(w.ready, release);
      w.wake = w.ready;
      w.barrier_release = kNever;
      schedule(simds_[static_cast<std::size_t>(w.simd)], w.wake);
    }
  }

  // --- issue slots ---------------------------------------------------------------------------

  // The first issue slot of this SIMD at or after `when`.
  [[nodiscard]] Clock next_issue_slot(const Simd& s, Clock when) const {
    if (p_.issue.issue_period == 1) return when;
    const Clock phase = &s - simds_.data();
    return (when - phase + 3) / 4 * 4 + phase;
  }
  void schedule(Simd& s, Clock when) {
    s.next_slot = std::min(s.next_slot, next_issue_slot(s, when));
  }

  void issue_slot(Simd& s, Clock now) {
    account(s, now);
    used_ = 0;
    bool issued = false;
    const std::vector<TimedWave*> order = s.waves;  // waves may end during the loop
    for (TimedWave* w : order) {
      if (w->wake > now) continue;
      StallReason cause = StallReason::Issue;
      const TimedOp& op = current(*w);
      Clock when = earliest(s, *w, op, now, cause);
      if (when <= now && !take_unit(op)) when = now + p_.issue.issue_period;
      if (when > now) {
        when = next_issue_slot(s, when);
        record_stall(*w, w->next, now, when, cause);
        w->cause = cause;
        w->wake = when;
        continue;
      }
      issue(s, *w, op, now);
      issued = true;
    }
    if (issued) s.slot_until = now + p_.issue.issue_period;
    s.cause = s.waves.empty() ? StallReason::Idle : s.waves.front()->cause;
    s.next_slot = kNever;
    for (const TimedWave* w : s.waves) {
      if (w->wake < kNever) schedule(s, std::max(w->wake, now + p_.issue.issue_period));
    }
  }

  [[nodiscard]] const TimedOp& current(const TimedWave& w) const {
    return setup_.ops[w.trace->ops[w.next]];
  }

  // Whether the functional unit is free in this issue slot.
  bool take_unit(const TimedOp& op) {
    u32 bit = 0;
    switch (op.unit) {
      case Unit::Valu:
      case Unit::Matrix:
        bit = 1;
        break;
      case Unit::Transcendental:
        bit = p_.issue.transcendental_unit ? 2 : 1;
        break;
      case Unit::Salu:
      case Unit::Smem:
        bit = 4;
        break;
      case Unit::Vmem:
        bit = 8;
        break;
      case Unit::Lds:
        bit = p_.issue.memory_port_shared ? 8 : 16;
        break;
      case Unit::Branch:
        bit = 32;
        break;
      default:
        return true;
    }
    if ((used_ & bit) != 0) return false;
    used_ |= bit;
    return true;
  }

  // The earliest issue cycle of this instruction, and the stall reason until then.
  Clock earliest(Simd& s, TimedWave& w, const TimedOp& op, Clock now, StallReason& cause) {
    Clock when = w.ready;
    const auto at_least = [&](Clock other, StallReason reason) {
      if (other > when && other > now) {
        when = other;
        cause = reason;
      }
    };
    at_least(operands(w, op), StallReason::Dependency);
    const int pair = w.simd / 2;
    switch (op.unit) {
      case Unit::Valu:
        at_least(s.port, StallReason::Issue);
        if (op.packed && p_.matrix.packed_excluded && s.matrix_wave != nullptr) {
          at_least(s.matrix_end + (s.matrix_wave == &w ? p_.matrix.packed_drain : 0),
                   StallReason::Issue);
        }
        break;
      case Unit::Transcendental:
        at_least(s.port, StallReason::Issue);
        at_least(s.transcendental, StallReason::Issue);
        break;
      case Unit::Matrix:
        at_least(std::max(s.port, s.matrix), StallReason::Issue);
        break;
      case Unit::Lds:
        // The access may wait in the LDS queue for less than an issue period.
        at_least(
            std::max(w.next_lds_issue - p_.issue.issue_period + 1, lds_.available_at(pair, now)),
            StallReason::Lds);
        break;
      case Unit::Vmem:
        at_least(memory_.available_at(pair, now), StallReason::Memory);
        break;
      case Unit::Wait:
        waits(w, op, now, at_least);
        break;
      case Unit::BarrierWait:
        if (w.barrier_release < kNever) at_least(w.barrier_release, StallReason::Barrier);
        break;
      case Unit::End:
        break;
      default:
        break;
    }
    return when;
  }

  [[nodiscard]] Clock operands(const TimedWave& w, const TimedOp& op) const {
    Clock when = 0;
    const bool vector = op.unit == Unit::Valu || op.unit == Unit::Transcendental ||
                        op.unit == Unit::Matrix || op.unit == Unit::Vmem || op.unit == Unit::Lds;
    for (const RegisterRange& r : op.reads) {
      const bool scalar = r.first >= kScalarBase;
      const auto& times = scalar && vector ? w.ready_forwarded : w.ready_at;
      for (u16 i = 0; i < r.count; ++i) when = std::max(when, times[std::size_t(r.first + i)]);
    }
    for (u16 i = 0; i < op.accumulator.count; ++i) {
      when = std::max(when, w.ready_forwarded[std::size_t(op.accumulator.first + i)]);
    }
    return when;
  }

  template <class AtLeast>
  void waits(TimedWave& w, const TimedOp& op, Clock now, const AtLeast& at_least) {
    for (InFlight* f : {&w.loads, &w.lds, &w.scalar, &w.stores}) f->prune(now);
    at_least(drained_at(w.loads.ends(), op.wait_load), StallReason::Memory);
    at_least(drained_at(w.stores.ends(), op.wait_store), StallReason::Memory);
    at_least(drained_at(w.lds.ends(), op.wait_lds), StallReason::Lds);
    at_least(drained_at(w.scalar.ends(), op.wait_scalar), StallReason::Memory);
    if (op.wait_joint != kNoWait) {
      std::vector<Clock> both = w.lds.ends();
      const bool scalar = !w.scalar.ends().empty();
      both.insert(both.end(), w.scalar.ends().begin(), w.scalar.ends().end());
      at_least(drained_at(std::move(both), op.wait_joint),
               scalar ? StallReason::Memory : StallReason::Lds);
    }
  }

  void issue(Simd& s, TimedWave& w, const TimedOp& op, Clock now) {
    const std::size_t event = w.next++;
    const u32 index = w.trace->ops[event];
    OpTime& time = result_.ops[index];
    ++time.count;
    Clock held = p_.issue.issue_period;
    w.ready = now + p_.issue.issue_period;
    w.cause = StallReason::Issue;
    const TracedAccess* access = nullptr;
    if (w.next_access < w.trace->accesses.size() &&
        w.trace->accesses[w.next_access].event == event) {
      access = &w.trace->accesses[w.next_access++];
    }
    switch (op.unit) {
      case Unit::Valu:
      case Unit::Transcendental:
        held = issue_vector(s, w, op, now);
        break;
      case Unit::Matrix:
        s.port = now + op.port;
        s.matrix = s.matrix_end = now + op.matrix;
        s.matrix_wave = &w;
        result_.matrix_busy += op.matrix;
        held = op.matrix;
        for (u16 i = 0; i < op.writes[0].count; ++i) {
          const auto r = static_cast<std::size_t>(op.writes[0].first + i);
          w.ready_at[r] = now + op.latency;
          w.ready_forwarded[r] = now + op.matrix;
        }
        break;
      case Unit::Lds:
        if (access != nullptr) {
          const Clock from = std::max(now, w.next_lds_issue);
          const auto served = lds_.access(w.simd / 2, from, *access, op.write);
          w.lds.add(served.data, true);
          w.next_lds_issue = served.end + p_.lds.wave_gap;
        }
        break;
      case Unit::Vmem:
        if (access != nullptr) issue_memory(w, op, *access, now);
        break;
      case Unit::Smem:
        w.scalar.add(now + p_.memory.scalar_latency, false);
        break;
      case Unit::Salu:
        write_scalar(w, op, now + p_.issue.scalar_latency, now + p_.issue.scalar_to_vector);
        break;
      case Unit::Branch:
        if (w.next < w.trace->ops.size() && w.trace->ops[w.next] != index + 1) {
          w.ready = now + p_.issue.branch_taken;
        }
        break;
      case Unit::Nop:
      case Unit::Sleep:
        w.ready = now + std::max<Clock>(p_.issue.issue_period, op.pause);
        if (op.unit == Unit::Sleep) w.cause = StallReason::Idle;
        break;
      case Unit::Priority:
        w.priority = op.priority;
        sort(s);
        break;
      case Unit::Barrier:
      case Unit::BarrierSignal:
      case Unit::BarrierWait:
        barrier(w, op.unit, now);
        break;
      default:
        break;
    }
    time.issue += held;
    if (timeline_) {
      timeline_({now, now + held, w.simd, w.number, w.group->trace->linear, index, false,
                 StallReason::Issue});
    }
    if (w.wake != kNever) w.wake = w.ready;
    if (op.unit == Unit::End || w.next == w.trace->ops.size()) end_wave(w, now);
  }

  Clock issue_vector(Simd& s, TimedWave& w, const TimedOp& op, Clock now) {
    const bool trans = op.unit == Unit::Transcendental;
    if (trans && p_.issue.transcendental_unit) {
      s.transcendental = now + op.port;
      s.port = now + p_.issue.vector;
    } else {
      s.port = now + op.port;
    }
    if (op.packed && p_.matrix.packed_excluded) s.matrix = std::max(s.matrix, s.port);
    result_.vector_busy += op.port;
    for (const RegisterRange& r : op.writes) {
      const bool scalar = r.first >= kScalarBase;
      for (u16 i = 0; i < r.count; ++i) {
        const auto at = static_cast<std::size_t>(r.first + i);
        w.ready_at[at] = now + (scalar ? p_.issue.vector_to_scalar : op.latency);
        w.ready_forwarded[at] = now + op.latency;
      }
    }
    return op.port;
  }

  static void write_scalar(TimedWave& w, const TimedOp& op, Clock scalar, Clock vector) {
    for (const RegisterRange& r : op.writes) {
      for (u16 i = 0; i < r.count; ++i) {
        w.ready_at[static_cast<std::size_t>(r.first + i)] = scalar;
        w.ready_forwarded[static_cast<std::size_t>(r.first + i)] = vector;
      }
    }
  }

  void issue_memory(TimedWave& w, const TimedOp& op, const TracedAccess& access, Clock now) {
    const u64* lines = w.trace->lines.data() + access.first_line;
    Clock end = memory_.access(w.simd / 2, now, op, access, lines, w.group->salt);
    if (op.to_lds) end = lds_.load_to_lds(end, access.lds_bytes);
    // gfx9 counts stores with the loads.
    const bool store_counter = op.store && p_.issue.issue_period == 1;
    (store_counter ? w.stores : w.loads).add(end, true);
    if (op.flat) w.lds.add(end, true);
  }

  void barrier(TimedWave& w, Unit unit, Clock now) {
    TimedWorkgroup& g = *w.group;
    if (unit != Unit::BarrierWait) {
      ++g.arrived;
      g.last_arrival = now;
      w.barrier_release = 0;  // it waits until the last wave arrives
    }
    if (unit != Unit::BarrierSignal && w.barrier_release == 0) {
      w.asleep_since = now;
      w.wake = kNever;
      w.cause = StallReason::Barrier;
    } else if (unit == Unit::BarrierWait) {
      w.ready = std::max(w.ready, w.barrier_release == kNever ? now : w.barrier_release);
      w.barrier_release = kNever;
    }
    if (unit != Unit::BarrierWait) release_if_all_arrived(g);
  }

  static void sort(Simd& s) {
    std::ranges::sort(s.waves, [](const TimedWave* a, const TimedWave* b) {
      return a->priority != b->priority ? a->priority > b->priority : a->age < b->age;
    });
  }

  // --- accounts ------------------------------------------------------------------------------

  void record_stall(const TimedWave& w, std::size_t event, Clock from, Clock to,
                    StallReason cause) {
    const u32 index = w.trace->ops[event];
    result_.ops[index].waits[static_cast<std::size_t>(cause)] += to - from;
    if (timeline_) {
      timeline_({from, to, w.simd, w.number, w.group->trace->linear, index, true, cause});
    }
  }

  // Accounts the clocks since the last slot: matrix core, else VALU, else issue, else the stall
  // reason of the first wave.
  void account(Simd& s, Clock now) {
    Clock at = s.accounted;
    if (now <= at) return;
    const auto until = [&](Clock end, StallReason cause) {
      end = std::min(end, now);
      if (end <= at) return;
      result_.waits[static_cast<std::size_t>(cause)] += end - at;
      at = end;
    };
    at = std::max(at, std::min(s.matrix, now));
    until(s.port, StallReason::Valu);
    until(s.slot_until, StallReason::Issue);
    until(now, s.cause);
    s.accounted = now;
  }

  const CuSetup& setup_;
  const CycleModelParameters& p_;
  std::span<const WorkgroupTrace* const> pending_;
  const Timeline& timeline_;
  std::size_t started_ = 0;
  int waves_started_ = 0;
  int alive_groups_ = 0;
  std::vector<std::unique_ptr<TimedWorkgroup>> groups_;
  std::array<Simd, kSimds> simds_;
  LdsServer lds_;
  MemorySystem memory_;
  u32 used_ = 0;
  CuTime result_;
};

}  // namespace

std::string_view stall_reason_name(StallReason c) {
  constexpr std::array<std::string_view, kStallReasons> names = {
      "vector", "issue", "dependency", "lds", "memory", "barrier", "idle"};
  return names[static_cast<std::size_t>(c)];
}

CuTime replay(const CuSetup& setup, std::span<const WorkgroupTrace* const> groups,
              const Timeline& timeline) {
  return Replay(setup, groups, timeline).run();
}

}  // namespace rocflash::sim
