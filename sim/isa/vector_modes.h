// Vector instructions under gfx9's modes of relative registers and of skipping.
#pragma once

#include "core/wave.h"

namespace rocflash::sim {

// Runs the instruction's own function as MODE says.
template <bool Strict>
void run_with_modes(Wave& w, const Op& op);

}  // namespace rocflash::sim
