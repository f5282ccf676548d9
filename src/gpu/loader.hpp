// Kernels by name, loaded on first use: each module once for each context, whichever thread comes
// first, and functions as they are asked for.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "gpu/catalogue.hpp"
#include "gpu/driver.hpp"

namespace rocflash::gpu {

class Loader {
 public:
  // The device that `context` belongs to must be current. What failed is tried again by the next
  // call.
  Function kernel(Driver& driver, std::uint64_t context, const Target& target,
                  const std::string& name, std::uint32_t dynamic_shared);

 private:
  struct Loaded {
    std::mutex mutex;  // one context's loading does not hold up another's launches
    std::map<const std::byte*, Module> modules;  // by the image that they were loaded from
    std::map<std::string, Function> functions;
  };
  Loaded& loaded(const Driver& driver, std::uint64_t context);

  std::mutex mutex_;
  std::map<std::pair<const Driver*, std::uint64_t>, std::unique_ptr<Loaded>> contexts_;
};

}  // namespace rocflash::gpu
