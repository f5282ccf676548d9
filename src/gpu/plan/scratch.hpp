// Pieces of the caller's scratch memory.
#pragma once

#include <cstddef>

#include "core/sizes.hpp"
#include "core/workspace.hpp"

namespace rocflash::gpu {

// Hands out pieces of the caller's scratch memory, and counts them. Without memory the pieces are null,
// and only their sizes are counted.
class Scratch {
 public:
  Scratch(Size& bytes, std::byte* memory) : bytes_(bytes), memory_(memory) {}

  std::byte* bytes(Size count) {
    std::byte* piece = memory_ && bytes_.fits() ? memory_ + bytes_.value() : nullptr;
    bytes_ += count.rounded_up(workspace_alignment);
    return piece;
  }
  std::byte* floats(Size count) { return bytes(count * Size(sizeof(float))); }

 private:
  Size& bytes_;
  std::byte* memory_;
};

}  // namespace rocflash::gpu
