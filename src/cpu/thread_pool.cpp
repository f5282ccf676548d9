#include "cpu/thread_pool.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#include "api/error.hpp"

namespace rocflash {
namespace {

// One call of parallel_for. It lives on the caller's stack; the pool's mutex guards all but the
// counter.
struct Job {
  void (*body)(void*, std::int64_t, int);
  void* context;
  std::int64_t items;
  int seats;            // workers that may still join
  int next_worker = 1;  // the caller is worker 0
  int inside = 0;       // workers of the pool that have joined and not yet left
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
    {
      const std::lock_guard lock(mutex_);
      grow(job.seats);
      jobs_.push_back(&job);
    }
    wake_.notify_all();
    job.work(0);
    std::unique_lock lock(mutex_);
    jobs_.erase(std::find(jobs_.begin(), jobs_.end(), &job));
    left_.wait(lock, [&] { return job.inside == 0; });
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

  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      Job* job = nullptr;
      wake_.wait(lock, [&] {
        const auto it =
            std::find_if(jobs_.begin(), jobs_.end(), [](const Job* j) { return j->open(); });
        job = it == jobs_.end() ? nullptr : *it;
        return job != nullptr;
      });
      --job->seats;
      ++job->inside;
      const int worker = job->next_worker++;
      lock.unlock();
      job->work(worker);
      lock.lock();
      if (--job->inside == 0) left_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, left_;
  std::deque<Job*> jobs_;
  int threads_ = 0;
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
