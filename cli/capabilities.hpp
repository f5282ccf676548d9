// The capabilities of a device, determined with workspace queries, which reject what a call
// rejects.
#pragma once

#include <map>
#include <rocflash/rocflash.hpp>
#include <string>
#include <vector>

namespace rocflash::cli {

struct Capability {
  std::string operation;                // forward, backward or decode
  std::map<std::string, int> head_dim;  // the largest head dimension per dtype; 0: not supported
  std::map<std::string, std::string> refusals;
};

std::vector<Capability> capabilities(const DLDevice& device);

// "f16 bf16 f32, head dimensions to 512", or what is not supported and why.
std::string capability_text(const Capability& capability);

}  // namespace rocflash::cli
