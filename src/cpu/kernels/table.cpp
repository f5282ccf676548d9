// The table of entry points of this ISA for the dispatcher.
#include "cpu/kernels/entries.hpp"

#define ROCFLASH_STRING_(x) #x
#define ROCFLASH_STRING(x) ROCFLASH_STRING_(x)

namespace rocflash::cpu::ROCFLASH_ISA {

const Kernels kernels{ROCFLASH_STRING(ROCFLASH_ISA),
                      forward,
                      decode,
                      combine,
                      delta,
                      statistics,
                      gradients,
                      query_gradients,
                      bias_gradients,
                      standard_scores,
                      standard_softmax,
                      standard_output,
                      standard_statistics,
                      standard_weights,
                      standard_query_gradients,
                      standard_key_gradients,
                      rotate};

}  // namespace rocflash::cpu::ROCFLASH_ISA
