// GEMM selection for ISAs without bf16 instructions: f32 only.
#pragma once

#include "cpu/gemm/decode_operands.hpp"
#include "cpu/gemm/f32.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// Calls body<Gemm> with the GEMM for these dtypes.
template <class Body>
ROCFLASH_INLINE void with_gemm(std::int64_t rows, DType q, DType /*k*/, Body body) {
  with_f32_gemm(rows, q, body);
}
// Calls body<Kind> with the operand format for these dtypes of queries and cache.
template <class Body>
ROCFLASH_INLINE void with_operands(DType /*query*/, DType cache, Body body) {
  with_f32_operands(cache, body);
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
