// Forward on AMD GPUs. Each workgroup handles one block of queries, each of its waves
// `Mma::columns` of them; it takes one tile of keys after the other.
//
//   registers   q (all of it), the scores of one tile, outputs, the next tile of k and v on its way
//   LDS         k as it is and v transposed, two tiles of each: one in use, one being filled
//
// An iteration of the loop: load the next tile from memory; scores; softmax; outputs; write the next
// tile to LDS; barrier. One barrier per iteration is enough: a tile is overwritten one iteration after
// its last use, and all waves have passed a barrier in between.
//
// Where two waves of a SIMD can take turns, forward/amd_turns.hpp has another schedule.
#pragma once

#include "forward/amd_parts.hpp"
#include "forward/amd_turns.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
void forward_one_by_one(const ForwardArguments& a) {
  using Types = ForwardTypes<spec>;
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
  using QueryBlock = typename Types::QueryBlock;
  const QueryBlock q_rows(p.q, 0, sequence.batch, sequence.q_row + wave_begin,
                          sequence.sq - wave_begin, item.head);
  const typename Types::Queries q(shared_queries[arch::wave()], [&](int row, int chunk) {
    Words4 words = q_rows.load8(QueryBlock::offset(p.q, row, chunk_numbers<spec.dtype> * chunk));
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
  const auto load = [&] {
    next.find_keys();
    next.load_keys();
    next.find_values();
    next.load_values();
  };
  const auto store = [&](int to) {
    next.store_keys(shared_keys[to]);
    next.store_values(shared_values[to]);
  };
  // With options the code of a load is long: there the first tile has an iteration to itself.
  std::int32_t n = full ? -1 : 0;
  if constexpr (!full) {
    if (tiles > 0) {
      load();
      store(0);
    }
    arch::barrier();
  }
  for (; n < tiles; ++n) {
    const bool more = n + 1 < tiles;
    const int now = n & 1, then = 1 - now;
    if (more) load();
    const std::int32_t begin = first_key + n * tile.keys, end = begin + tile.keys;
    if ((!full || n >= 0) && begin < seen_by_wave.end && end > seen_by_wave.begin) {
      // scores = K · Qᵀ
      Scores scores = product<Scores, spec.bucket>(typename Types::KeyOperand{shared_keys[now]}, q);
      float (&s)[Scores::per_column] = scores.at[0];
      const auto at = [&](int i) -> float& { return s[i]; };
      const auto key = [&, offset = begin + Scores::lane_row()](int i) {
        return offset + Scores::row(i);
      };
      if constexpr (full) shape.template shape<Scores::per_column>(query, at, key);
      if (begin < seen_by_all.begin || end > seen_by_all.end) {
        ROCFLASH_UNROLL
        for (int i = 0; i < Scores::per_column; ++i) s[i] = query.sees(key(i)) ? s[i] : -infinity;
      }

      // weights = exp2(scores · unit − reference)
      const float unit = full ? 1 : scale.unit;
      const float largest = column_maximum(scores, 0) * unit;
      if (arch::any(softmax.behind(largest))) out.scale(softmax.follow(largest));
      softmax.sum += exp2_and_sum(scores, 0, unit, softmax.base());
      if constexpr (full) {
        constexpr int run = layout::results_within<typename Scores::Layout>(dropout_keys);
        if (p.dropout.on()) shape.template drop<Scores::per_column, run>(query, at, key);
      }

      // out += Vᵀ · Pᵀ
      add_product<tile.keys>(out, typename Types::ValueOperand{shared_values[now]},
                             rounded_weights<spec.dtype>(scores));
    }
    if (more) store(then);
    arch::barrier();
  }

  const Finished finished =
      finish_outputs<spec>(arch::again(a), Position(arch::again(a)), softmax, out);
  if (finished.broken != 0)
    repair_rows<spec>(arch::again(a), Position(arch::again(a)), softmax, finished);
}

template <KernelSpec spec>
void forward(const ForwardArguments& a) {
  if constexpr (ForwardTypes<spec>::in_turns) {
    forward_in_turns<spec>(a);
  } else {
    forward_one_by_one<spec>(a);
  }
}

template <KernelSpec spec>
void forward_halves(const ForwardArguments& a) {
  forward_in_turns<spec>(a);
}

}  // namespace rocflash::kernel
