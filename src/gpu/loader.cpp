#include "gpu/loader.hpp"

#include <array>
#include <memory>
#include <mutex>

#include "core/error.hpp"
#include "core/fork_mutex.hpp"
#include "table/workgroups.hpp"

namespace rocflash::gpu {
namespace {

struct LoadedModule {
  const std::byte* image;  // the code object or PTX it was loaded from
  Module module;
  const LoadedModule* next;
};

}  // namespace

// The modules and functions of one context. Loading blocks neither launches nor other contexts.
// Each PTX kernel has a module of its own, and modules load in parallel: JIT compilation takes a
// second or more.
struct Loader::ContextKernels {
  const Driver* driver;
  std::uint64_t context;
  ContextKernels* next;
  std::array<std::atomic<Function>, kernel::kernel_count> functions{};
  std::array<ForkMutex, 61> mutexes;
  std::atomic<const LoadedModule*> modules{nullptr};

  ForkMutex& mutex_of(std::span<const std::byte> image) {
    return mutexes[reinterpret_cast<std::uintptr_t>(image.data()) / 16 % mutexes.size()];
  }
  // The caller holds the mutex of this image.
  Module module_of(Driver& driver_in_use, std::span<const std::byte> image) {
    const LoadedModule* first = modules.load(std::memory_order_acquire);
    for (const LoadedModule* m = first; m; m = m->next)
      if (m->image == image.data()) return m->module;
    auto fresh =
        std::make_unique<LoadedModule>(image.data(), driver_in_use.load(image.data()), first);
    while (!modules.compare_exchange_weak(fresh->next, fresh.get(), std::memory_order_acq_rel)) {
    }
    return fresh.release()->module;
  }
};

Loader::ContextKernels& Loader::kernels_of(const Driver& driver, std::uint64_t context) {
  std::unique_ptr<ContextKernels> fresh;
  ContextKernels* first = contexts_.load(std::memory_order_acquire);
  for (;;) {
    for (ContextKernels* c = first; c; c = c->next)
      if (c->driver == &driver && c->context == context) return *c;
    if (!fresh) fresh = std::make_unique<ContextKernels>(&driver, context, first);
    fresh->next = first;
    if (contexts_.compare_exchange_strong(first, fresh.get(), std::memory_order_acq_rel))
      return *fresh.release();
  }
}

Function Loader::kernel(Driver& driver, std::uint64_t context, const Target& target, int number) {
  ContextKernels& loaded = kernels_of(driver, context);
  std::atomic<Function>& cached = loaded.functions[static_cast<std::size_t>(number)];
  if (const Function function = cached.load(std::memory_order_acquire)) return function;
  const char* name = kernel::kernel_name(number);
  const auto image = module_for(target, name);
  if (image.empty())
    throw Refusal(ROCFLASH_INTERNAL, text("the kernel catalog of ", target.arch, " lacks ", name));
  const std::lock_guard lock(loaded.mutex_of(image));
  if (const Function function = cached.load(std::memory_order_acquire)) return function;
  const int shared =
      kernel::workgroup_shape(target.family, kernel::kernel_spec(number)).dynamic_shared;
  const Function function =
      driver.function(loaded.module_of(driver, image), name, static_cast<std::uint32_t>(shared));
  cached.store(function, std::memory_order_release);
  return function;
}

}  // namespace rocflash::gpu
