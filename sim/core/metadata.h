// The metadata note of a code object: msgpack, as LLVM's AMDGPU ABI describes it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/code_object.h"

namespace rocflash::sim {

struct Metadata {
  std::string target;  // "gfx942:sramecc+:xnack-"; empty before version 1.2
  int minor = -1;      // of amdhsa.version, which is 1.minor; -1: not said
  std::vector<KernelInfo> kernels;
  std::vector<std::string> descriptors;  // the symbol of each kernel's descriptor
};

// Throws std::runtime_error when the note does not follow the ABI.
Metadata parse_metadata(std::span<const u8> note);

}  // namespace rocflash::sim
