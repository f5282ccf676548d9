// Suballocation of the caller's workspace.
#pragma once

#include <cstddef>

#include "core/sizes.hpp"
#include "core/workspace.hpp"

namespace rocflash::gpu {

// A bump allocator over the caller's workspace. With null memory (a size query) it returns null and
// only adds up the sizes.
class Scratch {
 public:
  Scratch(Size& bytes, std::byte* memory) : bytes_(bytes), memory_(memory) {}

  std::byte* bytes(Size count) {
    std::byte* allocation = memory_ && bytes_.fits() ? memory_ + bytes_.value() : nullptr;
    bytes_ += count.rounded_up(workspace_alignment);
    return allocation;
  }
  std::byte* floats(Size count) { return bytes(count * Size(sizeof(float))); }

 private:
  Size& bytes_;
  std::byte* memory_;
};

}  // namespace rocflash::gpu
