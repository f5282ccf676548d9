// Which products an instruction set offers: tiles of bf16 pairs too.
#pragma once

#include "cpu/products/amx.hpp"
#include "cpu/products/cache.hpp"
#include "cpu/products/float.hpp"
#include "cpu/products/pairs.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

template <int vectors>
using InBf16 = InPairs<vectors, 1, ByTiles>;
template <int vectors>
using InSplitF16 = InPairs<vectors, 2, ByTiles>;

// Calls body<Products> with the products that suit the dtypes.
template <class Body>
ROCFLASH_INLINE void with_products(std::int64_t rows, DType q, DType k, Body body) {
  if (q == DType::bf16 && k == DType::bf16) return in_panels<InBf16>(rows, body);
  if (q == DType::f16 && k == DType::f16) return in_panels<InSplitF16>(rows, body);
  in_float_panels(rows, q, body);
}
// Calls body<Kind> with the operands for caches of this dtype. CPUs with tiles have dot products of
// pairs too, but these are slower there than converting.
template <class Body>
ROCFLASH_INLINE void with_operands(DType /*query*/, DType cache, Body body) {
  with_float_operands(cache, body);
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
