// Checks that a barrier orders LDS accesses of different waves, and that the waves waited for
// their LDS accesses before the barrier. Only with checks.
#pragma once

#include "isa/memory_access.h"

namespace rocflash::sim {

// Records an access; raises a fault when it races with one of another wave. `written` is what a
// write is about to store.
void touch_lds(Wave& w, u32 offset, u32 bytes, int lane, bool write, const u8* written);

// Raises a fault when a write to these bytes is in flight.
void check_lds_in_flight(Wave& w, u32 offset, u32 bytes, int lane, Access access,
                         const u8* written);

// The wave arrives at a barrier: the LDS writes it has not waited for are not published by it.
void carry_lds_writes(Wave& w);

}  // namespace rocflash::sim
