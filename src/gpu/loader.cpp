#include "gpu/loader.hpp"

#include <memory>
#include <mutex>

#include "core/error.hpp"

namespace rocflash::gpu {

struct Loader::Entry {
  std::string name;
  Function function;
  const std::byte* image;
  Module module;
  const Entry* next;
};

// What one context has. Its loading does not delay another's launches.
struct Loader::Loaded {
  const Driver* driver;
  std::uint64_t context;
  Loaded* next;
  ForkMutex mutex;
  std::atomic<const Entry*> entries{nullptr};

  template <class Wanted>
  const Entry* find(Wanted wanted) const {
    const Entry* entry = entries.load(std::memory_order_acquire);
    while (entry && !wanted(*entry)) entry = entry->next;
    return entry;
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

Function Loader::kernel(Driver& driver, std::uint64_t context, const Target& target,
                        const std::string& name, std::uint32_t dynamic_shared) {
  Loaded& l = loaded(driver, context);
  const auto named = [&](const Entry& e) { return e.name == name; };
  if (const Entry* known = l.find(named)) return known->function;
  const std::lock_guard lock(l.mutex);
  if (const Entry* known = l.find(named)) return known->function;
  const auto image = module_for(target, name);
  if (image.empty())
    throw Refusal(ROCFLASH_INTERNAL, text("the kernels of ", target.arch, " lack ", name));
  auto fresh = std::make_unique<Entry>(name, nullptr, image.data(), nullptr,
                                       l.entries.load(std::memory_order_acquire));
  const Entry* same = l.find([&](const Entry& e) { return e.image == image.data(); });
  fresh->module = same ? same->module : driver.load(image.data());
  fresh->function = driver.function(fresh->module, name.c_str(), dynamic_shared);
  l.entries.store(fresh.get(), std::memory_order_release);
  return fresh.release()->function;
}

}  // namespace rocflash::gpu
