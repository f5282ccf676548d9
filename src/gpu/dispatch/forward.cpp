#include "gpu/dispatch/forward.hpp"

#include "gpu/dispatch/rows.hpp"
#include "gpu/dispatch/sequences.hpp"
#include "table/forward.hpp"
#include "table/fp32.hpp"

namespace rocflash::gpu {
namespace {

using kernel::KernelSpec;
using kernel::Operation;
using kernel::Variant;

// The smallest head-dim bucket of the family that holds both head dimensions; 0: none.
int forward_bucket(const Problem& p, kernel::Family family) {
  return kernel::bucket_of(Operation::forward, p.dtype, head_dim_of(p), kernel::set_of(family));
}

// f32 features that matrix kernels are not accurate or not fast for. They decompose f32 operands,
// which can lose the last bit; sums of few products expose it. Backward recomputes P from lse, so
// forward and backward must select the same path. They would recompute every row of products that
// overflow as non-finite, one element at a time, or lose the last bit of scores as large as f32
// holds.
constexpr Features inexact_f32 = Feature::short_sums | Feature::tiny_scale | Feature::large_scale;

void select_fp32(ForwardSelection& s, const Problem& p, Chip chip) {
  s.kernel = is_8_bit(p.k.dtype) ? kernel::fp32_quantized_spec()
                                 : kernel::fp32_spec(Operation::forward_fp32, p.value_dim);
  s.family = chip.family;
  const kernel::Fp32Tile tile = kernel::fp32_tile(chip.family, s.kernel);
  s.slices = ceil_div(p.value_dim, tile.slice);
  s.work = schedule_tiles(p, p.heads, sequence_rows(p.lengths, p.max_q), tile.owned,
                          static_cast<int>(tile.threads * s.slices), chip);
}

// Causal without a window: later query blocks attend to more keys.
bool work_grows_with_block(Features features) {
  return features.has(Feature::right_bound) &&
         (features & (Feature::left_bound | Feature::chunk)).none();
}

// The warp-specialized kernel (sm_90a); false if it does not support the problem.
bool select_warp_specialized(ForwardSelection& s, const Problem& p, Features features, Chip chip) {
  if (kernel::vendor_of(chip.family) != kernel::Vendor::nvidia) return false;
  const Lengths& l = p.lengths;
  const Operation operation = features.has(Feature::paged)
                                  ? Operation::forward_warp_specialized_paged
                                  : Operation::forward_warp_specialized;
  const int bucket =
      kernel::bucket_of(operation, p.dtype, head_dim_of(p), kernel::family_set::sm90);
  const KernelSpec spec{operation, p.dtype, bucket, Variant::specialized};
  const auto reject = [&](Reason reason, Features found = {}) {
    s.rejected.add(spec, reason, found);
    return false;
  };
  if (!chip.has_sm90) return reject(Reason::no_sm90);
  if (bucket == 0) return reject(Reason::no_kernel);
  if (const Features found = features & unsupported_features(spec); found.any())
    return reject(Reason::features, found);
  const kernel::ForwardWarpgroups tile = kernel::warp_specialized_tile(spec);
  s.key_box = tma_box_rows(p, tile.keys);
  if (s.key_box == 0) return reject(Reason::small_pages);
  const auto q = tensor_map_of(p.q, l.rows_q, p.heads, l.packed_q() ? 1 : p.batch()),
             k = kv_tensor_map(p.k, p), v = kv_tensor_map(p.v, p);
  if (!q || !k || !v) return reject(Reason::tensor_map);
  s.kernel = spec;
  s.family = kernel::Family::sm90;
  s.q = *q;
  s.k = *k;
  s.v = *v;
  s.query_box = tile.queries();
  s.work =
      schedule_tiles(p, p.heads, sequence_rows(l, p.max_q), tile.queries(), tile.threads(), chip);
  s.pairs = work_grows_with_block(features);  // a long and a short block are paired
  return true;
}

void select_tail_split(ForwardSelection& s, const Problem& p, Features features, Chip chip) {
  const KernelSpec spec = kernel::tail_split_spec(p.dtype, s.kernel.bucket);
  const int number = kernel::kernel_number(spec);
  if (number < 0 || !kernel::has_kernel(chip.family, number))
    return s.rejected.add(spec, Reason::no_kernel);
  if (const Features found = features & unsupported_features(spec); found.any())
    return s.rejected.add(spec, Reason::features, found);
  s.tail_kernel = spec;
  s.tail = split_last_wave(p.max_k, !features.has(Feature::right_bound), s.work, chip);
  if (s.tail.count == 0) s.rejected.add(spec, Reason::full_last_wave);
}

}  // namespace

Variant variant_for(Operation operation, DType dtype, Features features) {
  const KernelSpec spec{operation, dtype, 0, Variant::specialized};
  return (features & unsupported_features(spec)).none() ? Variant::specialized : Variant::generic;
}

std::optional<Rejection> matrix_rejection(const Problem& p, Features features,
                                          kernel::Family family) {
  const KernelSpec spec = kernel::forward_spec(p.dtype, forward_bucket(p, family),
                                               variant_for(Operation::forward, p.dtype, features));
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

ForwardSelection select_forward(const Problem& p, Features features, Chip chip) {
  ForwardSelection s;
  if (const auto why = matrix_rejection(p, features, chip.family)) {
    s.rejected.add(why->kernel, why->reason, why->features);
    select_fp32(s, p, chip);
    return s;
  }
  if (select_warp_specialized(s, p, features, chip)) return s;
  const Variant variant = variant_for(Operation::forward, p.dtype, features);
  s.kernel = kernel::forward_spec(p.dtype, forward_bucket(p, chip.family), variant);
  s.family = chip.family;
  if (variant == Variant::generic) {
    const KernelSpec specialized =
        kernel::forward_spec(p.dtype, s.kernel.bucket, Variant::specialized);
    s.rejected.add(specialized, Reason::features, features & unsupported_features(specialized));
  }
  const kernel::ForwardTile tile = kernel::forward_tile(chip.family, s.kernel);
  s.work = schedule_tiles(p, p.heads, sequence_rows(p.lengths, p.max_q), tile.queries, tile.threads,
                          chip);
  const bool has_xcds =
      chip.family == kernel::Family::cdna3 || chip.family == kernel::Family::cdna4;
  if (has_xcds && work_grows_with_block(features)) s.work.bh_interleave = causal_interleave(s.work);
  if (s.work.workgroups > 0 && variant == Variant::specialized)
    select_tail_split(s, p, features, chip);
  return s;
}

}  // namespace rocflash::gpu
