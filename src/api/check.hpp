// Validation of the C ABI: converts C structs to a validated call and its backend, or throws a
// Refusal that names the argument.
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
  // Throws if the size exceeds the address space.
  std::size_t workspace() const { return workspace_bytes(backend.workspace(call), call.problem); }
};

// `record`, if given, receives each tensor of the call.
Checked<ForwardCall> check_forward(const rocflash_problem*, const rocflash_forward_outputs*,
                                   const rocflash_execution*, Data, TensorRecord* record = nullptr);
Checked<DecodeCall> check_decode(const rocflash_problem*, const rocflash_append*,
                                 const rocflash_forward_outputs*, const rocflash_execution*, Data,
                                 TensorRecord* record = nullptr);
Checked<BackwardCall> check_backward(const rocflash_problem*, const rocflash_backward_tensors*,
                                     const rocflash_execution*, Data,
                                     TensorRecord* record = nullptr);
Checked<CombineCall> check_combine(const DLTensor* out_partial, const DLTensor* lse_partial,
                                   const DLTensor* out, const DLTensor* lse,
                                   const rocflash_execution*, Data = Data::required);

Checked<RotateCall> check_rotate(const DLTensor* x, const DLTensor* cos, const DLTensor* sin,
                                 const DLTensor* cu_seqlens, const DLTensor* first,
                                 std::int32_t interleaved, const DLTensor* out,
                                 const rocflash_execution*, Data = Data::required);

// The values in host memory that a call depends on: lengths, block tables, rotary positions. The
// functions above check them, and a plan checks them again in each run.
void check_host_values(const ForwardCall&);
void check_host_values(const DecodeCall&);
void check_host_values(const BackwardCall&);

// The stages of the above. `cache` is Access::write when keys are appended to k and v.
Problem check_problem(const rocflash_problem&, CallTensors&, Access cache);
Append check_append(const rocflash_append&, CallTensors&, const Problem&);
void check_host_values(const Problem&);
void check_host_values(const Problem&, const Append&);
// Rotary cos and sin tables over positions, for rows of this dtype and number of columns.
Rotary check_rotary_tables(const Tensor& cos, const Tensor& sin, DType dtype, int columns);

// A tensor over (batch, head, query, key) with broadcastable dimensions; one over heads.
PerScore per_score(const Tensor&, const Problem&);
PerHead per_head(const Tensor&, const Problem&);
// ALiBi slopes over heads, or over (batch, head).
PerHead slopes_of(const Tensor&, const Problem&);

}  // namespace rocflash
