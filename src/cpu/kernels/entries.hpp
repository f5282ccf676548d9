// The entry points of one instruction set.
#pragma once

#include "cpu/kernels.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

void forward(const Problem&, const ForwardOutputs&, WorkItem, int rows, float* scratch);
void decode(const Problem&, const DecodeParts&, WorkItem, DecodeTurn, float* scratch);
void merge(const Problem&, const ForwardOutputs&, const DecodeParts&, WorkItem, float* scratch);
void delta(const Problem&, const BackwardTensors&, const Delta&, WorkItem, float* scratch);
void gradients(const Problem&, const BackwardTensors&, const Delta&, const PartialQueryGradients&,
               const OptionSums&, WorkItem, float* scratch);
void bias_gradients(const Problem&, const BackwardTensors&, const BiasSums&, Range rows);
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
void rotate(const Problem&, const Rotary&, const Rows& to, Range rows);

}  // namespace rocflash::cpu::ROCFLASH_ISA
