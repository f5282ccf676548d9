// The tensors of a case: inputs filled from its seed, and poisoned outputs. Unused rows of inputs
// stay poisoned too, so that reading them is detected.
#pragma once

#include <optional>
#include <vector>

#include "verify/buffer.hpp"
#include "verify/case.hpp"

namespace rocflash::verify {

struct Inputs {
  explicit Inputs(const Case& what);
  // Views of these inputs, valid during their lifetime.
  Problem problem() const;
  // The arguments of append and rotary embedding.
  Append append() const;
  // Fingerprint of all bytes: a call must not change its inputs. The cache that decode appends to
  // is excluded; append_reference.hpp checks it.
  std::uint64_t fingerprint() const;

  Case what;
  Buffer q, k, v, dout;  // v and v_new are not used with MLA
  std::optional<Buffer> cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k;
  std::optional<Buffer> block_table, cache_batch_idx;
  std::optional<Buffer> k_descale, v_descale;  // MLA: v has that of k
  std::optional<Buffer> mask, alibi, bias, sinks;
  std::optional<Buffer> dlse;
  std::optional<Buffer> k_new, v_new, cu_seqlens_k_new, rotary_cos, rotary_sin, rotary_seqlens;
};

// What a cache stores in a row for a number. Quantization: x over the row's scale in f32, within
// the finite range.
double stored_value(const Case& what, const std::optional<Buffer>& descale, std::size_t sequence,
                    std::int64_t row, std::int64_t head, double x);

// A view of the first columns of a tensor.
Tensor first_columns(const Tensor& whole, std::int64_t columns);

struct Outputs {
  // `exact`: outputs of the reference, f64 where the ABI allows it, and contiguous.
  Outputs(const Case& what, bool exact);

  ForwardOutputs forward() const;
  // Backward with the out and lse of this forward.
  BackwardTensors backward(const Inputs& inputs) const;

  bool gradients;  // whether the case has any; if not, their buffers stay unwritten

  Buffer out, lse;
  std::optional<Buffer> s_dmask;
  Buffer dq, dk, dv;
  std::optional<Buffer> dsinks, dbias, dalibi_slopes, delta;

  struct Named {
    const char* name;
    Buffer* buffer;  // null: not requested
    bool gradient;
  };
  std::vector<Named> all();
};

}  // namespace rocflash::verify
