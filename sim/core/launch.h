// Runs a kernel: workgroups of the grid over all cores, the waves of each workgroup round-robin.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/code_object.h"
#include "core/counters.h"
#include "core/op.h"
#include "core/report.h"
#include "core/target.h"
#include "core/wave.h"
#include "cycle_model/trace.h"

namespace rocflash::sim {

enum class Access : u8;  // isa/memory_access.h

// A code object ready to run; decodes on first use for each wave size.
class Module {
 public:
  Module(std::unique_ptr<CodeObject> object, const Target& target, int device);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  [[nodiscard]] const CodeObject& object() const { return *object_; }
  [[nodiscard]] const Target& target() const { return target_; }
  const Program& program(int wave_size);

 private:
  std::unique_ptr<CodeObject> object_;
  const Target& target_;
  std::mutex mutex_;
  std::unique_ptr<Program> programs_[2];
};

// Is called before every instruction. Launches without an observer run a loop without the
// call.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void before(const Wave& wave, const Op& op) = 0;
};

struct LaunchRequest {
  Module* module = nullptr;
  const KernelInfo* kernel = nullptr;
  u32 grid[3] = {1, 1, 1};   // in workgroups
  u32 block[3] = {1, 1, 1};  // in work-items
  u32 dynamic_lds = 0;
  std::span<const u8> arguments;  // the kernarg segment without hidden arguments
  Checks checks;
  bool count = false;
  int threads = 0;  // 0: all cores
  Observer* observer = nullptr;
  TraceSink* traces = nullptr;  // set: selects and records traced workgroups
};

struct LaunchResult {
  std::optional<Report> report;  // set: the launch failed
  Counters counters;             // when `count` is set
  [[nodiscard]] bool ok() const { return !report.has_value(); }
};

// Throws std::invalid_argument for an impossible configuration.
void check_launch(const LaunchRequest& request);

// Blocks until the kernel has ended. Throws std::invalid_argument for an impossible configuration.
LaunchResult run_kernel(const LaunchRequest& request);

// Used by memory instructions.
void note_global_access(Wave& w, u64 address, u32 bytes, int lane, Access access);
std::span<const Wave> waves_of(const Workgroup& group);

}  // namespace rocflash::sim
