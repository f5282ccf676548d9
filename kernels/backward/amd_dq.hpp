// dQ on AMD GPUs: each workgroup owns a block of queries of one head, and tiles of keys stream
// through LDS (amd_common.hpp).
#pragma once

#include "backward/amd_common.hpp"

namespace rocflash::kernel {

// Epilogue. It recomputes the work tile instead of keeping it in registers during the main loop.
template <KernelSpec spec>
void epilogue_dq(const BackwardArguments& a, const typename BackwardTypes<spec>::Sums& dq) {
  using Types = BackwardTypes<spec>;
  const Problem& p = a.problem;
  const WorkTile item(a.work, static_cast<std::int32_t>(p.heads), arch::workgroup_id());
  const SequenceView sequence(p, item.batch);
  const std::int32_t first = item.block * Types::tile.owned + arch::wave() * Types::wave_rows;
  const float factor = p.scale * p.dropout.scale();
  const std::uint64_t non_finite =
      store_accumulator<Types>(p, a.tensors.dq, sequence.batch, sequence.q_row + first,
                               sequence.sq - first, item.head, dq, factor);
  recompute_rows(non_finite, [&](int row) {
    exact_dq<spec.dtype>(arch::reload_kernargs(a), sequence, item.head, first + row, factor);
  });
}

template <KernelSpec spec>
void backward_dq(const BackwardArguments& a) {
  using Types = BackwardTypes<spec>;
  using Scores = typename Types::Scores;
  using Block = typename Types::Block;
  using KeepMask = DropoutKeepMask<Types, false>;
  using Keys = StreamedTensor<Types, TileLayout::both>;
  using Values = StreamedTensor<Types, TileLayout::rows>;
  constexpr BackwardTile tile = Types::tile;
  constexpr int buffers = Types::buffers, count = Types::count;

  ROCFLASH_SHARED_ARRAY Words4 shared_k[buffers][Keys::row_chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_kt[buffers][Keys::transposed_chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_v[buffers][Values::row_chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_q[Types::waves][Types::Owned::shared_chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_dout[Types::waves][Types::Owned::shared_chunks];
  alignas(16) ROCFLASH_SHARED_ARRAY std::uint8_t
      shared_keep_mask[Types::waves][Types::generic ? KeepMask::bytes : 0];

  const Problem& p = a.problem;
  const BackwardTensors& t = a.tensors;
  const WorkTile item(a.work, static_cast<std::int32_t>(p.heads), arch::workgroup_id());
  const SequenceView sequence(p, item.batch);
  const std::int32_t block_begin = item.block * tile.owned;
  if (block_begin >= sequence.sq) return;
  const std::int32_t wave_begin = block_begin + arch::wave() * Types::wave_rows;
  const VisibleKeys wave_keys(p.visibility, sequence, wave_begin, Types::wave_rows);
  const Span visible_to_wave = uniform(wave_keys.by_any),
             visible_to_all = uniform(wave_keys.by_all);
  const QueryView query(p.visibility, sequence, wave_begin + Scores::lane_column());

  const Scale scale(p.scale);
  const auto owned = [&](const Rows& rows, bool negate, SharedWords4* lds) {
    return load_owned_rows<Types>(rows, sequence.batch, sequence.q_row + wave_begin,
                                  sequence.sq - wave_begin, item.head, negate, lds);
  };
  typename Types::Owned q = owned(p.q, scale.negate_q, shared_q[arch::wave()]);
  typename Types::Owned dout = owned(t.dout, false, shared_dout[arch::wave()]);
  typename Types::RowExponent exponent;
  float delta = 0;
  if (query.index < sequence.sq) {
    const std::int64_t row = sequence.q_row + query.index;
    exponent = {a, sequence.batch, item.head, row,
                arch::load(&t.lse.at(sequence.batch, item.head, row))};
    delta = arch::load(&a.delta.at(sequence.batch, item.head, row));
  }

  const Range visible = VisibleKeys(p.visibility, sequence, block_begin, tile.owned).by_any;
  const auto first_key = static_cast<std::int32_t>(visible.begin / dropout_keys * dropout_keys);
  const std::int32_t tiles =
      visible.empty() ? 0
                      : (static_cast<std::int32_t>(visible.end) - first_key + tile.streamed - 1) /
                            tile.streamed;

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

  const ScoreModGradient score_mod(p, sequence, item.head);
  typename Types::Sums dq = {};
  // In generic kernels a load is long code: the first tile is loaded in an extra iteration.
  if (!Types::generic && tiles > 0) {
    load(0);
    store(0);
  }
  for (std::int32_t n = Types::generic ? -1 : 0; n < tiles; ++n) {
    if (n + 1 < tiles) load(n + 1);
    arch::barrier();

    const int buffer = n & (buffers - 1);
    const std::int32_t begin = first_key + n * tile.streamed, end = begin + tile.streamed;
    if ((!Types::generic || n >= 0) && begin < visible_to_wave.end && end > visible_to_wave.begin) {
      // S = K·Qᵀ, dP = V·dOᵀ
      q.rematerialize_addresses();
      dout.rematerialize_addresses();
      const int line = streamed_line<Types>();
      using Operand = typename Types::StreamedOperand;
      Scores scores =
          product<Scores, spec.bucket, Types::together>(Operand{shared_k[buffer], line}, q);
      Scores gradients =
          product<Scores, spec.bucket, Types::together>(Operand{shared_v[buffer], line}, dout);
      float (&s)[count] = scores.at[0], (&ds)[count] = gradients.at[0];
      if constexpr (Types::generic || tile.shared_owned) {
        arch::pin_vgpr(s);
        arch::pin_vgpr(ds);
      }
      const auto key = [&, offset = begin + Scores::lane_row()](int i) {
        return offset + Scores::row(i);
      };
      if constexpr (Types::generic) {
        if (p.dropout.on()) {
          KeepMask kept;
          kept.draw(shared_keep_mask[arch::wave()], score_mod, wave_begin, begin);
          ROCFLASH_UNROLL
          for (int i = 0; i < count; ++i) ds[i] = kept(i) ? ds[i] : 0.0f;
        }
      }
      ROCFLASH_UNROLL
      for (int i = 0; i < count; ++i) ds[i] -= delta;
      if constexpr (Types::generic) {
        score_mod.template apply<count, FastNaturalLogDomain>(
            OneQuery{query.index}, key, [&](int i) -> float& { return s[i]; },
            [&](int i, float slope) { ds[i] *= slope; });
      }

      // dS = P (dP − delta)
      ROCFLASH_UNROLL
      for (int i = 0; i < count; ++i) {
        const float weight = Types::weight(s[i], scale.softmax_scale, exponent);
        ds[i] *= weight;
        if constexpr (Types::generic) ds[i] = weight == 0 ? 0.0f : ds[i];
      }
      if (begin < visible_to_all.begin || end > visible_to_all.end) {
        ROCFLASH_UNROLL
        for (int i = 0; i < count; ++i) ds[i] = query.attends_to(key(i)) ? ds[i] : 0.0f;
      }

      // dQᵀ += Kᵀ·dS
      add_product<tile.streamed>(dq, typename Types::TransposedOperand{shared_kt[buffer]},
                                 rounded_weights<spec.dtype>(gradients));
    }
    if constexpr (buffers == 1) arch::barrier();
    if (n + 1 < tiles) store(n + 1);
  }
  epilogue_dq<spec>(arch::reload_kernargs(a), dq);
}

}  // namespace rocflash::kernel
