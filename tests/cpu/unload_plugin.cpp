// A third-party shared library with the pool linked in, as with librocflash.a.
#include <atomic>

#include "cpu/thread_pool.hpp"

extern "C" [[gnu::visibility("default")]] int plugin_sum() {
  std::atomic<int> sum{0};
  rocflash::parallel_for(100, 4, [&](std::int64_t, int) { ++sum; });
  return sum;
}
