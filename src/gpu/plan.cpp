#include "gpu/plan.hpp"

#include <algorithm>
#include <limits>

#include "core/error.hpp"
#include "core/sizes.hpp"

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

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

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

// No sequence has more rows than its tensor, whatever max_seqlen_q says; without sequences the
// rows are taken for one.
std::int64_t sequence_rows(const Lengths& l, std::int64_t max_q) {
  return l.packed_q() && l.batch == 0 ? l.rows_q : std::min(max_q, l.rows_q);
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

std::string refusal(const Problem& p, bool gradients) {
  const auto bad_dtype = [](DType t) { return t != DType::f16 && t != DType::bf16; };
  if (gradients)
    return "q: is on a GPU; gradients are computed on the CPU only, forward on GPUs too";
  if (bad_dtype(p.dtype))
    return text("q: dtype ", name_of(p.dtype), "; GPU kernels take f16 and bf16");
  if (p.k.dtype != p.dtype)
    return text("k: dtype ", name_of(p.k.dtype), "; GPU kernels take that of q, ",
                name_of(p.dtype));
  for (const auto& [name, size] : {std::pair{"q", p.head_dim}, std::pair{"v", p.value_dim}}) {
    const int largest = kernel::largest_bucket(Operation::forward, p.dtype);
    if (size > largest)
      return text(name, ": head size ", size, "; GPU kernels take 1 to ", largest);
  }
  // Kernels count the rows of one sequence in 32 bits.
  constexpr std::int64_t longest = std::numeric_limits<std::int32_t>::max();
  for (const auto& [name, rows] : {std::pair{"q", sequence_rows(p.lengths, p.max_q)},
                                   std::pair{"k", std::min(p.max_k, p.lengths.rows_k)}}) {
    if (rows > longest)
      return text(name, ": a sequence of ", rows, " rows; GPU kernels take up to ", longest);
  }
  return {};
}

Variant forward_variant(const Problem& p, const ForwardOutputs& o) {
  // A scale of 0 would turn the -infinity of unseen keys into NaN where plain kernels apply it.
  const bool options = p.scale == 0 || p.mask || p.bias || p.alibi || p.sinks || p.softcap > 0 ||
                       p.dropout.on() || p.k.blocks != nullptr;
  const bool vectors =
      suits_plain(p.q) && suits_plain(p.k) && suits_plain(p.v) && suits_plain(o.out);
  return !options && vectors ? Variant::plain : Variant::full;
}

ForwardPlan plan_forward(const Problem& given, const ForwardOutputs& outputs, Family family,
                         int units) {
  ForwardPlan plan;
  Problem p = given;
  const bool nobody = p.lengths.packed_q() && p.batch() == 0;
  if (nobody) make_dense_without_keys(p);
  // Rows of s_dmask, which is never there without sequences.
  const Size rows = nobody || p.max_k == 0 ? 0 : Size(p.batch()) * p.heads * p.max_q;
  ForwardOutputs o = outputs;
  space_single_rows(p, o);
  const int bucket =
      kernel::bucket_of(Operation::forward, p.dtype, std::max(p.head_dim, p.value_dim));
  const kernel::KernelSpec spec = kernel::forward_spec(p.dtype, bucket, forward_variant(p, o));
  const kernel::ForwardTile tile = kernel::forward_tile(family, spec);
  const std::int64_t blocks = divide_up(sequence_rows(p.lengths, p.max_q), tile.queries);
  const std::int64_t most =
      std::min<std::int64_t>(std::numeric_limits<std::int32_t>::max(),
                             std::numeric_limits<std::uint32_t>::max() / tile.threads);
  const Size all_groups = Size(blocks) * p.batch() * p.heads;
  const std::int64_t groups = all_groups.value();
  if (!all_groups.fits() || groups > most)
    refuse_unsupported("q: ", p.batch(), " sequences of ", p.max_q, " queries and ", p.heads,
                       " heads make ", blocks, " blocks of ", tile.queries,
                       " queries each; a GPU takes ", most, " in all");

  const auto caches = static_cast<std::int32_t>(
      std::min<std::int64_t>(p.caches, std::numeric_limits<std::int32_t>::max()));
  if (groups > 0) {
    plan.forward =
        Launch{kernel::kernel_name(kernel::kernel_number(spec)),
               {static_cast<std::uint32_t>(groups), static_cast<std::uint32_t>(tile.threads),
                static_cast<std::uint32_t>(tile.dynamic_shared)}};
    plan.forward_arguments = {.problem = p,
                              .outputs = o,
                              .work = {.query_blocks = static_cast<std::int32_t>(blocks),
                                       .groups = static_cast<std::int32_t>(groups),
                                       .partitions = partitions(family, units),
                                       .planes_together = planes_together(p, family)},
                              .caches = caches};
    plan.forward_arguments.outputs.s_dmask = {};  // not this kernel's business
  }
  if (outputs.s_dmask && rows.value() > 0) {
    // The kernel strides over the rows, so a bounded grid serves any number of them.
    constexpr std::int64_t most_groups = 1 << 16;
    constexpr int threads = kernel::weights_tile.threads;
    constexpr int widest_wave = 64;
    const std::int64_t weight_groups =
        divide_up(rows.at_most(most_groups * (threads / widest_wave)), threads / widest_wave);
    plan.weights = Launch{kernel::kernel_name(kernel::kernel_number(kernel::weights_spec(p.dtype))),
                          {static_cast<std::uint32_t>(weight_groups), threads, 0}};
    plan.weights_arguments = {.problem = p,
                              .weights = o.s_dmask,
                              .groups = static_cast<std::int32_t>(weight_groups),
                              .caches = caches};
  }
  return plan;
}

}  // namespace rocflash::gpu
