#include "cpu/openmp.hpp"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace rocflash {
namespace {

using Clock = std::chrono::steady_clock;

// Scanning the loader's list takes one or two microseconds with hundreds of libraries.
constexpr std::chrono::milliseconds scan_interval{20};

constinit std::atomic<const OpenMp*> known{nullptr};
constinit std::atomic<Clock::rep> next_scan{0};
constinit std::atomic<bool> scanning{false};     // one thread at a time
constinit unsigned long long scanned_loads = 0;  // owned by the scanning thread
constinit std::mutex loader_mutex;               // see openmp_before_fork

std::string_view file_of(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// Python wheels bundle a renamed copy, such as libgomp-a34b3233.so.1.
bool is_runtime(std::string_view file) {
  return file.starts_with("libgomp") || file.starts_with("libomp.") ||
         file.starts_with("libomp5") || file.starts_with("libomp-") || file.starts_with("libiomp5");
}

// Counts the libraries ever loaded.
int read_loads(dl_phdr_info* object, std::size_t, void* loads) {
  *static_cast<unsigned long long*>(loads) = object->dlpi_adds;
  return 1;
}

// Libraries to search for a runtime, in order: torch's operators, then the runtimes.
struct Candidates {
  std::vector<std::string> paths;
  std::exception_ptr failure;  // must not propagate through the loader

  static int add(dl_phdr_info* object, std::size_t, void* candidates) {
    auto& c = *static_cast<Candidates*>(candidates);
    try {
      const std::string_view file = file_of(object->dlpi_name);
      if (file.starts_with("libtorch_cpu.so"))
        c.paths.insert(c.paths.begin(), object->dlpi_name);
      else if (is_runtime(file))
        c.paths.emplace_back(object->dlpi_name);
      return 0;
    } catch (...) {
      c.failure = std::current_exception();
      return 1;
    }
  }
};

template <class Function>
bool find(void* handle, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(handle, name));
  return function != nullptr;
}

// Pins the library: it stays loaded even if others close it.
void* pin_library(const char* path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD); }

// The runtime that calls from `handle` would bind to. All symbols come from the library that
// defines GOMP_parallel: a process may have several runtimes.
bool read_runtime(void* handle, OpenMp& runtime) {
  Dl_info library{};
  if (!find(handle, "GOMP_parallel", runtime.parallel) ||
      dladdr(reinterpret_cast<void*>(runtime.parallel), &library) == 0 || !library.dli_fname)
    return false;
  void* own = pin_library(library.dli_fname);
  if (!own) own = handle;  // part of the executable
  return find(own, "omp_get_max_threads", runtime.max_threads) &&
         find(own, "omp_in_parallel", runtime.in_parallel);
}

// All runtimes found, never deleted: another thread may still use one. Only the scanning thread
// accesses the list.
struct Found {
  OpenMp runtime;
  const Found* before;
};
const Found* all_found = nullptr;

const OpenMp* keep(const OpenMp& runtime) {
  for (const Found* found = all_found; found; found = found->before) {
    if (found->runtime.parallel == runtime.parallel) return &found->runtime;
  }
  all_found = new Found{runtime, all_found};
  return &all_found->runtime;
}

// The order in which the loader binds torch's calls: the global scope, which includes preloaded
// runtimes, then torch's dependencies.
const OpenMp* search() {
  OpenMp runtime{};
  bool found = read_runtime(RTLD_DEFAULT, runtime);
  if (!found) {
    Candidates candidates;
    {
      const std::lock_guard lock(loader_mutex);
      dl_iterate_phdr(Candidates::add, &candidates);
    }
    if (candidates.failure) std::rethrow_exception(candidates.failure);
    for (const std::string& path : candidates.paths) {
      void* const handle = pin_library(path.c_str());
      found = handle && read_runtime(handle, runtime);
      if (found) break;
      if (handle) dlclose(handle);
    }
  }
  return found ? keep(runtime) : nullptr;
}

void rescan() {
  unsigned long long loads = 0;
  {
    const std::lock_guard lock(loader_mutex);
    dl_iterate_phdr(read_loads, &loads);
  }
  if (loads == scanned_loads) return;
  known.store(search(), std::memory_order_release);
  scanned_loads = loads;
}

}  // namespace

const OpenMp* loaded_openmp(Look look) {
  const Clock::rep now = Clock::now().time_since_epoch().count();
  const bool due = look == Look::now || now >= next_scan.load(std::memory_order_relaxed);
  if (due && !scanning.exchange(true, std::memory_order_acquire)) {
    struct Done {
      ~Done() { scanning.store(false, std::memory_order_release); }
    } const done;
    rescan();
    next_scan.store(now + Clock::duration(scan_interval).count(), std::memory_order_relaxed);
  }
  return known.load(std::memory_order_acquire);
}

// glibc's fork does not release the lock of dl_iterate_phdr. A child that inherits it locked could
// not load libraries.
void openmp_before_fork() { loader_mutex.lock(); }
void openmp_after_fork() { loader_mutex.unlock(); }
void openmp_in_child() {
  loader_mutex.unlock();
  scanning.store(false);
}

}  // namespace rocflash
