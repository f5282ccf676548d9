// dV on AMD GPUs in a separate kernel, where registers do not hold dK as well.
//
// Specialized kernels above 128 columns on gfx90a and gfx942 have a software-pipelined schedule.
// One wave per SIMD: everything else is interleaved with matrix instructions. P of a tile is
// computed during S of the next. LDS has one q tile and one dout tile: one is written while the
// other is read.
//
//   S of the next tile     P = exp2(S - lse) of this tile; write dout of this tile to LDS, load the
//                          next
//   barrier
//   dVᵀ += dOᵀ·P           write q of the tile after the next to LDS, load the following; lse
//   barrier
//
// All waves compute all tiles that attend to any key of the workgroup: few of them are masked for a
// wave.
#pragma once

#include "backward/cdna_query_stream.hpp"
#include "tile/fragment_prefetch.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
void dv_pipelined(const BackwardArguments& a) {
  using Types = BackwardTypes<spec>;
  using Mma = typename Types::Mma;
  using Scores = typename Types::Scores;
  using Block = typename Types::Block;
  constexpr BackwardTile tile = Types::tile;
  constexpr int count = Types::count;

  ROCFLASH_SHARED_ARRAY Words4 shared_q[Types::Streamed::chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_dout[Types::TransposedTile::Tile::chunks];
  alignas(16) ROCFLASH_SHARED_ARRAY float shared_statistics[RowStatisticsStaging<Types>::elements];

  const Problem& p = a.problem;
  const BackwardTensors& t = a.tensors;
  const auto [item, sequence, block_begin, wave_begin] = KeyBlockPosition<spec>(a);
  if (block_begin >= sequence.sk) return;
  const Span visible_to_all =
      uniform(AttendingQueries(p.visibility, sequence, wave_begin, Types::wave_rows).all);
  const KeyView key(p.visibility, sequence, wave_begin + Scores::lane_column());
  const Scale scale(p.scale);
  constexpr int score_steps = spec.bucket / Mma::depth;
  const auto k = to_agprs<Mma, score_steps>(
      load_owned_rows<Types>(p.k, sequence.batch, sequence.k_row + wave_begin,
                             sequence.sk - wave_begin, item.head, scale.negate_q, nullptr));

  const QueryTileRange<Types> query_tiles(a, sequence, item, block_begin);
  const std::int32_t tiles = query_tiles.tiles;
  TilePointer q_pointer = query_tiles.pointer(p.q), dout_pointer = query_tiles.pointer(t.dout);
  const std::int32_t q_bytes = query_tiles.row_bytes(p.q),
                     dout_bytes = query_tiles.row_bytes(t.dout);
  typename Types::RowMajorStaging q(p.q);
  typename Types::TransposedStaging dout(t.dout);
  RowStatisticsStaging<Types> statistics(t.lse, a.delta, sequence.batch, query_tiles.first_head,
                                         query_tiles.first_row, tiles);
  // The next tile of each tensor. After the last tile there are no rows to load.
  TileIndex now{0, tiles > 0 ? query_tiles.gqa_group : 0}, q_tile = now, dout_tile = now,
                                                           lse_tile = now;
  std::int32_t lse_rows = 0;  // that were loaded
  const auto advance = [&](TileIndex& tile_index) {
    // Keeps the condition, and all scalars that depend on it, in SGPRs.
    const bool last = arch::uniform(tile_index.last(tiles) ? 1 : 0) != 0;
    tile_index = tile_index.after(tiles);
    return last;
  };
  const auto load_q = [&] {
    q.load(Block(q_pointer.at, query_tiles.rows_of(q_tile) * q_bytes));
    q_pointer.next(advance(q_tile));
  };
  const auto load_dout = [&] {
    dout.load(Block(dout_pointer.at, query_tiles.rows_of(dout_tile) * dout_bytes));
    dout_pointer.next(advance(dout_tile));
  };
  const auto load_lse = [&] {
    lse_rows = query_tiles.rows_of(lse_tile);
    statistics.load(lse_rows);
    const bool last = advance(lse_tile);
    if (arch::uniform(lse_tile.heads) > 0) statistics.next(last);
  };
  constexpr int q_stores = Types::RowMajorStaging::stores,
                dout_stores = Types::TransposedStaging::stores;

  typename Types::Sums dv = {};
  Scores scores;
  float (&s)[count] = scores.at[0];
  RegisterFragments<Mma, tile.streamed / Mma::depth> weights;
  constexpr int sum_parts = Types::Sums::row_parts,
                sum_steps = sum_parts * (tile.streamed / Mma::depth);
  const int lane_row = Scores::lane_row();
  const typename Types::StreamedOperand q_rows{shared_q};
  const typename Types::TransposedOperand dout_transposed{shared_dout};
  const ROCFLASH_SHARED Float4* const lse_of =
      (const ROCFLASH_SHARED Float4*)(shared_statistics + lane_row);
  constexpr int prefetch_depth = 6;

  // S of the tile in LDS and, with `computes_weights`, P of the previous tile.
  const auto next_scores = [&]<bool computes_weights>() {
    Float4 lse[count / 4];
    if constexpr (computes_weights) {
      ROCFLASH_UNROLL
      for (int i = 0; i < count / 4; ++i) lse[i] = lse_of[Scores::row(4 * i) / 4];
      mask_lse<Types>(lse, key, visible_to_all, query_tiles.first_query + now.tile * tile.streamed);
    }
    typename Mma::Result sum = {};
    const auto interleaved = [&]<int n>() {
      distribute<n>(0, score_steps / 2, dout_stores,
                    [&](int i) { dout.store_one(i, shared_dout); });
      if (n == score_steps / 2) load_dout();
      if (n == score_steps / 2 + 1) load_lse();
      distribute<n>(3, score_steps - 3, count, [&](int i) {
        s[i] = arch::exp2(s[i] * scale.softmax_scale - lse[i / 4][i % 4]);
        if (i % 2 == 1)
          weights.step_[i / 8][i % 8 / 2] = narrow_weights<spec.dtype>(s[i - 1], s[i]);
      });
    };
    prefetch_fragments_paced<Mma, score_steps, prefetch_depth>(
        [&](int n) { return q_rows.fragment(0, n); },
        [&]<int n>(const typename Mma::Operand& left) {
          sum = Mma::multiply_interleaved(left, k.fragment(0, n), sum, [&] {
            arch::sched_barrier();
            if constexpr (computes_weights) interleaved.template operator()<n>();
            arch::sched_barrier();
          });
          arch::pin_vgpr(sum);
        });
    ROCFLASH_UNROLL
    for (int r = 0; r < Mma::results; ++r) s[r] = sum[r];
  };
  const auto add_values = [&] {
    prefetch_fragments_paced<Mma, sum_steps, prefetch_depth>(
        [&](int n) { return dout_transposed.fragment(n % sum_parts, n / sum_parts); },
        [&]<int n>(const typename Mma::Operand& left) {
          typename Mma::Result& sum = dv.part[n % sum_parts][0];
          sum = Mma::multiply_interleaved(left, weights.step_[n / sum_parts], sum, [&] {
            arch::sched_barrier();
            distribute<n>(0, sum_steps / 2, q_stores, [&](int i) { q.store_one(i, shared_q); });
            if (n == sum_steps / 2) load_q();
            if (n == sum_steps / 2 + 1) statistics.store(shared_statistics, lse_rows);
            if (n == sum_steps / 2 + 2) now = now.after(tiles);
            arch::sched_barrier();
          });
        });
  };
  static_assert(Scores::row_parts == 1);

  if (tiles > 0) {
    load_q();
    load_dout();
    load_lse();
    q.store(shared_q);
    statistics.store(shared_statistics, lse_rows);
    load_q();
    arch::barrier();
    next_scores.template operator()<false>();
    arch::barrier();
    q.store(shared_q);
    load_q();
    for (std::int32_t n = 0; n < tiles * query_tiles.gqa_group; ++n) {
      arch::barrier();
      next_scores.template operator()<true>();
      arch::barrier();
      add_values();
    }
  }
  epilogue_dk_dv<spec, false, true>(a, {}, dv);
}

template <KernelSpec spec>
void backward_dv(const BackwardArguments& a) {
  if constexpr (pipelines_dv(this_family, spec)) {
    dv_pipelined<spec>(a);
  } else {
    main_dk_dv<spec, false, true>(a);
  }
}

}  // namespace rocflash::kernel
