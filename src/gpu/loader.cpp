#include "gpu/loader.hpp"

#include "api/error.hpp"

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
  Function& function = l.functions[name];
  if (function) return function;
  const auto image = module_for(target, name);
  if (image.empty())
    throw Refusal(ROCFLASH_INTERNAL, text("the kernels of ", target.arch, " lack ", name));
  Module& module = l.modules[image.data()];
  if (!module) module = driver.load(image.data());
  function = driver.function(module, name.c_str(), dynamic_shared);
  return function;
}

}  // namespace rocflash::gpu
