// Vector instructions under gfx9's GPR_IDX_EN and VSKIP modes.
#pragma once

#include "core/wave.h"

namespace rocflash::sim {

// Runs the instruction under MODE's GPR_IDX_EN and VSKIP bits.
template <bool Strict>
void run_with_gpr_index_mode(Wave& w, const Op& op);

}  // namespace rocflash::sim
