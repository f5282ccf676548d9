// Matrix instructions of gfx950 on floats of 8, 6 and 4 bits.
#pragma once

#include "core/op.h"

namespace rocflash::sim {

bool is_f8f6f4(const Op& op);
// Matrix-pipe cycles of one instruction on one SIMD; its formats decide.
u32 f8f6f4_cycles(const Op& op);

}  // namespace rocflash::sim
