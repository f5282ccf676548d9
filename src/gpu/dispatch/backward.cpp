#include "table/backward.hpp"
#include "gpu/dispatch/matrix_path.hpp"
#include "gpu/dispatch/prepare.hpp"
#include "gpu/dispatch/select.hpp"
#include "table/fp32.hpp"

namespace rocflash::gpu {
namespace {

using kernel::Family;
using kernel::KernelSpec;
using kernel::Op;
using kernel::Schedule;
using kernel::Variant;

// The stages of a selection: from the fastest candidate to the FP32 path.
struct BackwardSelector {
  const Problem& p;
  const BackwardTensors& t;
  const Features features;
  const Chip chip;
  const Variant variant;
  BackwardSelection s = {};

  // The kernel whose bucket holds both head dimensions; bucket 0: none.
  KernelSpec spec_for(Op op, Schedule schedule = Schedule::tiled) const {
    const int bucket =
        kernel::bucket_of(op, schedule, p.dtype, head_dim_of(p), kernel::set_of(chip.family));
    return {op, schedule, p.dtype, bucket, variant};
  }
  bool has(const KernelSpec& spec) const {
    const int number = kernel::kernel_number(spec);
    return number >= 0 && kernel::has_kernel(chip.family, number);
  }
  bool reject(const KernelSpec& spec, Reason reason, Features found = {}) {
    s.rejected.add(spec, reason, found);
    return false;
  }

  bool may_fuse(const KernelSpec& fused);
  bool select_warp_specialized();
  void select_fused(const KernelSpec& fused);
  void select_separate();
  void select_fp32();
  void select();
};

// The fused kernels compute all gradients and accumulate dq in f32: faster if dq and one of dk and
// dv are outputs.
bool BackwardSelector::may_fuse(const KernelSpec& fused) {
  const bool computes_both =
      t.dq && (t.dk || (t.dv && kernel::fused_gives_dv(chip.family, fused.bucket)));
  if (!has(fused)) return reject(fused, Reason::no_kernel);
  return computes_both || (kernel::has_ordered_dq(chip.family) && (t.dq || t.dk || t.dv)) ||
         reject(fused, Reason::gradients);
}

// The warp-specialized kernel (sm_90a) also supports deterministic accumulation.
bool BackwardSelector::select_warp_specialized() {
  if (kernel::vendor_of(chip.family) != kernel::Vendor::nvidia) return false;
  const Lengths& l = p.lengths;
  const auto with_bucket = [&](Schedule schedule) {
    return kernel::backward_spec(schedule, p.dtype,
                                 kernel::bucket_of(Op::backward, schedule, p.dtype, head_dim_of(p),
                                                   kernel::family_set::sm90),
                                 Variant::specialized);
  };
  KernelSpec spec = with_bucket(Schedule::warp_specialized);
  if (spec.bucket == 0) spec = with_bucket(Schedule::warp_specialized_large);
  if (!chip.has_sm90) return reject(spec, Reason::no_sm90);
  if (spec.bucket == 0) return reject(spec, Reason::no_kernel);
  if (const Features found = features & unsupported_features(spec); found.any())
    return reject(spec, Reason::features, found);
  const auto of_queries = [&](const Rows& rows) {
    return tensor_map_of(rows, l.rows_q, p.heads, l.packed_q() ? 1 : p.batch());
  };
  const auto of_keys = [&](const Rows& rows) {
    return tensor_map_of(rows, l.rows_k, p.kv_heads, l.packed_k() ? 1 : p.batch());
  };
  const auto q = of_queries(p.q), dout = of_queries(t.dout), k = of_keys(p.k), v = of_keys(p.v);
  if (!q || !dout || !k || !v) return reject(spec, Reason::tensor_map);
  s.add(spec);
  s.accumulates_dq = true;
  s.dq_accum_layout = features.has(Feature::deterministic) ? kernel::dq_accum_ordered : 1;
  s.dq_columns = spec.bucket;
  s.q = *q;
  s.dout = *dout;
  s.k = *k;
  s.v = *v;
  return true;
}

// The fused kernel, with large tiles if their shared memory fits.
void BackwardSelector::select_fused(const KernelSpec& fused) {
  KernelSpec spec = spec_for(Op::backward, Schedule::fused_large_smem);
  if (!has(spec)) {
    spec = fused;
  } else if (kernel::backward_tile(chip.family, spec).dynamic_shared > chip.workgroup_shared) {
    reject(spec, Reason::workgroup_shared);
    spec = fused;
  }
  s.add(spec);
  if (t.dv && !kernel::fused_gives_dv(chip.family, spec.bucket)) s.add(spec_for(Op::backward_dv));
  s.accumulates_dq = true;
  s.ordered_dq = kernel::has_ordered_dq(chip.family);
  if (s.ordered_dq) s.dq_accum_layout = kernel::dq_accum_ordered;
  s.dq_columns = spec.bucket;
}

// One kernel per gradient; dk and dv share one where registers hold both accumulators.
void BackwardSelector::select_separate() {
  if (t.dq) s.add(spec_for(Op::backward_dq));
  if (const KernelSpec both = spec_for(Op::backward_dkdv); has(both) && (t.dk || t.dv))
    return s.add(both);
  if (t.dk) s.add(spec_for(Op::backward_dk));
  if (t.dv) s.add(spec_for(Op::backward_dv));
}

void BackwardSelector::select_fp32() {
  s.fp32 = true;
  if (t.dq) s.add(kernel::fp32_spec(Op::backward_dq, head_dim_of(p)));
  if (t.dk) s.add(kernel::fp32_spec(Op::backward_dk, head_dim_of(p)));
  if (t.dv) s.add(kernel::fp32_spec(Op::backward_dv, head_dim_of(p)));
}

void BackwardSelector::select() {
  const KernelSpec fused = spec_for(Op::backward, Schedule::fused);
  if (const auto why = matrix_rejection(p, features, chip.family)) {
    reject(fused, why->reason, why->features);
    return select_fp32();
  }
  if (may_fuse(fused)) {
    if (select_warp_specialized()) return;
    if (!features.has(Feature::deterministic) || kernel::has_ordered_dq(chip.family))
      return select_fused(fused);
    reject(fused, Reason::deterministic);
  }
  if (const KernelSpec dq = spec_for(Op::backward_dq); dq.bucket == 0) {
    reject(dq, Reason::no_kernel);
    return select_fp32();
  }
  select_separate();
}

}  // namespace

BackwardSelection select(const Problem& given, const BackwardTensors& given_tensors, Chip chip) {
  Problem p = given;
  BackwardTensors t = given_tensors;
  prepare_backward(p, t);
  const Features features = features_of(p, t);
  BackwardSelector selector{p, t, features, chip, variant_for(Op::backward_dq, p.dtype, features)};
  selector.s.features = features;
  selector.select();
  // The selection has values and addresses of the caller, none of p.
  return selector.s;  // NOLINT(clang-analyzer-core.StackAddressEscape)
}

}  // namespace rocflash::gpu
