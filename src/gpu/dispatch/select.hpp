// Kernel selection: the kernels of a call with their tiles, splits and tensor maps, and why other
// candidates were rejected. Launch plans, and so the workspace query, and explain select here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "attention/arguments.hpp"
#include "core/partials.hpp"
#include "core/problem.hpp"
#include "gpu/dispatch/candidates.hpp"
#include "gpu/dispatch/chip.hpp"
#include "gpu/dispatch/tensor_maps.hpp"
#include "gpu/dispatch/tile_schedule.hpp"
#include "table/backward.hpp"
#include "table/decode.hpp"

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

// The decode kernel and how workgroups divide the keys.
struct DecodeSelection {
  kernel::KernelSpec kernel{};  // bucket 0: no decode kernel supports the head dimension
  kernel::Family family{};  // that has the kernel: an extension of the device's, or the device's
  kernel::DecodeTile tile{};
  std::int64_t row_blocks = 0;  // of a (sequence, KV head) slice
  std::int32_t splits = 0;      // workgroups that divide the keys of a row block
  std::int32_t cluster = 1;     // of them in a cluster, which combines their results
  std::int64_t partials = 1;    // results per row that the kernel writes
  bool combines = false;        // whether a combine kernel follows
  // Warp-specialized MLA: the tensor map of the latent KV cache, and the rows of its boxes.
  TensorMapDesc k;
  std::int32_t key_box = 0;
  Features features = {};
  Rejections rejected;

  // Of a decode kernel; MLA is an operation of its own.
  bool uses(kernel::Schedule schedule) const {
    return kernel.op == kernel::Op::decode && kernel.schedule == schedule;
  }
  bool mla_warp_specialized() const {
    return kernel.op == kernel::Op::decode_mla &&
           kernel.schedule == kernel::Schedule::warp_specialized;
  }
};

// Forward or decode.
struct AttentionSelection {
  bool decodes = false;
  DecodeSelection decode;    // if not `decodes`, the last rejection says why
  ForwardSelection forward;  // only if not `decodes`
};

// The kernels between preprocess and postprocess, in launch order, and how dq is accumulated.
class BackwardSelection {
 public:
  bool fp32 = false;            // no matrix kernel supports the problem, or none does so in order
  bool accumulates_dq = false;  // in f32, converted by postprocess
  bool ordered_dq = false;      // ordered dQ accumulation without warp specialization
  int dq_accum_layout = 0;      // as BackwardArguments has it
  int dq_columns = 0;           // of the dQ accumulator
  // Warp-specialized: tensor maps.
  TensorMapDesc q, dout, k, v;
  Features features = {};
  Rejections rejected;

  std::span<const kernel::KernelSpec> gradients() const { return {kernels_.data(), count_}; }
  // The kernel that accumulates dq; only if one does.
  const kernel::KernelSpec& fused() const { return kernels_[0]; }
  bool warp_specialized() const {
    return count_ > 0 && kernel::is_warp_specialized_backward(fused());
  }
  void add(const kernel::KernelSpec& kernel) { kernels_[count_++] = kernel; }

 private:
  std::array<kernel::KernelSpec, 3> kernels_{};
  std::size_t count_ = 0;
};

// The kernel that combines partial results.
struct CombineSelection {
  kernel::KernelSpec kernel{};
  kernel::Family family{};
  std::int32_t blocks = 0;      // column blocks of a row
  std::int32_t slices = 1;      // waves that divide the splits of a column block
  std::int64_t workgroups = 0;  // 0: the output is empty
  bool pdl = false;
};

// Few queries and enough keys select decode. Never reads device-side lengths. Rejects a problem
// that needs more workgroups than a launch can have.
AttentionSelection select(const Problem& problem, const ForwardOutputs& outputs, Chip chip,
                          Gradients gradients = Gradients::possible);
BackwardSelection select(const Problem& problem, const BackwardTensors& tensors, Chip chip);
// `decode`: the features of the decode problem whose launch precedes; none: the partial results are
// the caller's.
CombineSelection select(const Partials& partials, std::optional<Features> decode, Chip chip);

// The two candidates of select(), whether or not the other is faster.
ForwardSelection select_forward(const Problem& problem, const ForwardOutputs& outputs, Chip chip);
DecodeSelection select_decode(const Problem& problem, const ForwardOutputs& outputs, Chip chip);

}  // namespace rocflash::gpu
