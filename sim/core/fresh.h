// What fresh device memory is filled with: neither zero nor a plausible number. It doubles as the
// sign that nobody has written: the host may write device memory directly, unseen by the shadow.
#pragma once

#include "core/types.h"

namespace rocflash::sim {

inline constexpr u8 kFreshByte = 0xcb;
inline constexpr u32 kFreshDword = 0xcbcbcbcb;

}  // namespace rocflash::sim
