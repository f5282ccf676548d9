// Sets one input element to NaN or infinity and checks that exactly the results that depend on it
// change. The dependence follows from the definition of attention: dependent results are
// non-finite, all others equal those of the unmodified input.
#pragma once

#include "support/call.hpp"

namespace rocflash::test {

// NaN and infinity in q, k, v and dout, through forward and backward, with GQA and each way to mask
// a key: causal, window, mask, bias, dropout.
void expect_non_finite_propagation(rocflash_backend backend, DType dtype, int threads,
                                   const Size& size);

}  // namespace rocflash::test
