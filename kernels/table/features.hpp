// What each kernel serves: the lines ROCFLASH_SERVES of table/kernels.inc in C++.
#pragma once

#include "table/feature.hpp"
#include "table/kernels.hpp"

namespace rocflash::kernel {

// Sets of features that several kernels do not support.
namespace feature_set {
inline constexpr Features none;
inline constexpr Features row_layout = Feature::unaligned_rows | Feature::partial_vectors |
                                       Feature::overlapping_rows | Feature::large_strides;
inline constexpr Features lengths = Feature::varlen_q | Feature::varlen_k | Feature::seqused_q |
                                    Feature::seqused_k | Feature::left_padding;
inline constexpr Features specialized_forward =
    score_modifiers | Feature::sinks | Feature::dropout | row_layout | Feature::unaligned_outputs |
    Feature::long_sequences;
inline constexpr Features specialized_backward =
    score_modifiers | Feature::dropout | row_layout | Feature::unaligned_outputs;
inline constexpr Features general_decode =
    row_layout | Feature::attention_weights | Feature::no_sequences;
// sm_90a kernels apply a positive scale to the row max, and do not recompute all rows.
inline constexpr Features sm90_scores =
    score_modifiers | Feature::negative_scale | Feature::tiny_scale | Feature::dropout;
inline constexpr Features sm90_decode =
    general_decode | sm90_scores | Feature::varlen_q | Feature::varlen_k | Feature::seqused_q |
    Feature::left_padding | Feature::left_bound | Feature::chunk;
inline constexpr Features sm90_backward =
    specialized_backward | Feature::long_sequences | Feature::strided_lse | Feature::no_keys;
}  // namespace feature_set

// The dtypes of q and of k and v: the kernel's for all; f32 for q and the kernel's for k and v; or
// any, as arguments.
enum class Dtypes : std::uint8_t { same, f32_q, any };
// What a bucket bounds.
enum class BucketOf : std::uint8_t { none, head_dim, q_rows, columns };

namespace detail {

struct ServedLine {
  Op op;
  Schedule schedule;
  Variant variant;
  int from;  // the smallest bucket
  Dtypes dtypes;
  BucketOf bucket;
  Features unsupported;  // the features that the line excepts
};

namespace lines {
using namespace feature_set;
using enum Feature;
inline constexpr ServedLine served[] = {
#define ROCFLASH_SERVES(op, schedule, variant, from, dtypes, bucket, except) \
  {Op::op,                                                                   \
   Schedule::schedule,                                                       \
   Variant::variant,                                                         \
   from,                                                                     \
   Dtypes::dtypes,                                                           \
   BucketOf::bucket,                                                         \
   Features(except) | (Dtypes::dtypes == Dtypes::same ? Features(mixed_dtypes) : Features())},
#include "table/kernels.inc"
};
}  // namespace lines

// The line of a kernel, which need not exist; null without one.
constexpr const ServedLine* served_line(const KernelSpec& spec) {
  const ServedLine* found = nullptr;
  for (const ServedLine& line : lines::served)
    if (line.op == spec.op && line.schedule == spec.schedule && line.variant == spec.variant &&
        line.from <= spec.bucket && (!found || line.from > found->from))
      found = &line;
  return found;
}

constexpr bool serves_every_kernel() {
  for (const KernelSpec& spec : kernel_list.spec) {
    const ServedLine* const line = served_line(spec);
    if (!line || (line->bucket == BucketOf::none) != (spec.bucket == 0)) return false;
  }
  return true;
}
static_assert(serves_every_kernel(),
              "a kernel of kernels.inc has no line ROCFLASH_SERVES, or one with a wrong bucket");

}  // namespace detail

// The features that a kernel does not support.
constexpr Features unsupported_features(const KernelSpec& spec) {
  const detail::ServedLine* const line = detail::served_line(spec);
  return line ? line->unsupported : Features();
}

// The constants of a spec, as a base of kernel types.
template <KernelSpec spec>
struct OfSpec {
  static constexpr DType dtype = spec.dtype;
  static constexpr int bucket = spec.bucket;
  static constexpr Features unsupported = unsupported_features(spec);
  // Whether the kernel has the code of options: score modifiers, dropout and any layout of rows.
  static constexpr bool generic = (unsupported & feature_set::specialized_backward).none();
};

}  // namespace rocflash::kernel
