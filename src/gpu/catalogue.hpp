// The code objects that this library carries, one a GPU architecture, compressed.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "table.hpp"

namespace rocflash::gpu {

struct Target {
  const char* arch;       // "gfx942", "sm_80"
  kernel::Family family;  // the schedule that its kernels follow
};

// What was built, in a fixed order; empty in a library for the CPU alone.
std::span<const Target> targets();

// The target whose kernels run on a device that calls itself `arch`: "gfx942:sramecc+:xnack-",
// "sm_90". PTX serves its own architecture and later ones; that of an architecture's own features
// (sm_90a) serves that one alone and goes before the rest. Null when there is none.
const Target* target_for(std::string_view arch);
const Target* target_for(std::string_view arch, std::span<const Target> among);

// A module as drivers load it: an ELF code object, or PTX text with its closing 0. Decompressed on
// the first call for each target and kept; any thread may call.
std::span<const std::byte> code_object(const Target& target);

}  // namespace rocflash::gpu
