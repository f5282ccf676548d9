#include "table/forward.hpp"
#include "gpu/dispatch/matrix_path.hpp"
#include "gpu/dispatch/prepare.hpp"
#include "gpu/dispatch/select.hpp"
#include "gpu/dispatch/sequences.hpp"
#include "table/fp32.hpp"

namespace rocflash::gpu {
namespace {

using kernel::KernelSpec;
using kernel::Op;
using kernel::Schedule;
using kernel::Variant;

void select_fp32(ForwardSelection& s, const Problem& p, Chip chip) {
  s.kernel = is_8_bit(p.k.dtype) ? kernel::fp32_quantized_spec
                                 : kernel::fp32_spec(Op::forward, p.value_dim);
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
  const Schedule schedule =
      features.has(Feature::paged) ? Schedule::warp_specialized_paged : Schedule::warp_specialized;
  const int bucket =
      kernel::bucket_of(Op::forward, schedule, p.dtype, head_dim_of(p), kernel::family_set::sm90);
  const KernelSpec spec{Op::forward, schedule, p.dtype, bucket, Variant::specialized};
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

ForwardSelection select_forward(const Problem& given, const ForwardOutputs& given_outputs,
                                Chip chip) {
  Problem p = given;
  ForwardOutputs outputs = given_outputs;
  prepare_forward(p, outputs);
  const Features features = features_of(p, outputs);
  ForwardSelection s;
  if (const auto why = matrix_rejection(p, features, chip.family)) {
    s.rejected.add(why->kernel, why->reason, why->features);
    select_fp32(s, p, chip);
    return s;
  }
  if (select_warp_specialized(s, p, features, chip)) return s;
  const Variant variant = variant_for(Op::forward, p.dtype, features);
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
