// The checks at the door: C structs in, one trusted call and its backend out, or a Refusal that
// names the argument.
#pragma once

#include <rocflash/rocflash.h>

#include "api/call_tensors.hpp"
#include "api/tensor.hpp"
#include "core/backend.hpp"
#include "core/workspace.hpp"

namespace rocflash {

template <class Call>
struct Checked {
  Call call;
  const Backend& backend;

  void run() const { backend.run(call); }
  // Refuses a call that needs more than there can be.
  std::size_t workspace() const { return workspace_bytes(backend.workspace(call), call.problem); }
};

Checked<ForwardCall> check_forward(const rocflash_problem*, const rocflash_forward_outputs*,
                                   const rocflash_execution*, Data);
Checked<DecodeCall> check_decode(const rocflash_problem*, const rocflash_append*,
                                 const rocflash_forward_outputs*, const rocflash_execution*, Data);
Checked<BackwardCall> check_backward(const rocflash_problem*, const rocflash_backward_tensors*,
                                     const rocflash_execution*, Data);
Checked<CombineCall> check_combine(const DLTensor* out_partial, const DLTensor* lse_partial,
                                   const DLTensor* out, const DLTensor* lse,
                                   const rocflash_execution*);

Checked<RotateCall> check_rotate(const DLTensor* x, const DLTensor* cos, const DLTensor* sin,
                                 const DLTensor* cu_seqlens, const DLTensor* first,
                                 std::int32_t interleaved, const DLTensor* out,
                                 const rocflash_execution*);

// Parts of those. A cache is written to when something is appended.
Problem check_problem(const rocflash_problem&, CallTensors&, Access cache);
Append check_append(const rocflash_append&, CallTensors&, const Problem&);
// Tables of cosines and sines over positions, for rows of this dtype and so many columns.
Rotary check_tables(const Tensor& cos, const Tensor& sin, DType dtype, int columns);

// A tensor over (sequence, head, query, key) whose dimensions may be 1; one over heads.
PerScore per_score(const Tensor&, const Problem&);
PerHead per_head(const Tensor&, const Problem&);
// Over heads, or over sequences and heads.
PerHead slopes_of(const Tensor&, const Problem&);

}  // namespace rocflash
