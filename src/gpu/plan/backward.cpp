#include "gpu/plan/backward.hpp"

#include <algorithm>
#include <limits>

#include "attention/sight.hpp"
#include "gpu/plan/boxes.hpp"
#include "gpu/plan/forward.hpp"
#include "gpu/plan/rows.hpp"
#include "gpu/plan/scratch.hpp"
#include "gpu/plan/sequences.hpp"
#include "gpu/plan/work.hpp"

namespace rocflash::gpu {
namespace {

using kernel::Family;
using kernel::KernelSpec;
using kernel::Operation;
using kernel::Variant;

// The smallest bucket of the family's kernels that holds both head sizes; 0 if none does.
int bucket_for(const Problem& p, Operation operation, Family family) {
  return kernel::bucket_of(operation, p.dtype, std::max(p.head_dim, p.value_dim),
                           kernel::set_of(family));
}

bool has(Family family, const KernelSpec& spec) {
  const int number = kernel::kernel_number(spec);
  return number >= 0 && kernel::has_kernel(family, number);
}

// The kernel that computes all gradients: in large tiles, where there are some that fit.
Operation fused_operation(const Problem& p, const BackwardTensors& t, Chip chip) {
  const KernelSpec large{Operation::backward_fused_large, p.dtype,
                         bucket_for(p, Operation::backward_fused_large, chip.family),
                         backward_variant(p, t)};
  return has(chip.family, large) &&
                 kernel::backward_tile(chip.family, large).dynamic_shared <= chip.group_shared
             ? Operation::backward_fused_large
             : Operation::backward_fused;
}

// What Hopper's kernel needs: the tensors as its copy engine knows them.
struct Boxes {
  Operation operation = Operation::backward_warpgroups;
  int bucket = 0;  // 0: it does not serve the problem
  TensorBox q, dout, k, v;
};

Boxes boxes_for_warpgroups(const Problem& p, const BackwardTensors& t, Chip chip) {
  const Lengths& l = p.lengths;
  auto operation = Operation::backward_warpgroups;
  const auto bucket_of_it = [&] {
    return kernel::bucket_of(operation, p.dtype, std::max(p.head_dim, p.value_dim),
                             kernel::family_set::sm90);
  };
  int bucket = bucket_of_it();
  if (bucket == 0) {
    operation = Operation::backward_warpgroups_large;
    bucket = bucket_of_it();
  }
  // It reads the lse of neighbouring queries side by side.
  const bool together = t.lse.query_stride == 1 || l.rows_q == 1;
  if (!chip.warpgroups || bucket == 0 || !together || l.rows_k == 0 ||
      std::max({p.max_q, p.max_k, p.visibility.chunk}) > kernel::longest_sight ||
      backward_variant(p, t) != Variant::plain)
    return {};
  const auto of_queries = [&](const Rows& rows) {
    return box_of(rows, l.rows_q, p.heads, l.packed_q() ? 1 : p.batch());
  };
  const auto of_keys = [&](const Rows& rows) {
    return box_of(rows, l.rows_k, p.kv_heads, l.packed_k() ? 1 : p.batch());
  };
  const auto q = of_queries(p.q), dout = of_queries(t.dout), k = of_keys(p.k), v = of_keys(p.v);
  if (!q || !dout || !k || !v) return {};
  return {operation, bucket, *q, *dout, *k, *v};
}

// Rows outside all sequences, padding, and rows beyond the lengths in use.
bool may_have_unused_rows(const Lengths& l) {
  return l.cu_q || l.cu_k || l.used_q || l.used_k || l.leftpad_k;
}

// Kernels that stride over sequences or heads: a bounded grid serves any number of them.
void add_bounded(Plan& plan, Operation operation, const kernel::BackwardArguments& all,
                 std::int64_t items, std::int32_t groups_each, Chip chip) {
  constexpr std::int64_t most = 1 << 12;
  const auto groups = static_cast<std::int32_t>(std::min(items, most)) * groups_each;
  kernel::BackwardArguments& a = plan.next<Operation::backward_clear>();
  a = all;
  a.work = {.blocks = groups_each, .groups = groups};
  plan.add(kernel::backward_spec(operation, DType::f32, 0, Variant::any), chip.family, groups);
}

// Blocks of queries whose parts of dalibi are added up apart.
std::int64_t slope_blocks(const Problem& p, Chip chip) {
  const KernelSpec spec = kernel::wide_spec(Operation::backward_alibi);
  return divide_up(sequence_rows(p.lengths, p.max_q), kernel::wide_tile(chip.family, spec).owned);
}

// The gradients of options that are added to scores or multiply distances: they need delta.
void plan_options(Plan& plan, kernel::BackwardArguments& all, std::byte* slope_sums, Chip chip) {
  const Problem& p = all.problem;
  const BackwardTensors& t = all.tensors;
  if (t.dbias) {
    // The kernel strides over the tiles, so a bounded grid serves any number of them.
    constexpr std::int64_t most_groups = 1 << 16;
    const KernelSpec spec = kernel::wide_spec(Operation::backward_bias);
    const kernel::WideTile tile = kernel::wide_tile(chip.family, spec);
    const ScoreSizes sizes = t.dbias_sizes(p);
    const Size tiles = Size(sizes.batch) * sizes.heads * divide_up(sizes.queries, tile.owned) *
                       divide_up(sizes.keys, tile.streamed);
    const std::int64_t groups = tiles.at_most(most_groups);
    kernel::BackwardArguments& a = plan.next<Operation::backward_bias>();
    a = all;
    a.work.groups = static_cast<std::int32_t>(groups);
    if (groups > 0) plan.add(spec, chip.family, groups);
  }
  if (t.dalibi) {
    const KernelSpec sums = kernel::wide_spec(Operation::backward_alibi);
    all.work = share_work(p, p.heads, sequence_rows(p.lengths, p.max_q),
                          kernel::wide_tile(chip.family, sums).owned, kernel::wide_threads, chip);
    const std::int32_t blocks = all.work.blocks;
    all.slope_sums = {reinterpret_cast<float*>(slope_sums), p.heads * blocks, blocks, 1};
    plan.next<Operation::backward_alibi>() = all;
    if (all.work.groups > 0) plan.add(sums, chip.family, all.work.groups);
    // The kernel strides over the slopes.
    constexpr std::int64_t most_groups = 1 << 12;
    const std::int64_t groups =
        (Size(p.heads) * (t.dalibi.batch_stride != 0 ? p.batch() : 1)).at_most(most_groups);
    kernel::BackwardArguments& a = plan.next<Operation::backward_slopes>();
    a = all;
    a.work.groups = static_cast<std::int32_t>(groups);
    if (groups > 0) plan.add(kernel::wide_spec(Operation::backward_slopes), chip.family, groups);
  }
}

KernelSpec warpgroups_spec(const Problem& p, const Boxes& boxes) {
  return kernel::backward_spec(boxes.operation, p.dtype, boxes.bucket, Variant::plain);
}

// Blocks of keys, of warpgroups.
kernel::Work share_keys(const Problem& p, const Boxes& boxes, std::int64_t keys, Chip chip) {
  const KernelSpec spec = warpgroups_spec(p, boxes);
  const kernel::BackwardBlock tile = kernel::backward_block(spec);
  kernel::Work work = share_work(p, p.kv_heads, keys, tile.keys, tile.threads, chip);
  if (work.groups == 0) return work;
  // As many planes take turns as fill the device once: their queries, and the sums of dq, stay in the cache,
  // and under a causal mask short blocks of the next ones fill the gaps. Where all blocks are alike, and each meets
  // several heads, those of a plane keep together best if they start together.
  const bool alike = !p.visibility.bounded() && p.group() > 1 && !kernel::has_roles(spec);
  work.planes_together =
      alike ? 1 : std::clamp(chip.units / work.blocks, 1, work.groups / work.blocks);
  return work;
}

// Blocks of a plane that take turns at dq start one after the other, each about half a tile behind the one before it.
// So several planes start together. A unit holds two workgroups or three: some 20 blocks of each plane run at a time.
std::int32_t planes_in_turn(const kernel::Work& work, Chip chip) {
  return std::clamp(chip.units / 10, 1, work.groups / work.blocks);
}

void plan_warpgroups(Plan& plan, const kernel::BackwardArguments& all, const Boxes& boxes,
                     const kernel::Work& work) {
  if (work.groups == 0) return;
  const Problem& p = all.problem;
  const KernelSpec spec = warpgroups_spec(p, boxes);
  const kernel::BackwardBlock tile = kernel::backward_block(spec);
  auto& a = plan.next<Operation::backward_warpgroups>();
  a.backward = all;
  a.backward.work = work;
  plan.map(panel_of(boxes.q, boxes.bucket, tile.queries, a.q));
  plan.map(panel_of(boxes.dout, boxes.bucket, tile.queries, a.dout));
  plan.map(panel_of(boxes.k, boxes.bucket, tile.keys, a.k));
  plan.map(panel_of(boxes.v, boxes.bucket, tile.keys, a.v));
  plan.add(spec, Family::sm90, work.groups);
  plan.shape().early = all.reports > 0;
}

// Rounding of dq behind them, in their order of planes: those that are done first, first.
void plan_round_early(Plan& plan, const kernel::BackwardArguments& all, const kernel::Work& keys,
                      std::int64_t queries, Chip chip) {
  const Problem& p = all.problem;
  const KernelSpec spec =
      kernel::backward_spec(Operation::backward_round_early, p.dtype, 0, Variant::any);
  const kernel::BackwardTile tile = kernel::backward_tile(Family::sm90, spec);
  kernel::BackwardArguments& a = plan.next<Operation::backward_round_early>();
  a = all;
  a.work = share_work(p, p.heads, queries, tile.owned, tile.threads, chip);
  a.work.planes_together = keys.planes_together * static_cast<std::int32_t>(p.group());
  if (a.work.groups == 0) return;
  plan.add(spec, Family::sm90, a.work.groups);
  plan.shape().early = true;
}

// A kernel without matrix instructions: each of its workgroups computes some columns of one result,
// which has so many.
void plan_wide(Plan& plan, const kernel::BackwardArguments& all, const KernelSpec& spec,
               std::int64_t columns, std::int64_t heads, std::int64_t rows, Chip chip) {
  const kernel::WideTile tile = kernel::wide_tile(chip.family, spec);
  const std::int64_t slices = divide_up(columns, tile.slice);
  kernel::BackwardArguments& a = plan.next<Operation::backward_wide_delta>();
  a = all;
  a.work = share_work(all.problem, heads, rows, tile.owned, static_cast<int>(tile.threads * slices),
                      chip);
  if (a.work.groups > 0) plan.add(spec, chip.family, a.work.groups * slices);
}

}  // namespace

Variant backward_variant(const Problem& p, const BackwardTensors& t) {
  const bool options =
      p.scale == 0 || p.mask || p.bias || p.alibi || p.softcap > 0 || p.dropout.on();
  const auto suits = [](const Rows& rows) { return !rows || suits_plain(rows); };
  const bool vectors = suits(p.q) && suits(p.k) && suits(p.v) && suits(t.dout) && suits(t.dq) &&
                       suits(t.dk) && suits(t.dv);
  return !options && vectors ? Variant::plain : Variant::full;
}

bool is_fused(const Problem& p, const BackwardTensors& t, Family family) {
  return (!p.deterministic || kernel::adds_in_turn(family)) && may_fuse(p, t, family);
}

bool may_fuse(const Problem& p, const BackwardTensors& t, Family family) {
  const int bucket = bucket_for(p, Operation::backward_fused, family);
  const bool shares = t.dq && (t.dk || (t.dv && kernel::fused_gives_dv(family, bucket)));
  return !is_wide(p, family) &&
         (shares || (kernel::adds_in_turn(family) && (t.dq || t.dk || t.dv))) &&
         has(family, {Operation::backward_fused, p.dtype, bucket, backward_variant(p, t)});
}

void plan_backward(Plan& plan, const Problem& given, const BackwardTensors& tensors,
                   std::byte* workspace, Chip chip) {
  kernel::BackwardArguments all{given, tensors, {}, {}, {}, {}, 0, 0, nullptr};
  Problem& p = all.problem;
  BackwardTensors& t = all.tensors;
  const Lengths& l = p.lengths;
  for (Rows* rows : {&p.q, &t.dout, &t.out, &t.dq}) space_single_row(*rows, l.rows_q);
  for (Rows* rows : {&p.k, &p.v, &t.dk, &t.dv}) space_single_row(*rows, l.rows_k);

  // Queries of all batches, or of the packed tensor. Sizes that do not fit are never used as strides.
  const Size batch_queries = Size(p.heads) * l.rows_q;
  const Size all_queries = Size(l.packed_q() ? 1 : p.batch()) * batch_queries;
  constexpr std::int64_t any = std::numeric_limits<std::int64_t>::max();
  Scratch scratch(plan.workspace, workspace);
  all.delta = {reinterpret_cast<float*>(scratch.floats(all_queries)),
               l.packed_q() ? 0 : batch_queries.at_most(any), l.rows_q, 1};
  // By warpgroups the bits can be the same on every run.
  const Boxes boxes = may_fuse(p, t, chip.family) ? boxes_for_warpgroups(p, t, chip) : Boxes{};
  const bool fused = is_fused(p, t, chip.family) || boxes.bucket > 0;
  const bool in_turn = fused && boxes.bucket == 0 && kernel::adds_in_turn(chip.family);
  if (boxes.bucket > 0) all.sums_by_lane = p.deterministic ? kernel::sums_in_turn : 1;
  if (in_turn) all.sums_by_lane = kernel::sums_in_turn;
  if (fused && t.dq) {
    // The kernel that computes delta sets them to 0: it has each query once, and runs before.
    // In blocks of so many queries each sequence starts one (kernels/backward/dq_sums.hpp).
    constexpr std::int64_t block = 16;
    const int columns =
        boxes.bucket > 0 ? boxes.bucket : bucket_for(p, fused_operation(p, t, chip), chip.family);
    const Size rows = !kernel::sums_in_blocks(chip.family) ? Size(l.rows_q)
                      : l.packed_q()
                          ? (Size(l.rows_q) + Size(p.batch() + 1) * block).rounded_up(block)
                          : Size(l.rows_q).rounded_up(block);
    const Size head = rows * columns, batch = head * p.heads;
    // Behind them, where workgroups take turns, a counter for each of the blocks (kernels/backward/turns.hpp).
    const Size batches = l.packed_q() ? 1 : p.batch();
    const Size counters = all.sums_by_lane == kernel::sums_in_turn
                              ? batches * p.heads * (rows.at_most(any) / block)
                              : Size(0);
    all.dq_sums = {.data = scratch.floats(batches * batch + counters),
                   .dtype = DType::f32,
                   .batch_stride = l.packed_q() ? 0 : batch.at_most(any),
                   .row_stride = columns,
                   .head_stride = head.at_most(any),
                   .columns = columns};
  }
  const std::int64_t queries = sequence_rows(l, p.max_q), keys = std::min(p.max_k, l.rows_k);
  if (in_turn && t.dq && queries > 0)  // how many workgroups have started; delta's clear it
    all.planes = reinterpret_cast<std::uint32_t*>(scratch.floats(1));
  kernel::Work keys_work = {};
  if (boxes.bucket > 0 && plan.workspace.fits()) {  // launches behind delta's start early
    keys_work = share_keys(p, boxes, keys, chip);
    if (keys_work.groups > 0 && queries > 0) {
      all.planes = reinterpret_cast<std::uint32_t*>(scratch.floats(Size(p.batch()) * p.kv_heads));
      all.reports = keys_work.blocks * kernel::backward_block(warpgroups_spec(p, boxes)).reports;
    }
  }
  std::byte* slope_sums = nullptr;
  if (t.dalibi) slope_sums = scratch.floats(Size(p.batch()) * p.heads * slope_blocks(p, chip));
  if (!plan.workspace.fits()) return;  // the caller refuses it

  const auto add = [&](const KernelSpec& spec, std::int64_t heads, std::int64_t rows) {
    const kernel::BackwardTile tile = kernel::backward_tile(chip.family, spec);
    kernel::BackwardArguments& a = plan.next<Operation::backward_delta>();
    a = all;
    a.work = share_work(p, heads, rows, tile.owned, tile.threads, chip);
    if (in_turn && kernel::owns_keys(spec.operation) && a.work.groups > 0)
      a.work.planes_together = planes_in_turn(a.work, chip);
    if (a.work.groups > 0) plan.add(spec, chip.family, a.work.groups);
  };
  const auto gradient = [&](Operation operation, std::int64_t heads, std::int64_t rows) {
    add(kernel::backward_spec(operation, p.dtype, bucket_for(p, operation, chip.family),
                              backward_variant(p, t)),
        heads, rows);
  };

  if (may_have_unused_rows(l))
    add_bounded(plan, Operation::backward_clear, all, p.batch() + 1, 16, chip);
  // Where the family has no kernels with matrix instructions, or none whose bits do not depend on an order.
  const bool wide = is_wide(p, chip.family) ||
                    (!fused && bucket_for(p, Operation::backward_queries, chip.family) == 0);
  // Kernels in f32 arithmetic get the delta of that arithmetic: where a query has all its weight on one key, it
  // is the number that they subtract it from. Those with matrix instructions then compute their own in its place.
  if (wide || t.dbias || t.dalibi)
    plan_wide(plan, all, kernel::wide_spec(Operation::backward_wide_delta), 1, p.heads, queries,
              chip);
  plan_options(plan, all, slope_sums, chip);
  if (!wide)
    add(kernel::backward_spec(Operation::backward_delta, p.dtype, 0, Variant::any), p.heads,
        queries);
  if (t.dsinks) add_bounded(plan, Operation::backward_sinks, all, p.heads, 1, chip);
  if (wide) {
    const auto result = [&](Operation operation, const Rows& to, std::int64_t heads,
                            std::int64_t rows) {
      const KernelSpec spec = kernel::wide_spec(operation, std::max(p.head_dim, p.value_dim));
      if (to) plan_wide(plan, all, spec, to.columns, heads, rows, chip);
    };
    result(Operation::backward_wide_queries, t.dq, p.heads, queries);
    result(Operation::backward_wide_dk, t.dk, p.kv_heads, keys);
    result(Operation::backward_wide_dv, t.dv, p.kv_heads, keys);
    return;
  }
  if (fused) {
    if (boxes.bucket > 0) {
      plan_warpgroups(plan, all, boxes, keys_work);
    } else {
      const Operation operation = fused_operation(p, t, chip);
      gradient(operation, p.kv_heads, keys);
      if (t.dv && !kernel::fused_gives_dv(chip.family, bucket_for(p, operation, chip.family)))
        gradient(Operation::backward_dv, p.kv_heads, keys);
    }
    if (all.reports > 0)
      plan_round_early(plan, all, keys_work, queries, chip);
    else if (t.dq)
      add(kernel::backward_spec(Operation::backward_round, p.dtype, 0, Variant::any), p.heads,
          queries);
    return;
  }
  if (t.dq) gradient(Operation::backward_queries, p.heads, queries);
  const bool together = has(
      chip.family, {Operation::backward_keys, p.dtype,
                    bucket_for(p, Operation::backward_keys, chip.family), backward_variant(p, t)});
  if (together && (t.dk || t.dv)) {
    gradient(Operation::backward_keys, p.kv_heads, keys);
  } else {
    if (t.dk) gradient(Operation::backward_dk, p.kv_heads, keys);
    if (t.dv) gradient(Operation::backward_dv, p.kv_heads, keys);
  }
}

}  // namespace rocflash::gpu
