// The public merge of attention over parts of the keys.
#pragma once

#include <rocflash/rocflash.h>

namespace rocflash {

void combine(const DLTensor* out_partial, const DLTensor* lse_partial, const DLTensor* out,
             const DLTensor* lse, const rocflash_execution* execution);

}  // namespace rocflash
