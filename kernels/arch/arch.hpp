// The GPU that this is compiled for: the build names the family and the header of its instructions.
// Without them it is the host.
#pragma once

#include "table/families.hpp"

#ifdef ROCFLASH_ARCH_HEADER
#include ROCFLASH_ARCH_HEADER
#else
#include "arch/host.hpp"
#define ROCFLASH_THIS_FAMILY cdna3
#endif

namespace rocflash::kernel {
inline constexpr Family this_family = Family::ROCFLASH_THIS_FAMILY;
}
