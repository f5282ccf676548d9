#include "cpu/thread_pool.hpp"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>

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

namespace rocflash {
namespace {

using Clock = std::chrono::steady_clock;

// How long a thread watches for what it waits for before it sleeps. Waking a sleeping thread takes
// tens of microseconds, as long as a small problem; those that follow one another closely should
// not pay it each time.
constexpr std::chrono::microseconds patience{100};

// Watches for `happened`; false if it took too long. Without yielding: whoever yields to the very
// thread it waits for stays behind it on its CPU, and leaves another idle.
template <class Happened>
bool soon(Happened happened) {
  constexpr int looks = 32;  // between two looks at the clock
  const auto start = Clock::now();
  do {
    for (int n = 0; n < looks; ++n) {
      if (happened()) return true;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  } while (Clock::now() - start < patience);
  return false;
}

// The items of one call of parallel_for. Whoever works on them takes the next; so each is done
// once, however many threads come.
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

// A call on the pool's threads. It lives on the caller's stack; the pool's mutex guards all but the
// atomic numbers.
struct Job {
  Items& items;
  int seats;                   // workers that may still join
  int next_worker = 1;         // the caller is worker 0
  std::atomic<int> inside{0};  // workers of the pool that have joined and not yet left

  bool open() const { return seats > 0 && items.left(); }
};

class Pool {
 public:
  void run(Job& job) {
    int sleepers = 0;
    {
      const std::lock_guard lock(mutex_);
      grow(job.seats);
      jobs_.push_back(&job);
      sleepers = std::min(sleepers_, open_seats() - (threads_ - sleepers_ - busy_));
    }
    opened_.fetch_add(1, std::memory_order_release);
    for (int n = 0; n < sleepers; ++n) wake_.notify_one();
    job.items.work(0);
    std::unique_lock lock(mutex_);
    jobs_.erase(std::find(jobs_.begin(), jobs_.end(), &job));
    const auto empty = [&] { return job.inside.load(std::memory_order_acquire) == 0; };
    if (empty()) return;
    lock.unlock();
    if (soon(empty)) return;
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
        return;  // fewer threads than asked for compute the same result
      }
      ++threads_;
    }
  }

  int open_seats() const {
    int seats = 0;
    for (const Job* job : jobs_) seats += job->open() ? job->seats : 0;
    return seats;
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
      --job->seats;
      ++job->inside;
      ++busy_;
      const int worker = job->next_worker++;
      lock.unlock();
      job->items.work(worker);
      lock.lock();
      --busy_;
      // The caller may be gone as soon as nobody is inside.
      if (job->inside.fetch_sub(1, std::memory_order_release) == 1) left_.notify_all();
    }
  }

  // Watches for a while, as long as there are CPUs for all who watch, and then sleeps.
  Job* next_job(std::unique_lock<std::mutex>& lock) {
    for (;;) {
      if (Job* job = open_job()) return job;
      const unsigned seen = opened_.load(std::memory_order_acquire);
      bool changed = false;
      if (watching_ + 1 < cpus_) {
        ++watching_;
        lock.unlock();
        changed = soon([&] { return opened_.load(std::memory_order_acquire) != seen; });
        lock.lock();
        --watching_;
      }
      if (changed) continue;
      if (open_job()) continue;
      ++sleepers_;
      wake_.wait(lock);  // for whatever reason: who comes too late for a job watches for the next
      --sleepers_;
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, left_;
  std::deque<Job*> jobs_;
  std::atomic<unsigned> opened_{0};  // jobs so far
  const int cpus_ = usable_cpus();
  int threads_ = 0, busy_ = 0, watching_ = 0, sleepers_ = 0;
};

// The shared library that holds this code must not be unmapped: its threads never end. It may be
// librocflash.so or any other that was linked with librocflash.a.
void stay_loaded() {
  Dl_info library{};
  if (dladdr(reinterpret_cast<void*>(&stay_loaded), &library) != 0 && library.dli_fname)
    dlopen(library.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

constinit std::atomic<Pool*> the_pool{nullptr};
constinit std::atomic<bool> forked{false};     // this process is a forked child
constinit std::atomic<bool> in_openmp{false};  // a call is running on OpenMP's threads

Pool& pool() {
  Pool* current = the_pool.load();
  if (!current) {
    stay_loaded();
    auto* fresh = new Pool;
    if (the_pool.compare_exchange_strong(current, fresh)) return *fresh;
    delete fresh;
  }
  return *current;
}

// A forked child has none of its parent's threads, and perhaps a locked mutex: it starts afresh,
// and on threads of its own. libgomp, if its parent used it, would wait for its lost threads for
// ever. Registered when the library is loaded, since a guard of first use could be held by another
// thread when this one forks.
[[gnu::constructor]] void watch_forks() {
  pthread_atfork(openmp_before_fork, openmp_after_fork, [] {
    openmp_in_child();
    the_pool.store(nullptr);
    in_openmp.store(false);
    forked.store(true);
  });
}

enum class Source { automatic, own, openmp };

Source thread_source() {
  const char* variable = std::getenv("ROCFLASH_CPU_THREADS");
  const std::string_view wanted = variable ? variable : "";
  if (wanted.empty() || wanted == "auto") return Source::automatic;
  if (wanted == "own") return Source::own;
  if (wanted != "openmp")
    refuse("ROCFLASH_CPU_THREADS: '", wanted, "'; it must be auto, own or openmp");
  return Source::openmp;
}

const OpenMp& demanded_openmp() {
  if (forked.load(std::memory_order_relaxed))
    refuse(
        "ROCFLASH_CPU_THREADS: 'openmp'; a forked process cannot use its parent's OpenMP runtime, "
        "it must be auto or own here");
  const OpenMp* openmp = loaded_openmp(Look::soon);
  if (!openmp) openmp = loaded_openmp(Look::now);
  if (!openmp)
    refuse(
        "ROCFLASH_CPU_THREADS: 'openmp'; this process has loaded no OpenMP runtime, "
        "it must be auto or own here");
  return *openmp;
}

// One call on a team of OpenMP's. Threads beyond `threads` leave at once: a team must be as large
// as those that the program's own regions use, because libgomp ends the threads that a smaller team
// leaves over and starts them anew for the next. The runtime waits for all of them; our own atomics
// say so too, for a thread sanitizer that does not see into the runtime.
struct Region {
  Items& items;
  const int threads;
  const pthread_t caller = pthread_self();
  std::atomic<int> next_worker{1};      // the caller is worker 0
  std::atomic<Clock::rep> finished{0};  // when the last item was done

  static void enter(void* region) noexcept {
    Region& r = *static_cast<Region*>(region);
    static_cast<void>(r.next_worker.load(std::memory_order_acquire));
    const bool is_caller = pthread_equal(pthread_self(), r.caller) != 0;
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
  // How long the runtime took to return after the last item.
  Clock::duration run(const OpenMp& openmp, unsigned team) {
    next_worker.store(1, std::memory_order_release);
    openmp.parallel(enter, this, team, 0);
    const Clock::duration last(finished.load(std::memory_order_acquire));
    return Clock::now().time_since_epoch() - last;
  }
};

// A team's call returns when each of its threads has been there, even one that finds nothing to do.
// Where other processes keep the CPUs busy that can take many times as long as the work; a pool
// does not wait for a thread that has not come. So whenever a team is late, calls stay away from
// it, for longer each time.
class Punctuality {
 public:
  bool trusted() const {
    return Clock::now().time_since_epoch().count() >= again_.load(std::memory_order_relaxed);
  }
  void saw(Clock::duration late) {
    if (late < tolerated) {
      pause_.store(shortest.count(), std::memory_order_relaxed);
      return;
    }
    const Clock::duration pause(pause_.load(std::memory_order_relaxed));
    again_.store((Clock::now().time_since_epoch() + pause).count(), std::memory_order_relaxed);
    pause_.store(std::min(2 * pause, longest).count(), std::memory_order_relaxed);
  }

 private:
  // Waking sleeping threads takes a tenth of it; waiting behind another process, several times it.
  static constexpr Clock::duration tolerated = std::chrono::milliseconds(1);
  static constexpr Clock::duration shortest = std::chrono::milliseconds(10),
                                   longest = std::chrono::milliseconds(200);
  std::atomic<Clock::rep> again_{0}, pause_{shortest.count()};
};

constinit Punctuality punctuality;

// Calls on OpenMP's threads only where that can do no harm: not inside a team, where all CPUs have
// their work; not if the program keeps its teams smaller than this call wants; and not while
// another thread does the same, because each would have a team of its own.
bool run_on_openmp(Items& items, int threads) {
  if (forked.load(std::memory_order_relaxed)) return false;
  const OpenMp* const openmp = loaded_openmp(Look::soon);
  if (!openmp || openmp->in_parallel() || openmp->max_threads() < threads) return false;
  if (!punctuality.trusted() || in_openmp.exchange(true, std::memory_order_acquire)) return false;
  punctuality.saw(Region{.items = items, .threads = threads}.run(*openmp, 0));
  in_openmp.store(false, std::memory_order_release);
  return true;
}

}  // namespace

int usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int default_threads() {
  const char* variable = std::getenv("ROCFLASH_NUM_THREADS");
  if (!variable || !*variable) return std::min(usable_cpus(), most_threads);
  char* end = nullptr;
  errno = 0;
  const long n = std::strtol(variable, &end, 10);
  if (errno != 0 || *end != '\0' || n < 1 || n > most_threads)
    refuse("ROCFLASH_NUM_THREADS: '", std::string_view(variable),
           "'; it must be a number from 1 to ", most_threads);
  return static_cast<int>(n);
}

void check_thread_source() {
  if (thread_source() == Source::openmp) demanded_openmp();
}

void parallel_for(std::int64_t count, int threads, void (*body)(void*, std::int64_t, int),
                  void* context) {
  Items items{.body = body, .context = context, .count = count};
  const auto useful = static_cast<int>(std::min<std::int64_t>(threads, count));
  if (useful <= 1) return items.work(0);
  const Source source = thread_source();
  if (source == Source::openmp) {
    const OpenMp& openmp = demanded_openmp();
    const int team = std::max(threads, openmp.max_threads());
    Region{.items = items, .threads = useful}.run(openmp, static_cast<unsigned>(team));
    return;
  }
  if (source == Source::automatic && run_on_openmp(items, useful)) return;
  Job job{.items = items, .seats = useful - 1};
  pool().run(job);
}

}  // namespace rocflash
