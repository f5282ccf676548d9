// Conversion of the library's dtypes to DLPack's, for tests that build a DLTensor.
#pragma once

#include <rocflash/rocflash.h>

#include <cstdint>

#include "core/dtype.hpp"

namespace rocflash::test {

inline DLDataType dl_dtype(DType t) {
  const auto code = t == DType::bf16      ? kDLBfloat
                    : t == DType::i32     ? kDLInt
                    : t == DType::boolean ? ROCFLASH_DL_BOOL
                                          : kDLFloat;
  return {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(8 * size_of(t)), 1};
}

}  // namespace rocflash::test
