// Fused backward of specialized kernels on CDNA (amd_fused.hpp), software-pipelined by hand: the
// five products are one sequence of matrix-instruction steps, with all other work interleaved.
#pragma once

#include "backward/amd_ds_exchange.hpp"
#include "backward/cdna_query_stream.hpp"
#include "tile/fragment_prefetch.hpp"

namespace rocflash::kernel {

// The part of a dQ tile that a wave computes: some column blocks for one block of queries.
template <class Types>
struct DqTilePartition {
  using Mma = typename Types::Mma;
  static constexpr int streamed = Types::tile.streamed, owned = Types::tile.owned;
  static constexpr int column_parts = Types::bucket / Mma::columns;
  static constexpr int parts = column_parts * (streamed / Mma::rows) / Types::waves;
  static constexpr int waves_per_query = column_parts / parts;
  static_assert(parts >= 1 && parts * waves_per_query == column_parts);
  static_assert(waves_per_query * (streamed / Mma::rows) == Types::waves);

  static int query_part() {
    return streamed == Mma::rows ? 0 : static_cast<unsigned>(arch::wave()) / waves_per_query;
  }
  static int column_part(int n) {
    return static_cast<unsigned>(arch::wave()) % waves_per_query * parts + n;
  }

  using Exchange = ScoreExchange<Mma, streamed, owned>;
};

// The wave's columns of K, the B operand of dS·K, in registers.
template <class Types>
class KeyColumns {
  using DqTile = DqTilePartition<Types>;
  using Mma = typename Types::Mma;
  using Block = typename Types::Block;
  static constexpr int rows = Types::tile.streamed, tiles = Types::tile.owned / rows,
                       steps = rows / Mma::depth;

 public:
  // Transposes through an LDS tile that is not in use yet.
  KeyColumns(const Rows& k, std::int64_t batch, std::int64_t first, std::int32_t count,
             std::int64_t head, SharedWords4* lds) {
    typename Types::TransposedStaging staging(k);
    ROCFLASH_UNROLL
    for (int n = 0; n < tiles; ++n) {
      staging.load(Block(k, 0, batch, first + n * rows, count - n * rows, head));
      staging.store(lds);
      arch::barrier();
      ROCFLASH_UNROLL
      for (int part = 0; part < DqTile::parts; ++part) {
        ROCFLASH_UNROLL
        for (int step = 0; step < steps; ++step)
          fragment_[part][n * steps + step] =
              typename Types::TransposedOperand{lds}.fragment(DqTile::column_part(part), step);
      }
      arch::barrier();
    }
  }
  typename Mma::Operand fragment(int part, int step) const { return fragment_[part][step]; }

 private:
  typename Mma::Operand fragment_[DqTile::parts][Types::tile.owned / Mma::depth];
};

// Types, buffers and the order of matrix-instruction steps.
template <KernelSpec spec>
struct PipelinedTypes : BackwardTypes<spec> {
  using Base = BackwardTypes<spec>;
  using Base::tile, Base::bucket;
  using typename Base::Mma, typename Base::Scores, typename Base::Sums;
  static constexpr bool computes_dv = fused_gives_dv(this_family, spec.bucket);
  static constexpr bool double_buffered = this_family == Family::cdna4;  // LDS holds two tiles
  static constexpr int buffers = double_buffered ? 2 : 1;

  using Staging = typename Base::BothStaging;
  using DoutStaging =
      typename StreamedTensor<Base, computes_dv ? TileLayout::both : TileLayout::rows>::Staging;
  using DqTile = DqTilePartition<Base>;
  using Exchange = typename DqTile::Exchange;

  // Steps of the five products, in order.
  static constexpr int dq_steps = tile.owned / Mma::depth, score_depth = bucket / Mma::depth;
  static constexpr int score_steps = Scores::row_parts * score_depth;
  static constexpr int sum_parts = Sums::row_parts,
                       sum_steps = sum_parts * (tile.streamed / Mma::depth);
  static constexpr int s_at = dq_steps, dp_at = s_at + score_steps, dv_at = dp_at + score_steps,
                       dk_at = dv_at + (computes_dv ? sum_steps : 0), all_steps = dk_at + sum_steps;

  // In LDS.
  struct Shared {
    Words4 q[buffers][Base::Streamed::chunks];
    Words4 qt[buffers][Base::TransposedTile::Tile::chunks];
    Words4 dout[buffers][Base::Streamed::chunks];
    Words4 doutt[buffers][computes_dv ? Base::TransposedTile::Tile::chunks : 0];
    Words4 ds[buffers][Exchange::chunks];
    alignas(16) float statistics[buffers][RowStatisticsStaging<Base>::elements];
  };
};

// Loads the query tiles one after the other: q, dout, lse and delta, staged in registers.
template <class Types>
class QueryTileLoader {
  using Block = typename Types::Block;
  using Staging = typename Types::Staging;
  using DoutStaging = typename Types::DoutStaging;

 public:
  static constexpr int stores = Staging::stores + DoutStaging::stores + 1;

  QueryTileLoader(const BackwardArguments& a, const QueryTileRange<typename Types::Base>& tiles,
                  ROCFLASH_SHARED typename Types::Shared& shared)
      : tiles_(tiles),
        shared_(shared),
        q_pointer_(tiles.pointer(a.problem.q)),
        dout_pointer_(tiles.pointer(a.tensors.dout)),
        q_bytes_(tiles.row_bytes(a.problem.q)),
        dout_bytes_(tiles.row_bytes(a.tensors.dout)),
        q_(a.problem.q),
        dout_(a.tensors.dout),
        statistics_(a.tensors.lse, a.delta, tiles.batch, tiles.first_head, tiles.first_row,
                    tiles.tiles),
        loaded_(tiles.first()) {}

  void load_q() { q_.load(Block(q_pointer_.at, tiles_.rows_of(loaded_) * q_bytes_)); }
  void load_dout() { dout_.load(Block(dout_pointer_.at, tiles_.rows_of(loaded_) * dout_bytes_)); }
  // Advances to the next tile. After the last tile there is nothing to load; the statistics'
  // addresses stay valid.
  void load_statistics() {
    stored_rows_ = tiles_.rows_of(loaded_);
    statistics_.load(stored_rows_);
    // Keeps the condition, and all scalars that depend on it, in SGPRs.
    const bool last = arch::uniform(loaded_.last(tiles_.tiles) ? 1 : 0) != 0;
    q_pointer_.next(last);
    dout_pointer_.next(last);
    loaded_ = loaded_.after(tiles_.tiles);
    if (arch::uniform(loaded_.heads) > 0) statistics_.next(last);
  }
  void load() {
    load_q();
    load_dout();
    load_statistics();
  }
  // Part n of `stores` of the loaded tile to LDS.
  void store_one(int n, int buffer) {
    if (n < Staging::stores) {
      q_.store_one(n, shared_.q[buffer], shared_.qt[buffer]);
    } else if (n < stores - 1) {
      dout_.store_one(n - Staging::stores, shared_.dout[buffer], shared_.doutt[buffer]);
    } else {
      statistics_.store(shared_.statistics[buffer], stored_rows_);
    }
  }
  void store(int buffer) {
    ROCFLASH_UNROLL
    for (int n = 0; n < stores; ++n) store_one(n, buffer);
  }

 private:
  const QueryTileRange<typename Types::Base>& tiles_;
  ROCFLASH_SHARED typename Types::Shared& shared_;
  TilePointer q_pointer_, dout_pointer_;
  std::int32_t q_bytes_, dout_bytes_;
  Staging q_;
  DoutStaging dout_;
  RowStatisticsStaging<typename Types::Base> statistics_;
  TileIndex loaded_;
  std::int32_t stored_rows_ = 0;  // of the loaded tile
};

// dQ of the previous tile, and its atomic adds to the accumulator. Also knows the current tile.
template <class Types>
class DqAdder {
  using Mma = typename Types::Mma;
  using Layout = typename Mma::Layout;
  using DqTile = typename Types::DqTile;
  static constexpr std::int32_t row_bytes = 4 * Types::bucket;

 public:
  static constexpr int adds = DqTile::parts * Mma::results;
  typename Mma::Result sums[DqTile::parts] = {};

  DqAdder(const BackwardArguments& a, const QueryTileRange<typename Types::Base>& tiles)
      : tiles_(tiles), pointer_(tiles.pointer(a.dq_accum, 4)), now_(tiles.first()) {
    pointer_.rewind();
  }
  std::int32_t first_query() const { return tiles_.first_query + now_.tile * Types::tile.streamed; }
  void add(int first, int last) {
    ROCFLASH_UNROLL
    for (int n = first; n < last; ++n) {
      // Under register pressure the base moves every fourth row: the rest fits the instruction's
      // offset field.
      const int part = n / Mma::results, r = n % Mma::results,
                row = Types::computes_dv ? 0 : Layout::register_row(r / 4 * 4);
      const arch::BufferResource to(
          pointer_.at + row * row_bytes,
          static_cast<std::uint32_t>(rows_ > row ? (rows_ - row) * row_bytes : 0));
      to.add(sums[part][r],
             static_cast<std::uint32_t>(offset_ + (Layout::register_row(r) - row) * row_bytes +
                                        4 * part * Mma::columns));
    }
  }
  void add_all() { add(0, adds); }
  // Advances to the next tile; dQ is that of the previous tile.
  void advance() {
    pointer_.next(now_.tile == 0);
    rows_ = tiles_.rows_of(now_);
    now_ = now_.after(tiles_.tiles);
  }

 private:
  const QueryTileRange<typename Types::Base>& tiles_;
  TilePointer pointer_;
  TileIndex now_;
  std::int32_t rows_ = 0;  // of the previous tile
  const int offset_ = arch::opaque_vgpr(
      (DqTile::query_part() * Mma::rows + Layout::lane_row(arch::lane())) * row_bytes +
      4 * (DqTile::column_part(0) * Mma::columns + Layout::lane_column(arch::lane())));
};

// What a wave keeps in registers over all tiles. The accumulators are transposed.
template <KernelSpec spec>
struct PipelinedWave {
  using Types = PipelinedTypes<spec>;
  using Mma = typename Types::Mma;
  static constexpr int depth = Types::score_depth;

  RegisterFragments<Mma, depth> k, v;
  KeyColumns<Types> columns;
  KeyView key;
  Span visible_to_all;
  float softmax_scale;
  typename Types::Sums dk = {}, dv = {};
};

// One tile: its matrix-instruction steps, and what is interleaved with them.
template <KernelSpec spec>
class PipelinedTile {
  using Types = PipelinedTypes<spec>;
  using Mma = typename Types::Mma;
  using Scores = typename Types::Scores;
  using DqTile = typename Types::DqTile;
  using Exchange = typename Types::Exchange;
  using Loader = QueryTileLoader<Types>;
  static constexpr BackwardTile tile = Types::tile;
  static constexpr int count = Types::count, at_once = 8;  // dS before the first step of dK
  static constexpr bool computes_dv = Types::computes_dv, double_buffered = Types::double_buffered;
  static constexpr int score_depth = Types::score_depth, score_steps = Types::score_steps,
                       sum_parts = Types::sum_parts, sum_steps = Types::sum_steps;
  static constexpr int s_at = Types::s_at, dp_at = Types::dp_at, dv_at = Types::dv_at,
                       dk_at = Types::dk_at;

 public:
  // The tile is in buffer `here`, dS of the previous one in buffer `before`.
  PipelinedTile(PipelinedWave<spec>& wave, Loader& loader, DqAdder<Types>& dq,
                ROCFLASH_SHARED typename Types::Shared& shared, int here, int before)
      : wave_(wave),
        loader_(loader),
        dq_(dq),
        here_(here),
        read_ds_(shared.ds[before]),
        write_ds_(shared.ds[here]),
        q_rows_{shared.q[here]},
        dout_rows_{shared.dout[here]},
        q_transposed_{shared.qt[here]},
        dout_transposed_{shared.doutt[here]},
        lse_of_((const ROCFLASH_SHARED Float4*)(shared.statistics[here] + Scores::lane_row())),
        delta_of_((const ROCFLASH_SHARED Float4*)(shared.statistics[here] + tile.streamed +
                                                  Scores::lane_row())) {}

  // Steps [from, to).
  template <int from, int to>
  void multiply() {
    prefetch_fragments_paced<Mma, to - from, computes_dv ? 6 : 5>(
        [&](int n) { return operand(from + n); },
        [&]<int n>(const typename Mma::Operand& left) {
          constexpr int step = from + n;
          if constexpr (step < s_at) {
            multiply_dq<step>(left);
          } else if constexpr (step < dv_at) {
            multiply_scores<step>(left);
          } else {
            multiply_sums<step>(left);
          }
        });
  }

 private:
  typename Mma::Operand operand(int n) const {
    if (n < s_at) return read_ds_.fragment(DqTile::query_part(), n);
    if (n < dp_at) return q_rows_.fragment((n - s_at) / score_depth, (n - s_at) % score_depth);
    if (n < dv_at) return dout_rows_.fragment((n - dp_at) / score_depth, (n - dp_at) % score_depth);
    return n < dk_at ? dout_transposed_.fragment((n - dv_at) % sum_parts, (n - dv_at) / sum_parts)
                     : q_transposed_.fragment((n - dk_at) % sum_parts, (n - dk_at) / sum_parts);
  }
  template <int n>
  void interleave() {
    arch::sched_barrier();
    interleave_loads<n>();
    interleave_softmax<n>();
    arch::sched_barrier();
  }

  // dQ = dS·K of the previous tile.
  template <int n>
  void multiply_dq(const typename Mma::Operand& left) {
    ROCFLASH_UNROLL
    for (int part = 0; part < DqTile::parts; ++part) {
      typename Mma::Result& sum = dq_.sums[part];
      if (n == 0) sum = typename Mma::Result{};
      sum = Mma::multiply_interleaved(left, wave_.columns.fragment(part, n), sum, [&] {
        if (part == 0) interleave<n>();
      });
    }
  }
  // S = Q·Kᵀ, dP = dO·Vᵀ
  template <int n>
  void multiply_scores(const typename Mma::Operand& left) {
    constexpr int step = (n - s_at) % score_steps;
    if (step % score_depth == 0) sum_ = typename Mma::Result{};
    sum_ = Mma::multiply_interleaved(
        left, (n < dp_at ? wave_.k : wave_.v).fragment(0, step % score_depth), sum_,
        [&] { interleave<n>(); });
    arch::pin_vgpr(sum_);
    if (step % score_depth == score_depth - 1) {
      ROCFLASH_UNROLL
      for (int r = 0; r < Mma::results; ++r)
        (n < dp_at ? scores_ : gradients_).at[0][step / score_depth * Mma::results + r] = sum_[r];
    }
  }
  // dVᵀ += dOᵀ·P, dKᵀ += Qᵀ·dS
  template <int n>
  void multiply_sums(const typename Mma::Operand& left) {
    constexpr int step = (n - dv_at) % sum_steps;
    if constexpr (!computes_dv && n == dk_at) {
      ROCFLASH_UNROLL
      for (int i = 0; i < at_once; ++i) compute_ds(i);
    }
    typename Mma::Result& sum = (n < dk_at ? wave_.dv : wave_.dk).part[step % sum_parts][0];
    sum = Mma::multiply_interleaved(left, (n < dk_at ? weights_ : ds_).step_[step / sum_parts], sum,
                                    [&] { interleave<n>(); });
  }

  // The next tile: to LDS, then the loads of the tile after it. dQ: its atomic adds.
  template <int n>
  void interleave_loads() {
    distribute<n>(double_buffered ? dp_at : 0, Types::dq_steps, Loader::stores,
                  [&](int i) { loader_.store_one(i, double_buffered ? 1 - here_ : here_); });
    if (n == (double_buffered ? dk_at + 1 : s_at + 1)) loader_.load_q();
    if (n == (double_buffered ? dk_at + 2 : s_at + 4)) loader_.load_dout();
    if (n == (double_buffered ? dk_at + 3 : dv_at)) loader_.load_statistics();
    distribute<n>(s_at + 2, (computes_dv ? 2 : 1) * score_steps - 2, DqAdder<Types>::adds,
                  [&](int i) { dq_.add(i, i + 1); });
  }
  // P = exp2(S − lse), dS = P (dP − delta)
  template <int n>
  void interleave_softmax() {
    distribute<n>(computes_dv ? s_at + 2 : dp_at, score_steps - 3, count / 4,
                  [&](int i) { lse_[i] = lse_of_[Scores::row(4 * i) / 4]; });
    // Without lse at the start of dP, P is masked after the exponential.
    if (n == (computes_dv ? dp_at : dk_at - 1)) apply_mask();
    distribute<n>(dp_at + (computes_dv ? 1 : 4), score_steps - (computes_dv ? 1 : 5), count,
                  [&](int i) { compute_weight(i); });
    const auto read_delta = [&](int i) { delta_[i] = delta_of_[Scores::row(4 * i) / 4]; };
    if constexpr (computes_dv) {
      distribute<n>(dp_at + 2, score_steps - 3, count / 4, read_delta);
    } else {
      distribute<n>(dp_at + score_steps - 4, 4, at_once / 4, read_delta);
      distribute<n>(dk_at, 2, count / 4 - at_once / 4, [&](int i) { read_delta(at_once / 4 + i); });
    }
    if (n == dk_at + 5) dq_.advance();
    if constexpr (computes_dv) {
      distribute<n>(dv_at + 1, sum_steps - 1, count, [&](int i) { compute_ds(i); });
    } else {
      distribute<n>(dk_at + 2, sum_parts - 3, count - at_once,
                    [&](int i) { compute_ds(at_once + i); });
    }
  }
  void apply_mask() {
    const std::int32_t begin = dq_.first_query();
    const Span all = wave_.visible_to_all;
    if (__builtin_expect(begin < all.begin || begin + tile.streamed > all.end, false)) {
      ROCFLASH_UNROLL
      for (int i = 0; i < count; ++i) {
        const bool masked = !wave_.key.visible_to(begin + Scores::lane_row() + Scores::row(i));
        if (masked && computes_dv) lse_[i / 4][i % 4] = infinity;
        if (masked && !computes_dv) scores_.at[0][i] = 0;
      }
    }
  }
  void compute_weight(int i) {
    float (&s)[count] = scores_.at[0];
    s[i] = arch::exp2(s[i] * wave_.softmax_scale - lse_[i / 4][i % 4]);
    if (i % 2 == 1) weights_.step_[i / 8][i % 8 / 2] = narrow_weights<spec.dtype>(s[i - 1], s[i]);
  }
  void compute_ds(int i) {
    float (&ds)[count] = gradients_.at[0];
    ds[i] = scores_.at[0][i] * (ds[i] - delta_[i / 4][i % 4]);
    Words4& words = ds_.step_[i / 8];
    if (i % 2 == 1) words[i % 8 / 2] = narrow_weights<spec.dtype>(ds[i - 1], ds[i]);
    if (i % 4 == 3) write_ds_.write_quad(i / 4, i % 8 == 3 ? words.xy : words.zw);
  }

  PipelinedWave<spec>& wave_;
  Loader& loader_;
  DqAdder<Types>& dq_;
  int here_;
  Exchange read_ds_, write_ds_;
  typename Types::StreamedOperand q_rows_, dout_rows_;
  typename Types::TransposedOperand q_transposed_, dout_transposed_;
  const ROCFLASH_SHARED Float4 *lse_of_, *delta_of_;
  Scores scores_, gradients_;
  Float4 lse_[count / 4], delta_[count / 4];
  RegisterFragments<Mma, tile.streamed / Mma::depth> weights_, ds_;
  typename Mma::Result sum_;
};

// One wave per SIMD: operands are prefetched, and everything else is interleaved with matrix
// instructions.
//
//   dQ of the previous tile   tiles written to LDS (single-buffered)
//   S                         atomic adds of dQ, lse read
//   dP                        P = exp2(S - lse), delta read
//   dV                        dS = P (dP - delta), written to LDS
//   dK
//
// Where backward_dv computes dV (`fused_gives_dv`), k, v, the columns of K and the dK accumulator
// take 320 of 512 registers. dS is then computed before and during dK. To limit register pressure,
// the atomic adds end with S, and lse is read while P is computed.
//
// With double buffering there is one barrier per tile. With one buffer a second barrier separates
// dQ from the readers of the tile.
template <KernelSpec spec>
void fused_pipelined(const BackwardArguments& a) {
  using Types = PipelinedTypes<spec>;
  using Mma = typename Types::Mma;
  using Scores = typename Types::Scores;
  using Exchange = typename Types::Exchange;
  constexpr BackwardTile tile = Types::tile;
  constexpr int s_at = Types::s_at;
  constexpr bool double_buffered = Types::double_buffered;
  ROCFLASH_SHARED_ARRAY typename Types::Shared shared;

  const Problem& p = a.problem;
  const auto [item, sequence, block_begin, wave_begin] = KeyBlockPosition<spec>(a);
  if (block_begin >= sequence.sk) return;
  const AttendingQueries wave_queries(p.visibility, sequence, wave_begin, Types::wave_rows);
  const Span visible_to_any = uniform(wave_queries.any);
  const Scale scale(p.scale);
  const auto owned = [&](const Rows& rows, bool negate) {
    return to_agprs<Mma, Types::score_depth>(
        load_owned_rows<Types>(rows, sequence.batch, sequence.k_row + wave_begin,
                               sequence.sk - wave_begin, item.head, negate, nullptr));
  };
  PipelinedWave<spec> wave{owned(p.k, scale.negate_q),
                           owned(p.v, false),
                           KeyColumns<Types>(p.k, sequence.batch, sequence.k_row + block_begin,
                                             sequence.sk - block_begin, item.head, shared.qt[0]),
                           KeyView(p.visibility, sequence, wave_begin + Scores::lane_column()),
                           uniform(wave_queries.all),
                           scale.softmax_scale};
  const QueryTileRange<typename Types::Base> query_tiles(a, sequence, item, block_begin);
  QueryTileLoader<Types> loader(a, query_tiles, shared);
  DqAdder<Types> dq(a, query_tiles);

  int here = 0;
  const auto multiply = [&]<int from, int to>(int at, int before) {
    PipelinedTile<spec>(wave, loader, dq, shared, at, before).template multiply<from, to>();
  };
  // One tile; `attends_to`: some query of it attends to some key of this wave.
  const auto iteration = [&]<bool attends_to>() {
    const int before = double_buffered ? 1 - here : 0;
    arch::barrier();
    if constexpr (attends_to) {
      multiply.template operator()<double_buffered ? 0 : s_at, Types::all_steps>(here, before);
    } else {
      if constexpr (double_buffered) {
        multiply.template operator()<0, s_at>(here, before);
        loader.store(before);
      }
      loader.load();
      dq.add_all();
      Exchange(shared.ds[here]).write(PackedColumn<Mma, tile.streamed>());
      dq.advance();
    }
    if constexpr (double_buffered) {
      here = before;
    } else {
      arch::barrier();
      multiply.template operator()<0, s_at>(0, 0);
    }
  };

  const std::int32_t tiles = query_tiles.tiles;
  if (tiles > 0) {
    loader.load();
    loader.store(0);
    if (double_buffered) {
      loader.load();
      Exchange(shared.ds[1]).write(PackedColumn<Mma, tile.streamed>());
    }
    // Separate loops: at the join of a branch the compiler would copy, and wait for, the tile in
    // flight.
    const std::int32_t begin = query_tiles.tiles_to(visible_to_any.begin),
                       end = query_tiles.tiles_to(visible_to_any.end + tile.streamed - 1);
    for (std::int32_t head = 0; head < query_tiles.gqa_group; ++head) {
      std::int32_t n = 0;
      for (; n < begin; ++n) iteration.template operator()<false>();
      for (; n < end; ++n) iteration.template operator()<true>();
      for (; n < tiles; ++n) iteration.template operator()<false>();
    }
    if constexpr (double_buffered) {
      arch::barrier();
      multiply.template operator()<0, s_at>(here, 1 - here);
    }
    dq.add_all();
  }
  epilogue_dk_dv<spec, true, Types::computes_dv>(a, wave.dk, wave.dv);
}

}  // namespace rocflash::kernel
