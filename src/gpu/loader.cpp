#include "gpu/loader.hpp"

#include <array>
#include <memory>
#include <mutex>

#include "core/error.hpp"
#include "core/fork_mutex.hpp"
#include "table/groups.hpp"

namespace rocflash::gpu {
namespace {

struct LoadedModule {
  const std::byte* image;  // that it was loaded from
  Module module;
  const LoadedModule* next;
};

}  // namespace

// What one context has. Its loading does not delay another's launches, and kernels whose modules are
// their own are loaded at the same time: a driver compiles PTX for a second or more.
struct Loader::Loaded {
  const Driver* driver;
  std::uint64_t context;
  Loaded* next;
  std::array<std::atomic<Function>, kernel::kernel_count> functions{};
  std::array<ForkMutex, 61> mutexes;
  std::atomic<const LoadedModule*> modules{nullptr};

  ForkMutex& mutex_of(std::span<const std::byte> image) {
    return mutexes[reinterpret_cast<std::uintptr_t>(image.data()) / 16 % mutexes.size()];
  }
  // The caller holds the mutex of this image.
  Module module_of(Driver& loading, std::span<const std::byte> image) {
    const LoadedModule* first = modules.load(std::memory_order_acquire);
    for (const LoadedModule* m = first; m; m = m->next)
      if (m->image == image.data()) return m->module;
    auto fresh = std::make_unique<LoadedModule>(image.data(), loading.load(image.data()), first);
    while (!modules.compare_exchange_weak(fresh->next, fresh.get(), std::memory_order_acq_rel)) {
    }
    return fresh.release()->module;
  }
};

Loader::Loaded& Loader::loaded(const Driver& driver, std::uint64_t context) {
  std::unique_ptr<Loaded> fresh;
  Loaded* first = contexts_.load(std::memory_order_acquire);
  for (;;) {
    for (Loaded* l = first; l; l = l->next)
      if (l->driver == &driver && l->context == context) return *l;
    if (!fresh) fresh = std::make_unique<Loaded>(&driver, context, first);
    fresh->next = first;
    if (contexts_.compare_exchange_strong(first, fresh.get(), std::memory_order_acq_rel))
      return *fresh.release();
  }
}

Function Loader::kernel(Driver& driver, std::uint64_t context, const Target& target, int number) {
  Loaded& l = loaded(driver, context);
  std::atomic<Function>& known = l.functions[static_cast<std::size_t>(number)];
  if (const Function function = known.load(std::memory_order_acquire)) return function;
  const char* name = kernel::kernel_name(number);
  const auto image = module_for(target, name);
  if (image.empty())
    throw Refusal(ROCFLASH_INTERNAL, text("the kernels of ", target.arch, " lack ", name));
  const std::lock_guard lock(l.mutex_of(image));
  if (const Function function = known.load(std::memory_order_acquire)) return function;
  const int shared = kernel::group_shape(target.family, kernel::kernel_spec(number)).dynamic_shared;
  const Function function =
      driver.function(l.module_of(driver, image), name, static_cast<std::uint32_t>(shared));
  known.store(function, std::memory_order_release);
  return function;
}

}  // namespace rocflash::gpu
