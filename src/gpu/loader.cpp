#include "gpu/loader.hpp"

namespace rocflash::gpu {

Loader::Loaded& Loader::loaded(const Driver& driver, std::uint64_t context) {
  const std::lock_guard lock(mutex_);
  auto& entry = contexts_[{&driver, context}];
  if (!entry) entry = std::make_unique<Loaded>();
  return *entry;
}

Function Loader::kernel(Driver& driver, std::uint64_t context, const Target& target,
                        const std::string& name, std::uint32_t dynamic_shared) {
  Loaded& l = loaded(driver, context);
  const std::lock_guard lock(l.mutex);
  if (!l.module) l.module = driver.load(code_object(target).data());
  Function& function = l.functions[name];
  if (!function) function = driver.function(l.module, name.c_str(), dynamic_shared);
  return function;
}

}  // namespace rocflash::gpu
