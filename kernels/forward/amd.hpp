// Forward on AMD GPUs. Each workgroup handles one block of queries, each of its waves
// `Mma::columns` of them; it takes one tile of keys after the other.
//
//   registers   q (all of it), the scores of one tile, outputs, the next tile of k and v on its way
//   LDS         k as it is and v transposed, two tiles of each: one in use, one being filled
//
// Everything is computed transposed: scores = K·Qᵀ and out += Vᵀ·Pᵀ, with keys, then columns of v,
// as the rows of the product and queries as its columns. All scores of a lane then belong to one
// query, and, rounded, they are the operand Pᵀ as they stand (tile/order.hpp).
//
// An iteration of the loop: load the next tile from memory; scores; softmax; outputs; write the next
// tile to LDS; barrier. One barrier per iteration is enough: a tile is overwritten one iteration after
// its last use, and all waves have passed a barrier in between.
//
// CDNA's matrix unit works beside the vector unit, so there the two waves of a SIMD take turns
// (`in_turns`). An iteration has two turns with a barrier after each: scores, their maximum and half of
// the exponentials; then the other half and the outputs. The second half of the waves is one turn
// behind, so that on each SIMD one wave's products meet the other's exponentials. By priority (scores
// before outputs before exponentials) products never wait for vector work. In turn t, counted by
// barriers, the first waves compute scores of tile t / 2, the others one turn later. So a tile of k is
// read in turns 2n and 2n + 1 and that of v in 2n + 1 and 2n + 2, and the next tiles, in the other
// buffers, may be written in the same turns: each wave writes k after its scores, v before its outputs.
#pragma once

#include "arch/arch.hpp"
#include "attention/epilogue.hpp"
#include "attention/exact.hpp"
#include "attention/outside.hpp"
#include "attention/rows.hpp"
#include "attention/score.hpp"
#include "attention/sequence.hpp"
#include "attention/softmax.hpp"
#include "attention/work.hpp"
#include "table/forward.hpp"
#include "tile/amd.hpp"
#include "tile/staging.hpp"

namespace rocflash::kernel {

// The types of one kernel.
template <KernelSpec spec>
struct ForwardTypes {
  static constexpr DType dtype = spec.dtype;
  static constexpr int bucket = spec.bucket;
  static constexpr bool full = spec.variant == Variant::full;
  static constexpr ForwardTile tile = forward_tile(this_family, spec);

  using Mma = arch::Mma<dtype>;
  static constexpr int wave_queries = Mma::columns, waves = tile.threads / arch::wave_size;
  static_assert(waves * wave_queries == tile.queries);
  // Two waves per SIMD whose matrix unit works beside the vector unit: while one multiplies, the other
  // takes exponentials.
  static constexpr bool in_turns = arch::wave_size == 64 && waves == 8;

  using Block = RowBlock<dtype, spec.variant>;  // rows in global memory
  using Keys = RowTile<bucket * number_bytes<dtype>, tile.keys>;
  using Values = Transposed<Mma, dtype, bucket, tile.keys>;

  using KeyOperand = SharedLines<Mma, Keys, Side::left>;               // K
  using ValueOperand = typename Values::Operand;                       // Vᵀ
  using Queries = KeptLines<Mma, dtype, bucket, tile.shared_queries>;  // Qᵀ
  using Scores = Elements<Mma, tile.keys, wave_queries>;
  using Outputs = Accumulators<Mma, bucket, wave_queries>;  // of Oᵀ

  using KeyStaging = RowStaging<Block, Keys, dtype, bucket, tile.keys, tile.threads>;
  using ValueStaging =
      typename ChooseStaging<arch::transposing_reads, Block, typename Mma::Layout,
                             typename Values::Tile, dtype, bucket, tile.keys, tile.threads>::Type;
};

// Rows of k or v, one tile after the other.
template <KernelSpec spec>
class TileRows {
  using Types = ForwardTypes<spec>;
  using Block = typename Types::Block;

 public:
  TileRows(const Rows& rows, const ForwardArguments& a, const SequenceView& sequence,
           std::int64_t kv_head, std::int32_t first_key)
      : rows_(rows), a_(a), sequence_(sequence), kv_head_(kv_head), key_(first_key) {
    if constexpr (!Types::full) {
      // Addresses are computed once: per tile it would take dozens of scalar instructions, in which
      // the matrix unit has nothing to do.
      const std::int64_t row_bytes = rows.row_stride * number_bytes<spec.dtype>;
      next_ = row_address<spec.dtype>(rows, sequence.batch, sequence.k_row + first_key, kv_head);
      left_ = (sequence.sk - first_key) * row_bytes;
      step_ = Types::tile.keys * row_bytes;
    }
  }

  Block next() {
    if constexpr (Types::full) {
      const std::int32_t key = key_;
      key_ += Types::tile.keys;
      return Block(rows_, a_.caches, sequence_.batch, sequence_.k_row + key, sequence_.sk - key,
                   kv_head_);
    } else {
      const Block block(next_, left_);
      next_ += step_;
      left_ -= step_;
      return block;
    }
  }

 private:
  const Rows& rows_;
  const ForwardArguments& a_;
  const SequenceView& sequence_;
  std::int64_t kv_head_;
  std::int32_t key_;
  const std::byte* next_ = nullptr;
  std::int64_t left_ = 0, step_ = 0;  // bytes
};

// The tiles of k and v of a workgroup on their way to LDS.
template <KernelSpec spec>
class KeyTiles {
  using Types = ForwardTypes<spec>;

 public:
  KeyTiles(const ForwardArguments& a, const SequenceView& sequence, std::int64_t kv_head,
           std::int32_t first_key)
      : k_rows_(a.problem.k, a, sequence, kv_head, first_key),
        v_rows_(a.problem.v, a, sequence, kv_head, first_key),
        k_(a.problem.k),
        v_(a.problem.v) {}

  // Start the loads of the next tile.
  void load_keys() { k_.load(k_rows_.next()); }
  void load_values() { v_.load(v_rows_.next()); }
  void store_keys(SharedWords4* keys) const { k_.store(keys); }
  void store_values(SharedWords4* values) const { v_.store(values); }

 private:
  TileRows<spec> k_rows_, v_rows_;
  typename Types::KeyStaging k_;
  typename Types::ValueStaging v_;
};

// The end of a wave's work: sums over the lanes of each query, the sink, one division, and the
// stores. It computes its position again rather than keep it in registers during the loop.
template <KernelSpec spec>
void finish(const ForwardArguments& a, const OnlineSoftmax& softmax,
            const typename ForwardTypes<spec>::Outputs& out) {
  using Types = ForwardTypes<spec>;
  using Mma = typename Types::Mma;
  using Block = typename Types::Block;
  constexpr DType dtype = spec.dtype;
  const Problem& p = a.problem;
  const WorkItem item(a.work, static_cast<std::int32_t>(p.heads), arch::group());
  const SequenceView sequence(p, item.batch);
  const std::int32_t wave_begin =
      item.block * Types::tile.queries + arch::wave() * Types::wave_queries;
  const int own = Types::Scores::lane_column();
  const std::int32_t query = wave_begin + own;

  const Normaliser normaliser =
      Finish<spec.variant>(p, item.head)(softmax.reference, column_sum(softmax.sum));
  const bool in_use = query < sequence.sq;
  if (a.outputs.lse && Types::Scores::lane_row() == 0 && query < sequence.q_rows)
    store_lse(a.outputs, sequence, item.head, query, normaliser.lse);

  const Block out_rows(a.outputs.out, 0, sequence.batch, sequence.q_row + wave_begin,
                       sequence.q_rows - wave_begin, item.head);
  float probe = 0;  // NaN once an output is not finite
  ROCFLASH_UNROLL
  for (int part = 0; part < out.row_parts; ++part) {
    float o[Mma::results];
    ROCFLASH_UNROLL
    for (int i = 0; i < Mma::results; ++i) {
      o[i] = out.part[part][0][i];
      probe = __builtin_fmaf(o[i], 0.0f, probe);
      o[i] = in_use ? o[i] * normaliser.factor : 0;
    }
    Quads<Mma>::arrange(o);
    ROCFLASH_UNROLL
    for (int i = 0; i < Mma::results; i += 4) {
      const Words2 words{narrow_pair<dtype>(o[i], o[i + 1]),
                         narrow_pair<dtype>(o[i + 2], o[i + 3])};
      const int column = part * Mma::rows + Quads<Mma>::row(i) + Quads<Mma>::lane_row();
      out_rows.store4(words, Block::offset(a.outputs.out, own, column));
    }
  }

  constexpr std::uint64_t one_lane_per_query = (std::uint64_t{1} << Types::wave_queries) - 1;
  std::uint64_t broken =
      arch::ballot(in_use && (column_sum(probe) != 0 || products_overflow(p))) & one_lane_per_query;
  while (broken != 0) {
    const int lane = __builtin_ctzll(broken);
    broken &= broken - 1;
    repair(ExactScores<dtype>{p, sequence, item.head, a.caches},
           QueryView(p.visibility, sequence, wave_begin + lane),
           arch::from_lane(softmax.base(), lane), arch::from_lane(normaliser.factor, lane),
           a.outputs);
  }
}

template <KernelSpec spec>
void forward(const ForwardArguments& a) {
  using Types = ForwardTypes<spec>;
  using Block = typename Types::Block;
  using Scores = typename Types::Scores;
  constexpr ForwardTile tile = Types::tile;
  constexpr bool full = Types::full;

  ROCFLASH_SHARED_ARRAY Words4 shared_keys[2][Types::Keys::chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_values[2][Types::Values::Tile::chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_queries[Types::waves][Types::Queries::shared_chunks];

  // The workgroup's queries, the wave's, and the lane's own.
  const Problem& p = a.problem;
  const WorkItem item(a.work, static_cast<std::int32_t>(p.heads), arch::group());
  clear_outside<tile.threads>(a, item, spec.dtype);
  const SequenceView sequence(p, item.batch);
  const std::int32_t block_begin = item.block * tile.queries;
  if (block_begin >= sequence.q_rows) return;
  const std::int32_t wave_begin = block_begin + arch::wave() * Types::wave_queries;
  const SeenKeys wave_keys(p.visibility, sequence, wave_begin, Types::wave_queries);
  const Span seen_by_wave = wave_keys.by_any, seen_by_all = wave_keys.by_all;
  // After the wave's keys: what both compute would otherwise be done by vector instructions.
  const QueryView query(p.visibility, sequence, wave_begin + Scores::lane_column());

  const Scale scale(p.scale);
  const Block q_rows(p.q, 0, sequence.batch, sequence.q_row + wave_begin, sequence.sq - wave_begin,
                     item.head);
  const typename Types::Queries q(shared_queries[arch::wave()], [&](int row, int chunk) {
    Words4 words = q_rows.load8(Block::offset(p.q, row, chunk_numbers<spec.dtype> * chunk));
    if (scale.turn_sign) words ^= 0x80008000u;
    return words;
  });

  const Range seen = SeenKeys(p.visibility, sequence, block_begin, tile.queries).by_any;
  const auto first_key = static_cast<std::int32_t>(seen.begin / dropout_keys * dropout_keys);
  const std::int32_t tiles =
      seen.empty() ? 0
                   : (static_cast<std::int32_t>(seen.end) - first_key + tile.keys - 1) / tile.keys;

  const ScoreShape shape(p, sequence, item.head);
  OnlineSoftmax softmax;
  typename Types::Outputs out = {};
  KeyTiles<spec> next(a, sequence, p.kv_head(item.head), first_key);
  if (tiles > 0) {
    next.load_keys();
    next.load_values();
    next.store_keys(shared_keys[0]);
    next.store_values(shared_values[0]);
    if constexpr (Types::in_turns) next.load_keys();
  }
  arch::barrier();
  const bool second = Types::in_turns && arch::wave() >= Types::waves / 2;
  if (second) arch::barrier();
  if constexpr (Types::in_turns) arch::set_priority<2>();
  // Weights that are computed in the turn of the scores; the others, in that of the outputs.
  constexpr int early = Types::in_turns ? Scores::per_column / 2 : Scores::per_column;
  constexpr int steps = tile.keys / Types::Mma::depth;
  constexpr int early_steps = steps * early / Scores::per_column;
  for (std::int32_t n = 0; n < tiles; ++n) {
    const bool more = n + 1 < tiles;
    const int now = n % 2, then = 1 - now;
    if (more && !Types::in_turns) {
      next.load_keys();
      next.load_values();
    }
    const std::int32_t begin = first_key + n * tile.keys, end = begin + tile.keys;
    const bool seen_now = begin < seen_by_wave.end && end > seen_by_wave.begin;
    Scores scores;
    float (&s)[Scores::per_column] = scores.at[0];
    const auto at = [&](int i) -> float& { return s[i]; };
    const auto key = [&, offset = begin + Scores::lane_row()](int i) {
      return offset + Scores::row(i);
    };
    const float unit = full ? 1 : scale.unit;
    MadeFragments<typename Types::Mma, steps> weights;
    const auto round = [&]<int from, int to>() {
      ROCFLASH_UNROLL
      for (int step = from; step < to; ++step)
        weights.step_[step] = rounded_weights<spec.dtype>(scores).fragment(0, step);
    };
    if (seen_now) {
      // scores = K · Qᵀ
      scores = product<Scores, spec.bucket>(typename Types::KeyOperand{shared_keys[now]}, q);
      if constexpr (Types::in_turns) {
        read_ahead<Scores::row_parts * spec.bucket / Types::Mma::depth, 4,
                   Types::Mma::instructions>();
        arch::set_priority<0>();
        arch::settle(s);
      }
    }
    if constexpr (Types::in_turns) {
      next.store_keys(shared_keys[then]);
      next.load_values();
    }
    if (seen_now) {
      if constexpr (full) shape.template shape<Scores::per_column>(query, at, key);
      if (begin < seen_by_all.begin || end > seen_by_all.end) {
        ROCFLASH_UNROLL
        for (int i = 0; i < Scores::per_column; ++i) s[i] = query.sees(key(i)) ? s[i] : -infinity;
      }

      // weights = exp2(scores · unit − reference)
      const float largest = column_maximum(scores, 0) * unit;
      if (arch::any(softmax.behind(largest))) out.scale(softmax.follow(largest));
      softmax.sum += exp2_and_sum<0, early>(scores, 0, unit, softmax.base());
      if constexpr (Types::in_turns) {
        round.template operator()<0, early_steps>();
        ROCFLASH_UNROLL
        for (int step = 0; step < early_steps; ++step) arch::end_phase(weights.step_[step]);
        ROCFLASH_UNROLL
        for (int i = early; i < Scores::per_column; ++i) arch::end_phase(s[i]);
      }
    }
    if constexpr (Types::in_turns) {
      arch::barrier();
      arch::set_priority<1>();
    }
    if (seen_now) {
      softmax.sum += exp2_and_sum<early, Scores::per_column>(scores, 0, unit, softmax.base());
      if constexpr (full) {
        constexpr int run = layout::results_within<typename Scores::Layout>(dropout_keys);
        if (p.dropout.on()) shape.template drop<Scores::per_column, run>(query, at, key);
      }

      if constexpr (Types::in_turns) {
        round.template operator()<early_steps, steps>();
        ROCFLASH_UNROLL
        for (int step = early_steps; step < steps; ++step) arch::end_phase(weights.step_[step]);
      }
    }
    if constexpr (Types::in_turns) {
      next.store_values(shared_values[then]);
      next.load_keys();
    }
    if (seen_now) {
      // out += Vᵀ · Pᵀ
      const typename Types::ValueOperand v{shared_values[now]};
      if constexpr (Types::in_turns) {
        add_product<tile.keys>(out, v, weights);
        read_ahead<steps * Types::Outputs::row_parts, 4, Types::Mma::instructions,
                   arch::transposing_reads ? 2 : 1>();
      } else {
        add_product<tile.keys>(out, v, rounded_weights<spec.dtype>(scores));
      }
    }
    if (!Types::in_turns && more) {
      next.store_keys(shared_keys[then]);
      next.store_values(shared_values[then]);
    }
    arch::barrier();
    if constexpr (Types::in_turns) arch::set_priority<2>();
  }
  if (Types::in_turns && !second) arch::barrier();

  finish<spec>(arch::again(a), softmax, out);
}

}  // namespace rocflash::kernel
