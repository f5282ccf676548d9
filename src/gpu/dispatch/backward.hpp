// Kernel selection of backward.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "attention/arguments.hpp"
#include "core/problem.hpp"
#include "gpu/dispatch/candidates.hpp"
#include "gpu/dispatch/chip.hpp"
#include "gpu/dispatch/tensor_maps.hpp"

namespace rocflash::gpu {

// The kernels between preprocess and postprocess, in launch order, and how dq is accumulated.
class BackwardSelection {
 public:
  bool fp32 = false;              // no matrix kernel supports the problem, or none does so in order
  bool warp_specialized = false;  // the sm_90a kernel
  bool accumulates_dq = false;    // in f32, converted by postprocess
  bool ordered_dq = false;        // ordered dQ accumulation without warp specialization
  int dq_accum_layout = 0;        // as BackwardArguments has it
  int dq_columns = 0;             // of the dQ accumulator
  // Warp-specialized: tensor maps.
  TensorMapDesc q, dout, k, v;
  Rejections rejected;

  std::span<const kernel::KernelSpec> gradients() const { return {kernels_.data(), count_}; }
  // The kernel that accumulates dq; only if one does.
  const kernel::KernelSpec& fused() const { return kernels_[0]; }
  void add(const kernel::KernelSpec& kernel) { kernels_[count_++] = kernel; }

 private:
  std::array<kernel::KernelSpec, 3> kernels_{};
  std::size_t count_ = 0;
};

// `problem` and `tensors` have strides for single rows.
BackwardSelection select_backward(const Problem& problem, const BackwardTensors& tensors,
                                  Features features, Chip chip);

// The key blocks of the warp-specialized kernel.
kernel::TileSchedulerParams schedule_key_tiles(const Problem& problem,
                                               const kernel::KernelSpec& spec, std::int64_t keys,
                                               Chip chip);
// Ordered dQ accumulation staggers the key blocks of a (batch, head) slice by about half a tile, so
// several slices are interleaved.
std::int32_t ordered_bh_interleave(const kernel::TileSchedulerParams& work, Chip chip);

}  // namespace rocflash::gpu
