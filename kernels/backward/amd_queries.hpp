// dq on AMD GPUs: each workgroup owns a block of queries of one head, and keys stream past (amd.hpp).
#pragma once

#include "backward/amd.hpp"

namespace rocflash::kernel {

// It computes its position again rather than keep it in registers during the loop.
template <KernelSpec spec>
void finish_queries(const BackwardArguments& a, const typename BackwardTypes<spec>::Sums& dq) {
  using Types = BackwardTypes<spec>;
  const Problem& p = a.problem;
  const WorkItem item(a.work, static_cast<std::int32_t>(p.heads), arch::group());
  const SequenceView sequence(p, item.batch);
  const std::int32_t first = item.block * Types::tile.owned + arch::wave() * Types::wave_rows;
  const float factor = p.scale * p.dropout.scale();
  const std::uint64_t broken =
      store_sums<Types>(p, a.tensors.dq, sequence.batch, sequence.q_row + first,
                        sequence.sq - first, item.head, dq, factor);
  repair_rows(broken, [&](int row) {
    exact_dq<spec.dtype>(arch::again(a), sequence, item.head, first + row, factor);
  });
}

template <KernelSpec spec>
void backward_queries(const BackwardArguments& a) {
  using Types = BackwardTypes<spec>;
  using Scores = typename Types::Scores;
  using Block = typename Types::Block;
  using Kept = KeptScores<Types, false>;
  using Keys = Stream<Types, Shape::both>;
  using Values = Stream<Types, Shape::rows>;
  constexpr BackwardTile tile = Types::tile;
  constexpr int buffers = Types::buffers, count = Types::count;

  ROCFLASH_SHARED_ARRAY Words4 shared_k[buffers][Keys::row_chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_kt[buffers][Keys::turned_chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_v[buffers][Values::row_chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_q[Types::waves][Types::Owned::shared_chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_dout[Types::waves][Types::Owned::shared_chunks];
  alignas(16)
      ROCFLASH_SHARED_ARRAY std::uint8_t shared_kept[Types::waves][Types::full ? Kept::room : 0];

  // The workgroup's queries, the wave's, and the lane's own.
  const Problem& p = a.problem;
  const BackwardTensors& t = a.tensors;
  const WorkItem item(a.work, static_cast<std::int32_t>(p.heads), arch::group());
  const SequenceView sequence(p, item.batch);
  const std::int32_t block_begin = item.block * tile.owned;
  if (block_begin >= sequence.sq) return;
  const std::int32_t wave_begin = block_begin + arch::wave() * Types::wave_rows;
  const SeenKeys wave_keys(p.visibility, sequence, wave_begin, Types::wave_rows);
  const Span seen_by_wave = uniform(wave_keys.by_any), seen_by_all = uniform(wave_keys.by_all);
  const QueryView query(p.visibility, sequence, wave_begin + Scores::lane_column());

  const Scale scale(p.scale);
  const auto owned = [&](const Rows& rows, bool turn_sign, SharedWords4* room) {
    return own_rows<Types>(rows, sequence.batch, sequence.q_row + wave_begin,
                           sequence.sq - wave_begin, item.head, turn_sign, room);
  };
  typename Types::Owned q = owned(p.q, scale.turn_sign, shared_q[arch::wave()]);
  typename Types::Owned dout = owned(t.dout, false, shared_dout[arch::wave()]);
  float lse = infinity, delta = 0;
  if (query.index < sequence.sq) {
    const std::int64_t row = sequence.q_row + query.index;
    lse = statistic(arch::load(&t.lse.at(sequence.batch, item.head, row)), log2_e) - Types::raised;
    delta = arch::load(&a.delta.at(sequence.batch, item.head, row));
  }

  const Range seen = SeenKeys(p.visibility, sequence, block_begin, tile.owned).by_any;
  const auto first_key = static_cast<std::int32_t>(seen.begin / dropout_keys * dropout_keys);
  const std::int32_t tiles =
      seen.empty()
          ? 0
          : (static_cast<std::int32_t>(seen.end) - first_key + tile.streamed - 1) / tile.streamed;

  const std::int64_t kv_head = p.kv_head(item.head);
  Keys k(p.k);
  Values v(p.v);
  const auto block_at = [&](const Rows& rows, std::int32_t n) {
    const std::int32_t key = first_key + n * tile.streamed;
    return Block(rows, 0, sequence.batch, sequence.k_row + key, sequence.sk - key, kv_head);
  };
  const auto load = [&](std::int32_t n) {
    k.load(block_at(p.k, n));
    v.load(block_at(p.v, n));
  };
  const auto store = [&](std::int32_t n) {
    const int buffer = n % buffers;
    k.store(p.k, block_at(p.k, n), shared_k[buffer], shared_kt[buffer]);
    v.store(p.v, block_at(p.v, n), shared_v[buffer], nullptr);
  };

  const GradientShape shape(p, sequence, item.head);
  typename Types::Sums dq = {};
  // With options the code of a load is long: there the first tile has an iteration to itself.
  if (!Types::full && tiles > 0) {
    load(0);
    store(0);
  }
  for (std::int32_t n = Types::full ? -1 : 0; n < tiles; ++n) {
    if (n + 1 < tiles) load(n + 1);
    arch::barrier();

    const int buffer = n & (buffers - 1);
    const std::int32_t begin = first_key + n * tile.streamed, end = begin + tile.streamed;
    if ((!Types::full || n >= 0) && begin < seen_by_wave.end && end > seen_by_wave.begin) {
      // S = K·Qᵀ, dP = V·dOᵀ
      q.renew();
      dout.renew();
      const int line = streamed_line<Types>();
      using Operand = typename Types::StreamedOperand;
      Scores scores =
          product<Scores, spec.bucket, Types::together>(Operand{shared_k[buffer], line}, q);
      Scores gradients =
          product<Scores, spec.bucket, Types::together>(Operand{shared_v[buffer], line}, dout);
      float (&s)[count] = scores.at[0], (&ds)[count] = gradients.at[0];
      if constexpr (Types::full || tile.shared_owned) {
        arch::settle(s);
        arch::settle(ds);
      }
      const auto key = [&, offset = begin + Scores::lane_row()](int i) {
        return offset + Scores::row(i);
      };
      float unit = scale.unit;
      if constexpr (Types::full) {
        if (p.dropout.on()) {
          Kept kept;
          kept.draw(shared_kept[arch::wave()], shape, wave_begin, begin);
          ROCFLASH_UNROLL
          for (int i = 0; i < count; ++i) ds[i] = kept(i) ? ds[i] : 0.0f;
        }
      }
      ROCFLASH_UNROLL
      for (int i = 0; i < count; ++i) ds[i] -= delta;
      if constexpr (Types::full) {
        shape.template shape<count>([&](int) { return query.index; }, key,
                                    [&](int i) -> float& { return s[i]; },
                                    [&](int i, float slope) { ds[i] *= slope; });
        unit = 1;
      }

      // dS = P (dP − delta)
      ROCFLASH_UNROLL
      for (int i = 0; i < count; ++i) {
        const float weight = arch::exp2(s[i] * unit - lse);
        ds[i] *= weight;
        if constexpr (Types::full) ds[i] = weight == 0 ? 0.0f : ds[i];
      }
      if (begin < seen_by_all.begin || end > seen_by_all.end) {
        ROCFLASH_UNROLL
        for (int i = 0; i < count; ++i) ds[i] = query.sees(key(i)) ? ds[i] : 0.0f;
      }

      // dQᵀ += Kᵀ·dS
      add_product<tile.streamed>(dq, typename Types::TurnedOperand{shared_kt[buffer]},
                                 rounded_weights<spec.dtype>(gradients));
    }
    if constexpr (buffers == 1) arch::barrier();
    if (n + 1 < tiles) store(n + 1);
  }
  finish_queries<spec>(arch::again(a), dq);
}

}  // namespace rocflash::kernel
