// Whether forward and backward of a problem run on matrix cores, and which variant of their
// kernels.
#pragma once

#include <optional>

#include "core/problem.hpp"
#include "gpu/dispatch/candidates.hpp"
#include "table/families.hpp"

namespace rocflash::gpu {

// The smallest head-dim bucket of the family's forward kernels that holds both head dimensions; 0:
// none.
int forward_bucket(const Problem& problem, kernel::Family family);

// Why forward and backward select the FP32 path (no matrix cores), none if they do not: a dtype or
// head dimension that the family's matrix kernels do not support, k or v of another dtype than q,
// and f32 whose products may overflow or whose results are sums of few products.
std::optional<Rejection> matrix_rejection(const Problem& problem, Features features,
                                          kernel::Family family);
bool uses_fp32_path(const Problem& problem, Features features, kernel::Family family);

// The variant of an operation's kernels that supports the features.
kernel::Variant variant_for(kernel::Op op, DType dtype, Features features);

}  // namespace rocflash::gpu
