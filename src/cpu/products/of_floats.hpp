// Which products an instruction set offers: floats only.
#pragma once

#include "cpu/products/cache.hpp"
#include "cpu/products/float.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// Calls body<Products> with the products that suit the dtypes.
template <class Body>
ROCFLASH_INLINE void with_products(std::int64_t rows, DType q, DType /*k*/, Body body) {
  in_float_panels(rows, q, body);
}
// Calls body<Kind> with the operands for queries and caches of these dtypes.
template <class Body>
ROCFLASH_INLINE void with_operands(DType /*query*/, DType cache, Body body) {
  with_float_operands(cache, body);
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
