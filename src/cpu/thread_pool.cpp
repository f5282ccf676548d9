#include "cpu/thread_pool.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <string_view>
#include <system_error>
#include <thread>

#include "core/error.hpp"
#include "cpu/openmp.hpp"
#include "platform/process.hpp"
#include "platform/shared_library.hpp"

namespace rocflash {
namespace {

using Clock = std::chrono::steady_clock;

// How long a thread spins before it sleeps. Waking a thread takes tens of microseconds, as long as
// a small problem; consecutive small problems should not pay for it.
constexpr std::chrono::microseconds spin_time{100};

// Spins until `happened`; false on timeout. It does not yield: a thread that yields to the one it
// waits for stays queued on the same CPU and leaves another idle.
template <class Happened>
bool spin_until(Happened happened) {
  constexpr int spins = 32;  // iterations between two clock reads
  const auto start = Clock::now();
  do {
    for (int n = 0; n < spins; ++n) {
      if (happened()) return true;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#elif defined(__aarch64__)
      __asm__ volatile("yield");
#endif
    }
  } while (Clock::now() - start < spin_time);
  return false;
}

// The items of one parallel_for. Threads take the next item with an atomic counter.
struct Items {
  void (*body)(void*, std::int64_t, int);
  void* context;
  std::int64_t count;
  std::atomic<std::int64_t> next{0};

  void work(int worker) {
    for (std::int64_t n; (n = next.fetch_add(1, std::memory_order_relaxed)) < count;)
      body(context, n, worker);
  }
  bool left() const { return next.load(std::memory_order_relaxed) < count; }
};

// A call on the thread pool, on the caller's stack. The pool's mutex guards all but the atomics.
struct Job {
  Items& items;
  int open_slots;              // workers that may still join
  int next_worker = 1;         // the caller is worker 0
  std::atomic<int> inside{0};  // pool workers that have joined and not left

  bool open() const { return open_slots > 0 && items.left(); }
};

class Pool {
 public:
  void run(Job& job) {
    int sleepers = 0;
    {
      const std::lock_guard lock(mutex_);
      grow(job.open_slots);
      jobs_.push_back(&job);
      sleepers = std::min(sleepers_, total_open_slots() - (threads_ - sleepers_ - busy_));
    }
    opened_.fetch_add(1, std::memory_order_release);
    for (int n = 0; n < sleepers; ++n) wake_.notify_one();
    job.items.work(0);
    std::unique_lock lock(mutex_);
    jobs_.erase(std::find(jobs_.begin(), jobs_.end(), &job));
    const auto empty = [&] { return job.inside.load(std::memory_order_acquire) == 0; };
    if (empty()) return;
    lock.unlock();
    if (spin_until(empty)) return;
    lock.lock();
    left_.wait(lock, empty);
  }

 private:
  // Threads are detached: at exit they sleep in a pool that is never destroyed.
  void grow(int helpers) {
    while (threads_ < helpers) {
      try {
        std::thread([this] { serve(); }).detach();
      } catch (const std::system_error&) {
        return;  // fewer threads compute the same result
      }
      ++threads_;
    }
  }

  int total_open_slots() const {
    int open_slots = 0;
    for (const Job* job : jobs_) open_slots += job->open() ? job->open_slots : 0;
    return open_slots;
  }
  Job* open_job() const {
    const auto it =
        std::find_if(jobs_.begin(), jobs_.end(), [](const Job* j) { return j->open(); });
    return it == jobs_.end() ? nullptr : *it;
  }

  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      Job* job = next_job(lock);
      --job->open_slots;
      ++job->inside;
      ++busy_;
      const int worker = job->next_worker++;
      lock.unlock();
      job->items.work(worker);
      lock.lock();
      --busy_;
      // The caller may return as soon as no worker is inside.
      if (job->inside.fetch_sub(1, std::memory_order_release) == 1) left_.notify_all();
    }
  }

  // Spins while there are enough CPUs for all spinning threads, then sleeps.
  Job* next_job(std::unique_lock<std::mutex>& lock) {
    for (;;) {
      if (Job* job = open_job()) return job;
      const unsigned visible_range = opened_.load(std::memory_order_acquire);
      bool changed = false;
      if (spinning_ + 1 < cpus_) {
        ++spinning_;
        lock.unlock();
        changed =
            spin_until([&] { return opened_.load(std::memory_order_acquire) != visible_range; });
        lock.lock();
        --spinning_;
      }
      if (changed) continue;
      if (open_job()) continue;
      ++sleepers_;
      wake_.wait(lock);  // spurious and late wakeups: check for the next job
      --sleepers_;
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, left_;
  std::deque<Job*> jobs_;
  std::atomic<unsigned> opened_{0};  // number of jobs so far
  const int cpus_ = usable_cpus();
  int threads_ = 0, busy_ = 0, spinning_ = 0, sleepers_ = 0;
};

// Pins the shared library that contains this code, since its threads never end: librocflash.so, or
// any library linked with librocflash.a.
void pin_library_of_pool() {
  platform::pin_library_of(reinterpret_cast<const void*>(&pin_library_of_pool));
}

constinit std::atomic<Pool*> the_pool{nullptr};
constinit std::atomic<bool> forked{false};     // this process is a forked child
constinit std::atomic<bool> in_openmp{false};  // a call is running on OpenMP threads

Pool& pool() {
  Pool* current = the_pool.load();
  if (!current) {
    pin_library_of_pool();
    auto* fresh = new Pool;
    if (the_pool.compare_exchange_strong(current, fresh)) return *fresh;
    delete fresh;
  }
  return *current;
}

// A forked child has none of its parent's threads and possibly a locked mutex: it starts with a new
// pool. libgomp would wait forever for the parent's threads. Registered at load time, since the
// guard of a local static could be locked by another thread during fork.
[[gnu::constructor]] void register_fork_handlers() {
  platform::on_fork(openmp_before_fork, openmp_after_fork, [] {
    openmp_in_child();
    the_pool.store(nullptr);
    in_openmp.store(false);
    forked.store(true);
  });
}

enum class Source { automatic, own, openmp };

Source thread_source() {
  const platform::Variable variable("ROCFLASH_CPU_THREADS");
  const std::string_view wanted = variable.get() ? variable.get() : "";
  if (wanted.empty() || wanted == "auto") return Source::automatic;
  if (wanted == "own") return Source::own;
  if (wanted != "openmp")
    refuse("ROCFLASH_CPU_THREADS is '", wanted, "'; it must be auto, own or openmp");
  return Source::openmp;
}

const OpenMp& required_openmp() {
  if (forked.load(std::memory_order_relaxed))
    refuse(
        "ROCFLASH_CPU_THREADS is 'openmp', but a forked process cannot use its parent's OpenMP "
        "runtime; it must be auto or own here");
  const OpenMp* openmp = loaded_openmp(Look::spin_until);
  if (!openmp) openmp = loaded_openmp(Look::now);
  if (!openmp)
    refuse(
        "ROCFLASH_CPU_THREADS is 'openmp', but this process has loaded no OpenMP runtime; "
        "it must be auto or own here");
  return *openmp;
}

// One call on an OpenMP team. Threads beyond `threads` return immediately: a team must be as large
// as those of the program's own regions, because libgomp destroys the surplus threads of a smaller
// team and recreates them later. The runtime joins all threads; the atomics repeat this for
// ThreadSanitizer, which cannot see into the runtime.
struct Region {
  Items& items;
  const int threads;
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<int> next_worker{1};      // the caller is worker 0
  std::atomic<Clock::rep> finished{0};  // when the last item finished

  static void enter(void* region) noexcept {
    Region& r = *static_cast<Region*>(region);
    static_cast<void>(r.next_worker.load(std::memory_order_acquire));
    const bool is_caller = std::this_thread::get_id() == r.caller;
    const int worker = is_caller ? 0 : r.next_worker.fetch_add(1, std::memory_order_relaxed);
    Clock::rep now = 0;
    if (worker < r.threads) {
      r.items.work(worker);
      now = Clock::now().time_since_epoch().count();
    }
    Clock::rep last = r.finished.load(std::memory_order_relaxed);
    while (!r.finished.compare_exchange_weak(last, std::max(last, now), std::memory_order_acq_rel,
                                             std::memory_order_relaxed)) {
    }
  }
  // Latency of the runtime's join after the last item.
  Clock::duration run(const OpenMp& openmp, unsigned team) {
    next_worker.store(1, std::memory_order_release);
    openmp.parallel(enter, this, team, 0);
    const Clock::duration last(finished.load(std::memory_order_acquire));
    return Clock::now().time_since_epoch() - last;
  }
};

// A team's call returns only when all its threads have run, even without work. On busy CPUs that
// can take many times as long as the work; the pool does not wait for threads that have not joined.
// After a late join, calls avoid the team, for longer each time.
class TeamLatency {
 public:
  constexpr TeamLatency() noexcept = default;

  bool is_prompt() const {
    return Clock::now().time_since_epoch().count() >= again_.load(std::memory_order_relaxed);
  }
  void record(Clock::duration late) {
    if (late < tolerated) {
      pause_.store(shortest.count(), std::memory_order_relaxed);
      return;
    }
    const Clock::duration pause(pause_.load(std::memory_order_relaxed));
    again_.store((Clock::now().time_since_epoch() + pause).count(), std::memory_order_relaxed);
    pause_.store(std::min(2 * pause, longest).count(), std::memory_order_relaxed);
  }

 private:
  // Waking threads takes a tenth of this; waiting for another process, several times this.
  static constexpr Clock::duration tolerated = std::chrono::milliseconds(1);
  static constexpr Clock::duration shortest = std::chrono::milliseconds(10),
                                   longest = std::chrono::milliseconds(200);
  std::atomic<Clock::rep> again_{0}, pause_{shortest.count()};
};

constinit TeamLatency team_latency;

// Uses OpenMP threads only if that is safe: not inside a team, where all CPUs are busy; not if the
// program's teams are smaller than this call requires; and not concurrently, because each caller
// would get its own team.
bool run_on_openmp(Items& items, int threads) {
  if (forked.load(std::memory_order_relaxed)) return false;
  const OpenMp* const openmp = loaded_openmp(Look::spin_until);
  if (!openmp || openmp->in_parallel() || openmp->max_threads() < threads) return false;
  if (!team_latency.is_prompt() || in_openmp.exchange(true, std::memory_order_acquire))
    return false;
  team_latency.record(Region{.items = items, .threads = threads}.run(*openmp, 0));
  in_openmp.store(false, std::memory_order_release);
  return true;
}

}  // namespace

int usable_cpus() { return platform::usable_cpus(); }

int default_threads() {
  const platform::Variable given("ROCFLASH_NUM_THREADS");
  const char* const variable = given.get();
  if (!variable || !*variable) {
    // OpenMP's variable counts for every library of a process. What is no number is for OpenMP to
    // report; a list has a number for each level of nesting, of which this is the first.
    const platform::Variable openmp("OMP_NUM_THREADS");
    const long n = openmp.get() ? std::strtol(openmp.get(), nullptr, 10) : 0;
    return static_cast<int>(std::min<long>(n >= 1 ? n : usable_cpus(), max_threads));
  }
  char* end = nullptr;
  errno = 0;
  const long n = std::strtol(variable, &end, 10);
  if (errno != 0 || *end != '\0' || n < 1 || n > max_threads)
    refuse("ROCFLASH_NUM_THREADS is '", std::string_view(variable),
           "'; it must be a number from 1 to ", max_threads);
  return static_cast<int>(n);
}

void check_thread_source() {
  if (thread_source() == Source::openmp) required_openmp();
}

void parallel_for(std::int64_t count, int threads, void (*body)(void*, std::int64_t, int),
                  void* context) {
  Items items{.body = body, .context = context, .count = count};
  const auto useful = static_cast<int>(std::min<std::int64_t>(threads, count));
  if (useful <= 1) return items.work(0);
  const Source source = thread_source();
  if (source == Source::openmp) {
    const OpenMp& openmp = required_openmp();
    const int team = std::max(threads, openmp.max_threads());
    Region{.items = items, .threads = useful}.run(openmp, static_cast<unsigned>(team));
    return;
  }
  if (source == Source::automatic && run_on_openmp(items, useful)) return;
  Job job{.items = items, .open_slots = useful - 1};
  pool().run(job);
}

}  // namespace rocflash
