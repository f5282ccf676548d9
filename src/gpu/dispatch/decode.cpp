#include <algorithm>

#include "gpu/dispatch/prepare.hpp"
#include "gpu/dispatch/select.hpp"
#include "gpu/dispatch/sequences.hpp"
#include "gpu/dispatch/splits.hpp"
#include "table/combine.hpp"

namespace rocflash::gpu {
namespace {

using kernel::Family;
using kernel::KernelSpec;
using kernel::Op;
using kernel::Schedule;

bool has_mla_shape(const Problem& p) {
  return p.head_dim > kernel::largest_bucket(Op::decode, Schedule::tiled, p.dtype) &&
         p.value_dim <= kernel::mla_values &&
         kernel::bucket_of(Op::decode_mla, Schedule::tiled, p.dtype, p.head_dim) > 0;
}

// Resolves the kernel of a decode problem; its stages are the candidates, fastest first.
struct DecodeSelector {
  const Problem& p;
  const Chip chip;
  DecodeSelection s = {};

  bool reject(const KernelSpec& spec, Reason reason, Features found = {}) {
    s.rejected.add(spec, reason, found);
    return false;
  }
  void take(const KernelSpec& spec, Family family) {
    s.kernel = spec;
    s.family = family;
    if (spec.bucket == 0) return;
    s.tile = kernel::decode_tile(family, spec);
    s.row_blocks = row_blocks(p, s.tile);
  }
  KernelSpec general_kernel() const;
  bool supports_sm90(const KernelSpec& spec);
  bool select_sm90();
  bool select_mla_warp_specialized();
  void select();
};

// f32 queries take the FP32 path, whatever the dtype of the KV cache, and so do quantized caches.
KernelSpec DecodeSelector::general_kernel() const {
  if (p.dtype == DType::f32 || is_8_bit(p.k.dtype))
    return kernel::fp32_decode_spec(p.k.dtype, head_dim_of(p));
  return kernel::decode_spec(
      p.dtype, kernel::bucket_of(Op::decode, Schedule::tiled, p.dtype, head_dim_of(p)));
}

bool DecodeSelector::supports_sm90(const KernelSpec& spec) {
  constexpr std::int64_t max_grid_yz = 65535;  // CUDA's limit of gridDim.y and gridDim.z
  if (spec.bucket == 0) return reject(spec, Reason::no_kernel);
  if (const Features found = s.features & unsupported_features(spec); found.any())
    return reject(spec, Reason::features, found);
  const std::int64_t keys = keys_of(p), queries = sequence_rows(p.lengths, p.max_q);
  return (keys >= 1 && keys <= max_sm90_rows && queries >= 1 &&
          queries <= max_sm90_rows / p.gqa_group() && p.batch() <= max_grid_yz &&
          p.kv_heads <= max_grid_yz) ||
         reject(spec, Reason::grid);
}

// A cluster for short KV, else split-KV.
bool DecodeSelector::select_sm90() {
  if (kernel::vendor_of(chip.family) != kernel::Vendor::nvidia) return false;
  const KernelSpec clusters =
      kernel::cluster_spec(p.dtype, kernel::bucket_of(Op::decode, Schedule::cluster, p.dtype,
                                                      head_dim_of(p), kernel::family_set::sm90));
  if (!chip.has_sm90) return reject(clusters, Reason::no_sm90);
  if (!supports_sm90(clusters)) return false;
  take(clusters, Family::sm90);
  if (const ClusterSize found = cluster_size(p, s.tile, chip); found.size > 0) {
    s.splits = s.cluster = found.size;
    return true;
  } else {
    reject(clusters, found.reason);
  }
  take(kernel::splitkv_spec(p.dtype, clusters.bucket), Family::sm90);
  return true;
}

// Warp-specialized MLA decode (sm_90a): its bucket is the rows of q per workgroup.
bool DecodeSelector::select_mla_warp_specialized() {
  if (kernel::vendor_of(chip.family) != kernel::Vendor::nvidia) return false;
  KernelSpec spec = kernel::mla_warp_specialized_spec(p.dtype, 0);
  if (!chip.has_sm90) return reject(spec, Reason::no_sm90);
  if (const Features found = s.features & unsupported_features(spec); found.any())
    return reject(spec, Reason::features, found);
  s.key_box = tma_box_rows(p, kernel::MlaWarpgroups::keys);
  if (s.key_box == 0) return reject(spec, Reason::small_pages);
  const auto k = kv_tensor_map(p.k, p);
  if (!k) return reject(spec, Reason::tensor_map);
  const std::int64_t rows =
      std::min<std::int64_t>(sequence_rows(p.lengths, p.max_q) * p.gqa_group(),
                             kernel::largest_bucket(spec.op, spec.schedule, p.dtype));
  spec.bucket = kernel::bucket_of(spec.op, spec.schedule, p.dtype, static_cast<int>(rows),
                                  kernel::family_set::sm90);
  if (spec.bucket == 0) return reject(spec, Reason::no_kernel);
  s.k = *k;
  take(spec, Family::sm90);
  return true;
}

void DecodeSelector::select() {
  // MLA: a latent KV cache whose head dimension exceeds that of the other kernels.
  if (has_mla_shape(p)) {
    if (p.values_within_keys()) {
      if (!select_mla_warp_specialized()) take(kernel::mla_spec(p.dtype), chip.family);
      return;
    }
    reject(kernel::mla_spec(p.dtype), Reason::separate_keys);
  }
  if (!select_sm90()) take(general_kernel(), chip.family);
}

// The number of splits of the selected kernel.
void select_splits(DecodeSelection& s, const Problem& p, Chip chip) {
  if (s.kernel.bucket == 0 || s.uses(Schedule::cluster)) return;
  s.splits = num_splits(p, s.kernel, s.tile, chip);
  if (s.uses(Schedule::splitkv)) {
    const KernelSpec general = kernel::decode_spec(
        p.dtype, kernel::bucket_of(Op::decode, Schedule::tiled, p.dtype, head_dim_of(p)));
    const std::int32_t fallback =
        num_splits(p, general, kernel::decode_tile(chip.family, general), chip);
    s.splits = sm90_num_splits(p, s.tile, fallback, chip);
  }
  if (s.mla_warp_specialized() && combines_pairs(s.splits)) s.cluster = 2;
  s.partials = s.splits;
  if (!s.uses(Schedule::splitkv))
    s.partials = s.partials * s.tile.parts(kernel::facts_of(chip.family).wave) / s.cluster;
  // Unused rows, and sinks of rows whose columns several workgroups have, are left to combine.
  s.combines = s.partials > 1 || (s.features & (Feature::varlen_q | Feature::seqused_q)).any() ||
               (s.tile.divides_columns && s.features.has(Feature::sinks));
}

DecodeSelection select_decode_kernel(const Problem& p, Features features, Chip chip) {
  DecodeSelector selector{p, chip};
  selector.s.features = features;
  selector.select();
  return selector.s;
}

// Why forward is selected; `preferred`: it is not. The splits are selected last.
Reason reason_for_forward(DecodeSelection& s, const Problem& p, Chip chip) {
  constexpr std::int64_t max_queries = 64, min_keys = 256;
  const std::int64_t queries = sequence_rows(p.lengths, p.max_q);
  if (queries == 0) return Reason::no_queries;
  const bool clusters = s.uses(Schedule::cluster) && s.kernel.bucket > 0;
  if (clusters && queries <= max_queries) return Reason::preferred;
  if (s.kernel.bucket == 0) return Reason::no_kernel;
  if ((s.features & unsupported_features(s.kernel)).any()) return Reason::features;
  // Backward recomputes P in f32 and must match forward bitwise, so forward must not be split.
  const bool fp32 = s.uses(Schedule::fp32);
  if (fp32 && s.features.has(Feature::training) && !s.features.has(Feature::mixed_dtypes))
    return Reason::gradients;
  const int number = kernel::kernel_number(s.kernel);
  if (number < 0 || !kernel::has_kernel(s.family, number)) return Reason::no_kernel;
  const Size blocks = total_row_blocks(p, s.tile);
  if (!blocks.fits() || blocks.value() == 0) return Reason::grid;
  // Instead of MLA decode, forward would take the FP32 path.
  const bool mla = s.tile.divides_columns;
  if (!mla && queries > max_queries) return Reason::many_queries;
  select_splits(s, p, chip);
  if ((blocks * s.splits).at_most(max_decode_workgroups) == max_decode_workgroups)
    return Reason::grid;
  if (mla || p.splits > 1) return Reason::preferred;
  if (keys_of(p) < min_keys) return Reason::few_keys;
  // With many row blocks, the larger query tiles of forward read K and V less often, if there are
  // enough of them to fill the device. On the FP32 path its tiles would be mostly padding.
  return fp32 || s.row_blocks <= 2 || p.batch() * p.heads < chip.units ? Reason::preferred
                                                                       : Reason::many_row_blocks;
}

}  // namespace

DecodeSelection select_decode(const Problem& given, const ForwardOutputs& outputs, Chip chip) {
  const Problem p = decode_problem(given);
  DecodeSelection s = select_decode_kernel(p, features_of(p, outputs), chip);
  select_splits(s, p, chip);
  // s has values and addresses of the caller, none of p.
  return s;  // NOLINT(clang-analyzer-core.StackAddressEscape)
}

AttentionSelection select(const Problem& given, const ForwardOutputs& outputs, Chip chip,
                          Gradients gradients) {
  const Problem p = decode_problem(given);
  AttentionSelection s;
  s.decode = select_decode_kernel(p, features_of(p, outputs, gradients), chip);
  const Reason reason = reason_for_forward(s.decode, p, chip);
  s.decodes = reason == Reason::preferred;
  if (!s.decodes) {
    s.decode.rejected.add(s.decode.kernel, reason,
                          s.decode.features & unsupported_features(s.decode.kernel));
    s.forward = select_forward(given, outputs, chip);
  }
  return s;  // NOLINT(clang-analyzer-core.StackAddressEscape)
}

CombineSelection select(const Partials& partials, std::optional<Features> decode, Chip chip) {
  CombineSelection s{.kernel = kernel::combine_spec(), .family = chip.family};
  // Cannot overflow: out has at least as many elements, and validation counted those in 64 bits.
  const std::int64_t rows =
      partials.columns == 0 ? 0 : partials.batch * partials.queries * partials.heads;
  if (rows == 0) return s;
  const int wave = kernel::facts_of(chip.family).wave, waves = kernel::combine_tile.threads / wave;
  s.blocks = static_cast<std::int32_t>(ceil_div(partials.columns, 4 * wave));
  const std::int64_t items = rows * s.blocks;  // at most the elements of out too
  // After decode on sm_90: PDL overlaps its tail.
  s.pdl = decode && chip.has_sm90;
  if (s.pdl) s.family = Family::sm90;
  // The wide rows of MLA have a kernel of their own, without a grid-stride loop.
  constexpr std::int64_t max_mla_items = 1 << 24;
  const KernelSpec wide = kernel::combine_spec(Schedule::pdl, kernel::wide_columns);
  if (s.pdl && partials.columns > kernel::narrow_columns && items <= max_mla_items &&
      (*decode & unsupported_features(wide)).none() &&
      (partials.out_partial_stride[0] | partials.out_partial_stride[3]) % 4 == 0) {
    s.kernel = wide;
    s.slices = mla_combine_slices(partials.splits, waves);
    s.workgroups = ceil_div(items, waves / s.slices);
    return s;
  }
  if (s.pdl) s.kernel = kernel::combine_spec(Schedule::pdl);
  s.slices = combine_slices(partials.splits, items, chip);
  // The kernel uses a grid-stride loop over the rows, so the grid is bounded.
  constexpr std::int64_t max_workgroups = 1 << 16;
  s.workgroups = std::min(ceil_div(items, waves / s.slices), max_workgroups);
  return s;
}

}  // namespace rocflash::gpu
