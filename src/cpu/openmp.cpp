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

// A look at the loader's list takes a microsecond or two where hundreds of libraries are loaded.
constexpr std::chrono::milliseconds patience{20};

constinit std::atomic<const OpenMp*> known{nullptr};
constinit std::atomic<Clock::rep> next_look{0};
constinit std::atomic<bool> looking{false};   // by one thread at a time
constinit unsigned long long loads_then = 0;  // belongs to the thread that looks
constinit std::mutex inside_loader;           // see openmp_before_fork

std::string_view file_of(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// Python wheels carry their copy under a changed name, such as libgomp-a34b3233.so.1.
bool is_runtime(std::string_view file) {
  return file.starts_with("libgomp") || file.starts_with("libomp.") ||
         file.starts_with("libomp5") || file.starts_with("libomp-") || file.starts_with("libiomp5");
}

// Counts the libraries that were ever loaded.
int read_loads(dl_phdr_info* object, std::size_t, void* loads) {
  *static_cast<unsigned long long*>(loads) = object->dlpi_adds;
  return 1;
}

// The libraries in which to look for a runtime, best first: torch's operators, then runtimes.
struct Candidates {
  std::vector<std::string> paths;
  std::exception_ptr failure;  // must not pass through the loader

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

// The library stays loaded from here on, whoever else closes it.
void* stay_open(const char* path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD); }

// The runtime that `handle`'s own calls would reach. All of it comes from the library that has
// GOMP_parallel: a process may hold several runtimes.
bool read_runtime(void* handle, OpenMp& runtime) {
  Dl_info library{};
  if (!find(handle, "GOMP_parallel", runtime.parallel) ||
      dladdr(reinterpret_cast<void*>(runtime.parallel), &library) == 0 || !library.dli_fname)
    return false;
  void* own = stay_open(library.dli_fname);
  if (!own) own = handle;  // part of the program itself
  return find(own, "omp_get_max_threads", runtime.max_threads) &&
         find(own, "omp_in_parallel", runtime.in_parallel);
}

// All that were found, never deleted: another thread may be about to use one. Only who is looking touches the list.
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

// As the loader would bind a call of torch's: first what all libraries see, which is also where a
// preloaded runtime is, then what comes with torch.
const OpenMp* search() {
  OpenMp runtime{};
  bool found = read_runtime(RTLD_DEFAULT, runtime);
  if (!found) {
    Candidates candidates;
    {
      const std::lock_guard lock(inside_loader);
      dl_iterate_phdr(Candidates::add, &candidates);
    }
    if (candidates.failure) std::rethrow_exception(candidates.failure);
    for (const std::string& path : candidates.paths) {
      void* const handle = stay_open(path.c_str());
      found = handle && read_runtime(handle, runtime);
      if (found) break;
      if (handle) dlclose(handle);
    }
  }
  return found ? keep(runtime) : nullptr;
}

void look_again() {
  unsigned long long loads = 0;
  {
    const std::lock_guard lock(inside_loader);
    dl_iterate_phdr(read_loads, &loads);
  }
  if (loads == loads_then) return;
  known.store(search(), std::memory_order_release);
  loads_then = loads;
}

}  // namespace

const OpenMp* loaded_openmp(Look look) {
  const Clock::rep now = Clock::now().time_since_epoch().count();
  const bool due = look == Look::now || now >= next_look.load(std::memory_order_relaxed);
  if (due && !looking.exchange(true, std::memory_order_acquire)) {
    struct Done {
      ~Done() { looking.store(false, std::memory_order_release); }
    } const done;
    look_again();
    next_look.store(now + Clock::duration(patience).count(), std::memory_order_relaxed);
  }
  return known.load(std::memory_order_acquire);
}

// glibc's fork leaves the lock of dl_iterate_phdr as it is. A child that inherits it held could
// load no library any more.
void openmp_before_fork() { inside_loader.lock(); }
void openmp_after_fork() { inside_loader.unlock(); }
void openmp_in_child() {
  inside_loader.unlock();
  looking.store(false);
}

}  // namespace rocflash
