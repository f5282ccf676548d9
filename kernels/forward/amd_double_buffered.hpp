// Forward on AMD GPUs with double-buffered K and V tiles. Each workgroup has one block of queries,
// each of its waves `Mma::columns` of them, and loops over the key tiles.
//
//   VGPRs   Q (whole head dim), S of one tile, O, the next K and V tiles in flight
//   LDS     K row-major and V transposed, two buffers of each
//
// Iteration: issue the loads of the next tile; S = K·Qᵀ; softmax; O += P·V; next tile to LDS;
// barrier. One barrier per iteration suffices: a buffer is overwritten one iteration after its last
// read, and all waves have passed a barrier in between.
//
// CDNA's specialized kernels use the ping-pong schedule instead (forward/cdna_pingpong.hpp).
#pragma once

#include "forward/amd_common.hpp"
#include "forward/cdna_pingpong.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
void forward_double_buffered(const ForwardArguments& a) {
  using Types = ForwardTypes<spec>;
  using Scores = typename Types::Scores;
  constexpr ForwardTile tile = Types::tile;
  constexpr bool generic = Types::generic;

  ROCFLASH_SHARED_ARRAY Words4 shared_keys[2][Types::Keys::chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_values[2][Types::Values::Tile::chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_queries[Types::waves][Types::Queries::shared_chunks];

  const Problem& p = a.problem;
  const WorkTile item(a.work, static_cast<std::int32_t>(p.heads), arch::workgroup_id());
  zero_unused_rows<tile.threads>(a, item, spec.dtype);
  const SequenceView sequence(p, item.batch);
  const std::int32_t block_begin = item.block * tile.queries;
  if (block_begin >= sequence.q_rows) return;
  const std::int32_t wave_begin = block_begin + arch::wave() * Types::wave_queries;
  const VisibleKeys wave_keys(p.visibility, sequence, wave_begin, Types::wave_queries);
  const Span visible_to_wave = wave_keys.by_any, visible_to_all = wave_keys.by_all;
  // After the bounds of the wave: shared subexpressions would else move to the VALU.
  const QueryView query(p.visibility, sequence, wave_begin + Scores::lane_column());

  const Scale scale(p.scale);
  using QueryBlock = typename Types::QueryBlock;
  const QueryBlock q_rows(p.q, 0, sequence.batch, sequence.q_row + wave_begin,
                          sequence.sq - wave_begin, item.head);
  const typename Types::Queries q(shared_queries[arch::wave()], [&](int row, int chunk) {
    Words4 words = q_rows.load8(QueryBlock::offset(p.q, row, chunk_elements<spec.dtype> * chunk));
    if (scale.negate_q) words = negated<spec.dtype>(words);
    return words;
  });

  const Range visible = VisibleKeys(p.visibility, sequence, block_begin, tile.queries).by_any;
  const auto first_key = static_cast<std::int32_t>(visible.begin / dropout_keys * dropout_keys);
  const std::int32_t tiles =
      visible.empty()
          ? 0
          : (static_cast<std::int32_t>(visible.end) - first_key + tile.keys - 1) / tile.keys;

  const ScoreMod score_mod(p, sequence, item.head);
  typename Types::Softmax softmax;
  typename Types::Outputs out = {};
  KvStaging<spec> next(a, sequence, p.kv_head(item.head), first_key);
  const auto load = [&] {
    next.advance_k();
    next.load_k();
    next.advance_v();
    next.load_v();
  };
  const auto store = [&](int buffer) {
    next.store_k(shared_keys[buffer]);
    next.store_v(shared_values[buffer]);
  };
  // The generic load is long: its prologue is iteration −1 of the loop, so that its code exists
  // once.
  std::int32_t n = generic ? -1 : 0;
  if constexpr (!generic) {
    if (tiles > 0) {
      load();
      store(0);
    }
    arch::barrier();
  }
  for (; n < tiles; ++n) {
    const bool has_next = n + 1 < tiles;
    const int buffer = n & 1;
    if (has_next) load();
    const std::int32_t begin = first_key + n * tile.keys, end = begin + tile.keys;
    if ((!generic || n >= 0) && begin < visible_to_wave.end && end > visible_to_wave.begin) {
      // S = K·Qᵀ
      Scores scores =
          product<Scores, spec.bucket>(typename Types::KeyOperand{shared_keys[buffer]}, q);
      float (&s)[Scores::per_column] = scores.at[0];
      const auto at = [&](int i) -> float& { return s[i]; };
      const auto key = [&, offset = begin + Scores::lane_row()](int i) {
        return offset + Scores::row(i);
      };
      if constexpr (generic)
        score_mod.template apply<Scores::per_column, typename Types::Domain>(OneQuery{query.index},
                                                                             key, at);
      if (begin < visible_to_all.begin || end > visible_to_all.end) {
        ROCFLASH_UNROLL
        for (int i = 0; i < Scores::per_column; ++i)
          s[i] = query.attends_to(key(i)) ? s[i] : -infinity;
      }

      // P = exp(S · scale − row max)
      const float score_scale = generic ? 1 : scale.softmax_scale;
      const float largest = column_maximum(scores, 0) * score_scale;
      if (arch::any(softmax.needs_rescale(largest))) out.scale(softmax.rescale(largest));
      softmax.sum += exp_and_sum<typename Types::Domain>(scores, 0, score_scale, softmax.base());
      if constexpr (generic) {
        constexpr int run = layout::results_within<typename Scores::Layout>(dropout_keys);
        if (p.dropout.on()) score_mod.template drop<Scores::per_column, run>(query.index, key, at);
      }

      // O += P·V
      add_product<tile.keys>(out, typename Types::ValueOperand{shared_values[buffer]},
                             rounded_weights<spec.dtype>(scores));
    }
    if (has_next) store(1 - buffer);
    arch::barrier();
  }

  const NonFiniteQueries non_finite = store_outputs<spec>(
      arch::reload_kernargs(a), OutputPosition(arch::reload_kernargs(a)), softmax, out);
  if (non_finite.lanes != 0)
    recompute_rows<spec>(arch::reload_kernargs(a), OutputPosition(arch::reload_kernargs(a)),
                         non_finite);
}

template <KernelSpec spec>
void forward(const ForwardArguments& a) {
  if constexpr (ForwardTypes<spec>::pingpong) {
    forward_pingpong<spec>(a);
  } else {
    forward_double_buffered<spec>(a);
  }
}

template <KernelSpec spec>
void forward_tail_split(const ForwardArguments& a) {
  forward_pingpong<spec>(a);
}

}  // namespace rocflash::kernel
