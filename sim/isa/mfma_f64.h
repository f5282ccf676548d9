// Matrix instructions on f64.
#pragma once

#include "core/op.h"
#include "core/target.h"

namespace rocflash::sim {

bool is_mfma_f64(const Op& op);
// Matrix core cycles of one instruction on one SIMD, derived from published peak rates; no
// document lists them.
u32 mfma_f64_cycles(const Target& target, const Op& op);

}  // namespace rocflash::sim
