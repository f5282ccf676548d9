// parallel_for on the threads of an OpenMP runtime that the process has loaded. Runtimes are never
// unloaded, so each test runs in a separate process.
#include "cpu/openmp.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "core/error.hpp"
#include "cpu/thread_pool.hpp"

namespace rocflash {
namespace {

// The functions of a runtime that the tests use.
struct Runtime {
  void* handle = nullptr;
  template <class Function>
  Function* get(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(handle, name));
  }
  int in_parallel() const { return get<int()>("omp_in_parallel")(); }
  void set_threads(int n) const { get<void(int)>("omp_set_num_threads")(n); }
  void parallel(void (*f)(void*), void* data, unsigned n) const {
    get<void(void (*)(void*), void*, unsigned, unsigned)>("GOMP_parallel")(f, data, n, 0);
  }
};

Runtime load(const char* path) {
  Runtime r{dlopen(path, RTLD_NOW | RTLD_LOCAL)};
  EXPECT_NE(r.handle, nullptr) << dlerror();
  loaded_openmp(Look::now);
  return r;
}

void set_source(const char* source) { setenv("ROCFLASH_CPU_THREADS", source, 1); }

// Whether the runtime's threads run the items.
bool on_team(const Runtime& r, int threads = 2) {
  std::atomic<int> inside{0};
  parallel_for(8, threads, [&](std::int64_t, int) { inside += r.in_parallel() != 0; });
  EXPECT_TRUE(inside == 0 || inside == 8) << inside;
  return inside == 8;
}

std::string refusal() {
  try {
    check_thread_source();
  } catch (const Refusal& refusal) {
    return refusal.message();
  }
  return "";
}

void every_item_once(int threads) {
  std::vector<std::atomic<int>> count(1000), inside(static_cast<std::size_t>(threads));
  std::atomic<int> wrong{0};
  parallel_for(1000, threads, [&](std::int64_t n, int worker) {
    if (worker < 0 || worker >= threads || ++inside[static_cast<std::size_t>(worker)] != 1) ++wrong;
    ++count[static_cast<std::size_t>(n)];
    --inside[static_cast<std::size_t>(worker)];
  });
  EXPECT_EQ(wrong, 0);
  for (const auto& c : count) EXPECT_EQ(c, 1);
}

int exit_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(OpenMp, RejectsUnusableThreadSources) {
  set_source("openmp");
  EXPECT_NE(refusal().find("no OpenMP runtime"), std::string::npos) << refusal();
  EXPECT_THROW(parallel_for(2, 2, [](std::int64_t, int) {}), Refusal);
  for (const char* bad : {"8", "OWN", "gomp"}) {
    set_source(bad);
    EXPECT_NE(refusal().find("auto, own or openmp"), std::string::npos) << bad;
  }
  for (const char* good : {"", "auto", "own"}) {
    set_source(good);
    EXPECT_EQ(refusal(), "");
  }
}

TEST(OpenMp, LoadedAfterTheFirstCall) {
  every_item_once(2);
  EXPECT_EQ(loaded_openmp(Look::now), nullptr);
  void* const handle = dlopen("libgomp.so.1", RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(handle, nullptr);
  const Runtime gomp{handle};
  gomp.set_threads(2);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  set_source("own");
  EXPECT_FALSE(on_team(gomp));
  set_source("openmp");
  EXPECT_TRUE(on_team(gomp));
  set_source("auto");
  // On a busy machine a team that joins late is avoided for a while.
  bool used = false;
  for (int n = 0; n < 200 && !used; ++n) {
    used = on_team(gomp);
    if (!used) std::this_thread::sleep_for(std::chrono::milliseconds(25));
  }
  EXPECT_TRUE(used);
}

TEST(OpenMp, EveryTeamSizeRunsAllItems) {
  const Runtime gomp = load("libgomp.so.1");
  for (const char* source : {"openmp", "auto"}) {
    set_source(source);
    for (const int team : {1, 2, 5}) {
      gomp.set_threads(team);
      for (const int threads : {2, 3, 8}) every_item_once(threads);
    }
  }
  gomp.get<void(int)>("omp_set_dynamic")(1);
  set_source("openmp");
  every_item_once(8);
}

// libgomp destroys the surplus threads of a smaller team and recreates them for the next larger
// one.
TEST(OpenMp, FewItemsKeepTheProgramsTeam) {
  const Runtime gomp = load("libgomp.so.1");
  gomp.set_threads(4);
  set_source("openmp");
  struct ThreadIds {
    std::mutex mutex;
    std::set<pid_t> threads;
    static void add(void* ids) {
      auto& s = *static_cast<ThreadIds*>(ids);
      const std::lock_guard lock(s.mutex);
      s.threads.insert(gettid());
    }
  } before, after;
  gomp.parallel(ThreadIds::add, &before, 0);
  parallel_for(2, 2, [](std::int64_t, int) {});
  gomp.parallel(ThreadIds::add, &after, 0);
  EXPECT_EQ(before.threads.size(), 4u);
  EXPECT_EQ(before.threads, after.threads);
}

TEST(OpenMp, NestedAndConcurrentCalls) {
  const Runtime gomp = load("libgomp.so.1");
  gomp.set_threads(2);
  for (const char* source : {"auto", "openmp"}) {
    set_source(source);
    gomp.parallel([](void*) { every_item_once(2); }, nullptr, 3);
    std::vector<std::thread> callers;
    for (int n = 0; n < 4; ++n)
      callers.emplace_back([] {
        for (int round = 0; round < 10; ++round) every_item_once(2);
      });
    for (std::thread& t : callers) t.join();
  }
}

TEST(OpenMp, AForkedChildUsesItsOwnThreads) {
  const Runtime gomp = load("libgomp.so.1");
  gomp.set_threads(2);
  set_source("openmp");
  ASSERT_TRUE(on_team(gomp));
  for (const char* source : {"auto", "own", "openmp"}) {
    set_source(source);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(20);  // libgomp would wait for threads that the child does not have
      if (std::string_view(source) == "openmp")
        _exit(refusal().find("forked") == std::string::npos);
      for (int n = 0; n < 50; ++n) {
        std::atomic<int> sum{0};
        parallel_for(4, 2, [&](std::int64_t, int) { ++sum; });
        if (sum != 4) _exit(2);
      }
      _exit(on_team(gomp));
    }
    EXPECT_EQ(exit_of(child), 0) << source;
  }
}

TEST(OpenMp, ASlowTeamIsAvoidedForAWhile) {
  using Clock = std::chrono::steady_clock;
  using std::chrono::milliseconds;
  const Runtime fake = load(ROCFLASH_FAKES "/libgomp-0123abcd.so.1");
  int& calls = *static_cast<int*>(dlsym(fake.handle, "fake_calls"));
  int& delay = *static_cast<int*>(dlsym(fake.handle, "fake_delay_us"));
  every_item_once(3);  // more threads than the runtime's teams
  EXPECT_EQ(calls, 0);
  // A busy machine can delay a round for longer than the team is avoided.
  int rounds = 0;
  for (bool avoided = false; !avoided && rounds < 50; ++rounds) {
    delay = 2000;
    const int before = calls;
    while (calls == before) every_item_once(2);
    const auto start = Clock::now();
    every_item_once(2);
    avoided = Clock::now() - start < milliseconds(8);
    if (avoided) EXPECT_EQ(calls, before + 1);
    delay = 0;
    while (calls == before + 1 && Clock::now() - start < std::chrono::seconds(30))
      every_item_once(2);
    EXPECT_GT(calls, before + 1) << "the team is not used again";
  }
  EXPECT_LT(rounds, 50);
}

TEST(OpenMp, SelectsTheRuntimeOfTorch) {
  const Runtime first = load(ROCFLASH_FAKES "/libgomp-0123abcd.so.1");
  EXPECT_EQ(loaded_openmp(Look::now)->parallel,
            first.get<void(void (*)(void*), void*, unsigned, unsigned)>("GOMP_parallel"));
  const Runtime torch = load(ROCFLASH_FAKES "/libtorch_cpu.so");
  EXPECT_EQ(reinterpret_cast<void*>(loaded_openmp(Look::now)->parallel),
            torch.get<void*()>("fake_operator")());
  EXPECT_NE(loaded_openmp(Look::now)->parallel,
            first.get<void(void (*)(void*), void*, unsigned, unsigned)>("GOMP_parallel"));
}

}  // namespace
}  // namespace rocflash
