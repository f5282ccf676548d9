// What a device computes, by asking the library: a workspace query refuses what a call would refuse.
#pragma once

#include <map>
#include <rocflash/rocflash.hpp>
#include <string>
#include <vector>

namespace rocflash::cli {

struct Ability {
  std::string operation;                // forward, backward or decode
  std::map<std::string, int> head_dim;  // the largest head size per dtype; 0 where it is refused
  std::map<std::string, std::string> refusals;
};

std::vector<Ability> abilities(const DLDevice& device);

// "f16 bf16 f32, head sizes to 512", or what is refused and why.
std::string ability_text(const Ability& ability);

}  // namespace rocflash::cli
