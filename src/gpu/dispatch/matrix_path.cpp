#include "gpu/dispatch/matrix_path.hpp"

#include "table/forward.hpp"

namespace rocflash::gpu {

using kernel::KernelSpec;
using kernel::Op;
using kernel::Schedule;
using kernel::Variant;

int forward_bucket(const Problem& p, kernel::Family family) {
  return kernel::bucket_of(Op::forward, Schedule::tiled, p.dtype, head_dim_of(p),
                           kernel::set_of(family));
}

// f32 features that matrix kernels are not accurate or not fast for. They decompose f32 operands,
// which can lose the last bit; sums of few products expose it. Backward recomputes P from lse, so
// forward and backward must select the same path. They would recompute every row of products that
// overflow as non-finite, one element at a time, or lose the last bit of scores as large as f32
// holds.
constexpr Features inexact_f32 = Feature::short_sums | Feature::tiny_scale | Feature::large_scale;

Variant variant_for(Op op, DType dtype, Features features) {
  const KernelSpec spec{op, Schedule::tiled, dtype, 0, Variant::specialized};
  return (features & unsupported_features(spec)).none() ? Variant::specialized : Variant::generic;
}

std::optional<Rejection> matrix_rejection(const Problem& p, Features features,
                                          kernel::Family family) {
  const KernelSpec spec = kernel::forward_spec(p.dtype, forward_bucket(p, family),
                                               variant_for(Op::forward, p.dtype, features));
  if (spec.bucket == 0) return Rejection{spec, Reason::no_kernel};
  if (const Features found = features & unsupported_features(spec); found.any())
    return Rejection{spec, Reason::features, found};
  if (p.dtype == DType::f32 && (features & inexact_f32).any())
    return Rejection{spec, Reason::f32_precision};
  return std::nullopt;
}

bool uses_fp32_path(const Problem& p, Features features, kernel::Family family) {
  return matrix_rejection(p, features, family).has_value();
}

}  // namespace rocflash::gpu
