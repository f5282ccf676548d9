// The thread pool: every item runs once, no two concurrent items share a worker number, and calls
// may be concurrent.
#include "cpu/thread_pool.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "core/error.hpp"

namespace rocflash {
namespace {

TEST(ThreadPool, EveryItemOnce) {
  for (const int threads : {1, 2, 3, 8, 64}) {
    for (const std::int64_t items : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> count(static_cast<std::size_t>(items));
      parallel_for(items, threads,
                   [&](std::int64_t n, int) { ++count[static_cast<std::size_t>(n)]; });
      for (const auto& c : count) EXPECT_EQ(c, 1);
    }
  }
}

TEST(ThreadPool, ConcurrentItemsHaveDistinctWorkers) {
  for (const int threads : {2, 5}) {
    std::vector<std::atomic<int>> inside(static_cast<std::size_t>(threads));
    std::atomic<int> wrong{0};
    parallel_for(2000, threads, [&](std::int64_t, int worker) {
      if (worker < 0 || worker >= threads) {
        ++wrong;
        return;
      }
      auto& own = inside[static_cast<std::size_t>(worker)];
      if (++own != 1) ++wrong;
      for (int spin = 0; spin < 50; ++spin) std::atomic_signal_fence(std::memory_order_seq_cst);
      --own;
    });
    EXPECT_EQ(wrong, 0);
  }
}

TEST(ThreadPool, ConcurrentAndNestedCalls) {
  std::atomic<int> sum{0};
  std::vector<std::thread> callers;
  for (int n = 0; n < 8; ++n) {
    callers.emplace_back([&] {
      for (int round = 0; round < 20; ++round)
        parallel_for(5, 4, [&](std::int64_t, int) {
          parallel_for(3, 2, [&](std::int64_t, int) { ++sum; });
        });
    });
  }
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(sum, 8 * 20 * 5 * 3);
}

TEST(ThreadPool, ItemsRunInParallel) {
  std::atomic<int> arrived{0};
  parallel_for(3, 3, [&](std::int64_t, int) {
    ++arrived;
    while (arrived < 3) std::this_thread::yield();  // times out if items run one after the other
  });
  EXPECT_EQ(arrived, 3);
}

// Calls at different intervals: while threads spin, at the end of spinning, and while all sleep.
TEST(ThreadPool, CallsWithPausesBetween) {
  std::atomic<int> sum{0};
  constexpr int pauses[] = {0, 20, 90, 100, 110, 300};  // microseconds
  for (int round = 0; round < 60; ++round) {
    parallel_for(4, 3, [&](std::int64_t, int) { ++sum; });
    std::this_thread::sleep_for(std::chrono::microseconds(pauses[round % 6]));
  }
  EXPECT_EQ(sum, 60 * 4);
}

TEST(ThreadPool, DefaultThreads) {
  unsetenv("ROCFLASH_NUM_THREADS");
  unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(default_threads(), usable_cpus());
  const std::pair<const char*, int> openmp[] = {
      {"3", 3}, {"7,2", 7}, {"99999", max_threads}, {"0", usable_cpus()}, {"many", usable_cpus()}};
  for (const auto& [value, threads] : openmp) {
    setenv("OMP_NUM_THREADS", value, 1);
    EXPECT_EQ(default_threads(), threads) << value;
  }
  setenv("ROCFLASH_NUM_THREADS", "5", 1);
  EXPECT_EQ(default_threads(), 5);
  for (const char* bad : {"0", "-2", "1025", "x", "3x", " "}) {
    setenv("ROCFLASH_NUM_THREADS", bad, 1);
    EXPECT_THROW(default_threads(), Refusal) << bad;
  }
  unsetenv("ROCFLASH_NUM_THREADS");
  unsetenv("OMP_NUM_THREADS");
}

}  // namespace
}  // namespace rocflash
