// The CPU of this machine and the kernels that it can run. One file per architecture.
#pragma once

#include <string>
#include <vector>

#include "cpu/kernels.hpp"

namespace rocflash::cpu {

struct Machine {
  std::string name;      // "AMD EPYC 9655"
  std::string features;  // detected instruction sets, separated by spaces
  std::vector<const Kernels*> supported;
  const Kernels* best = nullptr;
};

Machine examine_machine();

}  // namespace rocflash::cpu
