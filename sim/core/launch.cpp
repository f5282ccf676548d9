// The dispatcher: kernel arguments, initial registers, workgroups over threads, waves round-robin.
#include "core/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <exception>
#include <stdexcept>
#include <thread>

#include "core/global_race_detector.h"
#include "core/issue_model.h"
#include "core/kernel_abi.h"
#include "isa/matrix.h"
#include "isa/memory_access.h"
#include "isa/mfma_f64.h"
#include "isa/mfma_f8f6f4.h"

namespace rocflash::sim {

// Everything the workers of one launch share.
struct LaunchState {
  const LaunchRequest& request;
  const Program& program;
  KernelAbi abi;
  u64 groups = 0;
  std::atomic<u64> next_group{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::optional<Report> report;
  std::exception_ptr thrown;

  GlobalRaceDetector global_race_detector;
};

namespace {

constexpr u64 kTimeSlice = 20000;        // instructions of a wave's time slice
constexpr u64 kSpinThreshold = 4000000;  // instructions before another workgroup becomes resident
constexpr std::size_t kMaxResident = 64;

struct ResidentWorkgroup {
  Workgroup g;
  std::vector<Wave> waves;
  u64 executed = 0;
  bool traced = false;
};

class WorkerLoop {
 public:
  WorkerLoop(LaunchState& launch, Worker& worker) : launch_(launch), worker_(worker) {
    worker_.op_counts.assign(launch.program.ops().size(), 0);
  }

  // No exception may leave a thread: what is thrown outside an instruction (an allocation
  // that failed, a kernel whose entry is not an instruction) is kept for run_kernel.
  void run() {
    try {
      run_workgroups();
    } catch (const FaultError& error) {
      stop(std::make_exception_ptr(std::runtime_error(error.message)));
    } catch (...) {
      stop(std::current_exception());
    }
  }

 private:
  void stop(std::exception_ptr reason) {
    const std::scoped_lock lock(launch_.mutex);
    if (!launch_.failed.exchange(true)) launch_.thrown = std::move(reason);
  }

  void run_workgroups() {
    while (!launch_.failed.load(std::memory_order_relaxed)) {
      if (resident_.empty() || (all_spinning() && resident_.size() < kMaxResident)) {
        if (!start_workgroup() && resident_.empty()) return;
      }
      ResidentWorkgroup& group = *resident_.front();
      bool done = false;
      if (!advance(group, done)) return;
      if (done) {
        spare_.push_back(std::move(resident_.front()));
        resident_.pop_front();
      } else if (resident_.size() > 1) {
        std::rotate(resident_.begin(), resident_.begin() + 1, resident_.end());
      }
    }
  }

  // Every resident workgroup may be spinning on one that is not resident yet.
  [[nodiscard]] bool all_spinning() const {
    return std::ranges::all_of(resident_,
                               [](const auto& g) { return g->executed > kSpinThreshold; });
  }

  bool start_workgroup() {
    TraceSink* traces = launch_.request.traces;
    const u64 dispatch_index = launch_.next_group.fetch_add(1, std::memory_order_relaxed);
    const u64 linear = traces != nullptr ? traces->workgroup_at(dispatch_index) : dispatch_index;
    if (linear >= launch_.groups) return false;
    std::unique_ptr<ResidentWorkgroup> group;
    if (spare_.empty()) {
      group = std::make_unique<ResidentWorkgroup>();
    } else {
      group = std::move(spare_.back());
      spare_.pop_back();
    }
    prepare(*group, linear);
    resident_.push_back(std::move(group));
    return true;
  }

  void prepare(ResidentWorkgroup& group, u64 linear) {
    const LaunchRequest& r = launch_.request;
    Workgroup& g = group.g;
    const bool strict = r.checks.strict();
    g = {};
    g.linear = linear;
    g.id[0] = static_cast<u32>(linear % r.grid[0]);
    g.id[1] = static_cast<u32>(linear / r.grid[0] % r.grid[1]);
    g.id[2] = static_cast<u32>(linear / r.grid[0] / r.grid[1]);
    g.launch = &launch_;
    g.lds_allocated = r.kernel->lds_bytes + r.dynamic_lds;
    const std::size_t lds = (g.lds_allocated + 15) / 16 * 16;
    g.lds.assign(lds, 0xcb);
    if (strict) {
      g.lds_undefined.assign(lds, 0xff);
      g.lds_access_records.assign(lds / 4, {});
    }
    const u32 threads = r.block[0] * r.block[1] * r.block[2];
    const int size = r.kernel->wave_size;
    g.waves = static_cast<int>((threads + static_cast<u32>(size) - 1) / static_cast<u32>(size));
    group.waves.resize(static_cast<std::size_t>(g.waves));
    g.first_wave = group.waves.data();
    group.executed = 0;
    WorkgroupTrace* trace = r.traces != nullptr ? r.traces->trace(linear) : nullptr;
    group.traced = trace != nullptr;
    if (group.traced) trace->waves.resize(group.waves.size());
    for (int i = 0; i < g.waves; ++i) {
      Wave& w = group.waves[static_cast<std::size_t>(i)];
      reset(w, strict);
      w.index = i;
      w.group = &g;
      if (group.traced) {
        w.trace = &trace->waves[static_cast<std::size_t>(i)];
        w.trace->detailed = trace->detailed;
      }
      launch_.abi.initialize(w, *r.kernel, r.block);
    }
  }

  void reset(Wave& w, bool strict) {
    const LaunchRequest& r = launch_.request;
    // Reuse the register storage of the previous workgroup.
    std::vector<Vgpr> rows = std::move(w.rows);
    std::vector<Vgpr> undef_rows = std::move(w.undef_rows);
    std::vector<u8> row_state = std::move(w.row_state);
    std::vector<u16> row_pending = std::move(w.row_pending);
    std::vector<u8> scratch = std::move(w.scratch);
    std::vector<LdsWrite> lds_writes[2] = {std::move(w.lds_writes[0]), std::move(w.lds_writes[1])};
    std::vector<u8> scratch_undefined = std::move(w.scratch_undefined);
    w = Wave{};
    const std::size_t count =
        launch_.program.uses_agprs() ? 512 : static_cast<std::size_t>(launch_.program.vgpr_rows());
    rows.resize(count);
    std::memset(static_cast<void*>(rows.data()), 0xcb, count * sizeof(Vgpr));
    if (strict) {
      undef_rows.resize(count);
      std::memset(static_cast<void*>(undef_rows.data()), 0xff, count * sizeof(Vgpr));
      row_state.assign(count, 1);
      row_pending.assign(count, 0);
    }
    for (int i = 0; i < 2; ++i) w.lds_writes[i] = std::move(lds_writes[i]);
    w.rows = std::move(rows);
    w.undef_rows = std::move(undef_rows);
    w.row_state = std::move(row_state);
    w.row_pending = std::move(row_pending);
    w.vgpr = w.rows.data();
    w.vgpr_undef = w.undef_rows.data();
    w.vgpr_dirty = w.row_state.data();
    w.vgpr_pending = w.row_pending.data();
    w.strict = strict;
    w.size = r.kernel->wave_size;
    w.program = &launch_.program;
    w.worker = &worker_;
    w.target = &r.module->target();
    w.checks = &r.checks;
    const u64 per_lane = launch_.abi.scratch_bytes(*r.kernel);
    const std::size_t bytes = per_lane * static_cast<u64>(w.size);
    scratch.assign(bytes, 0xcb);
    if (strict) scratch_undefined.assign(bytes, 0xff);
    w.scratch = std::move(scratch);
    w.scratch_undefined = std::move(scratch_undefined);
    w.scratch_lane_bytes = per_lane;
    std::memset(w.sgpr_undef, 0xff, sizeof w.sgpr_undef);
  }

  // Runs a time slice of every runnable wave of the workgroup. False: the launch has failed.
  bool advance(ResidentWorkgroup& group, bool& done) {
    Workgroup& g = group.g;
    bool progressed = false;
    worker_.count_traffic = launch_.request.count || group.traced;
    for (Wave& w : group.waves) {
      if (w.stop == Stop::End) continue;
      if (w.stop == Stop::Barrier) {
        if (g.barriers <= w.waiting_epoch) continue;
        w.epoch = w.waiting_epoch + 1;
        w.signaled = false;
      }
      w.stop = Stop::None;
      progressed = true;
      const u64 before = w.executed;
      try {
        run_wave(w);
        if (w.stop == Stop::End) finish(w);
      } catch (const FaultError& error) {
        fail(w, error);
        return false;
      }
      group.executed += w.executed - before;
      if (launch_.failed.load(std::memory_order_relaxed)) return false;
    }
    done = g.finished == g.waves;
    if (done && launch_.request.traces != nullptr) {
      launch_.request.traces->executed(g.linear, group.executed);
    }
    if (!progressed && !done) {
      fail(group.waves.front(), {Fault::DivergentBarrier,
                                 "waves wait at a barrier that others never reach", -1, false, 0});
      return false;
    }
    return true;
  }

  void run_wave(Wave& w) {
    if (launch_.request.observer != nullptr || w.trace != nullptr) {
      run_loop<true>(w);
    } else {
      run_loop<false>(w);
    }
  }

  // `Observed`: there is an observer, or the cycle model traces the wave.
  template <bool Observed>
  void run_loop(Wave& w) {
    const int variant = w.strict ? 1 : 0;
    u64* counts = worker_.op_counts.data();
    const u64 limit = std::min(w.executed + kTimeSlice, w.checks->budget);
    while (w.stop == Stop::None && w.executed < limit) {
      const Op& op = *w.next;
      w.current = &op;
      w.next = &op + 1;
      ++w.executed;
      ++counts[op.index];
      if constexpr (Observed) {
        if (w.trace != nullptr) w.trace->note(op.index);
        if (launch_.request.observer != nullptr) launch_.request.observer->before(w, op);
      }
      op.run[variant](w, op);
    }
    if (w.executed >= w.checks->budget) {
      raise(Fault::NoProgress,
            fmt::format("the wave has executed {} instructions without ending", w.executed));
    }
  }

  void finish(Wave& w) {
    Workgroup& g = *w.group;
    for (const WaitCounter q : {WaitCounter::Load, WaitCounter::Ds, WaitCounter::Km})
      wait_for(w, q, 0);
    ++g.finished;
    // Barriers count the waves that have not ended; a signal without a wait ends with its
    // wave.
    if (w.signaled && g.barriers <= w.waiting_epoch) --g.arrived;
    if (g.arrived > 0 && g.arrived == g.waves - g.finished) {
      g.arrived = 0;
      ++g.barriers;
    }
  }

  void fail(const Wave& w, const FaultError& error) {
    const std::scoped_lock lock(launch_.mutex);
    if (launch_.failed.exchange(true)) return;
    const CodeObject& object = launch_.request.module->object();
    Report report;
    report.fault = error.fault;
    report.message = error.message;
    report.kernel = launch_.request.kernel->name;
    std::copy_n(w.group->id, 3, report.group);
    report.wave = w.index;
    report.lane = error.lane;
    report.has_address = error.has_address;
    report.address = error.address;
    if (w.current != nullptr) {
      report.instruction = launch_.program.text(*w.current);
      report.location = object.symbolize(w.current->address);
      report.pc = w.current->address - object.bias();
      if (const auto line = object.source_line(w.current->address)) {
        report.source = fmt::format("{}:{}", line->file, line->line);
      }
    }
    const bool device = error.fault == Fault::OutOfBounds || error.fault == Fault::FreedMemory ||
                        error.fault == Fault::GlobalRace || error.fault == Fault::Misaligned ||
                        error.fault == Fault::Undefined;
    if (error.has_address && device) {
      report.allocation = Memory::instance().describe(error.address);
    }
    launch_.report = std::move(report);
  }

  LaunchState& launch_;
  Worker& worker_;
  std::deque<std::unique_ptr<ResidentWorkgroup>> resident_;
  std::vector<std::unique_ptr<ResidentWorkgroup>> spare_;
};

Counters collect(const LaunchState& launch, const std::vector<Worker>& workers) {
  const LaunchRequest& r = launch.request;
  Counters c;
  c.kernel = r.kernel->name;
  c.target = r.module->target().name;
  c.workgroups = launch.groups;
  const u32 threads = r.block[0] * r.block[1] * r.block[2];
  const auto size = static_cast<u32>(r.kernel->wave_size);
  c.waves = launch.groups * ((threads + size - 1) / size);
  c.per_instruction.assign(launch.program.ops().size(), 0);
  for (const Worker& worker : workers) {
    for (std::size_t i = 0; i < worker.op_counts.size(); ++i) {
      c.per_instruction[i] += worker.op_counts[i];
    }
    c.traffic += worker.traffic;
  }
  for (const Op& op : launch.program.ops()) {
    const u64 n = c.per_instruction[op.index];
    if (n == 0) continue;
    const auto kind = static_cast<std::size_t>(op.kind);
    const std::string& text = launch.program.text(op);
    const std::string_view mnemonic =
        strip_encoding(std::string_view(text).substr(0, text.find(' ')));
    c.by_class[kind] += n;
    c.instructions += n;
    if (op.kind == InstructionClass::Matrix) {
      if (is_f8f6f4(op)) {
        c.matrix_cycles += n * f8f6f4_cycles(op);
      } else if (is_mfma_f64(op)) {
        c.matrix_cycles += n * mfma_f64_cycles(r.module->target(), op);
      } else if (const MatrixShape* shape =
                     find_matrix_shape(op.parameter, mnemonic.starts_with("v_wmma"))) {
        c.matrix_cycles += n * matrix_cycles(r.module->target(), *shape);
      }
    } else {
      c.issue_cycles[kind] +=
          n * issue_clocks(r.module->target(), r.kernel->wave_size, op.kind, mnemonic);
    }
    if (const std::string name = access_name(op, mnemonic); !name.empty()) {
      (op.kind == InstructionClass::Lds ? c.lds_instructions : c.memory_instructions)[name] += n;
    }
  }
  c.issue_cycles[static_cast<std::size_t>(InstructionClass::Matrix)] = c.matrix_cycles;
  c.vgprs = r.kernel->vgprs;
  c.agprs = r.kernel->agprs;
  c.sgprs = r.kernel->sgprs;
  c.lds_bytes = r.kernel->lds_bytes + r.dynamic_lds;
  c.scratch_bytes = r.kernel->scratch_bytes;
  c.waves_per_simd = waves_per_simd(r.module->target(), *r.kernel, c.lds_bytes, threads);
  return c;
}

}  // namespace

Module::Module(std::unique_ptr<CodeObject> object, const Target& target, int device)
    : object_(std::move(object)), target_(target) {
  Memory::instance().add(object_->image().data(), object_->image().size(), "code object", device);
}

Module::~Module() { Memory::instance().remove(object_->image().data()); }

const Program& Module::program(int wave_size) {
  const std::scoped_lock lock(mutex_);
  auto& program = programs_[wave_size == 32 ? 0 : 1];
  if (program == nullptr) program = bind_program(*object_, target_, wave_size);
  return *program;
}

void check_launch(const LaunchRequest& r) {
  const u64 threads = u64{r.block[0]} * r.block[1] * r.block[2];
  if (threads == 0 || threads > 1024 || threads > r.kernel->max_threads) {
    throw std::invalid_argument(fmt::format("workgroup size {}: it can be 1 to {} work-items",
                                            threads, std::min<u64>(1024, r.kernel->max_threads)));
  }
  if (r.grid[0] == 0 || r.grid[1] == 0 || r.grid[2] == 0) {
    throw std::invalid_argument(fmt::format("grid ({}, {}, {}): each dimension must be at least 1",
                                            r.grid[0], r.grid[1], r.grid[2]));
  }
  u64 groups = 1;
  for (int i = 0; i < 3; ++i) {
    if (u64{r.grid[i]} * r.block[i] > 0xffffffff ||
        __builtin_mul_overflow(groups, u64{r.grid[i]}, &groups)) {
      throw std::invalid_argument(fmt::format(
          "a grid of {} by {} by {} workgroups; a dimension can have 2^32 - 1 work-items "
          "and a grid 2^64 - 1 workgroups",
          r.grid[0], r.grid[1], r.grid[2]));
    }
  }
  const u64 lds = u64{r.kernel->lds_bytes} + r.dynamic_lds;
  if (lds > r.module->target().max_lds_bytes) {
    throw std::invalid_argument(fmt::format("LDS size {} bytes: {} has {} bytes per workgroup", lds,
                                            r.module->target().name,
                                            r.module->target().max_lds_bytes));
  }
}

LaunchResult run_kernel(const LaunchRequest& request) {
  check_launch(request);
  LaunchState launch{request,
                     request.module->program(request.kernel->wave_size),
                     KernelAbi(request),
                     0,
                     {},
                     {},
                     {},
                     {},
                     {},
                     {}};
  launch.groups = u64{request.grid[0]} * request.grid[1] * request.grid[2];
  const auto cores = std::max(1u, std::thread::hardware_concurrency());
  u64 threads = request.threads > 0 ? static_cast<u64>(request.threads) : cores;
  threads = std::min(threads, launch.groups);
  // The observer and the global race detector are not thread safe.
  if (request.observer != nullptr || request.checks.global_race) threads = 1;
  std::vector<Worker> workers(threads);
  std::vector<std::thread> pool;
  for (u64 i = 1; i < threads; ++i) {
    pool.emplace_back([&launch, &workers, i] { WorkerLoop(launch, workers[i]).run(); });
  }
  WorkerLoop(launch, workers[0]).run();
  for (std::thread& thread : pool) thread.join();
  if (launch.thrown) std::rethrow_exception(launch.thrown);
  LaunchResult result;
  result.report = std::move(launch.report);
  if (request.count) result.counters = collect(launch, workers);
  return result;
}

void note_global_access(Wave& w, u64 address, u32 bytes, int lane, Access access) {
  GlobalRaceDetector& writes = w.group->launch->global_race_detector;
  const u64 self = w.group->linear;
  if (access == Access::Read) {
    writes.read(self, address);
  } else if (access == Access::Atomic) {
    writes.atomic(self, address);
  } else if (const auto other = writes.write(self, address, bytes)) {
    raise_at(Fault::GlobalRace,
             fmt::format("workgroups {} and {} both write here without atomics", *other, self),
             lane, address);
  }
}

}  // namespace rocflash::sim
