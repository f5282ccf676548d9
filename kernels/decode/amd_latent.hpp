// Decode on AMD GPUs where the values are the first columns of the keys (decode/latent.hpp): each row is read once,
// by four waves that divide its columns.
//
//   registers   the wave's columns of q, the scores of one tile, its columns of the outputs, the next tile
//   LDS         the wave's columns of one tile: as rows for the scores, then transposed for the outputs;
//               the waves' shares of the scores of two tiles, which take turns
//
// Everything is computed transposed, as in decode/amd.hpp. One barrier per tile: the waves exchange their shares of
// the scores, add them up in one order, and then hold the same weights.
#pragma once

#include "arch/arch.hpp"
#include "attention/score.hpp"
#include "attention/softmax.hpp"
#include "decode/amd_end.hpp"
#include "decode/amd_scores.hpp"
#include "decode/amd_staged.hpp"
#include "decode/latent.hpp"

namespace rocflash::kernel {

template <bool transposing, class Values, int row_bytes, int rows>
struct ChooseKeyTile {
  using Type = RowTile<row_bytes, rows>;
};
template <class Values, int row_bytes, int rows>
struct ChooseKeyTile<true, Values, row_bytes, rows> {
  using Type = typename Values::Tile;  // one form serves both products
};

template <KernelSpec spec>
struct LatentTypes {
  static constexpr DType dtype = spec.dtype;
  static constexpr DecodeTile tile = decode_tile(this_family, spec);
  using Mma = arch::Mma<dtype>;
  static_assert(tile.rows == Mma::columns && tile.keys == Mma::rows);
  static_assert(tile.waves(arch::wave_size) == latent_waves);

  using Values = Transposed<Mma, dtype, own_values, tile.keys>;
  using ValueOperand = typename Values::Operand;  // Vᵀ
  using Keys = typename ChooseKeyTile<arch::transposing_reads, Values,
                                      own_values * number_bytes<dtype>, tile.keys>::Type;
  using KeyOperand = SharedLines<Mma, Keys, Side::left>;                    // K
  using Queries = KeptLines<Mma, dtype, own_columns, tile.shared_queries>;  // Qᵀ
  using Scores = Elements<Mma, tile.keys, tile.rows>;
  using Outputs = Accumulators<Mma, own_values, tile.rows>;  // of Oᵀ

  static constexpr int tile_chunks =
      Keys::chunks > Values::Tile::chunks ? Keys::chunks : Values::Tile::chunks;
  static constexpr int share_quads = Mma::results / 4;  // of a lane
};

// The wave's columns of a tile on their way from memory.
template <KernelSpec spec>
class LatentStream {
  using Types = LatentTypes<spec>;
  using Mma = typename Types::Mma;

 public:
  typename ChooseStaged<arch::transposing_reads, typename Types::Values::Tile, typename Mma::Layout,
                        spec.dtype, own_values, Types::tile.keys>::Type rows;
  DirectLines<Mma, spec.dtype, own_rest> rest;  // keys alone, straight from memory

  LatentStream(const DecodeArguments& a, const SequenceView& s, std::int32_t kv_head)
      : a_(a), sequence_(s), head_(kv_head) {}

  // Starts the loads of the tile from `key` on, of which `left` rows exist.
  void load(std::int32_t key, std::int32_t left) {
    const DecodeArguments& a = arch::again(a_);
    const auto visit = [&](int first, auto with) {
      // Columns that do not exist repeat others: q is 0 there.
      Rows own = a.problem.k;
      if (first < own.columns) {
        own.data += first * number_bytes<spec.dtype>;
        own.columns -= first;
      }
      visit_rows<spec.dtype, Types::tile.keys>(own, a.caches, sequence_, key, left, head_, with);
    };
    visit(latent_column(arch::wave(), 0),
          [&](const Rows& from, const auto& block) { load_tile(rows, from, block); });
    visit(latent_column(arch::wave(), own_values),
          [&](const Rows& from, const auto& block) { load_tile(rest, from, block); });
  }

  void store_rows(SharedWords4* tile) const {
    const int lane = arch::renewed_lane();
    ROCFLASH_UNROLL
    for (int n = 0; n < decltype(rows)::rounds; ++n)
      rows.template store_rows<typename Types::Keys>(tile, lane, n);
  }

 private:
  const DecodeArguments& a_;
  const SequenceView& sequence_;
  std::int32_t head_;
};

// The wave's share of K · Qᵀ.
template <KernelSpec spec, class K, class Rest, class Q>
typename LatentTypes<spec>::Mma::Result multiply_columns(const K& k, const Rest& rest, const Q& q) {
  using Mma = typename LatentTypes<spec>::Mma;
  constexpr int steps = own_values / Mma::depth;
  typename Mma::Result sum = {};
  ROCFLASH_UNROLL
  for (int step = 0; step < steps; ++step) {
    sum = Mma::multiply(k.fragment(0, step), q.fragment(0, step), sum);
    if (step % 2 == 1) arch::end_phase(sum);
  }
  return Mma::multiply(rest.fragment(0, 0), q.fragment(0, steps), sum);
}

// The end: the wave's columns of the results. It computes its position again rather than keep it in registers during
// the loop.
template <KernelSpec spec>
void finish_columns(const DecodeArguments& a, const OnlineSoftmax& softmax,
                    const typename LatentTypes<spec>::Outputs& out) {
  using Types = LatentTypes<spec>;
  const DecodeItem item(a, arch::group());
  const SequenceView sequence(a.problem, item.batch);
  const DecodePart part(a, sequence, item.block, Types::tile.rows, item.split, a.splits,
                        Types::tile.keys);
  const int wave = arch::wave();
  finish_results<spec.dtype, Types, LatentResults<spec.dtype>>(
      a, item, sequence, part, {item.split, wave * own_values, wave == 0}, softmax, out);
}

template <KernelSpec spec>
void decode_latent(const DecodeArguments& a) {
  using Types = LatentTypes<spec>;
  using Mma = typename Types::Mma;
  using Scores = typename Types::Scores;
  constexpr DecodeTile tile = Types::tile;

  ROCFLASH_SHARED_ARRAY Words4 shared_rows[latent_waves][Types::tile_chunks];
  ROCFLASH_SHARED_ARRAY Float4 shared_shares[2][latent_waves][Types::share_quads][arch::wave_size];

  ROCFLASH_SHARED_ARRAY Words4 shared_queries[latent_waves][Types::Queries::shared_chunks];

  // The workgroup's rows, its part of the keys, and the lane's own row.
  const Problem& p = a.problem;
  const DecodeItem item(a, arch::group());
  const SequenceView sequence(p, item.batch);
  const int wave = arch::wave();
  const DecodePart part(a, sequence, item.block, tile.rows, item.split, a.splits, tile.keys);
  if (part.rows == 0) return;
  const auto group = static_cast<std::uint32_t>(a.group);
  const int own = Scores::lane_column();
  const PackedRow packed(part.row_begin + own, group, item.kv_head);
  const QueryView query = part.view(p, sequence, packed.query);

  LatentStream<spec> next(a, sequence, item.kv_head);
  if (!part.empty()) next.load(part.begin, part.end - part.begin);

  const Scale scale(p.scale);
  const typename Types::Queries q(shared_queries[wave], [&](int row, int chunk) {
    constexpr int numbers = chunk_numbers<spec.dtype>;
    const Words4 words = query_chunk<spec.dtype>(p.q, sequence, part, group, item.kv_head, row,
                                                 latent_column(wave, chunk * numbers) / numbers);
    return scale.turn_sign ? words ^ 0x80008000u : words;
  });

  const bool shaped = p.scale == 0 || p.softcap > 0 || p.alibi || p.bias || p.mask;
  const float unit = shaped ? 1 : scale.unit;
  OnlineSoftmax softmax;
  typename Types::Outputs out = {};
  int turn = 0;
  for (std::int32_t begin = part.begin; begin < part.end; begin += tile.keys, turn ^= 1) {
    const std::int32_t end = begin + tile.keys;
    arch::wave_fence();
    next.store_rows(shared_rows[wave]);
    arch::wave_fence();
    const typename Mma::Result share =
        multiply_columns<spec>(typename Types::KeyOperand{shared_rows[wave]}, next.rest, q);
    if constexpr (!arch::transposing_reads) {
      arch::wave_fence();
      store_tile(next.rows, shared_rows[wave]);
    }
    arch::end_phase();
    if (end < part.end) next.load(end, part.end - end);

    // scores = K · Qᵀ: the shares of all waves, in the same order in each of them
    Scores scores;
    float (&s)[Scores::per_column] = scores.at[0];
    ROCFLASH_UNROLL
    for (int n = 0; n < Types::share_quads; ++n)
      shared_shares[turn][wave][n][arch::lane()] =
          Float4{share[4 * n], share[4 * n + 1], share[4 * n + 2], share[4 * n + 3]};
    arch::barrier();
    ROCFLASH_UNROLL
    for (int n = 0; n < Types::share_quads; ++n) {
      Float4 sum = shared_shares[turn][0][n][arch::lane()];
      ROCFLASH_UNROLL
      for (int w = 1; w < latent_waves; ++w) sum += shared_shares[turn][w][n][arch::lane()];
      ROCFLASH_UNROLL
      for (int e = 0; e < 4; ++e) s[4 * n + e] = sum[e];
    }

    weights_of_scores(a, sequence, part, item.kv_head, query, begin, end, shaped, unit, softmax,
                      scores, out);

    // out += Vᵀ · Pᵀ
    add_values(out, typename Types::ValueOperand{shared_rows[wave]},
               rounded_weights<spec.dtype>(scores), tile.keys);
  }
  finish_columns<spec>(arch::again(a), softmax, out);
}

}  // namespace rocflash::kernel
