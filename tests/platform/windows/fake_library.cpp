// A made-up library: its name, and LLVM's OpenMP interface with a team of three threads.
#include <array>
#include <cstdarg>
#include <cstdint>
#include <thread>

namespace {

thread_local bool in_team = false;
int requested = 0, regions = 0;

}  // namespace

#define EXPORT extern "C" __declspec(dllexport)

EXPORT const char* fake_name() { return FAKE_NAME; }
EXPORT int fake_requested() { return requested; }
EXPORT int fake_regions() { return regions; }

EXPORT int omp_get_max_threads() { return 3; }
EXPORT int omp_in_parallel() { return in_team ? 1 : 0; }
EXPORT std::int32_t __kmpc_global_thread_num(void*) { return 0; }
EXPORT void __kmpc_push_num_threads(void*, std::int32_t, std::int32_t threads) {
  requested = threads;
}
EXPORT void __kmpc_fork_call(void*, std::int32_t count,
                             void (*task)(std::int32_t*, std::int32_t*, void*, void*), ...) {
  if (count != 2) return;
  std::va_list list;
  va_start(list, task);
  void* const first = va_arg(list, void*);
  void* const second = va_arg(list, void*);
  va_end(list);
  ++regions;
  const auto enter = [&](std::int32_t number) {
    in_team = true;
    task(&number, &number, first, second);
    in_team = false;
  };
  std::array<std::thread, 2> others{std::thread(enter, 1), std::thread(enter, 2)};
  enter(0);
  for (std::thread& other : others) other.join();
}
