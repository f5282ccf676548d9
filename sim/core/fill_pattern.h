// Fill pattern of new device memory: neither zero nor a plausible number. A dword that still has it
// counts as not written: direct writes of the host do not update the shadow memory.
#pragma once

#include "core/types.h"

namespace rocflash::sim {

inline constexpr u8 kFillByte = 0xcb;
inline constexpr u32 kFillDword = 0xcbcbcbcb;

}  // namespace rocflash::sim
