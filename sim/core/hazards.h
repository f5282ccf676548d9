// Data hazards that gfx9 does not resolve in hardware.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/op.h"

namespace rocflash::sim {

// Makes each such instruction a fault when checks are enabled.
void bind_hazards(std::span<Op> ops, const std::vector<std::string>& texts);

}  // namespace rocflash::sim
