// Eager GPU calls and plans on a fake driver that returns immediately: what a run of a plan asks of
// the driver, also concurrently and after a fork, and the host overhead of calls, of which only the
// library's own time remains.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <rocflash/rocflash.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace rocflash::test {
namespace {

// The minimum over many rounds, which excludes interference from other processes.
template <class Run>
double microseconds_of(Run run) {
  constexpr int rounds = 400, calls = 50;
  double best = 1e9;
  for (int n = 0; n < rounds; ++n) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) run();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count() / calls);
  }
  return best;
}

void* address(std::uintptr_t at) { return reinterpret_cast<void*>(at); }

// A tensor that is never read.
struct FakeTensor {
  FakeTensor(std::uintptr_t at, DLDataType type, std::initializer_list<std::int64_t> sizes) {
    std::copy(sizes.begin(), sizes.end(), shape);
    dl = {address(at), {kDLROCM, 0}, static_cast<int>(sizes.size()), type, shape, nullptr, 0};
  }
  FakeTensor(const FakeTensor&) = delete;
  FakeTensor& operator=(const FakeTensor&) = delete;
  std::int64_t shape[4];
  DLTensor dl;
};

constexpr DLDataType bf16{kDLBfloat, 16, 1}, f32{kDLFloat, 32, 1};

void* fake(const char* name) {
  static void* const driver = dlopen(std::getenv("ROCFLASH_HIP_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
  return dlsym(driver, name);
}
void silence_driver() { reinterpret_cast<void (*)()>(fake("fake_silence"))(); }

// What the driver was asked since the last call, in lines.
std::vector<std::string> driver_log() {
  std::istringstream log(reinterpret_cast<const char* (*)()>(fake("fake_log"))());
  std::vector<std::string> lines;
  for (std::string line; std::getline(log, line);) lines.push_back(line);
  reinterpret_cast<void (*)()>(fake("fake_clear"))();
  return lines;
}

class FakeCall : public testing::Test {
 protected:
  void SetUp() override {
    problem.struct_size = sizeof problem;
    problem.q = &q.dl;
    problem.k = &k.dl;
    problem.v = &v.dl;
    problem.causal = 1;
    outputs.struct_size = sizeof outputs;
    outputs.out = &out.dl;
    outputs.lse = &lse.dl;
    arguments.struct_size = sizeof arguments;
    arguments.q = q.dl.data;
    arguments.k = k.dl.data;
    arguments.v = v.dl.data;
    arguments.out = out.dl.data;
    arguments.lse = lse.dl.data;
    tensors.struct_size = sizeof tensors;
    tensors.dout = &dout.dl;
    tensors.out = &out.dl;
    tensors.lse = &lse.dl;
    tensors.dq = &dq.dl;
    tensors.dk = &dk.dl;
    tensors.dv = &dv.dl;
  }
  // A plan of backward, and the arguments of its runs.
  rocflash_plan* backward_plan() {
    rocflash_plan* plan = nullptr;
    EXPECT_EQ(rocflash_plan_create_backward(&problem, &tensors, nullptr, &plan), ROCFLASH_OK)
        << rocflash_last_error();
    EXPECT_EQ(rocflash_plan_workspace(plan, &arguments.workspace_size), ROCFLASH_OK);
    arguments.workspace = address(0xa0000000);
    arguments.dout = dout.dl.data;
    arguments.dq = dq.dl.data;
    arguments.dk = dk.dl.data;
    arguments.dv = dv.dl.data;
    return plan;
  }
  void report(const char* name, double us, double limit) {
    std::printf("%-24s %.2f us per call in the library\n", name, us);
    RecordProperty(name, std::to_string(us));
    EXPECT_LE(us, limit);
  }

  FakeTensor q{0x10000000, bf16, {2, 1024, 16, 128}}, k{0x20000000, bf16, {2, 1024, 16, 128}},
      v{0x30000000, bf16, {2, 1024, 16, 128}}, out{0x40000000, bf16, {2, 1024, 16, 128}},
      lse{0x50000000, f32, {2, 16, 1024}}, dout{0x60000000, bf16, {2, 1024, 16, 128}},
      dq{0x70000000, bf16, {2, 1024, 16, 128}}, dk{0x80000000, bf16, {2, 1024, 16, 128}},
      dv{0x90000000, bf16, {2, 1024, 16, 128}};
  rocflash_problem problem{};
  rocflash_forward_outputs outputs{};
  rocflash_backward_tensors tensors{};
  rocflash_plan_arguments arguments{};
};

using GpuPlan = FakeCall;

// Nothing but launches on the caller's stream: a graph can capture every run but the first, which
// loads the kernels.
TEST_F(GpuPlan, ARunOnlyLaunches) {
  rocflash_plan* const plan = backward_plan();
  arguments.stream = address(80);
  ASSERT_EQ(rocflash_plan_run(plan, &arguments), ROCFLASH_OK) << rocflash_last_error();
  driver_log();
  ASSERT_EQ(rocflash_plan_run(plan, &arguments), ROCFLASH_OK) << rocflash_last_error();
  const std::vector<std::string> log = driver_log();
  EXPECT_GE(log.size(), 3u);  // preprocess, main, postprocess
  for (const std::string& line : log)
    EXPECT_TRUE(line.starts_with("launch") && line.ends_with("stream 80")) << line;
  rocflash_plan_destroy(plan);
}

TEST_F(GpuPlan, ThreadsRunOnePlanConcurrently) {
  rocflash_plan* const plan = backward_plan();
  ASSERT_EQ(rocflash_plan_run(plan, &arguments), ROCFLASH_OK) << rocflash_last_error();
  driver_log();
  ASSERT_EQ(rocflash_plan_run(plan, &arguments), ROCFLASH_OK);
  const std::size_t launches = driver_log().size();
  constexpr int threads = 4, runs = 25;
  {
    std::vector<std::jthread> running;
    for (int n = 0; n < threads; ++n)
      running.emplace_back([&plan, mine = arguments, n]() mutable {
        mine.stream = address(static_cast<std::uintptr_t>(90 + n));
        for (int i = 0; i < runs; ++i) EXPECT_EQ(rocflash_plan_run(plan, &mine), ROCFLASH_OK);
      });
  }
  const std::vector<std::string> log = driver_log();
  for (int n = 0; n < threads; ++n) {
    const std::string stream = "stream " + std::to_string(90 + n);
    EXPECT_EQ(std::ranges::count_if(log, [&](const std::string& l) { return l.ends_with(stream); }),
              static_cast<std::ptrdiff_t>(launches * runs));
  }
  rocflash_plan_destroy(plan);
}

// A fork while another thread runs the plan finds no lock held.
TEST_F(GpuPlan, AChildRunsThePlanOfItsParent) {
  silence_driver();  // its log has a lock
  rocflash_plan* const plan = backward_plan();
  ASSERT_EQ(rocflash_plan_run(plan, &arguments), ROCFLASH_OK) << rocflash_last_error();
  std::atomic<bool> done = false;
  std::jthread other([&] {
    while (!done) EXPECT_EQ(rocflash_plan_run(plan, &arguments), ROCFLASH_OK);
  });
  for (int n = 0; n < 20; ++n) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(30);
      _exit(rocflash_plan_run(plan, &arguments) == ROCFLASH_OK ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  done = true;
  other.join();
  rocflash_plan_destroy(plan);
}

class CallCost : public FakeCall {
 protected:
  void SetUp() override {
    FakeCall::SetUp();
    silence_driver();
  }
};

TEST_F(CallCost, EagerForwardStaysBelowItsLimit) {
  ASSERT_EQ(rocflash_forward(&problem, &outputs, nullptr), ROCFLASH_OK) << rocflash_last_error();
  report("forward", microseconds_of([&] { rocflash_forward(&problem, &outputs, nullptr); }), 5.0);
}

TEST_F(CallCost, PlannedForwardStaysBelowItsLimit) {
  rocflash_plan* plan = nullptr;
  ASSERT_EQ(rocflash_plan_create_forward(&problem, &outputs, nullptr, &plan), ROCFLASH_OK)
      << rocflash_last_error();
  ASSERT_EQ(rocflash_plan_run(plan, &arguments), ROCFLASH_OK) << rocflash_last_error();
  report("forward with a plan", microseconds_of([&] { rocflash_plan_run(plan, &arguments); }), 2.0);
  rocflash_plan_destroy(plan);
}

TEST_F(CallCost, PlannedBackwardStaysBelowItsLimit) {
  rocflash_plan* const plan = backward_plan();
  rocflash_execution execution{};
  execution.struct_size = sizeof execution;
  execution.workspace = arguments.workspace;
  execution.workspace_size = arguments.workspace_size;
  ASSERT_EQ(rocflash_backward(&problem, &tensors, &execution), ROCFLASH_OK)
      << rocflash_last_error();
  ASSERT_EQ(rocflash_plan_run(plan, &arguments), ROCFLASH_OK) << rocflash_last_error();
  report("backward", microseconds_of([&] { rocflash_backward(&problem, &tensors, &execution); }),
         10.0);
  report("backward with a plan", microseconds_of([&] { rocflash_plan_run(plan, &arguments); }),
         2.0);
  rocflash_plan_destroy(plan);
}

}  // namespace
}  // namespace rocflash::test
