// Work on several threads: those of the OpenMP runtime that the process has loaded, or a pool of
// our own where there is none or it does not fit. The environment variable ROCFLASH_CPU_THREADS
// chooses: auto, own or openmp.
#pragma once

#include <cstdint>

namespace rocflash {

// More are refused, wherever they are asked for.
inline constexpr int most_threads = 1024;

// CPUs this process may run on (its affinity), at least 1.
int usable_cpus();

// ROCFLASH_NUM_THREADS, or usable_cpus(). Refuses a value that is not a number from 1 to 1024.
int default_threads();

// Refuses a value of ROCFLASH_CPU_THREADS that is unknown or cannot be honoured.
void check_thread_source();

// Calls body(context, item, worker) once for each item in [0, items), on up to `threads` threads,
// the caller's among them; `worker` is below `threads` and no two items run under the same worker
// at once. Items start in ascending order. Any number of calls may be under way at a time; each
// makes progress on its own thread even if no other thread is free. The body must not throw.
// Throws what check_thread_source does, before the first item.
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
