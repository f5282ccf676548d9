// The one place that asks which GPU this is compiled for.
#pragma once

#include "table.hpp"

#if defined(__GFX9__)
#include "arch/cdna.hpp"
#elif defined(__GFX10__)
#include "arch/rdna2.hpp"
#elif defined(__GFX11__)
#include "arch/rdna3.hpp"
#elif defined(__GFX12__)
#include "arch/rdna4.hpp"
#elif defined(__NVPTX__)
#include "arch/nvidia.hpp"
#elif defined(__AMDGCN__)
#error "no architecture layer for this target"
#else
#include "arch/host.hpp"
#endif

namespace rocflash::kernel {
inline constexpr Family this_family = arch::family;
}
