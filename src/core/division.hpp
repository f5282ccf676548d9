// The integer width of divisions of rows and heads.
//
// A 64-bit division takes over a hundred instructions on a GPU, and kernels have many. GPU backends
// reject calls whose rows or heads exceed 32 bits; the CPU supports them.
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
