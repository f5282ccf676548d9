// The code objects that this library carries, one a GPU architecture, compressed.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "table/families.hpp"

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
// The same among targets whose families add kernels to another one's.
const Target* addition_for(std::string_view arch);
const Target* addition_for(std::string_view arch, std::span<const Target> among);
// By its name: "gfx942", "sm_90a".
const Target* target_named(std::string_view arch);

// All kernels of a target: an ELF code object, or PTX text with its closing 0. Decompressed on the
// first call for each target and kept; any thread may call.
std::span<const std::byte> code_object(const Target& target);

// A module with this kernel for the driver to load: the code object, or the PTX of this kernel
// alone, since drivers compile all of the PTX they are given. Modules of the same kernels have the
// same address, and are kept. Empty when the target has no such kernel in PTX.
std::span<const std::byte> module_for(const Target& target, std::string_view kernel);

}  // namespace rocflash::gpu
