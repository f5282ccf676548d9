// Loads kernels on first use: each module once per context, each function on its first launch.
// Thread-safe; launches of loaded kernels take no lock.
#pragma once

#include <atomic>
#include <cstdint>

#include "gpu/catalog.hpp"
#include "gpu/driver/driver.hpp"

namespace rocflash::gpu {

class Loader {
 public:
  constexpr Loader() = default;
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The device of `context` must be current. A failed load is retried by the next call.
  Function kernel(Driver& driver, std::uint64_t context, const Target& target, int number);

 private:
  struct ContextKernels;
  ContextKernels& kernels_of(const Driver& driver, std::uint64_t context);

  std::atomic<ContextKernels*> contexts_{nullptr};  // an append-only list
};

}  // namespace rocflash::gpu
