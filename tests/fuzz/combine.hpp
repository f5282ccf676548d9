// One drawn call of rocflash_combine and its definition.
#pragma once

#include <rocflash/rocflash.h>

#include "fuzz/bytes.hpp"
#include "fuzz/tensor.hpp"

namespace rocflash::fuzz {

class CombineCall {
 public:
  CombineCall(Bytes& bytes, bool exact);
  CombineCall(const CombineCall&) = delete;

  void damage(Bytes& bytes);
  rocflash_status run();
  // Null, or what is not as the definition has it.
  const char* mistake();

  Tensor out, lse;

 private:
  int parts, b, h, sq, dv;
  Tensor out_partial, lse_partial;
  const DLTensor* given[4];  // out_partial, lse_partial, out, lse
};

}  // namespace rocflash::fuzz
