// The kernel catalog: the compressed code objects (AMD) and PTX modules (NVIDIA) embedded in this
// library, one per GPU architecture.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "table/families.hpp"

namespace rocflash::gpu {

struct Target {
  const char* arch;       // "gfx942", "sm_80"
  kernel::Family family;  // selects the kernels and their tiles
};

// The targets of this build in a fixed order; empty in a CPU-only build.
std::span<const Target> targets();

// The target whose kernels run on a device of architecture `arch`, as the driver reports it:
// "gfx942:sramecc+:xnack-", "sm_90". PTX runs on its own architecture and on later ones;
// architecture-specific PTX (sm_90a) runs on that architecture alone and is preferred. Null: none.
const Target* target_for(std::string_view arch);
const Target* target_for(std::string_view arch, std::span<const Target> among);
// The same among targets of extension families, which add kernels to a base family.
const Target* extension_for(std::string_view arch);
const Target* extension_for(std::string_view arch, std::span<const Target> among);
// The target of this exact name: "gfx942", "sm_90a".
const Target* target_named(std::string_view arch);

// All kernels of a target: an ELF code object, or null-terminated PTX. Decompressed on the first
// call for each target and cached. Thread-safe.
std::span<const std::byte> code_object(const Target& target);

// The module to load for this kernel: the code object, or the PTX of this kernel alone, because
// drivers JIT-compile a whole PTX module. Modules are cached, so the same kernel always has the
// same address. Empty when the target's PTX lacks the kernel.
std::span<const std::byte> module_for(const Target& target, std::string_view kernel);

}  // namespace rocflash::gpu
