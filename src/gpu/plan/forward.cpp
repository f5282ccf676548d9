#include "gpu/plan/forward.hpp"

#include <algorithm>

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

// Each workgroup computes some columns of the outputs: as many workgroups as they need.
void plan_wide(Plan& plan, kernel::ForwardArguments& a, Chip chip) {
  const Problem& p = a.problem;
  const kernel::KernelSpec spec = kernel::wide_spec(Operation::forward_wide, p.value_dim);
  const kernel::WideTile tile = kernel::wide_tile(chip.family, spec);
  const std::int64_t slices = divide_up(p.value_dim, tile.slice);
  a.work = share_work(p, p.heads, sequence_rows(p.lengths, p.max_q), tile.owned,
                      static_cast<int>(kernel::wide_threads * slices), chip);
  if (a.work.groups > 0) plan.add(spec, chip.family, a.work.groups * slices);
}

}  // namespace

bool is_wide(const Problem& p, kernel::Family family) {
  // Matrix kernels would compute every row of these again, one number at a time.
  const bool overflows = p.dtype == DType::f32 && kernel::products_overflow(p);
  return forward_bucket(p, family) == 0 || overflows;
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
  a.caches = caches_of(p);
  if (is_wide(p, chip.family)) return plan_wide(plan, a, chip);
  const kernel::KernelSpec spec =
      kernel::forward_spec(p.dtype, forward_bucket(p, chip.family), forward_variant(p, a.outputs));
  const kernel::ForwardTile tile = kernel::forward_tile(chip.family, spec);
  a.work =
      share_work(p, p.heads, sequence_rows(p.lengths, p.max_q), tile.queries, tile.threads, chip);
  if (a.work.groups == 0) return;
  plan.add(spec, chip.family, a.work.groups);
}

}  // namespace rocflash::gpu
