// Kernels by number, loaded on first use: each module once for each context, whichever thread comes
// first, and functions as they are asked for. After the first time no lock is taken.
#pragma once

#include <atomic>
#include <cstdint>

#include "gpu/catalogue.hpp"
#include "gpu/driver/driver.hpp"

namespace rocflash::gpu {

class Loader {
 public:
  constexpr Loader() = default;
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The device that `context` belongs to must be current. What failed is tried again by the next
  // call.
  Function kernel(Driver& driver, std::uint64_t context, const Target& target, int number);

 private:
  struct Loaded;
  Loaded& loaded(const Driver& driver, std::uint64_t context);

  std::atomic<Loaded*> contexts_{nullptr};  // a list that only grows
};

}  // namespace rocflash::gpu
