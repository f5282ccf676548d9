#include "gpu/plan/refusal.hpp"

#include <limits>
#include <utility>

#include "core/error.hpp"
#include "gpu/dispatch/matrix_path.hpp"
#include "gpu/dispatch/sequences.hpp"
#include "table/backward.hpp"

namespace rocflash::gpu {
namespace {

std::string refusal(const Problem& p) {
  if (p.dtype == DType::f64) return "q has dtype f64; GPU kernels take f32, f16 and bf16";
  // Kernels index the rows of a sequence with 32 bits.
  constexpr std::int64_t max_rows = std::numeric_limits<std::int32_t>::max();
  for (const auto& [name, rows] : {std::pair{"q", sequence_rows(p.lengths, p.max_q)},
                                   std::pair{"k", std::min(p.max_k, p.lengths.rows_k)}}) {
    if (rows > max_rows)
      return text(name, " has a sequence of ", rows, " rows; GPU kernels take up to ", max_rows);
  }
  return {};
}

// Whether the family has backward kernels of this dtype.
bool has_backward(DType dtype, kernel::Family family) {
  const int preprocess = kernel::kernel_number(
      kernel::backward_spec(kernel::Op::backward_preprocess, dtype, 0, kernel::Variant::any));
  return preprocess >= 0 && kernel::has_kernel(family, preprocess);
}

}  // namespace

std::string refusal(const ForwardCall& call) { return refusal(call.problem); }

std::string refusal(const BackwardCall& call, kernel::Family family) {
  const Problem& p = call.problem;
  if (std::string why = refusal(p); !why.empty()) return why;
  if (!uses_fp32_path(p, features_of(p), family) && !has_backward(p.dtype, family))
    return text("q has dtype ", name_of(p.dtype), "; GPUs of family ", kernel::name_of(family),
                " support it in forward only; backward must run on the CPU");
  return {};
}

}  // namespace rocflash::gpu
