// Data-parallel primitives: which lane a DPP source reads.
#pragma once

#include "core/instruction.h"
#include "core/op.h"

namespace rocflash::sim {

DppControl make_dpp(const Instruction& instruction, int wave_size);

}  // namespace rocflash::sim
