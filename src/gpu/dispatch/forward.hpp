// Kernel selection of forward.
#pragma once

#include <optional>

#include "attention/arguments.hpp"
#include "core/problem.hpp"
#include "gpu/dispatch/candidates.hpp"
#include "gpu/dispatch/chip.hpp"
#include "gpu/dispatch/tensor_maps.hpp"
#include "gpu/dispatch/tile_schedule.hpp"

namespace rocflash::gpu {

// The kernel of forward, its tile schedule and tail split. No launch if there are no workgroups.
struct ForwardSelection {
  kernel::KernelSpec kernel{};
  kernel::Family family{};  // that has the kernel: an extension of the device's, or the device's
  kernel::TileSchedulerParams work;
  std::int64_t slices = 1;  // FP32 path: workgroups that divide the columns of a block
  // Tail split: the last row blocks are halved and computed by a second launch.
  kernel::KernelSpec tail_kernel{};
  TailSplit tail;
  // Warp-specialized: tensor maps and the rows of their boxes; whether long and short blocks are
  // paired.
  TensorMapDesc q, k, v;
  std::int32_t query_box = 0, key_box = 0;
  bool pairs = false;
  Rejections rejected;
};

// `problem` has strides for single rows (prepare_forward), and its features include those of the
// outputs. Rejects a problem that needs more workgroups than a launch can have.
ForwardSelection select_forward(const Problem& problem, Features features, Chip chip);

// Why forward and backward select the FP32 path (no matrix cores), none if they do not: a dtype or
// head dimension that the family's matrix kernels do not support, k or v of another dtype than q,
// and f32 whose products may overflow or whose results are sums of few products.
std::optional<Rejection> matrix_rejection(const Problem& problem, Features features,
                                          kernel::Family family);
bool uses_fp32_path(const Problem& problem, Features features, kernel::Family family);

// The variant of the kernels of an operation that supports the features.
kernel::Variant variant_for(kernel::Operation operation, DType dtype, Features features);

}  // namespace rocflash::gpu
