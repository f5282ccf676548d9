#include "gpu/plan/refusal.hpp"

#include <limits>
#include <utility>

#include "core/error.hpp"
#include "gpu/plan/sequences.hpp"
#include "table/kernels.hpp"

namespace rocflash::gpu {
namespace {

using kernel::Operation;

std::string refusal(const Problem& p) {
  const auto bad_dtype = [](DType t) { return t != DType::f16 && t != DType::bf16; };
  if (bad_dtype(p.dtype))
    return text("q: dtype ", name_of(p.dtype), "; GPU kernels take f16 and bf16");
  if (p.k.dtype != p.dtype)
    return text("k: dtype ", name_of(p.k.dtype), "; GPU kernels take that of q, ",
                name_of(p.dtype));
  for (const auto& [name, size] : {std::pair{"q", p.head_dim}, std::pair{"v", p.value_dim}}) {
    const int largest = kernel::largest_bucket(Operation::forward, p.dtype);
    if (size > largest)
      return text(name, ": head size ", size, "; GPU kernels take 1 to ", largest);
  }
  // Kernels count the rows of one sequence in 32 bits.
  constexpr std::int64_t longest = std::numeric_limits<std::int32_t>::max();
  for (const auto& [name, rows] : {std::pair{"q", sequence_rows(p.lengths, p.max_q)},
                                   std::pair{"k", std::min(p.max_k, p.lengths.rows_k)}}) {
    if (rows > longest)
      return text(name, ": a sequence of ", rows, " rows; GPU kernels take up to ", longest);
  }
  return {};
}

// Whether the family has kernels for gradients of this dtype.
bool has_gradients(DType dtype, kernel::Family family) {
  const int delta =
      kernel::kernel_number({Operation::backward_delta, dtype, 0, kernel::Variant::any});
  return delta >= 0 && kernel::has_kernel(family, delta);
}

}  // namespace

std::string refusal(const ForwardCall& call) { return refusal(call.problem); }

std::string refusal(const BackwardCall& call, kernel::Family family) {
  const Problem& p = call.problem;
  if (std::string why = refusal(p); !why.empty()) return why;
  if (!has_gradients(p.dtype, family))
    return "q: is on a GPU; gradients are computed on the CPU only, forward on GPUs too";
  for (const auto& [name, given] : {std::pair{"dbias", bool(call.tensors.dbias)},
                                    std::pair{"dalibi_slopes", bool(call.tensors.dalibi)}}) {
    if (given)
      return text(name, ": is given; GPUs do not compute this gradient, it must be null there");
  }
  return {};
}

}  // namespace rocflash::gpu
