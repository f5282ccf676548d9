// parallel_for on the threads of the process's OpenMP runtime, or on a thread pool if there is none
// or it is not usable. ROCFLASH_CPU_THREADS selects: auto, own or openmp.
#pragma once

#include <cstdint>

namespace rocflash {

// The largest num_threads and ROCFLASH_NUM_THREADS.
inline constexpr int max_threads = 1024;

// CPUs in the affinity mask of this process, at least 1.
int usable_cpus();

// ROCFLASH_NUM_THREADS, or usable_cpus(). Throws if the value is not a number from 1 to 1024.
int default_threads();

// Throws if ROCFLASH_CPU_THREADS is unknown or cannot be honored.
void check_thread_source();

// Calls body(context, item, worker) once for each item in [0, items) on up to `threads` threads,
// including the caller. `worker` is below `threads`, and no two items run concurrently with the
// same worker. Items start in ascending order. Concurrent calls are allowed; each progresses on its
// own thread even if no other thread is free. The body must not throw. Throws as
// check_thread_source does, before the first item.
void parallel_for(std::int64_t items, int threads, void (*body)(void*, std::int64_t, int),
                  void* context);

template <class Body>
void parallel_for(std::int64_t items, int threads, Body body) {
  parallel_for(
      items, threads,
      [](void* b, std::int64_t item, int worker) { (*static_cast<Body*>(b))(item, worker); },
      &body);
}

}  // namespace rocflash
