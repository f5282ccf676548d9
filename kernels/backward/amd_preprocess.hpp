// Preprocess on AMD GPUs: delta = rowsum(dO·O), as the diagonal of the matrix product O·dOᵀ. Where
// a query has all its weight on one key, O is that key's value, and delta has the same bits as dP.
// It also clears the dQ accumulator.
#pragma once

#include "arch/arch.hpp"
#include "attention/rows.hpp"
#include "attention/sequence.hpp"
#include "attention/work_tile.hpp"
#include "backward/dq_accumulate.hpp"
#include "backward/exact_recompute.hpp"
#include "backward/row_statistics.hpp"
#include "table/backward.hpp"
#include "tile/amd.hpp"

namespace rocflash::kernel {

// The softmax of rows with an unresolved lse, from scores that matrix instructions compute as in
// the main kernels: S = K·Qᵀ for the wave's Mma::columns queries from `first` on, with operands
// from global memory. Such rows come with an additive mask: padded queries have finfo.min for all
// keys. Returns whether the softmax of this lane's row was stored.
template <KernelSpec spec>
bool store_masked_row_softmax(const BackwardArguments& a, const SequenceView& sequence,
                              std::int64_t head, std::int32_t first) {
  using Mma = arch::Mma<spec.dtype>;
  using Unit = typename ScoreDomainOf<spec.dtype, true>::Type;
  using Scores = Elements<Mma, Mma::rows, Mma::columns>;
  using Block = RowBlock<spec.dtype, Variant::generic, false>;
  constexpr int count = Scores::per_column;
  const Problem& p = a.problem;
  const QueryView query(p.visibility, sequence, first + Scores::lane_column());
  const std::int64_t row = sequence.q_row + query.index;
  const bool unresolved = query.index < sequence.sq &&
                          is_unresolved(arch::load(&a.tensors.lse.at(sequence.batch, head, row)));
  if (!has_score_modifiers(p) || arch::ballot(unresolved) == 0) return false;

  const ScoreModGradient score_mod(p, sequence, head);
  const Block q(p.q, 0, sequence.batch, sequence.q_row + first, sequence.sq - first, head);
  const Span visible = VisibleKeys(p.visibility, sequence, first, Mma::columns).by_any;
  const std::int32_t steps = (p.head_dim + Mma::depth - 1) / Mma::depth;
  BasicOnlineSoftmax<Unit> softmax;  // of the lane's keys
  float large_product = 0;           // 1 once |q·k · scale| is not below the limit
  const std::int32_t end = arch::uniform(visible.end);
  for (std::int32_t begin = arch::uniform(visible.begin); begin < end; begin += Mma::rows) {
    const Block k(p.k, 0, sequence.batch, sequence.k_row + begin, sequence.sk - begin,
                  p.kv_head(head));
    typename Mma::Result products = {};
    for (std::int32_t step = 0; step < steps; ++step) {
      const auto operand = [&](const Block& block, int line) {
        return fragment_of_chunks<Mma>(step, [&](int own, int fixed) {
          return block.load8({line, chunk_elements<spec.dtype> * (own + fixed)});
        });
      };
      products = Mma::multiply(operand(k, operand_line<Mma, Side::left>()),
                               operand(q, operand_line<Mma, Side::right>()), products);
    }
    float s[count];
    const auto key = [&](int n) { return begin + Scores::lane_row() + Scores::row(n); };
    ROCFLASH_UNROLL
    for (int n = 0; n < count; ++n) {
      s[n] = products[n];
      if (query.attends_to(key(n)) && !(__builtin_fabsf(s[n] * p.scale) < core::unresolved_lse))
        large_product = 1;
    }
    score_mod.template apply_scaled<count, Unit>(
        OneQuery{query.index}, key, [&](int n) -> float& { return s[n]; }, p.scale);
    float largest = -infinity;
    ROCFLASH_UNROLL
    for (int n = 0; n < count; ++n) {
      s[n] = query.attends_to(key(n)) ? s[n] : -infinity;
      largest = __builtin_fmaxf(largest, s[n]);
    }
    softmax.rescale(largest);
    ROCFLASH_UNROLL
    for (int n = 0; n < count; ++n) softmax.sum += Unit::exp(s[n] - softmax.base());
  }

  // The lanes of a column have different keys of the same query.
  softmax.rescale(column_maximum(softmax.row_max));
  softmax.sum = column_sum(softmax.sum);
  const float sink = p.sinks ? sink_of(p, head) : -infinity;
  if (sink != -infinity) {
    softmax.rescale(sink);
    softmax.sum += Unit::exp(sink - softmax.base());
  }
  const bool valid = column_maximum(large_product) == 0;
  if (unresolved && valid)
    RowSoftmax::store(a, sequence.batch, head, row, softmax.base(),
                      normalize<Unit>(softmax.row_max, softmax.sum, false, 0), true);
  return valid;
}

template <KernelSpec spec>
void backward_preprocess(const BackwardArguments& a) {
  constexpr BackwardTile tile = backward_tile(this_family, spec);
  using Mma = arch::Mma<spec.dtype>;
  using Layout = typename Mma::Layout;
  using Block = RowBlock<spec.dtype, Variant::generic, false>;
  static_assert(tile.owned == tile.threads / arch::wave_size * Mma::columns);
  const Problem& p = a.problem;
  const WorkTile item(a.work, static_cast<std::int32_t>(p.heads), arch::workgroup_id());
  const SequenceView sequence(p, item.batch);
  const std::int32_t first = item.block * tile.owned + arch::wave() * Mma::columns;
  if (has_ordered_dq(this_family) && a.bh_counters && arch::workgroup_id() == 0 &&
      arch::thread() == 0)
    arch::store(a.bh_counters, 0u);  // no workgroup has started yet (backward/rdna2_dq_ordered.hpp)
  if (first >= sequence.sq) return;
  clear_dq_accumulator<Mma, Mma::columns>(a, sequence, item.head, first);

  const auto rows_of = [&](const Rows& rows) {
    return Block(rows, 0, sequence.batch, sequence.q_row + first, sequence.sq - first, item.head);
  };
  const Block out = rows_of(a.tensors.out), dout = rows_of(a.tensors.dout);
  // The diagonal of Mma::columns queries; it may take several products of Mma::rows rows.
  constexpr int parts = Mma::columns / Mma::rows;
  typename Mma::Result products[parts] = {};
  const std::int32_t steps = (p.value_dim + Mma::depth - 1) / Mma::depth;
  std::int32_t step = 0;
  // Full blocks: the loads of several steps are in flight.
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
        return block.load8({row, chunk_elements<spec.dtype> * (own + fixed)});
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
  // A lane has at most one element of the diagonal.
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
  const bool has_row_softmax = store_masked_row_softmax<spec>(a, sequence, item.head, first);
  if (has_one && first + own < sequence.sq)
    store_delta<spec.dtype>(a, sequence, item.head, first + own, statistic(delta, factor),
                            has_row_softmax);
}

}  // namespace rocflash::kernel
