// The entry points of one instruction set, and the choice of panel width they share.
#pragma once

#include "cpu/isa/gemm.hpp"
#include "cpu/kernels.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// Few rows take a narrower panel, so that single queries do not pay for 64 lanes.
template <class Body>
ROCFLASH_INLINE void with_panel(std::int64_t rows, Body body) {
  if (rows <= width) return body.template operator()<1>();
  if constexpr (most_vectors == 4) {
    if (rows > 2 * width) return body.template operator()<4>();
  }
  body.template operator()<2>();
}

void forward(const Problem&, const ForwardOutputs&, WorkItem, float* scratch);
void decode(const Problem&, const DecodeParts&, WorkItem, float* scratch);
void merge(const Problem&, const ForwardOutputs&, const DecodeParts&, WorkItem, float* scratch);
void delta(const Problem&, const BackwardTensors&, const Delta&, WorkItem);
void gradients(const Problem&, const BackwardTensors&, const Delta&, const PartialQueryGradients&,
               WorkItem, float* scratch);
void query_gradients(const Problem&, const BackwardTensors&, const PartialQueryGradients&,
                     WorkItem);
void standard_scores(const Problem&, const Scores&, WorkItem, float* scratch);
void standard_softmax(const Problem&, const ForwardOutputs&, const Scores&, WorkItem,
                      float* scratch);
void standard_output(const Problem&, const ForwardOutputs&, const Scores&, WorkItem,
                     float* scratch);
void standard_weights(const Problem&, const BackwardTensors&, const Delta&, const Scores&, WorkItem,
                      float* scratch);
void standard_query_gradients(const Problem&, const BackwardTensors&, const Scores&, WorkItem,
                              float* scratch);
void standard_key_gradients(const Problem&, const BackwardTensors&, const Scores&, WorkItem,
                            float* scratch);

}  // namespace rocflash::cpu::ROCFLASH_ISA
