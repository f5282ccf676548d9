// The entry points of one ISA.
#pragma once

#include "cpu/kernels.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

void forward(const Problem&, const ForwardOutputs&, WorkItem, int rows, float* scratch);
void decode(const Problem&, const DecodePartials&, WorkItem, DecodePrefetch, float* scratch);
void combine(const Problem&, const ForwardOutputs&, const DecodePartials&, WorkItem,
             float* scratch);
void delta(const Problem&, const BackwardTensors&, const Delta&, WorkItem, float* scratch);
void statistics(const Problem&, const BackwardTensors&, const Delta&, WorkItem, float* scratch);
void gradients(const Problem&, const BackwardTensors&, const Delta&, const DqAccumulators&,
               const OptionAccumulators&, WorkItem, float* scratch);
void bias_gradients(const Problem&, const BackwardTensors&, const BiasAccumulators&, Range rows);
void query_gradients(const Problem&, const BackwardTensors&, const DqAccumulators&, WorkItem);
void standard_scores(const Problem&, const Scores&, WorkItem, float* scratch);
void standard_softmax(const Problem&, const ForwardOutputs&, const Scores&, WorkItem,
                      float* scratch);
void standard_output(const Problem&, const ForwardOutputs&, const Scores&, WorkItem,
                     float* scratch);
void standard_statistics(const Problem&, const BackwardTensors&, const Delta&, WorkItem,
                         float* scratch);
void standard_weights(const Problem&, const BackwardTensors&, const Delta&, const Scores&, WorkItem,
                      float* scratch);
void standard_query_gradients(const Problem&, const BackwardTensors&, const Scores&, WorkItem,
                              float* scratch);
void standard_key_gradients(const Problem&, const BackwardTensors&, const Scores&, WorkItem,
                            float* scratch);
void rotate(const Problem&, const Rotary&, const Rows& to, Range rows);

}  // namespace rocflash::cpu::ROCFLASH_ISA
