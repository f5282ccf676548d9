// MLA decode on AMD GPUs over a latent KV cache (decode/mla.hpp): each cached row is read once, by
// four waves that split its columns.
//
//   VGPRs   the wave's columns of Q, S of one tile, the wave's columns of O, the next tile
//   LDS     the wave's columns of one tile: row-major for S, then transposed for O; partial scores
//           of two tiles, double-buffered
//
// Both products are transposed, as in decode/amd.hpp. One barrier per tile: the waves exchange
// their partial scores and add them in the same order, so that all have the same P.
#pragma once

#include "arch/arch.hpp"
#include "attention/online_softmax.hpp"
#include "attention/score_mod.hpp"
#include "decode/amd_epilogue.hpp"
#include "decode/amd_scores.hpp"
#include "decode/amd_staged.hpp"
#include "decode/mla.hpp"

namespace rocflash::kernel {

template <bool transposing, class Values, int row_bytes, int rows>
struct SelectKeyTile {
  using Type = RowTile<row_bytes, rows>;
};
template <class Values, int row_bytes, int rows>
struct SelectKeyTile<true, Values, row_bytes, rows> {
  using Type = typename Values::Tile;  // one layout serves both products
};

template <KernelSpec spec>
struct MlaTypes {
  static constexpr DType dtype = spec.dtype;
  static constexpr DecodeTile tile = decode_tile(this_family, spec);
  using Mma = arch::Mma<dtype>;
  static_assert(tile.rows == Mma::columns && tile.keys == Mma::rows);
  static_assert(tile.waves(arch::wave_size) == mla_waves);

  using Values = Transposed<Mma, dtype, own_values, tile.keys>;
  using ValueOperand = typename Values::Operand;  // Vᵀ
  using Keys = typename SelectKeyTile<arch::has_ds_read_tr, Values,
                                      own_values * element_bytes<dtype>, tile.keys>::Type;
  using KeyOperand = SharedOperand<Mma, Keys, Side::left>;                        // K
  using Queries = ResidentOperand<Mma, dtype, own_columns, tile.shared_queries>;  // Qᵀ
  using Scores = Elements<Mma, tile.keys, tile.rows>;
  using Outputs = Accumulators<Mma, own_values, tile.rows>;  // of Oᵀ

  static constexpr int tile_chunks =
      Keys::chunks > Values::Tile::chunks ? Keys::chunks : Values::Tile::chunks;
  static constexpr int score_quads = Mma::results / 4;  // of a lane
};

// Register staging of the wave's columns of a tile.
template <KernelSpec spec>
class MlaStaging {
  using Types = MlaTypes<spec>;
  using Mma = typename Types::Mma;

 public:
  typename SelectStagedTile<arch::has_ds_read_tr, typename Types::Values::Tile,
                            typename Mma::Layout, spec.dtype, own_values, Types::tile.keys>::Type
      rows;
  DirectFragments<Mma, spec.dtype, own_rest> rest;  // RoPE columns, in K only

  MlaStaging(const DecodeArguments& a, const SequenceView& s, std::int32_t kv_head)
      : a_(a), sequence_(s), head_(kv_head) {}

  // Issues the loads of the tile from `key` on, of which `left` rows exist.
  void load(std::int32_t key, std::int32_t left) {
    const DecodeArguments& a = arch::reload_kernargs(a_);
    const auto visit = [&](int first, auto with) {
      // Columns out of bounds are clamped to valid ones: Q is 0 there.
      Rows columns = a.problem.k;
      if (first < columns.columns) {
        columns.data += first * element_bytes<spec.dtype>;
        columns.columns -= first;
      }
      visit_rows<spec.dtype, Types::tile.keys>(columns, a.caches, sequence_, key, left, head_,
                                               with);
    };
    visit(mla_column(arch::wave(), 0),
          [&](const Rows& from, const auto& block) { load_tile(rows, from, block); });
    visit(mla_column(arch::wave(), own_values),
          [&](const Rows& from, const auto& block) { load_tile(rest, from, block); });
  }

  void store_rows(SharedWords4* tile) const {
    const int lane = arch::opaque_lane();
    ROCFLASH_UNROLL
    for (int n = 0; n < decltype(rows)::rounds; ++n)
      rows.template store_rows<typename Types::Keys>(tile, lane, n);
  }

 private:
  const DecodeArguments& a_;
  const SequenceView& sequence_;
  std::int32_t head_;
};

// Partial scores: K·Qᵀ over the wave's columns.
template <KernelSpec spec, class K, class Rest, class Q>
typename MlaTypes<spec>::Mma::Result multiply_columns(const K& k, const Rest& rest, const Q& q) {
  using Mma = typename MlaTypes<spec>::Mma;
  constexpr int steps = own_values / Mma::depth;
  typename Mma::Result sum = {};
  ROCFLASH_UNROLL
  for (int step = 0; step < steps; ++step) {
    sum = Mma::multiply(k.fragment(0, step), q.fragment(0, step), sum);
    if (step % 2 == 1) arch::sched_barrier(sum);
  }
  return Mma::multiply(rest.fragment(0, 0), q.fragment(0, steps), sum);
}

// Epilogue: the wave's columns of the partial result. It computes the work tile again, so that the
// main loop need not keep it in registers.
template <KernelSpec spec>
void store_columns(const DecodeArguments& a, const GenericSoftmax& softmax,
                   const typename MlaTypes<spec>::Outputs& out) {
  using Types = MlaTypes<spec>;
  const DecodeWorkTile item(a, arch::workgroup_id());
  const SequenceView sequence(a.problem, item.batch);
  const KeySplit split(a, sequence, item.block, Types::tile.rows, item.split, a.splits,
                       Types::tile.keys);
  const int wave = arch::wave();
  store_partial_results<spec.dtype, Types, MlaResults<spec.dtype>>(
      a, item, sequence, split, {item.split, wave * own_values, wave == 0}, softmax, out);
}

template <KernelSpec spec>
void decode_mla(const DecodeArguments& a) {
  using Types = MlaTypes<spec>;
  using Mma = typename Types::Mma;
  using Scores = typename Types::Scores;
  constexpr DecodeTile tile = Types::tile;

  ROCFLASH_SHARED_ARRAY Words4 shared_rows[mla_waves][Types::tile_chunks];
  ROCFLASH_SHARED_ARRAY Float4
      shared_partial_scores[2][mla_waves][Types::score_quads][arch::wave_size];
  ROCFLASH_SHARED_ARRAY Words4 shared_queries[mla_waves][Types::Queries::shared_chunks];

  // Work tile: packed rows, split of the keys, row of the lane.
  const Problem& p = a.problem;
  const DecodeWorkTile item(a, arch::workgroup_id());
  const SequenceView sequence(p, item.batch);
  const int wave = arch::wave();
  const KeySplit split(a, sequence, item.block, tile.rows, item.split, a.splits, tile.keys);
  if (split.rows == 0) return;
  const auto gqa_group = static_cast<std::uint32_t>(a.gqa_group);
  const int lane_row = Scores::lane_column();
  const PackedRow packed(split.row_begin + lane_row, gqa_group, item.kv_head);
  const QueryView query = split.view(p, sequence, packed.query);

  MlaStaging<spec> next(a, sequence, item.kv_head);
  if (!split.empty()) next.load(split.begin, split.end - split.begin);

  const GenericScale scale(p.scale);
  const typename Types::Queries q(shared_queries[wave], [&](int row, int chunk) {
    constexpr int chunk_columns = chunk_elements<spec.dtype>;
    const Words4 words =
        query_chunk<spec.dtype>(p.q, sequence, split, gqa_group, item.kv_head, row,
                                mla_column(wave, chunk * chunk_columns) / chunk_columns);
    return scale.negate_q ? negated<spec.dtype>(words) : words;
  });

  const bool modifies_scores = has_score_modifiers(p);
  const float score_scale = modifies_scores ? 1 : scale.softmax_scale;
  GenericSoftmax softmax;
  typename Types::Outputs out = {};
  int buffer = 0;
  for (std::int32_t begin = split.begin; begin < split.end; begin += tile.keys, buffer ^= 1) {
    const std::int32_t end = begin + tile.keys;
    arch::wave_fence();
    next.store_rows(shared_rows[wave]);
    arch::wave_fence();
    const typename Mma::Result partial_scores =
        multiply_columns<spec>(typename Types::KeyOperand{shared_rows[wave]}, next.rest, q);
    if constexpr (!arch::has_ds_read_tr) {
      arch::wave_fence();
      store_tile(next.rows, shared_rows[wave]);
    }
    arch::sched_barrier();
    if (end < split.end) next.load(end, split.end - end);

    // S = K·Qᵀ: the partial scores of all waves, added in the same order in each of them
    Scores scores;
    float (&s)[Scores::per_column] = scores.at[0];
    ROCFLASH_UNROLL
    for (int n = 0; n < Types::score_quads; ++n)
      shared_partial_scores[buffer][wave][n][arch::lane()] =
          Float4{partial_scores[4 * n], partial_scores[4 * n + 1], partial_scores[4 * n + 2],
                 partial_scores[4 * n + 3]};
    arch::barrier();
    ROCFLASH_UNROLL
    for (int n = 0; n < Types::score_quads; ++n) {
      Float4 sum = shared_partial_scores[buffer][0][n][arch::lane()];
      ROCFLASH_UNROLL
      for (int w = 1; w < mla_waves; ++w) sum += shared_partial_scores[buffer][w][n][arch::lane()];
      ROCFLASH_UNROLL
      for (int e = 0; e < 4; ++e) s[4 * n + e] = sum[e];
    }

    softmax_tile(a, sequence, split, item.kv_head, query, begin, end, modifies_scores, score_scale,
                 softmax, scores, out);

    // O += P·V
    accumulate_pv(out, typename Types::ValueOperand{shared_rows[wave]},
                  rounded_weights<spec.dtype>(scores), tile.keys);
  }
  store_columns<spec>(arch::reload_kernargs(a), softmax, out);
}

}  // namespace rocflash::kernel
