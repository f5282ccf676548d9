#include "gpu/plan/backward.hpp"

#include <algorithm>
#include <limits>

#include "gpu/dispatch/prepare.hpp"
#include "gpu/dispatch/select.hpp"
#include "gpu/dispatch/sequences.hpp"
#include "gpu/plan/scratch.hpp"

namespace rocflash::gpu {
namespace {

using kernel::Family;
using kernel::KernelSpec;
using kernel::Op;
using kernel::Schedule;
using kernel::Variant;

// Kernels with a grid-stride loop over sequences or heads: the grid is bounded.
void add_bounded(Plan& plan, Op op, const kernel::BackwardArguments& all, std::int64_t items,
                 std::int32_t workgroups_each, Chip chip) {
  constexpr std::int64_t max_items = 1 << 12;
  const auto groups = static_cast<std::int32_t>(std::min(items, max_items)) * workgroups_each;
  kernel::BackwardArguments& a = plan.next<Op::backward_zero_fill>();
  a = all;
  a.work = {.blocks = workgroups_each, .workgroups = groups};
  plan.add(kernel::backward_spec(op, DType::f32, 0, Variant::any), chip.family, groups);
}

// Query blocks whose partial sums of dalibi are reduced by a second kernel.
std::int64_t dalibi_blocks(const Problem& p, Chip chip) {
  const KernelSpec spec = kernel::score_mod_spec(Op::backward_dalibi_partial);
  return ceil_div(sequence_rows(p.lengths, p.max_q), kernel::fp32_tile(chip.family, spec).owned);
}

// The gradients of bias and ALiBi slopes; these kernels read delta.
void plan_score_mod_gradients(Plan& plan, kernel::BackwardArguments& all, std::byte* dalibi_partial,
                              Chip chip) {
  const Problem& p = all.problem;
  const BackwardTensors& t = all.tensors;
  if (t.dbias) {
    // The kernel uses a grid-stride loop over the tiles, so the grid is bounded.
    constexpr std::int64_t max_workgroups = 1 << 16;
    const KernelSpec spec = kernel::score_mod_spec(Op::backward_dbias);
    const kernel::Fp32Tile tile = kernel::fp32_tile(chip.family, spec);
    const ScoreSizes sizes = t.dbias_sizes(p);
    const Size tiles = Size(sizes.batch) * sizes.heads * ceil_div(sizes.queries, tile.owned) *
                       ceil_div(sizes.keys, tile.streamed);
    const std::int64_t groups = tiles.at_most(max_workgroups);
    kernel::BackwardArguments& a = plan.next<Op::backward_dbias>();
    a = all;
    a.work.workgroups = static_cast<std::int32_t>(groups);
    if (groups > 0) plan.add(spec, chip.family, groups);
  }
  if (t.dalibi) {
    const KernelSpec sums = kernel::score_mod_spec(Op::backward_dalibi_partial);
    all.work =
        schedule_tiles(p, p.heads, sequence_rows(p.lengths, p.max_q),
                       kernel::fp32_tile(chip.family, sums).owned, kernel::fp32_threads, chip);
    const std::int32_t blocks = all.work.blocks;
    all.dalibi_partial = {reinterpret_cast<float*>(dalibi_partial), p.heads * blocks, blocks, 1};
    plan.next<Op::backward_dalibi_partial>() = all;
    if (all.work.workgroups > 0) plan.add(sums, chip.family, all.work.workgroups);
    // The kernel uses a grid-stride loop over the slopes.
    constexpr std::int64_t max_workgroups = 1 << 12;
    const std::int64_t groups =
        (Size(p.heads) * (t.dalibi.batch_stride != 0 ? p.batch() : 1)).at_most(max_workgroups);
    kernel::BackwardArguments& a = plan.next<Op::backward_dalibi_reduce>();
    a = all;
    a.work.workgroups = static_cast<std::int32_t>(groups);
    if (groups > 0)
      plan.add(kernel::score_mod_spec(Op::backward_dalibi_reduce), chip.family, groups);
  }
}

void plan_warp_specialized(Plan& plan, const kernel::BackwardArguments& all,
                           const BackwardSelection& s, const kernel::TileSchedulerParams& work) {
  if (work.workgroups == 0) return;
  const KernelSpec& spec = s.fused();
  const kernel::BackwardWorkTile tile = kernel::backward_work_tile(spec);
  auto& a = plan.next<Op::backward, Schedule::warp_specialized>();
  a.backward = all;
  a.backward.work = work;
  plan.add_tensor_map(with_box(s.q, spec.bucket, tile.queries, a.q));
  plan.add_tensor_map(with_box(s.dout, spec.bucket, tile.queries, a.dout));
  plan.add_tensor_map(with_box(s.k, spec.bucket, tile.keys, a.k));
  plan.add_tensor_map(with_box(s.v, spec.bucket, tile.keys, a.v));
  plan.add(spec, Family::sm90, work.workgroups);
  plan.shape().pdl = all.reports > 0;
}

// Converts dq after the warp-specialized kernel (PDL), in the order in which its slices complete.
void plan_postprocess_pdl(Plan& plan, const kernel::BackwardArguments& all,
                          const kernel::TileSchedulerParams& keys, std::int64_t queries,
                          Chip chip) {
  const Problem& p = all.problem;
  const KernelSpec spec{Op::backward_postprocess, Schedule::pdl, p.dtype, 0, Variant::any};
  const kernel::BackwardTile tile = kernel::backward_tile(Family::sm90, spec);
  kernel::BackwardArguments& a = plan.next<Op::backward_postprocess, Schedule::pdl>();
  a = all;
  a.work = schedule_tiles(p, p.heads, queries, tile.owned, tile.threads, chip);
  a.work.bh_interleave = keys.bh_interleave * static_cast<std::int32_t>(p.gqa_group());
  if (a.work.workgroups == 0) return;
  plan.add(spec, Family::sm90, a.work.workgroups);
  plan.shape().pdl = true;
}

// A kernel of the FP32 path: each workgroup computes one slice of the `columns` of one gradient.
void plan_fp32(Plan& plan, const kernel::BackwardArguments& all, const KernelSpec& spec,
               std::int64_t columns, std::int64_t heads, std::int64_t rows, Chip chip) {
  const kernel::Fp32Tile tile = kernel::fp32_tile(chip.family, spec);
  const std::int64_t slices = ceil_div(columns, tile.slice);
  kernel::BackwardArguments& a = plan.next<Op::backward_preprocess, Schedule::fp32>();
  a = all;
  a.work = schedule_tiles(all.problem, heads, rows, tile.owned,
                          static_cast<int>(tile.threads * slices), chip);
  if (a.work.workgroups > 0) plan.add(spec, chip.family, a.work.workgroups * slices);
}

// The stages of a backward plan: workspace first, then the launches.
struct BackwardPlanner {
  Plan& plan;
  const Chip chip;
  kernel::BackwardArguments all;
  Problem& p = all.problem;
  BackwardTensors& t = all.tensors;
  const Lengths& l = p.lengths;
  std::int64_t queries = 0, keys = 0;
  BackwardSelection selection = {};
  kernel::TileSchedulerParams keys_work = {};
  std::byte* dalibi_partial = nullptr;

  void select_kernels();
  void allocate_workspace(std::byte* workspace);
  void allocate_dq_accumulator(Scratch& scratch);
  void allocate_counters(Scratch& scratch);
  void add(const KernelSpec& spec, std::int64_t heads, std::int64_t rows);
  void add_launches();
  void add_fp32_gradients();
  void add_gradients();
};

void BackwardPlanner::select_kernels() {
  prepare_backward(p, t);
  queries = sequence_rows(l, p.max_q), keys = std::min(p.max_k, l.rows_k);
  selection = select(p, t, chip);
  all.dq_accum_layout = selection.dq_accum_layout;
}

// A size that overflows is never used as a stride: the plan then has no launches.
constexpr std::int64_t any = std::numeric_limits<std::int64_t>::max();

void BackwardPlanner::allocate_workspace(std::byte* workspace) {
  const Size batch_queries = Size(p.heads) * l.rows_q;
  const Size all_queries = Size(l.packed_q() ? 1 : p.batch()) * batch_queries;
  Scratch scratch(plan.workspace, workspace);
  const auto allocate = [&](RowStatistic& statistic) {
    statistic = {reinterpret_cast<float*>(scratch.floats(all_queries)),
                 l.packed_q() ? 0 : batch_queries.at_most(any), l.rows_q, 1};
  };
  if (!all.delta) allocate(all.delta);
  allocate(all.row_max);
  allocate(all.row_share);
  if (selection.warp_specialized()) allocate(all.minus_lse_log2);
  if (selection.accumulates_dq && t.dq) allocate_dq_accumulator(scratch);
  allocate_counters(scratch);
  if (t.dalibi) dalibi_partial = scratch.floats(Size(p.batch()) * p.heads * dalibi_blocks(p, chip));
}

// The preprocess kernel zeroes the accumulator.
void BackwardPlanner::allocate_dq_accumulator(Scratch& scratch) {
  // Each sequence starts on a block of this many queries (kernels/backward/dq_accumulator.hpp).
  constexpr std::int64_t block = 16;
  const int columns = selection.dq_columns;
  const Size rows = !kernel::dq_accum_in_blocks(chip.family) ? Size(l.rows_q)
                    : l.packed_q()
                        ? (Size(l.rows_q) + Size(p.batch() + 1) * block).rounded_up(block)
                        : Size(l.rows_q).rounded_up(block);
  const Size head = rows * columns, batch = head * p.heads;
  // Ordered accumulation: a counter per block follows (kernels/backward/dq_ordered.hpp).
  const Size batches = l.packed_q() ? 1 : p.batch();
  const Size counters = all.dq_accum_layout == kernel::dq_accum_ordered
                            ? batches * p.heads * (rows.at_most(any) / block)
                            : Size(0);
  all.dq_accum = {.data = scratch.floats(batches * batch + counters),
                  .dtype = DType::f32,
                  .batch_stride = l.packed_q() ? 0 : batch.at_most(any),
                  .row_stride = columns,
                  .head_stride = head.at_most(any),
                  .columns = columns};
}

// The preprocess kernel zeroes the counters.
void BackwardPlanner::allocate_counters(Scratch& scratch) {
  if (selection.ordered_dq && t.dq && queries > 0)  // the number of workgroups that have started
    all.bh_counters = reinterpret_cast<std::uint32_t*>(scratch.floats(1));
  if (selection.warp_specialized() &&
      plan.workspace.fits()) {  // PDL: completed key blocks per slice
    keys_work = schedule_key_tiles(p, selection.fused(), keys, chip);
    if (keys_work.workgroups > 0 && queries > 0) {
      all.bh_counters =
          reinterpret_cast<std::uint32_t*>(scratch.floats(Size(p.batch()) * p.kv_heads));
      all.reports = keys_work.blocks * kernel::backward_work_tile(selection.fused()).reports;
    }
  }
}

void BackwardPlanner::add(const KernelSpec& spec, std::int64_t heads, std::int64_t rows) {
  const kernel::BackwardTile tile = kernel::backward_tile(chip.family, spec);
  kernel::BackwardArguments& a = plan.next<Op::backward_preprocess>();
  a = all;
  a.work = schedule_tiles(p, heads, rows, tile.owned, tile.threads, chip);
  if (selection.ordered_dq && kernel::owns_keys(spec.op) && a.work.workgroups > 0)
    a.work.bh_interleave = ordered_bh_interleave(a.work, chip);
  if (a.work.workgroups > 0) plan.add(spec, chip.family, a.work.workgroups);
}

void BackwardPlanner::add_launches() {
  // Rows outside all sequences, left padding, and rows beyond the sequence lengths.
  if ((selection.features & kernel::feature_set::lengths).any())
    add_bounded(plan, Op::backward_zero_fill, all, p.batch() + 1, 16, chip);
  const bool fp32 = selection.fp32;
  // FP32 kernels need delta in FP32 arithmetic: for a query with P = 1 on one key, dP - delta must
  // cancel exactly. The preprocess of the matrix kernels then overwrites it with their own.
  if (fp32 || t.dbias || t.dalibi)
    plan_fp32(plan, all, kernel::fp32_preprocess_spec, 1, p.heads, queries, chip);
  plan_score_mod_gradients(plan, all, dalibi_partial, chip);
  if (!fp32)
    add(kernel::backward_spec(Op::backward_preprocess, p.dtype, 0, Variant::any), p.heads, queries);
  if (t.dsinks) add_bounded(plan, Op::backward_dsinks, all, p.heads, 1, chip);
  if (fp32)
    add_fp32_gradients();
  else
    add_gradients();
}

void BackwardPlanner::add_fp32_gradients() {
  for (const KernelSpec& spec : selection.gradients()) {
    const bool of_queries = spec.op == Op::backward_dq;
    const Rows& to = of_queries ? t.dq : spec.op == Op::backward_dk ? t.dk : t.dv;
    plan_fp32(plan, all, spec, to.columns, of_queries ? p.heads : p.kv_heads,
              of_queries ? queries : keys, chip);
  }
}

void BackwardPlanner::add_gradients() {
  if (selection.warp_specialized()) {
    plan_warp_specialized(plan, all, selection, keys_work);
  } else {
    for (const KernelSpec& spec : selection.gradients())
      kernel::owns_keys(spec.op) ? add(spec, p.kv_heads, keys) : add(spec, p.heads, queries);
  }
  if (all.reports > 0)
    plan_postprocess_pdl(plan, all, keys_work, queries, chip);
  else if (selection.accumulates_dq && t.dq)
    add(kernel::backward_spec(Op::backward_postprocess, p.dtype, 0, Variant::any), p.heads,
        queries);
}

}  // namespace

void plan_backward(Plan& plan, const Problem& problem, const BackwardTensors& tensors,
                   std::byte* workspace, Chip chip, const RowStatistic& delta,
                   const RowStatistic& dlse) {
  kernel::BackwardArguments arguments{};
  arguments.problem = problem;
  arguments.tensors = tensors;
  arguments.delta = delta;
  arguments.dlse = dlse;
  BackwardPlanner planner{plan, chip, arguments};
  planner.select_kernels();
  planner.allocate_workspace(workspace);
  // The caller rejects a workspace that does not fit.
  if (plan.workspace.fits()) planner.add_launches();
}

}  // namespace rocflash::gpu
