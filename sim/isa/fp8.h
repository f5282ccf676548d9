// 8-bit floats: OCP's E4M3 and E5M2 on gfx950 and gfx12, the "fnuz" variants (one NaN, no
// infinities, no -0) on gfx942.
#pragma once

#include <array>

#include "core/target.h"
#include "core/types.h"

namespace rocflash::sim {

enum class Float8 : u8 { Fp8, Bf8 };  // E4M3, E5M2

bool uses_fnuz(const Target& target);

// The value of each code.
const std::array<float, 256>& float8_values(Float8 format, bool fnuz);

// One rounding of f32 bits, to nearest even. A finite value beyond the range becomes the largest
// number when `saturate` (MODE's FP16_OVFL), otherwise NaN (E4M3, fnuz) or infinity (E5M2).
u32 to_float8(u32 bits, Float8 format, bool fnuz, bool saturate);
// As above with the top bits of `seed` added below the last place kept, then cut off.
u32 to_float8_stochastic(u32 bits, u32 seed, Float8 format, bool fnuz, bool saturate);

}  // namespace rocflash::sim
