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
// An iteration of the loop: load the next tile from memory; wait until the present one is in LDS;
// scores; softmax; outputs; write the next tile to LDS. One barrier per iteration is enough: a tile
// is overwritten one iteration after its last use, and all waves have passed a barrier in between.
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

// The tiles of k and v of a workgroup on their way to LDS.
template <KernelSpec spec>
class KeyTiles {
  using Types = ForwardTypes<spec>;
  using Block = typename Types::Block;

 public:
  KeyTiles(const ForwardArguments& a, const SequenceView& sequence, std::int64_t kv_head,
           std::int32_t first_key)
      : a_(a),
        sequence_(sequence),
        kv_head_(kv_head),
        first_key_(first_key),
        k_(a.problem.k),
        v_(a.problem.v) {}

  // Starts the loads of tile n.
  void load(std::int32_t n) {
    const Problem& p = a_.problem;
    const std::int32_t key = first_key_ + n * Types::tile.keys;
    k_.load(Block(p.k, a_.caches, sequence_.batch, sequence_.k_row + key, sequence_.sk - key,
                  kv_head_));
    v_.load(Block(p.v, a_.caches, sequence_.batch, sequence_.k_row + key, sequence_.sk - key,
                  kv_head_));
  }
  template <int key_chunks, int value_chunks>
  void store(SharedWords4 (&keys)[key_chunks], SharedWords4 (&values)[value_chunks]) const {
    k_.store(keys);
    v_.store(values);
  }

 private:
  const ForwardArguments& a_;
  const SequenceView& sequence_;
  std::int64_t kv_head_;
  std::int32_t first_key_;
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
      out_rows.store4(words, Block::place(a.outputs.out, own, column));
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
    Words4 words = q_rows.load8(Block::place(p.q, row, chunk_numbers<spec.dtype> * chunk));
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
    next.load(0);
    next.store(shared_keys[0], shared_values[0]);
  }
  for (std::int32_t n = 0; n < tiles; ++n) {
    if (n + 1 < tiles) next.load(n + 1);
    arch::barrier();

    const std::int32_t begin = first_key + n * tile.keys, end = begin + tile.keys;
    if (begin < seen_by_wave.end && end > seen_by_wave.begin) {
      // scores = K · Qᵀ
      Scores scores =
          product<Scores, spec.bucket>(typename Types::KeyOperand{shared_keys[n % 2]}, q);
      float (&s)[Scores::per_column] = scores.at[0];
      const auto at = [&](int i) -> float& { return s[i]; };
      const auto key = [&, offset = begin + Scores::lane_row()](int i) {
        return offset + Scores::row(i);
      };
      float unit = scale.unit;
      if constexpr (full) {
        shape.template shape<Scores::per_column>(query, at, key);
        unit = 1;
      }
      if (begin < seen_by_all.begin || end > seen_by_all.end) {
        ROCFLASH_UNROLL
        for (int i = 0; i < Scores::per_column; ++i) s[i] = query.sees(key(i)) ? s[i] : -infinity;
      }

      // weights = exp2(scores · unit − reference)
      const float largest = column_maximum(scores, 0) * unit;
      if (arch::any(softmax.behind(largest))) out.scale(softmax.follow(largest));
      softmax.sum += exp2_and_sum(scores, 0, unit, softmax.base());
      if constexpr (full) {
        constexpr int run = layout::results_within<typename Scores::Layout>(dropout_keys);
        if (p.dropout.on()) shape.template drop<Scores::per_column, run>(query, at, key);
      }

      // out += Vᵀ · Pᵀ
      add_product<tile.keys>(out, typename Types::ValueOperand{shared_values[n % 2]},
                             rounded_weights<spec.dtype>(scores));
    }
    if (n + 1 < tiles) next.store(shared_keys[(n + 1) % 2], shared_values[(n + 1) % 2]);
  }

  finish<spec>(arch::again(a), softmax, out);
}

}  // namespace rocflash::kernel
