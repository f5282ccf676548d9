// Whether waves that meet in LDS have a barrier between them, and whether what a barrier publishes
// had been waited for. Strict only.
#pragma once

#include "isa/memory_access.h"

namespace rocflash::sim {

// Records an access and complains when another wave's is not ordered with it. `written` is what a
// write is about to store.
void touch_lds(Wave& w, u32 offset, u32 bytes, int lane, bool write, const u8* written);

// Complains when these bytes are the target of a write that may land at any time.
void check_lds_in_flight(Wave& w, u32 offset, u32 bytes, int lane, Access access,
                         const u8* written);

// The wave arrives at a barrier: the LDS writes it has not waited for are not published by it.
void carry_lds_writes(Wave& w);

}  // namespace rocflash::sim
