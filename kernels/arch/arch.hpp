// The target family's primitives. The build defines the family and its header; without them the
// header is the host's, for unit tests.
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
