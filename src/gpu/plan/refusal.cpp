#include "gpu/plan/refusal.hpp"

#include <limits>
#include <utility>

#include "core/error.hpp"
#include "gpu/plan/forward.hpp"
#include "gpu/plan/sequences.hpp"
#include "table/kernels.hpp"

namespace rocflash::gpu {
namespace {

using kernel::Operation;

std::string refusal(const Problem& p) {
  if (p.dtype == DType::f64) return "q: dtype f64; GPU kernels take f32, f16 and bf16";
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
  if (!is_wide(p, family) && !has_gradients(p.dtype, family))
    return "q: is on a GPU; gradients are computed on the CPU only, forward on GPUs too";
  return {};
}

}  // namespace rocflash::gpu
