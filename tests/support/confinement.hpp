// Poison one input and see that it reaches exactly the results that depend on it. Which do is
// worked out here from the definition alone: results that see the poison must show it, the others
// must be as if it were not there.
#pragma once

#include "support/call.hpp"

namespace rocflash::test {

// Runs NaN and infinity through q, k, v and dout, forward and backward, with causal, window, mask,
// gqa, dropout.
void expect_confinement(rocflash_backend backend, DType dtype, int threads, const Size& size);

}  // namespace rocflash::test
