#include "gpu/plan/append.hpp"

#include <algorithm>

#include "gpu/dispatch/sequences.hpp"
#include "gpu/plan/scratch.hpp"

namespace rocflash::gpu {
namespace {

Size rows_to_rotate(const Problem& p) {
  return p.lengths.packed_q() ? Size(p.lengths.rows_q) : Size(p.lengths.rows_q) * p.batch();
}

// The kernel uses a grid-stride loop over rows and heads, so the grid is bounded.
void add_launch(Plan& plan, kernel::AppendArguments& a, Size rows, Chip chip) {
  constexpr std::int64_t max_workgroups = 1 << 12, max_wave_size = 64,
                         rows_per_workgroup = kernel::append_tile.threads / max_wave_size;
  a.workgroups = static_cast<std::int32_t>(std::max<std::int64_t>(
      ceil_div(rows.at_most(max_workgroups * rows_per_workgroup), rows_per_workgroup), 1));
  plan.add(kernel::append_spec(), chip.family, a.workgroups);
}

}  // namespace

void plan_rotate(Plan& plan, const Problem& p, const Rotary& rotary, const Rows& out, Chip chip) {
  if (p.batch() == 0 || p.lengths.rows_q == 0 || p.heads == 0) return;
  kernel::AppendArguments& a = plan.next<kernel::Op::append>();
  a.problem = p;
  a.append.rotary = rotary;
  a.q = out;
  add_launch(plan, a, rows_to_rotate(p) * p.heads, chip);
}

Problem plan_append(Plan& plan, const Problem& p, const Append& append, std::byte* workspace,
                    Chip chip) {
  const bool appends = static_cast<bool>(append.k), rotates = append.rotary.dim > 0;
  if (p.batch() == 0 || (!appends && !rotates)) return p;
  kernel::AppendArguments& a = plan.next<kernel::Op::append>();
  a.problem = p;
  a.append = append;
  a.caches = caches_of(p);

  Problem after = p;
  Scratch scratch(plan.workspace, workspace);
  Size key_rows = 0, rotated_rows = 0;
  if (appends) {
    a.used = reinterpret_cast<std::int32_t*>(scratch.bytes(Size(p.batch()) * sizeof(std::int32_t)));
    after.lengths.used_k = a.used;
    key_rows = append.cu ? Size(append.rows) : Size(append.rows) * p.batch();
  }
  if (rotates) {
    rotated_rows = rows_to_rotate(p);
    const auto bytes = static_cast<std::int64_t>(size_of(p.q.dtype));
    // Rows are aligned to 16 bytes, which specialized kernels require.
    const std::int64_t columns = ceil_div(p.head_dim * bytes, 16) * 16 / bytes;
    a.q = {.data = scratch.bytes(rotated_rows * p.heads * columns * bytes),
           .dtype = p.q.dtype,
           .row_stride = columns * p.heads,
           .head_stride = columns,
           .columns = p.head_dim};
    a.q.batch_stride = p.lengths.packed_q() ? 0 : a.q.row_stride * p.lengths.rows_q;
    after.q = a.q;
  }

  add_launch(plan, a, key_rows * p.kv_heads + rotated_rows * p.heads, chip);
  return after;
}

}  // namespace rocflash::gpu
