// GEMM selection for AMX: bf16 tiles, and f32.
#pragma once

#include "cpu/gemm/amx.hpp"
#include "cpu/gemm/bf16.hpp"
#include "cpu/gemm/decode_operands.hpp"
#include "cpu/gemm/f32.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

template <int vectors>
using Bf16Gemm = Bf16PairGemm<vectors, 1, TileEngine>;
template <int vectors>
using SplitF16Gemm = Bf16PairGemm<vectors, 2, TileEngine>;

// Calls body<Gemm> with the GEMM for these dtypes.
template <class Body>
ROCFLASH_INLINE void with_gemm(std::int64_t rows, DType q, DType k, Body body) {
  if (q == DType::bf16 && k == DType::bf16) return with_panel_width<Bf16Gemm>(rows, body);
  if (q == DType::f16 && k == DType::f16) return with_panel_width<SplitF16Gemm>(rows, body);
  with_f32_gemm(rows, q, body);
}
// Calls body<Kind> with the operand format for a cache of this dtype. VDPBF16PS exists on these
// CPUs too, but is slower than converting to f32.
template <class Body>
ROCFLASH_INLINE void with_operands(DType /*query*/, DType cache, Body body) {
  with_f32_operands(cache, body);
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
