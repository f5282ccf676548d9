// Kernel selection of decode: split-KV, clusters, MLA, and the choice between decode and forward.
#pragma once

#include "attention/arguments.hpp"
#include "core/partials.hpp"
#include "core/problem.hpp"
#include "core/sizes.hpp"
#include "gpu/dispatch/candidates.hpp"
#include "gpu/dispatch/chip.hpp"
#include "gpu/dispatch/tensor_maps.hpp"
#include "table/decode.hpp"

namespace rocflash::gpu {

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

  kernel::Operation operation() const { return kernel.operation; }
};

// The decode kernel of a problem, whether or not decode is faster than forward. `problem` has
// strides for single rows (decode_problem).
DecodeSelection select_decode(const Problem& problem, Features features, Chip chip);

// Forward or decode.
struct AttentionSelection {
  bool decodes = false;
  Reason reason = Reason::preferred;  // why decode is not selected
  DecodeSelection decode;
};
// Few queries and enough keys select decode. Never reads device-side lengths.
AttentionSelection select_attention(const Problem& problem, const ForwardOutputs& outputs,
                                    Chip chip, Gradients gradients = Gradients::possible);

// The problem with the strides of single rows set, as decode kernels expect.
Problem decode_problem(const Problem& given);

// The kernel that combines partial results.
struct CombineSelection {
  kernel::KernelSpec kernel{};
  kernel::Family family{};
  std::int32_t blocks = 0;      // column blocks of a row
  std::int32_t slices = 1;      // waves that divide the splits of a column block
  std::int64_t workgroups = 0;  // 0: the output is empty
  bool pdl = false;
};
// `after_decode`: the previous launch is decode, whose problem has these features.
CombineSelection select_combine(const Partials& partials, bool after_decode, Features features,
                                Chip chip);

}  // namespace rocflash::gpu
