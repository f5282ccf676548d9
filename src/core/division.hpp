// In how many bits rows and heads are divided.
//
// A GPU takes over a hundred instructions for a division of 64 bits, and kernels have many. Calls whose rows or heads do
// not fit 32 bits are refused there; the CPU takes them.
#pragma once

#include <cstdint>

#include "core/names.hpp"

namespace rocflash::core {

#if defined(__AMDGCN__) || defined(__NVPTX__)
using Divided = std::uint32_t;
#else
using Divided = std::uint64_t;
#endif

}  // namespace rocflash::core
