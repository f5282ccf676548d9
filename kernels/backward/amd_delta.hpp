// dout·out of each query on AMD GPUs, as the diagonal of a matrix product: where a query has all its
// weight on one key, out is that key's value, and delta then has the very bits of dp.
#pragma once

#include "arch/arch.hpp"
#include "attention/rows.hpp"
#include "attention/sequence.hpp"
#include "attention/work.hpp"
#include "backward/exact.hpp"
#include "backward/statistic.hpp"
#include "backward/sums.hpp"
#include "table/backward.hpp"
#include "tile/amd.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
void backward_delta(const BackwardArguments& a) {
  constexpr BackwardTile tile = backward_tile(this_family, spec);
  using Mma = arch::Mma<spec.dtype>;
  using Layout = typename Mma::Layout;
  using Block = RowBlock<spec.dtype, Variant::full, false>;
  static_assert(tile.owned == tile.threads / arch::wave_size * Mma::columns);
  const Problem& p = a.problem;
  const WorkItem item(a.work, static_cast<std::int32_t>(p.heads), arch::group());
  const SequenceView sequence(p, item.batch);
  const std::int32_t first = item.block * tile.owned + arch::wave() * Mma::columns;
  if (adds_in_turn(this_family) && a.planes && arch::group() == 0 && arch::thread() == 0)
    arch::store(a.planes, 0u);  // no workgroup has started yet (backward/amd_in_turn.hpp)
  if (first >= sequence.sq) return;
  clear_sums<Mma, Mma::columns>(a, sequence, item.head, first);

  const auto rows_of = [&](const Rows& rows) {
    return Block(rows, 0, sequence.batch, sequence.q_row + first, sequence.sq - first, item.head);
  };
  const Block out = rows_of(a.tensors.out), dout = rows_of(a.tensors.dout);
  // The diagonal of as many columns as a product has, which may take several of its rows.
  constexpr int parts = Mma::columns / Mma::rows;
  typename Mma::Result products[parts] = {};
  const std::int32_t steps = (p.value_dim + Mma::depth - 1) / Mma::depth;
  std::int32_t step = 0;
  // Whole blocks: several steps' rows on their way at a time.
  if constexpr (parts == 1) {
    struct Unaligned {
      Words4 words __attribute__((packed, aligned(2)));
    };
    constexpr int together = 4;
    const auto line = [&](const Rows& rows, int row) {
      return reinterpret_cast<const Unaligned*>(
          row_address<spec.dtype>(rows, sequence.batch, sequence.q_row + first + row, item.head));
    };
    if (first + Mma::columns <= sequence.sq && p.value_dim % (together * Mma::depth) == 0) {
      const Unaligned *left = line(a.tensors.out, operand_line<Mma, Side::left>()),
                      *right = line(a.tensors.dout, operand_line<Mma, Side::right>());
      for (; step < steps; step += together) {
        typename Mma::Operand lefts[together], rights[together];
        const auto fragment = [](const Unaligned* from, int n) {
          return fragment_of_chunks<Mma>(
              n, [&](int own, int fixed) { return arch::load(from + own + fixed).words; });
        };
        ROCFLASH_UNROLL
        for (int n = 0; n < together; ++n) {
          lefts[n] = fragment(left, step + n);
          rights[n] = fragment(right, step + n);
        }
        ROCFLASH_UNROLL
        for (int n = 0; n < together; ++n)
          products[0] = Mma::multiply(lefts[n], rights[n], products[0]);
      }
    }
  }
  for (; step < steps; ++step) {
    const auto operand = [&](const Block& block, int row) {
      return fragment_of_chunks<Mma>(step, [&](int own, int fixed) {
        return block.load8({row, chunk_numbers<spec.dtype> * (own + fixed)});
      });
    };
    ROCFLASH_UNROLL
    for (int part = 0; part < parts; ++part)
      products[part] =
          Mma::multiply(operand(out, part * Mma::rows + operand_line<Mma, Side::left>()),
                        operand(dout, operand_line<Mma, Side::right>()), products[part]);
  }

  const int own = Layout::lane_column(arch::lane());
  const float factor = p.dropout.on() ? 1 - p.dropout.p : 1.0f;
  // A lane has at most one number of the diagonal.
  float delta = 0;
  bool has_one = false;
  ROCFLASH_UNROLL
  for (int n = 0; n < parts * Mma::results; ++n) {
    const int part = n / Mma::results, r = n % Mma::results;
    if (part * Mma::rows + layout::result_row<Layout>(arch::lane(), r) == own) {
      delta = products[part][r];
      has_one = true;
    }
  }
  if (has_one && first + own < sequence.sq)
    store_delta<spec.dtype>(a, sequence, item.head, first + own, statistic(delta, factor));
}

}  // namespace rocflash::kernel
