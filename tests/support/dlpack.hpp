// Conversion of the library's dtypes to DLPack's, for tests that build a DLTensor.
#pragma once

#include <rocflash/rocflash.h>

#include <cstdint>

#include "core/dtype.hpp"

namespace rocflash::test {

inline DLDataType dl_dtype(DType t) {
  const int code = t == DType::bf16                    ? kDLBfloat
                   : t == DType::i32 || t == DType::i8 ? kDLInt
                   : t == DType::boolean               ? ROCFLASH_DL_BOOL
                   : t == DType::e4m3fn                ? ROCFLASH_DL_FLOAT8_E4M3FN
                   : t == DType::e4m3fnuz              ? ROCFLASH_DL_FLOAT8_E4M3FNUZ
                   : t == DType::e5m2                  ? ROCFLASH_DL_FLOAT8_E5M2
                   : t == DType::e5m2fnuz              ? ROCFLASH_DL_FLOAT8_E5M2FNUZ
                                                       : kDLFloat;
  return {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(8 * size_of(t)), 1};
}

}  // namespace rocflash::test
