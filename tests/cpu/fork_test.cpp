// Forks concurrently with the first calls of another thread. The child inherits that thread's
// partial initialization and its locks, but not the thread. The child's calls must still complete.
#include <gtest/gtest.h>
#include <rocflash/rocflash.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

bool attend() {
  constexpr std::int64_t rows = 300, heads = 2, size = 16;
  static float q[rows * heads * size], out[rows * heads * size];
  std::int64_t shape[] = {1, rows, heads, size};
  const DLTensor in{q, {kDLCPU, 0}, 4, {kDLFloat, 32, 1}, shape, nullptr, 0};
  DLTensor result = in;
  result.data = out;
  rocflash_problem problem{};
  problem.struct_size = sizeof problem;
  problem.q = problem.k = problem.v = &in;
  rocflash_forward_outputs outputs{};
  outputs.struct_size = sizeof outputs;
  outputs.out = &result;
  rocflash_execution execution{};
  execution.struct_size = sizeof execution;
  execution.num_threads = 2;
  std::size_t bytes = 0;
  if (rocflash_forward_workspace(&problem, &outputs, &execution, &bytes) != ROCFLASH_OK)
    return false;
  std::vector<std::byte> memory(bytes + 64);
  execution.workspace =
      memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
  execution.workspace_size = bytes;
  rocflash_device device{};
  device.struct_size = sizeof device;
  return rocflash_query_device(0, &device) == ROCFLASH_OK &&
         rocflash_forward(&problem, &outputs, &execution) == ROCFLASH_OK;
}

int exit_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Forks while another thread makes the first call of the process.
[[noreturn]] void race(int microseconds) {
  alarm(60);
  std::atomic<bool> go{false};
  std::thread caller([&] {
    while (!go) {
    }
    for (int n = 0; n < 3; ++n) attend();
  });
  go = true;
  bool good = true;
  for (int n = 0; n < 3; ++n) {
    usleep(static_cast<useconds_t>(microseconds));
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      _exit(attend() ? 0 : 1);
    }
    good = exit_of(child) == 0 && good;
  }
  caller.join();
  _exit(good ? 0 : 1);
}

// This process makes no call, so that each child makes its first one.
TEST(Fork, WhileAnotherThreadMakesTheFirstCall) {
  for (int n = 0; n < 60; ++n) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) race(n * 7 % 200);
    ASSERT_EQ(exit_of(child), 0) << n;
  }
}

}  // namespace
