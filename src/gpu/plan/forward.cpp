#include "gpu/plan/forward.hpp"

#include <algorithm>
#include <limits>

#include "core/error.hpp"
#include "gpu/plan/sequences.hpp"

namespace rocflash::gpu {
namespace {

using kernel::Family;
using kernel::Operation;
using kernel::Variant;

// Rows of plain kernels are read 16 bytes at a time, with 32-bit offsets within a tile, and are
// told from what lies behind them by their distance.
constexpr std::int64_t vector_bytes = 16, most_tile_rows = 256;
constexpr int vector_elements = 8;

bool suits_plain(const Rows& rows) {
  const auto bytes = [&](std::int64_t stride) {
    return stride * static_cast<std::int64_t>(size_of(rows.dtype));
  };
  const bool aligned = reinterpret_cast<std::uintptr_t>(rows.data) % vector_bytes == 0 &&
                       bytes(rows.batch_stride) % vector_bytes == 0 &&
                       bytes(rows.row_stride) % vector_bytes == 0 &&
                       bytes(rows.head_stride) % vector_bytes == 0;
  const std::int64_t longest = std::numeric_limits<std::int32_t>::max() / most_tile_rows;
  return aligned && rows.columns % vector_elements == 0 && rows.row_stride >= rows.columns &&
         rows.row_stride <= longest / static_cast<std::int64_t>(size_of(rows.dtype));
}

// The door gives a dimension of one element stride 0; a single row may be any distance from the
// next.
void space_single_rows(Problem& p, ForwardOutputs& o) {
  const auto space = [](Rows& rows, std::int64_t count) {
    if (count == 1) rows.row_stride = rows.columns;
  };
  space(p.q, p.lengths.rows_q);
  space(o.out, p.lengths.rows_q);
  space(p.k, p.lengths.rows_k);
  space(p.v, p.lengths.rows_k);
}

// A packed tensor without sequences: all of its rows belong to nobody and get what queries get
// that see nothing. They are one dense sequence without keys, sinks or anything else.
void make_dense_without_keys(Problem& p) {
  p.lengths = {.batch = 1, .rows_q = p.lengths.rows_q};
  p.max_q = p.lengths.rows_q;
  p.max_k = 0;
  p.k.blocks = p.v.blocks = nullptr;
  p.visibility = {};
  p.mask = p.bias = {};
  p.alibi = p.sinks = {};
  p.dropout = {};
}

}  // namespace

int partitions(Family family, int units) {
  const int units_each = family == Family::cdna3 ? 38 : family == Family::cdna4 ? 32 : 0;
  return units_each > 0 ? std::max(1, units / units_each) : 1;
}

// Under a causal mask short blocks then fill the end of a launch. But planes that take turns need
// room for their keys and values in the cache that all of the chip shares, which on NVIDIA's larger
// ones is at least 40 MiB.
std::int32_t planes_together(const Problem& p, Family family) {
  if (kernel::vendor_of(family) != kernel::Vendor::nvidia) return 1;
  constexpr std::int64_t cache_bytes = 32 << 20, most = 1 << 16;
  const std::int64_t plane_bytes =
      p.max_k * (p.head_dim + p.value_dim) * static_cast<std::int64_t>(size_of(p.dtype));
  const std::int64_t fit =
      cache_bytes / std::max<std::int64_t>(plane_bytes, 1) * std::min(p.group(), most);
  return static_cast<std::int32_t>(
      std::clamp<std::int64_t>(std::min(fit, p.batch() * p.heads), 1, most));
}

Variant forward_variant(const Problem& p, const ForwardOutputs& o) {
  // A scale of 0 would turn the -infinity of unseen keys into NaN where plain kernels apply it.
  const bool options = p.scale == 0 || p.mask || p.bias || p.alibi || p.sinks || p.softcap > 0 ||
                       p.dropout.on() || p.k.blocks != nullptr;
  const bool vectors =
      suits_plain(p.q) && suits_plain(p.k) && suits_plain(p.v) && suits_plain(o.out);
  return !options && vectors ? Variant::plain : Variant::full;
}

void plan_forward(Plan& plan, const Problem& given, const ForwardOutputs& outputs, Chip chip) {
  kernel::ForwardArguments& a = plan.next<Operation::forward>();
  a.problem = given;
  a.outputs = outputs;
  a.outputs.s_dmask = {};  // the weights' kernel writes it
  Problem& p = a.problem;
  if (is_without_sequences(p)) make_dense_without_keys(p);
  space_single_rows(p, a.outputs);
  const int bucket =
      kernel::bucket_of(Operation::forward, p.dtype, std::max(p.head_dim, p.value_dim));
  const kernel::KernelSpec spec =
      kernel::forward_spec(p.dtype, bucket, forward_variant(p, a.outputs));
  const kernel::ForwardTile tile = kernel::forward_tile(chip.family, spec);
  const std::int64_t blocks = divide_up(sequence_rows(p.lengths, p.max_q), tile.queries);
  const std::int64_t most =
      std::min<std::int64_t>(std::numeric_limits<std::int32_t>::max(),
                             std::numeric_limits<std::uint32_t>::max() / tile.threads);
  const Size groups = Size(blocks) * p.batch() * p.heads;
  if (!groups.fits() || groups.value() > most)
    refuse_unsupported("q: ", p.batch(), " sequences of ", p.max_q, " queries and ", p.heads,
                       " heads make ", blocks, " blocks of ", tile.queries,
                       " queries each; a GPU takes ", most, " in all");
  if (groups.value() == 0) return;
  a.work = {.query_blocks = static_cast<std::int32_t>(blocks),
            .groups = static_cast<std::int32_t>(groups.value()),
            .partitions = partitions(chip.family, chip.units),
            .planes_together = planes_together(p, chip.family)};
  a.caches = caches_of(p);
  plan.add(spec, chip.family, groups.value());
}

}  // namespace rocflash::gpu
