#include "gpu/plan/backward.hpp"

#include <algorithm>

#include "core/workspace.hpp"
#include "gpu/plan/rows.hpp"
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

// Rows outside all sequences, padding, and rows beyond the lengths in use.
bool may_have_unused_rows(const Lengths& l) {
  return l.cu_q || l.cu_k || l.used_q || l.used_k || l.leftpad_k;
}

// Hands out pieces of the caller's scratch memory, and counts them.
class Scratch {
 public:
  Scratch(Size& bytes, std::byte* memory) : bytes_(bytes), memory_(memory) {}

  std::byte* floats(Size count) {
    std::byte* piece = memory_ && bytes_.fits() ? memory_ + bytes_.value() : nullptr;
    bytes_ += (count * Size(sizeof(float))).rounded_up(workspace_alignment);
    return piece;
  }

 private:
  Size& bytes_;
  std::byte* memory_;
};

void plan_sinks(Plan& plan, const kernel::BackwardArguments& all, Chip chip) {
  plan.next<Operation::backward_sinks>() = all;
  plan.add(kernel::backward_spec(Operation::backward_sinks, DType::f32, 0, Variant::any),
           chip.family, all.problem.heads);
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
  return !p.deterministic && t.dq && (t.dk || t.dv) &&
         has(family, {Operation::backward_fused, p.dtype,
                      bucket_for(p, Operation::backward_fused, family), backward_variant(p, t)});
}

void plan_backward(Plan& plan, const Problem& given, const BackwardTensors& tensors,
                   std::byte* workspace, Chip chip) {
  kernel::BackwardArguments all{given, tensors, {}, {}, {}};
  Problem& p = all.problem;
  BackwardTensors& t = all.tensors;
  const Lengths& l = p.lengths;
  for (Rows* rows : {&p.q, &t.dout, &t.out, &t.dq}) space_single_row(*rows, l.rows_q);
  for (Rows* rows : {&p.k, &p.v, &t.dk, &t.dv}) space_single_row(*rows, l.rows_k);

  // Queries of all batches, or of the packed tensor.
  const std::int64_t query_batches = l.packed_q() ? 1 : p.batch();
  Scratch scratch(plan.workspace, workspace);
  all.delta = {reinterpret_cast<float*>(scratch.floats(Size(query_batches) * p.heads * l.rows_q)),
               l.packed_q() ? 0 : p.heads * l.rows_q, l.rows_q, 1};
  const bool fused = is_fused(p, t, chip.family);
  if (fused) {
    // The kernel that computes delta sets them to 0: it has each query once, and runs before.
    const int columns = bucket_for(p, Operation::backward_fused, chip.family);
    const std::int64_t head = l.rows_q * columns;
    all.dq_sums = {.data = scratch.floats(Size(query_batches) * p.heads * l.rows_q * columns),
                   .dtype = DType::f32,
                   .batch_stride = l.packed_q() ? 0 : p.heads * head,
                   .row_stride = columns,
                   .head_stride = head,
                   .columns = columns};
  }
  if (!plan.workspace.fits()) return;  // the caller refuses it

  const auto add = [&](const KernelSpec& spec, std::int64_t heads, std::int64_t rows) {
    const kernel::BackwardTile tile = kernel::backward_tile(chip.family, spec);
    kernel::BackwardArguments& a = plan.next<Operation::backward_delta>();
    a = all;
    a.work = share_work(p, heads, rows, tile.owned, tile.threads, chip);
    if (a.work.groups > 0) plan.add(spec, chip.family, a.work.groups);
  };
  const std::int64_t queries = sequence_rows(l, p.max_q), keys = std::min(p.max_k, l.rows_k);
  const auto gradient = [&](Operation operation, std::int64_t heads, std::int64_t rows) {
    add(kernel::backward_spec(operation, p.dtype, bucket_for(p, operation, chip.family),
                              backward_variant(p, t)),
        heads, rows);
  };

  if (may_have_unused_rows(l)) {
    constexpr std::int32_t groups_each = 16;
    const auto groups = (p.batch() + 1) * groups_each;
    kernel::BackwardArguments& a = plan.next<Operation::backward_clear>();
    a = all;
    a.work = {.blocks = groups_each, .groups = static_cast<std::int32_t>(groups)};
    plan.add(kernel::backward_spec(Operation::backward_clear, DType::f32, 0, Variant::any),
             chip.family, groups);
  }
  add(kernel::backward_spec(Operation::backward_delta, p.dtype, 0, Variant::any), p.heads, queries);
  if (t.dsinks) plan_sinks(plan, all, chip);
  if (fused) {
    gradient(Operation::backward_fused, p.kv_heads, keys);
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
