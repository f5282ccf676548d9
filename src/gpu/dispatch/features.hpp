// The features of a call (kernels/table/features.hpp), computed once per plan. The only place that
// reads a problem's options to select a kernel.
#pragma once

#include "core/problem.hpp"
#include "table/features.hpp"

namespace rocflash::gpu {

using kernel::Feature;
using kernel::Features;
using kernel::unsupported_features;

// Whether backward may follow a forward call.
enum class Gradients { possible, never };

// The features of a problem whose single rows have strides (rows.hpp), without those of outputs.
Features features_of(const Problem& problem);
// Of a forward or decode call. `training` if gradients are possible.
Features features_of(const Problem& problem, const ForwardOutputs& outputs,
                     Gradients gradients = Gradients::never);
// Of a backward call.
Features features_of(const Problem& problem, const BackwardTensors& tensors);

// The dimensions of q's and k's rows, for the lookup of a head-dim bucket.
int head_dim_of(const Problem& problem);

}  // namespace rocflash::gpu
