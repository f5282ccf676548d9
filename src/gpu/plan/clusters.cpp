#include "gpu/plan/clusters.hpp"

#include <algorithm>
#include <bit>
#include <numbers>

#include "gpu/plan/combine.hpp"
#include "gpu/plan/rows.hpp"
#include "gpu/plan/scratch.hpp"
#include "gpu/plan/sequences.hpp"

namespace rocflash::gpu {
namespace {

using kernel::DecodeTile;
using kernel::KernelSpec;
using kernel::Operation;

constexpr std::int64_t most_count = 1 << 20;  // of keys and rows of a sequence
constexpr int groups_per_unit = 2;            // workgroups that a multiprocessor holds

// Its bucket is 0 where there is no kernel for the head size.
KernelSpec spec_for(const Problem& p) {
  return kernel::clusters_spec(
      p.dtype, kernel::bucket_of(Operation::decode_clusters, p.dtype,
                                 std::max(p.head_dim, p.value_dim), kernel::family_set::sm90));
}

std::int64_t keys_of(const Problem& p) { return std::min(p.max_k, p.lengths.rows_k); }
std::int64_t row_blocks(const Problem& p, const DecodeTile& tile) {
  return divide_up(sequence_rows(p.lengths, p.max_q) * p.group(), tile.rows);
}

bool has_no_option(const Problem& p) {
  const Lengths& l = p.lengths;
  const bool shaped = p.scale <= 0 || kernel::products_overflow(p) || p.softcap > 0 || p.alibi ||
                      p.bias || p.mask || p.dropout.on();
  return !shaped && !l.cu_q && !l.cu_k && !l.used_q && !l.leftpad_k && p.visibility.left < 0 &&
         p.visibility.chunk == 0;
}

kernel::ByteRows in_bytes(const Rows& rows) {
  const auto size = static_cast<std::int64_t>(size_of(rows.dtype));
  return {rows.data, rows.batch_stride * size, rows.row_stride * size, rows.head_stride * size,
          static_cast<std::int32_t>(rows.columns * size)};
}

// What both kernels are told.
void fill_common(kernel::ClusterArguments& a, const Problem& p, const ForwardOutputs& outputs,
                 const DecodeTile& tile) {
  const Lengths& l = p.lengths;
  a.q = in_bytes(p.q);
  a.k = in_bytes(p.k);
  a.v = in_bytes(p.v);
  a.used_k = l.used_k;
  a.blocks = p.k.blocks;
  a.blocks_stride = p.k.blocks_stride;
  a.page_rows = static_cast<std::uint32_t>(std::min(p.k.block_rows, most_count));
  if (std::has_single_bit(a.page_rows)) a.page_shift = std::countr_zero(a.page_rows);
  a.in_runs = !p.k.blocks || p.k.block_rows % tile.keys == 0 || p.k.block_rows >= l.rows_k;
  a.caches = caches_of(p);
  a.keys = static_cast<std::int32_t>(keys_of(p));
  a.queries = static_cast<std::int32_t>(sequence_rows(l, p.max_q));
  a.group = static_cast<std::int32_t>(p.group());
  a.row_blocks = static_cast<std::int32_t>(row_blocks(p, tile));
  if (p.visibility.right >= 0)
    a.hidden =
        static_cast<std::int32_t>(std::max<std::int64_t>(a.queries - 1 - p.visibility.right, 0));
  a.unit = p.scale * std::numbers::log2e_v<float>;
  const Rows& out = outputs.out;
  a.quads = reinterpret_cast<std::uintptr_t>(out.data) % 8 == 0 &&
            (out.batch_stride | out.row_stride | out.head_stride) % 4 == 0;
  a.outputs = outputs;
  a.sinks = p.sinks;
  a.problem = p;
  a.problem.sinks = {};  // rows that are computed again are those of one warp
}

}  // namespace

bool suits_clusters(const Problem& p, Chip chip) {
  constexpr std::int64_t most_planes = 65535;  // workgroups in the second and third dimension
  const std::int64_t keys = keys_of(p), queries = sequence_rows(p.lengths, p.max_q);
  return chip.warpgroups && spec_for(p).bucket > 0 && p.k.dtype == p.dtype && has_no_option(p) &&
         keys >= 1 && keys <= most_count && queries >= 1 && queries <= most_count / p.group() &&
         p.batch() <= most_planes && p.kv_heads <= most_planes && suits_plain(p.q) &&
         suits_plain(p.k) && suits_plain(p.v);
}

std::int32_t cluster_size(const Problem& p, Chip chip) {
  if (!suits_clusters(p, chip)) return 0;
  const DecodeTile tile = kernel::decode_tile(kernel::Family::sm90, spec_for(p));
  const std::int64_t keys = keys_of(p);
  const std::int64_t group_keys = tile.keys * tile.waves(32), blocks = row_blocks(p, tile),
                     clusters = blocks * p.batch() * p.kv_heads;
  // Where many queries see few keys, forward reads those less often.
  if (blocks > 1 && keys < 256) return 0;
  // Clusters lie within a part of the chip, which leaves some multiprocessors out; those that do not run at once cost a
  // second round.
  const std::int64_t room = std::int64_t{chip.units} * tile.waves_per_simd;
  const auto fits = [&](std::int64_t size) {
    return size == 1 || clusters * size <= room * 9 / 10;
  };
  std::int64_t size = 1;
  if (p.splits > 0) {
    size = p.splits;
    if (size > kernel::largest_cluster || !std::has_single_bit(static_cast<unsigned>(p.splits)))
      return 0;
  } else {
    while (size < kernel::largest_cluster && 2 * size * group_keys <= keys && fits(2 * size))
      size *= 2;
  }
  // Longer shares are for decode's other kernel, which reads memory 4 % faster.
  constexpr std::int64_t most_tiles = 16;
  return keys <= most_tiles * group_keys * size ? static_cast<std::int32_t>(size) : 0;
}

void plan_clusters(Plan& plan, const Problem& p, const ForwardOutputs& outputs, std::int32_t size) {
  const KernelSpec spec = spec_for(p);
  const DecodeTile tile = kernel::decode_tile(kernel::Family::sm90, spec);
  auto& a = plan.next<Operation::decode_clusters>();
  fill_common(a, p, outputs, tile);
  a.cluster = size;
  plan.add(spec, kernel::Family::sm90, std::int64_t{a.row_blocks} * a.cluster);
  LaunchShape& shape = plan.shape();
  shape.groups_y = static_cast<std::uint32_t>(p.kv_heads);
  shape.groups_z = static_cast<std::uint32_t>(p.batch());
  shape.cluster = static_cast<std::uint32_t>(a.cluster);
  shape.early = true;
}

std::int32_t long_splits(const Problem& p, std::int32_t usual, Chip chip) {
  if (p.splits > 0) return usual;
  const DecodeTile tile = kernel::decode_tile(kernel::Family::sm90, spec_for(p));
  const std::int64_t room = std::int64_t{chip.units} * groups_per_unit,
                     blocks = row_blocks(p, tile) * p.batch() * p.kv_heads,
                     least_keys = 2 * tile.keys * tile.waves(32);  // two tiles for each warp
  if (blocks == 0 || blocks > room) return usual;
  const std::int64_t splits = std::min(room / blocks, keys_of(p) / least_keys);
  return splits * blocks * 10 >= room * 9 ? static_cast<std::int32_t>(splits) : usual;
}

void plan_long(Plan& plan, const Problem& p, const ForwardOutputs& outputs, std::byte* workspace,
               std::int32_t splits, Chip chip) {
  const KernelSpec spec = kernel::long_spec(p.dtype, spec_for(p).bucket);
  const DecodeTile tile = kernel::decode_tile(kernel::Family::sm90, spec);
  auto& a = plan.next<Operation::decode_long>();
  fill_common(a.common, p, outputs, tile);
  a.common.cluster = splits;
  a.direct = splits == 1;
  const std::int64_t queries = a.common.queries;
  const Size lse_part = Size(p.batch()) * p.heads * queries, out_part = lse_part * tile.columns;
  if (!a.direct) {
    Scratch scratch(plan.workspace, workspace);
    a.out = reinterpret_cast<float*>(scratch.floats(out_part * splits));
    a.lse = reinterpret_cast<float*>(scratch.floats(lse_part * splits));
    if (!plan.workspace.fits()) return;  // the caller refuses it
    a.common.sinks = {};
    a.out_part = out_part.value();
    a.lse_part = lse_part.value();
  }
  plan.add(spec, kernel::Family::sm90,
           std::int64_t{splits} * a.common.row_blocks * p.batch() * p.kv_heads);
  plan.shape().early = true;
  if (a.direct) return;
  const std::int64_t row = p.heads * tile.columns;
  const Parts merged{.parts = splits,
                     .batch = p.batch(),
                     .queries = queries,
                     .heads = p.heads,
                     .columns = p.value_dim,
                     .out_partial = a.out,
                     .out_partial_stride = {a.out_part, queries * row, row, tile.columns, 1},
                     .lse_partial = a.lse,
                     .lse_partial_stride = {a.lse_part, p.heads * queries, queries, 1}};
  plan_merge(plan, merged, outputs, p, chip);
}

}  // namespace rocflash::gpu
