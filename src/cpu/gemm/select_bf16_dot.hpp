// GEMM selection for ISAs with bf16 dot products: bf16 pairs, and f32.
#pragma once

#include "cpu/gemm/bf16.hpp"
#include "cpu/gemm/bf16_vectors.hpp"
#include "cpu/gemm/decode_operands_bf16.hpp"
#include "cpu/gemm/f32.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

template <int vectors>
using Bf16Gemm = Bf16PairGemm<vectors, 1, VectorEngine>;

// Calls body<Gemm> with the GEMM for these dtypes.
template <class Body>
ROCFLASH_INLINE void with_gemm(std::int64_t rows, DType q, DType k, Body body) {
  if (q == DType::bf16 && k == DType::bf16) return with_panel_width<Bf16Gemm>(rows, body);
  with_f32_gemm(rows, q, body);
}
// Calls body<Kind> with the operand format for these dtypes of queries and cache.
template <class Body>
ROCFLASH_INLINE void with_operands(DType query, DType cache, Body body) {
  if (query == DType::bf16 && cache == DType::bf16) return body.template operator()<Bf16Pairs>();
  with_f32_operands(cache, body);
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
