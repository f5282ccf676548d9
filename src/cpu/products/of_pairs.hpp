// Which products an instruction set offers: pairs of bf16 numbers too.
#pragma once

#include "cpu/products/cache_pairs.hpp"
#include "cpu/products/float.hpp"
#include "cpu/products/pairs.hpp"
#include "cpu/products/words.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

template <int vectors>
using InBf16 = InPairs<vectors, 1, ByVectors>;

// Calls body<Products> with the products that suit the dtypes.
template <class Body>
ROCFLASH_INLINE void with_products(std::int64_t rows, DType q, DType k, Body body) {
  if (q == DType::bf16 && k == DType::bf16) return in_panels<InBf16>(rows, body);
  in_float_panels(rows, q, body);
}
// Calls body<Kind> with the operands for queries and caches of these dtypes.
template <class Body>
ROCFLASH_INLINE void with_operands(DType query, DType cache, Body body) {
  if (query == DType::bf16 && cache == DType::bf16) return body.template operator()<Pairs>();
  with_float_operands(cache, body);
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
