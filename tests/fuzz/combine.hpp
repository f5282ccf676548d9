// A random call of rocflash_combine, and a check against its definition.
#pragma once

#include <rocflash/rocflash.h>

#include "fuzz/bytes.hpp"
#include "fuzz/tensor.hpp"

namespace rocflash::fuzz {

class CombineCall {
 public:
  CombineCall(Bytes& bytes, bool exact);
  CombineCall(const CombineCall&) = delete;

  void corrupt(Bytes& bytes);
  rocflash_status run();
  // Null, or a description of the difference from the definition.
  const char* difference();

  Tensor out, lse;

 private:
  int splits, b, h, sq, dv;
  Tensor out_partial, lse_partial;
  const DLTensor* arguments[4];  // out_partial, lse_partial, out, lse
};

}  // namespace rocflash::fuzz
