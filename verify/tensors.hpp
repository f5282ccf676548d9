// The tensors of a case: inputs filled from its seed, outputs poisoned. Rows of inputs that no
// sequence uses stay poisoned too, so that a device that reads them shows it.
#pragma once

#include <optional>
#include <vector>

#include "verify/buffer.hpp"
#include "verify/case.hpp"

namespace rocflash::verify {

struct Inputs {
  explicit Inputs(const Case& what);
  // Valid as long as these inputs are.
  Problem problem() const;
  // What decode appends.
  Append append() const;
  // Fingerprint of all bytes: a call must not change its inputs. Decode changes its cache, which
  // `appended.hpp` looks after.
  std::uint64_t fingerprint() const;

  Case what;
  Buffer q, k, v, dout;  // v and v_new are not used where k holds the values
  std::optional<Buffer> cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k;
  std::optional<Buffer> block_table, cache_batch_idx;
  std::optional<Buffer> mask, alibi, bias, sinks;
  std::optional<Buffer> k_new, v_new, cu_seqlens_k_new, rotary_cos, rotary_sin, rotary_seqlens;
};

// The first columns of a tensor, in the same memory.
Tensor first_columns(const Tensor& whole, std::int64_t columns);

struct Outputs {
  // `exact`: as the reference gives them, f64 where the ABI allows it, and compact.
  Outputs(const Case& what, bool exact);

  ForwardOutputs forward() const;
  // Backward with the out and lse of this forward.
  BackwardTensors backward(const Inputs& inputs) const;

  bool gradients;  // whether the case has any; if not, their buffers stay as they are

  Buffer out, lse;
  std::optional<Buffer> s_dmask;
  Buffer dq, dk, dv;
  std::optional<Buffer> dsinks, dbias, dalibi_slopes;

  struct Named {
    const char* name;
    Buffer* buffer;  // null: not asked for
    bool gradient;
  };
  std::vector<Named> all();
};

}  // namespace rocflash::verify
