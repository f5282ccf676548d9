#include "gpu/plan/forward.hpp"

#include <algorithm>

#include "attention/sight.hpp"
#include "gpu/plan/boxes.hpp"
#include "gpu/plan/rows.hpp"
#include "gpu/plan/sequences.hpp"
#include "gpu/plan/work.hpp"

namespace rocflash::gpu {
namespace {

using kernel::Operation;
using kernel::Variant;

void space_single_rows(Problem& p, ForwardOutputs& o) {
  for (Rows* rows : {&p.q, &o.out}) space_single_row(*rows, p.lengths.rows_q);
  for (Rows* rows : {&p.k, &p.v}) space_single_row(*rows, p.lengths.rows_k);
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

// The smallest bucket of the family's kernels that holds both head sizes; 0 if none does.
int forward_bucket(const Problem& p, kernel::Family family) {
  return kernel::bucket_of(Operation::forward, p.dtype, std::max(p.head_dim, p.value_dim),
                           kernel::set_of(family));
}

// Whether results, or gradients, are sums of few products.
bool has_short_sums(const Problem& p) {
  constexpr std::int64_t few = 32;
  const Visibility& v = p.visibility;
  const bool few_seen =
      (v.left >= 0 && v.right >= 0 && v.left + v.right < few) || (v.chunk > 0 && v.chunk <= few);
  return std::min(p.head_dim, p.value_dim) <= few || std::min(p.max_q, p.max_k) <= few || few_seen;
}

// Each workgroup computes some columns of the outputs: as many workgroups as they need.
void plan_wide(Plan& plan, kernel::ForwardArguments& a, Chip chip) {
  const Problem& p = a.problem;
  const kernel::KernelSpec spec = kernel::wide_spec(Operation::forward_wide, p.value_dim);
  const kernel::WideTile tile = kernel::wide_tile(chip.family, spec);
  const std::int64_t slices = divide_up(p.value_dim, tile.slice);
  a.work = share_work(p, p.heads, sequence_rows(p.lengths, p.max_q), tile.owned,
                      static_cast<int>(tile.threads * slices), chip);
  if (a.work.groups > 0) plan.add(spec, chip.family, a.work.groups * slices);
}

// What plain kernels serve, or would if they knew pages.
bool is_plain_but_for_pages(const Problem& p, const ForwardOutputs& o) {
  // A scale of 0 would turn the -infinity of unseen keys into NaN where plain kernels apply it.
  const bool options =
      p.scale == 0 || p.mask || p.bias || p.alibi || p.sinks || p.softcap > 0 || p.dropout.on();
  const bool vectors =
      suits_plain(p.q) && suits_plain(p.k) && suits_plain(p.v) && suits_plain(o.out);
  // Plain kernels count keys in 32 bits.
  const bool longer = std::max({p.max_q, p.max_k, p.visibility.chunk}) > kernel::longest_sight;
  return !options && vectors && !longer;
}

// Forward by warpgroups; false where it does not serve the problem.
bool plan_warpgroups(Plan& plan, const kernel::ForwardArguments forward, Chip chip) {
  const Problem& p = forward.problem;
  const Lengths& l = p.lengths;
  const Operation operation = p.k.blocks ? Operation::forward_pages : Operation::forward_warpgroups;
  const int bucket = kernel::bucket_of(operation, p.dtype, std::max(p.head_dim, p.value_dim),
                                       kernel::family_set::sm90);
  if (!chip.warpgroups || bucket == 0 || p.scale < 0 || l.rows_k == 0 ||
      !is_plain_but_for_pages(p, forward.outputs))
    return false;
  const kernel::KernelSpec spec{operation, p.dtype, bucket, Variant::plain};
  const kernel::ForwardGroups tile = kernel::forward_groups(spec);
  const std::int32_t rows = copied_rows(p, tile.keys);
  const auto q = box_of(p.q, l.rows_q, p.heads, l.packed_q() ? 1 : p.batch()),
             k = box_of_keys(p.k, p), v = box_of_keys(p.v, p);
  if (!q || !k || !v || rows == 0) return false;

  auto& a = plan.next<Operation::forward_warpgroups>();  // where `forward` may have been
  a.forward = forward;
  kernel::Work& work = a.forward.work;
  work = share_work(p, p.heads, sequence_rows(l, p.max_q), tile.queries(), tile.threads(), chip);
  if (work.groups == 0) return true;
  // Where later queries see more keys.
  a.pairs = p.visibility.right >= 0 && p.visibility.left < 0 && p.visibility.chunk == 0;
  const auto map = [&](const TensorBox& box, int box_rows, kernel::TensorMap& to) {
    plan.map(panel_of(box, bucket, box_rows, to));
  };
  map(*q, tile.queries(), a.q);
  map(*k, rows, a.k);
  map(*v, rows, a.v);
  if (p.k.blocks) {
    a.box_rows = rows;
    a.tile_grain = p.k.block_rows >= l.rows_k ? 1 : rows;
  }
  plan.add(spec, kernel::Family::sm90, std::min(work.groups, chip.units));
  return true;
}

// Which turns of the partitions (kernel::WorkItem) are computed in halves, from `first` on.
struct Halves {
  std::int64_t first = 0, turns = 0;
};

// A device takes blocks in rounds, one per unit. One that is at most half full takes as long as a full one: its blocks
// are divided into halves, which take half as long. That goes for a launch that has no more, and for the last
// round of blocks that all see the same keys. (Under a causal mask the last blocks are short anyway.)
Halves halved_turns(const Problem& p, const kernel::Work& work, Chip chip) {
  constexpr std::int64_t fewest_keys = 1024;  // fewer are done as soon as the results are merged
  const Lengths& l = p.lengths;
  const bool dense = !l.cu_q && !l.cu_k && !l.used_q && !l.used_k && !l.leftpad_k;
  const bool sees_all = p.visibility.left < 0 && p.visibility.chunk == 0;
  const std::int64_t places = chip.units / work.partitions;
  if (!dense || !sees_all || p.max_k < fewest_keys || places == 0) return {};
  const std::int64_t turns = divide_up(work.groups, work.partitions), rest = turns % places;
  if (rest == 0 || 2 * rest > places) return {};
  const bool alike = p.visibility.right < 0 && work.groups % work.partitions == 0;
  return turns == rest || alike ? Halves{turns - rest, rest} : Halves{};
}

}  // namespace

bool is_wide(const Problem& p, kernel::Family family) {
  // The parts that f32 is taken into lose the last bit of some numbers, which shows where few products are added up.
  // Backward computes weights again from lse, so both must do it in the same way.
  const bool inexact = p.dtype == DType::f32 && has_short_sums(p);
  // Matrix kernels would compute every row of these again, one number at a time.
  const bool overflows = p.dtype == DType::f32 && kernel::products_overflow(p);
  // They read k and v as they read q.
  const bool mixed = p.k.dtype != p.dtype || p.v.dtype != p.dtype;
  return forward_bucket(p, family) == 0 || overflows || mixed || inexact;
}

Variant forward_variant(const Problem& p, const ForwardOutputs& o) {
  return !p.k.blocks && is_plain_but_for_pages(p, o) ? Variant::plain : Variant::full;
}

void plan_forward(Plan& plan, const Problem& given, const ForwardOutputs& outputs, Chip chip) {
  kernel::ForwardArguments& a = plan.next<Operation::forward>();
  a.problem = given;
  a.outputs = outputs;
  a.outputs.s_dmask = {};  // the weights' kernel writes it
  Problem& p = a.problem;
  if (is_without_sequences(p)) make_dense_without_keys(p);
  space_single_rows(p, a.outputs);
  a.caches = caches_of(p);
  if (is_wide(p, chip.family)) return plan_wide(plan, a, chip);
  if (plan_warpgroups(plan, a, chip)) return;
  const kernel::KernelSpec spec =
      kernel::forward_spec(p.dtype, forward_bucket(p, chip.family), forward_variant(p, a.outputs));
  const kernel::ForwardTile tile = kernel::forward_tile(chip.family, spec);
  a.work =
      share_work(p, p.heads, sequence_rows(p.lengths, p.max_q), tile.queries, tile.threads, chip);
  if (a.work.groups == 0) return;
  const kernel::KernelSpec halves_spec = kernel::halves_spec(p.dtype, spec.bucket);
  const int halves_number = kernel::kernel_number(halves_spec);
  const Halves halves = spec.variant == Variant::plain && halves_number >= 0 &&
                                kernel::has_kernel(chip.family, halves_number)
                            ? halved_turns(p, a.work, chip)
                            : Halves{};
  const kernel::ForwardArguments common = a;
  const std::int64_t whole =
      halves.turns == 0 ? common.work.groups : halves.first * common.work.partitions;
  if (whole > 0) plan.add(spec, chip.family, whole);
  if (halves.turns == 0) return;
  auto& h = plan.next<Operation::forward_halves>();  // where `a` is if there are no whole ones
  h = common;
  h.work.blocks *= 2;
  h.work.groups *= 2;
  h.first_group = static_cast<std::int32_t>(2 * halves.first * h.work.partitions);
  plan.add(halves_spec, chip.family, h.work.groups - h.first_group);
}

}  // namespace rocflash::gpu
