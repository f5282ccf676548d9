#include "gpu/plan/decode.hpp"

#include <algorithm>
#include <limits>

#include "gpu/plan/clusters.hpp"
#include "gpu/plan/combine.hpp"
#include "gpu/plan/latent.hpp"
#include "gpu/plan/rows.hpp"
#include "gpu/plan/scratch.hpp"
#include "gpu/plan/sequences.hpp"

namespace rocflash::gpu {
namespace {

using kernel::DecodeTile;
using kernel::KernelSpec;
using kernel::Operation;
using kernel::Vendor;

constexpr std::int64_t most_groups = std::numeric_limits<std::int32_t>::max() / 256;

// Rows that hold keys and values, past the head sizes of the other kernels.
bool is_latent(const Problem& p) {
  return p.values_within_keys() && p.value_dim <= kernel::latent_values &&
         p.head_dim > kernel::largest_bucket(Operation::decode, p.dtype) &&
         kernel::bucket_of(Operation::decode_latent, p.dtype, p.head_dim) > 0;
}
// f32 queries take f32 arithmetic, whatever the cache is in.
bool is_wide_decode(const Problem& p) { return p.dtype == DType::f32; }
KernelSpec spec_for(const Problem& p, Chip chip) {
  if (is_latent(p)) {
    const int rows = latent_group_rows(p, chip);
    return rows > 0 ? kernel::latent_groups_spec(p.dtype, rows) : kernel::latent_spec(p.dtype);
  }
  const int size = std::max(p.head_dim, p.value_dim);
  if (is_wide_decode(p))
    return kernel::wide_decode_spec(p.k.dtype,
                                    kernel::bucket_of(Operation::decode_wide, p.k.dtype, size));
  return kernel::decode_spec(p.dtype, kernel::bucket_of(Operation::decode, p.dtype, size));
}
kernel::Family family_for(const KernelSpec& spec, Chip chip) {
  return spec.operation == Operation::latent_warpgroups ? kernel::Family::sm90 : chip.family;
}
DecodeTile tile_for(const Problem& p, Chip chip) {
  const KernelSpec spec = spec_for(p, chip);
  return kernel::decode_tile(family_for(spec, chip), spec);
}
int waves_of(const DecodeTile& tile, Chip chip) {
  return tile.waves(kernel::facts_of(chip.family).wave);
}
int key_waves_of(const DecodeTile& tile, Chip chip) {
  return tile.key_waves(kernel::facts_of(chip.family).wave);
}

// Blocks of rows of all sequences and key heads.
std::int64_t row_blocks(const Problem& p, const DecodeTile& tile) {
  return divide_up(sequence_rows(p.lengths, p.max_q) * p.group(), tile.rows);
}
Size blocks_of_all(const Problem& p, const DecodeTile& tile) {
  return Size(row_blocks(p, tile)) * p.batch() * p.kv_heads;
}

// Workgroups that a compute unit or multiprocessor holds.
int groups_per_unit(const DecodeTile& tile, Chip chip) {
  const bool nvidia = kernel::vendor_of(chip.family) == Vendor::nvidia;
  if (nvidia && tile.merges) return 2;  // shared memory bounds these
  const int simds = nvidia || kernel::facts_of(chip.family).wave == 64 ? 4 : 2;
  return std::max(1, tile.waves_per_simd * simds / waves_of(tile, chip));
}

// With single rows spaced as plain kernels want them.
Problem spaced(const Problem& given) {
  Problem p = given;
  space_single_row(p.q, p.lengths.rows_q);
  for (Rows* rows : {&p.k, &p.v}) space_single_row(*rows, rows->blocks ? 0 : p.lengths.rows_k);
  if (given.values_within_keys()) p.v.row_stride = p.k.row_stride;
  return p;
}

}  // namespace

bool is_split(const Problem& given, const ForwardOutputs& o, Chip chip, Gradients gradients) {
  constexpr std::int64_t most_queries = 64, fewest_keys = 256;
  const Problem p = spaced(given);
  const std::int64_t queries = sequence_rows(p.lengths, p.max_q);
  if (o.s_dmask || is_without_sequences(p) || queries == 0) return false;
  if (queries <= most_queries && cluster_size(p, chip) > 0) return true;
  const KernelSpec spec = spec_for(p, chip);
  if (spec.bucket == 0) return false;
  // Backward's weights of f32 are to be those of forward to the last bits.
  const bool mixed = p.k.dtype != p.dtype;
  if (is_wide_decode(p) ? !mixed && gradients == Gradients::may_follow : mixed) return false;
  const int number = kernel::kernel_number(spec);
  if (number < 0 || !kernel::has_kernel(family_for(spec, chip), number)) return false;
  if (!suits_plain(p.q) || !suits_plain(p.k) || !suits_plain(p.v)) return false;
  const DecodeTile tile = tile_for(p, chip);
  const Size blocks = blocks_of_all(p, tile);
  if (!blocks.fits() || blocks.value() == 0 ||
      (blocks * decode_splits(p, chip)).at_most(most_groups) == most_groups)
    return false;
  // Otherwise kernels without matrix instructions would compute it.
  if (is_latent(p)) return true;
  if (queries > most_queries) return false;
  if (p.splits > 1) return true;
  if (std::min(p.max_k, p.lengths.rows_k) < fewest_keys) return false;
  // Many rows would read the keys again and again, which forward's larger tiles do less often; but they need
  // workgroups for the whole device. In f32 arithmetic those tiles would compute rows that nobody has.
  return is_wide_decode(p) || row_blocks(p, tile) <= 2 || p.batch() * p.heads < chip.units;
}

std::int32_t decode_splits(const Problem& p, Chip chip) {
  const DecodeTile tile = tile_for(p, chip);
  // Where waves share keys, there are fewer of those who take some of their own.
  const std::int64_t most = tile.divides_columns ? 512 : 128;
  if (p.splits > 0) return static_cast<std::int32_t>(std::min<std::int64_t>(p.splits, most));
  const std::int64_t keys = std::min(p.max_k, p.lengths.rows_k);
  if (spec_for(p, chip).operation == Operation::latent_warpgroups)
    return latent_splits(keys, blocks_of_all(p, tile).at_most(most_groups), chip);
  // A second launch that merges takes as long as some tiles do.
  constexpr std::int64_t merge_tiles = 8;
  if (tile.merges && keys <= merge_tiles * tile.keys * key_waves_of(tile, chip)) return 1;
  // Each wave should have two tiles at least.
  const std::int64_t useful =
      std::clamp<std::int64_t>(keys / (2 * tile.keys * key_waves_of(tile, chip)), 1, most);
  const std::int64_t room = std::int64_t{chip.units} * groups_per_unit(tile, chip),
                     blocks = blocks_of_all(p, tile).at_most(room * most);
  // Workgroups come in rounds that fill the device: the share of it that is busy, in millionths.
  const auto busy = [&](std::int64_t splits) {
    const std::int64_t groups = blocks * splits;
    return groups * 1'000'000 / (divide_up(groups, room) * room);
  };
  if (room == 0 || blocks == 0) return 1;
  std::int64_t best = 0;
  for (std::int64_t n = 1; n <= useful; ++n) best = std::max(best, busy(n));
  std::int64_t splits = 1;
  while (splits < useful && busy(splits) * 20 < best * 19) ++splits;
  return static_cast<std::int32_t>(splits);
}

void plan_decode(Plan& plan, const Problem& given, const ForwardOutputs& outputs,
                 std::byte* workspace, Chip chip) {
  if (chip.warpgroups) {
    const Problem p = spaced(given);
    if (const std::int32_t size = cluster_size(p, chip); size > 0)
      return plan_clusters(plan, p, outputs, size);
    if (suits_clusters(p, chip))
      return plan_long(plan, p, outputs, workspace, long_splits(p, decode_splits(p, chip), chip),
                       chip);
  }
  const Problem shape = spaced(given);
  const KernelSpec spec = spec_for(shape, chip);
  const DecodeTile tile = tile_for(shape, chip);
  kernel::LatentWarpgroupsArguments* const groups = spec.operation == Operation::latent_warpgroups
                                                        ? &plan.next<Operation::latent_warpgroups>()
                                                        : nullptr;
  kernel::DecodeArguments& a = groups ? groups->decode : plan.next<Operation::decode>();
  a.problem = shape;
  Problem& p = a.problem;
  p.sinks = {};
  const Lengths& l = p.lengths;
  if (groups) map_latent(plan, *groups);
  a.group = static_cast<std::int32_t>(p.group());
  a.blocks = static_cast<std::int32_t>(row_blocks(p, tile));
  a.splits = decode_splits(p, chip);
  a.caches = caches_of(p);
  const std::uint32_t merged_at_once = groups && latent_pairs(a.splits) ? 2 : 1;
  const std::int64_t parts =
      std::int64_t{a.splits} * tile.parts(kernel::facts_of(chip.family).wave) / merged_at_once;
  if (parts == 1 && !l.packed_q() && !l.used_q && !(tile.divides_columns && given.sinks)) {
    a.direct = 1;
    a.outputs = outputs;
    a.sinks = given.sinks;
    plan.add(spec, family_for(spec, chip), blocks_of_all(p, tile).value() * a.splits);
    plan.shape().early = groups != nullptr;
    plan.shape().cluster = merged_at_once;
    return;
  }

  // Rows of all batches, or of the packed tensor.
  const std::int64_t batches = l.packed_q() ? 1 : p.batch();
  const Size lse_part = Size(batches) * p.heads * l.rows_q, out_part = lse_part * tile.columns;
  Scratch scratch(plan.workspace, workspace);
  std::byte* out = scratch.floats(out_part * parts);
  std::byte* lse = scratch.floats(lse_part * parts);
  if (!plan.workspace.fits()) return;  // the caller refuses it
  a.out_part = out_part.value();
  a.lse_part = lse_part.value();
  const std::int64_t row = p.heads * tile.columns;
  a.out = {.data = out,
           .dtype = DType::f32,
           .batch_stride = l.packed_q() ? 0 : l.rows_q * row,
           .row_stride = row,
           .head_stride = tile.columns,
           .columns = tile.columns};
  a.lse = {reinterpret_cast<float*>(lse), l.packed_q() ? 0 : p.heads * l.rows_q, l.rows_q, 1};
  plan.add(spec, family_for(spec, chip), blocks_of_all(p, tile).value() * a.splits);
  plan.shape().early = groups != nullptr;
  plan.shape().cluster = merged_at_once;

  const Parts merged{.parts = parts,
                     .batch = batches,
                     .queries = l.rows_q,
                     .heads = p.heads,
                     .columns = p.value_dim,
                     .out_partial = reinterpret_cast<const float*>(out),
                     .out_partial_stride = {a.out_part, a.out.batch_stride, row, tile.columns, 1},
                     .lse_partial = reinterpret_cast<const float*>(lse),
                     .lse_partial_stride = {a.lse_part, a.lse.batch_stride, l.rows_q, 1}};
  plan_merge(plan, merged, outputs, given, chip);
}

}  // namespace rocflash::gpu
