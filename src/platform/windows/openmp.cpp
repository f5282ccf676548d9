// OpenMP runtimes on Windows: Intel's, which torch's packages have, and LLVM's, also as Microsoft
// ships it. They lack libgomp's interface there and have LLVM's.
#include "cpu/openmp.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>

#include "platform/windows/text.hpp"

namespace rocflash {
namespace {

using Clock = std::chrono::steady_clock;

// A search takes a few microseconds.
constexpr std::chrono::milliseconds scan_interval{20};

constexpr const wchar_t* names[] = {L"libiomp5md.dll", L"libomp140.x86_64.dll", L"libomp.dll"};

// LLVM's compiler interface. The flag says that the location is from a compiler that calls with C's
// conventions.
struct Location {
  std::int32_t reserved_1, flags, reserved_2, reserved_3;
  const char* source;
};
using Microtask = void(std::int32_t* thread, std::int32_t* number, void* function, void* data);
using ForkCall = void(Location*, std::int32_t count, Microtask*, ...);
using ThreadNumber = std::int32_t(Location*);
using PushThreads = void(Location*, std::int32_t thread, std::int32_t threads);

constinit Location location{0, 2, 0, 0, ";rocflash;;0;0;;"};

// The functions of the runtime that was found. It is kept loaded, so they never change.
struct Functions {
  ForkCall* fork_call = nullptr;
  ThreadNumber* thread_number = nullptr;
  PushThreads* push_threads = nullptr;
};
constinit Functions functions;

void enter(std::int32_t*, std::int32_t*, void* function, void* data) {
  reinterpret_cast<void (*)(void*)>(function)(data);
}

void parallel(void (*function)(void*), void* data, unsigned threads, unsigned) {
  if (threads != 0)
    functions.push_threads(&location, functions.thread_number(&location),
                           static_cast<std::int32_t>(threads));
  functions.fork_call(&location, 2, enter, reinterpret_cast<void*>(function), data);
}

constinit OpenMp runtime{parallel, nullptr, nullptr};
constinit std::atomic<const OpenMp*> known{nullptr};
constinit std::atomic<Clock::rep> next_scan{0};
constinit std::atomic<bool> scanning{false};  // one thread at a time

template <class Function>
bool find(HMODULE library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(reinterpret_cast<void*>(GetProcAddress(library, name)));
  return function != nullptr;
}

const OpenMp* search() {
  for (const wchar_t* name : names) {
    HMODULE library = nullptr;
    if (!GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_PIN, name, &library)) continue;
    if (find(library, "__kmpc_fork_call", functions.fork_call) &&
        find(library, "__kmpc_global_thread_num", functions.thread_number) &&
        find(library, "__kmpc_push_num_threads", functions.push_threads) &&
        find(library, "omp_get_max_threads", runtime.max_threads) &&
        find(library, "omp_in_parallel", runtime.in_parallel))
      return &runtime;
  }
  return nullptr;
}

}  // namespace

const OpenMp* loaded_openmp(Look look) {
  if (const OpenMp* found = known.load(std::memory_order_acquire)) return found;
  const Clock::rep now = Clock::now().time_since_epoch().count();
  const bool due = look == Look::now || now >= next_scan.load(std::memory_order_relaxed);
  if (due && !scanning.exchange(true, std::memory_order_acquire)) {
    known.store(search(), std::memory_order_release);
    next_scan.store(now + Clock::duration(scan_interval).count(), std::memory_order_relaxed);
    scanning.store(false, std::memory_order_release);
  }
  return known.load(std::memory_order_acquire);
}

void openmp_before_fork() {}
void openmp_after_fork() {}
void openmp_in_child() {}

}  // namespace rocflash
