#include "cpu/thread_pool.hpp"

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
#include <system_error>
#include <thread>

#include "core/error.hpp"

namespace rocflash {
namespace {

// How long a thread watches for what it waits for before it sleeps. Waking a sleeping thread takes
// tens of microseconds, as long as a small problem; those that follow one another closely should
// not pay it each time.
constexpr std::chrono::microseconds patience{100};

// Watches for `happened`; false if it took too long. Without yielding: whoever yields to the very
// thread it waits for stays behind it on its CPU, and leaves another idle.
template <class Happened>
bool soon(Happened happened) {
  constexpr int looks = 32;  // between two looks at the clock
  const auto start = std::chrono::steady_clock::now();
  do {
    for (int n = 0; n < looks; ++n) {
      if (happened()) return true;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  } while (std::chrono::steady_clock::now() - start < patience);
  return false;
}

// One call of parallel_for. It lives on the caller's stack; the pool's mutex guards all but the
// atomic numbers.
struct Job {
  void (*body)(void*, std::int64_t, int);
  void* context;
  std::int64_t items;
  int seats;                   // workers that may still join
  int next_worker = 1;         // the caller is worker 0
  std::atomic<int> inside{0};  // workers of the pool that have joined and not yet left
  std::atomic<std::int64_t> next_item{0};

  void work(int worker) {
    for (std::int64_t n; (n = next_item.fetch_add(1, std::memory_order_relaxed)) < items;)
      body(context, n, worker);
  }
  bool open() const { return seats > 0 && next_item.load(std::memory_order_relaxed) < items; }
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
    job.work(0);
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
      job->work(worker);
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

std::atomic<Pool*> the_pool{nullptr};

// A forked child has none of its parent's threads, and perhaps a locked mutex: it starts afresh.
Pool& pool() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { the_pool.store(nullptr); });
  static_cast<void>(registered);
  Pool* current = the_pool.load();
  if (!current) {
    auto* fresh = new Pool;
    if (the_pool.compare_exchange_strong(current, fresh)) return *fresh;
    delete fresh;
  }
  return *current;
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

void parallel_for(std::int64_t items, int threads, void (*body)(void*, std::int64_t, int),
                  void* context) {
  const auto helpers = static_cast<int>(std::min<std::int64_t>(threads, items)) - 1;
  if (helpers <= 0) {
    for (std::int64_t n = 0; n < items; ++n) body(context, n, 0);
    return;
  }
  Job job{.body = body, .context = context, .items = items, .seats = helpers};
  pool().run(job);
}

}  // namespace rocflash
