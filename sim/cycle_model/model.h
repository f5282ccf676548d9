// The time of a launch: workgroups sampled along one XCD's share of the dispatch order are traced
// and replayed on one compute unit, the others take what those of their length take, and the whole
// list is dispatched over the chip's units.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/launch.h"
#include "cycle_model/compute_unit.h"

namespace rocflash::sim {

struct PredictedTime {
  std::string kernel;
  std::string target;
  std::string card;
  u64 workgroups = 0;
  int units = 0;     // of the chip
  int resident = 0;  // workgroups of one unit
  double cycles = 0;
  double clock_mhz = 0;
  double time_us = 0;           // with the launch itself
  double matrix_busy = 0;       // share of all matrix units over the whole launch
  double unit_matrix_busy = 0;  // share while a unit works
  std::array<double, kStallReasons>
      waits{};        // of the sampled unit; with unit_matrix_busy they add up to 1
  double tflops = 0;  // of matrix instructions; 0 where there are none
  double lds_busy = 0;
  MemorySystem::Traffic lines;       // of the sampled units
  std::vector<double> group_cycles;  // of a workgroup in each sample, while it is resident
  u64 sampled = 0;
  bool truncated = false;   // waves ran for longer than they are traced
  std::vector<OpTime> ops;  // by Op::index, of the sampled units

  [[nodiscard]] std::string json() const;
  [[nodiscard]] std::string table() const;
};

struct CycleModelOptions {
  bool only_sampled = false;  // do not execute what is not needed; results are incomplete
  double clock_mhz = 0;       // 0: the model's own
  Timeline timeline;          // of the first sampled unit
};

class CycleModel final : public TraceSink {
 public:
  CycleModel(const LaunchRequest& request, CycleModelOptions options);

  u64 workgroup_at(u64 dispatch_index) override;
  WorkgroupTrace* trace(u64 linear) override;
  void executed(u64 linear, u64 instructions) override;

  // After the launch has run.
  PredictedTime predict();

 private:
  struct Sample {
    std::vector<u64> groups;                        // resident together
    std::vector<std::pair<double, u64>> neighbors;  // weight in CUs, and index
    u64 other_xcd = ~0ull;
  };

  void choose();
  void add(u64 linear, bool detailed);
  [[nodiscard]] std::vector<u64> lines_of(u64 linear) const;
  [[nodiscard]] double footprint() const;
  [[nodiscard]] double length(u64 linear) const;
  CuTime replay_sample(const Sample& sample, double clock, bool draw);
  [[nodiscard]] double dispatch(const std::vector<double>& fit) const;
  [[nodiscard]] double dispatch(const std::vector<double>& fit, u64 xcd, u64 count) const;
  [[nodiscard]] double all_instructions() const;

  const LaunchRequest& request_;
  CycleModelOptions options_;
  CycleModelParameters parameters_;
  const Program& program_;
  std::vector<TimedOp> ops_;
  u64 groups_ = 0;
  int xcds_ = 1;
  int cus_per_xcd_ = 1;
  int resident_ = 1;
  u64 window_ = 0;  // workgroups of each XCD whose length is known; the others repeat them
  std::vector<Sample> samples_;
  std::map<u64, std::unique_ptr<WorkgroupTrace>> traces_;
  std::vector<u64> executed_;      // workgroups, where not all are executed; in order
  std::vector<u64> instructions_;  // by workgroup, or by index in `executed_`
};

// Per instruction and per source line: how often, issue clocks, waits by cause.
std::string instruction_report(const PredictedTime& time, const Module& module,
                               const Program& program);
std::string line_report(const PredictedTime& time, const Module& module, const Program& program);

// A trace file of the Chrome format (chrome://tracing, Perfetto): a row for each wave by SIMD, and
// one for each SIMD's matrix unit. One clock is drawn as one microsecond.
class TimelineFile {
 public:
  TimelineFile(std::string path, const Module& module, const Program& program);
  ~TimelineFile();
  TimelineFile(const TimelineFile&) = delete;
  TimelineFile& operator=(const TimelineFile&) = delete;
  Timeline sink();
  void write(
      const PredictedTime& time);  // throws std::runtime_error when the file cannot be written

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace rocflash::sim
