// MLA decode on NVIDIA GPUs from sm_80 on over a latent KV cache (decode/mla.hpp): each cached row
// is read once, by four warps that split its columns.
//
//   registers       the warp's columns of Q, S of one tile, the warp's columns of O
//   shared memory   a pipeline of `stages` tiles, which both products read; partial scores of two
//                   tiles, double-buffered
//
// A warp loads and reads its own columns only: it waits for no other warp before the scores. One
// barrier per tile: the warps exchange their partial scores and add them in the same order, so that
// all have the same P.
#pragma once

#include "decode/mla.hpp"
#include "decode/sm80_cursor.hpp"
#include "forward/sm80.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
struct MlaTypes {
  static constexpr DType dtype = spec.dtype;
  static constexpr DecodeTile tile = decode_tile(this_family, spec);
  static_assert(tile.waves(arch::wave_size) == mla_waves && tile.stages >= 2);

  using Mma = arch::Mma<dtype>;
  using Rows = SharedRows<own_values * element_bytes<dtype>>;  // V columns of one warp
  using Rest = SharedRows<mla_rest * element_bytes<dtype>>;    // RoPE columns of all warps
  using KeyOperand = KMajorB<Mma, Rows>;                       // Kᵀ
  using RestOperand = KMajorB<Mma, Rest>;
  using ValueOperand = NMajorB<Mma, Rows>;  // V
  using Scores = WarpTile<Mma, tile.rows, tile.keys>;
  using Outputs = WarpTile<Mma, tile.rows, own_values>;
  static constexpr int lane_queries = Scores::lane_rows;

  static constexpr int rows_bytes = tile.keys * Rows::bytes,
                       stage_bytes = mla_waves * rows_bytes + tile.keys * Rest::bytes,
                       partial_scores_bytes = tile.rows * tile.keys * 4;
  static_assert(tile.dynamic_shared ==
                tile.stages * stage_bytes + 2 * mla_waves * partial_scores_bytes);

  static SharedAddress stage(std::int32_t n) {
    return arch::shared_begin() + static_cast<std::uint32_t>(n % tile.stages * stage_bytes);
  }
  static SharedAddress rows(SharedAddress stage) {
    return stage + static_cast<std::uint32_t>(arch::wave() * rows_bytes);
  }
  static SharedAddress rest(SharedAddress stage) { return stage + mla_waves * rows_bytes; }
  // A lane's four partial scores in MMA block `block` of tile n, from warp `warp`.
  static SharedAddress partial_scores(std::int32_t n, int warp, int block) {
    return arch::shared_begin() +
           static_cast<std::uint32_t>(tile.stages * stage_bytes +
                                      (n % 2 * mla_waves + warp) * partial_scores_bytes +
                                      (block * arch::wave_size + arch::lane()) * 16);
  }
};

// cp.async loads of the warp's columns of the tiles.
template <KernelSpec spec>
class MlaLoader {
  using Types = MlaTypes<spec>;
  using Task = CopyTask<Types::Rows::bytes, Types::tile.keys, arch::wave_size>;
  static constexpr int rest_chunks = own_rest * element_bytes<spec.dtype> / 16,
                       rest_step = arch::wave_size / rest_chunks;  // rows per round

 public:
  MlaLoader(const DecodeArguments& a, const SequenceView& s, std::int64_t kv_head,
            std::int32_t first_key, std::int32_t end_key)
      : keys_(a.problem.k), cursor_(a, s, kv_head, first_key, end_key) {}

  // Issues the loads of the next tile, of which `left` rows exist.
  void next(SharedAddress stage, std::int32_t left) {
    const Task task(arch::lane());
    const SharedAddress to = task.first(Types::rows(stage));
    const int column = mla_column(arch::wave(), 8 * task.chunk),
              rest_row = arch::lane() / rest_chunks,
              rest_chunk = arch::wave() * rest_chunks + arch::lane() % rest_chunks,
              rest_column = mla_values + 8 * rest_chunk;
    const auto rest_to = [&](int row) {
      return Types::rest(stage) + static_cast<std::uint32_t>(Types::Rest::offset(row, rest_chunk));
    };
    if (cursor_.is_contiguous()) {
      const std::byte* from = cursor_.contiguous_row(keys_, task.row);
      const std::int64_t stride = keys_.row_stride * (Task::step * element_bytes<spec.dtype>);
      ROCFLASH_UNROLL
      for (int n = 0; n < Task::rounds; ++n) {
        copy(Task::next(to, n), from, column, task.row + n * Task::step < left);
        from += stride;
      }
      ROCFLASH_UNROLL
      for (int row = rest_row; row < Types::tile.keys; row += rest_step)
        copy(rest_to(row), cursor_.contiguous_row(keys_, row), rest_column, row < left);
    } else {
      // In batches: the block table lookups of a batch overlap.
      constexpr int batch = 4;
      for (int first = 0; first < Task::rounds; first += batch) {
        const std::byte* from[batch];
        ROCFLASH_UNROLL
        for (int n = 0; n < batch; ++n)
          from[n] = cursor_.paged_row(keys_, task.row + (first + n) * Task::step, left);
        ROCFLASH_UNROLL
        for (int n = 0; n < batch; ++n)
          copy(Task::next(to, first + n), from[n], column,
               task.row + (first + n) * Task::step < left);
      }
      for (int row = rest_row; row < Types::tile.keys; row += rest_step)
        copy(rest_to(row), cursor_.paged_row(keys_, row, left), rest_column, row < left);
    }
    cursor_.advance(left);
  }

 private:
  void copy(SharedAddress to, const std::byte* row, int column, bool row_in_bounds) const {
    const bool in_bounds = row_in_bounds && column < keys_.columns;
    arch::cp_async(to, in_bounds ? row + element_bytes<spec.dtype> * column : keys_.data,
                   in_bounds);
  }

  const Rows& keys_;
  KeyCursor<spec.dtype, Types::tile.keys> cursor_;
};

// The warp's columns of Q, as left operands.
template <KernelSpec spec>
class MlaQueries {
  using Types = MlaTypes<spec>;
  using Mma = typename Types::Mma;
  static constexpr int steps = own_columns / Mma::depth, row_blocks = Types::tile.rows / Mma::rows;

 public:
  MlaQueries(const DecodeArguments& a, const SequenceView& s, const KeySplit& split,
             std::int32_t kv_head, bool negate) {
    const Rows& q = a.problem.q;
    const auto gqa_group = static_cast<std::uint32_t>(a.gqa_group);
    const int lane = arch::lane();
    ROCFLASH_UNROLL
    for (int i = 0; i < 2 * row_blocks; ++i) {
      const int row = Types::Scores::row(lane, i);
      const PackedRow packed(split.row_begin + row, gqa_group, kv_head);
      const std::byte* from =
          row_address<spec.dtype>(q, s.batch, s.q_row + packed.query, packed.head);
      ROCFLASH_UNROLL
      for (int n = 0; n < 2 * steps; ++n) {
        const int column = mla_column(arch::wave(), n * 8) + 2 * (lane % row_lanes);
        std::uint32_t word = 0;
        if (row < split.rows && column < q.columns)
          word = arch::load(
              reinterpret_cast<const std::uint32_t*>(from + element_bytes<spec.dtype> * column));
        fragment_[i / 2][n / 2][n % 2 * 2 + i % 2] = negate ? negated<spec.dtype>(word) : word;
      }
    }
  }
  Words4 fragment(int row_block, int step) const { return fragment_[row_block][step]; }

  // The operand of the RoPE columns.
  struct RestOperand {
    const MlaQueries& all;
    Words4 fragment(int row_block, int) const { return all.fragment(row_block, steps - 1); }
  };
  RestOperand rest() const { return {*this}; }

 private:
  Words4 fragment_[row_blocks][steps];
};

// Adds the partial scores of all warps for tile n, in the same order in each of them.
template <KernelSpec spec>
void reduce_partial_scores(typename MlaTypes<spec>::Scores& scores, std::int32_t n) {
  using Types = MlaTypes<spec>;
  using Scores = typename Types::Scores;
  ROCFLASH_UNROLL
  for (int block = 0; block < Scores::row_parts * Scores::column_parts; ++block) {
    const float (&x)[4] =
        scores.part[block / Scores::column_parts][block % Scores::column_parts].at;
    arch::store_shared(Types::partial_scores(n, arch::wave(), block),
                       __builtin_bit_cast(Words4, Float4{x[0], x[1], x[2], x[3]}));
  }
  arch::barrier();
  ROCFLASH_UNROLL
  for (int block = 0; block < Scores::row_parts * Scores::column_parts; ++block) {
    Float4 sum = {};
    ROCFLASH_UNROLL
    for (int w = 0; w < mla_waves; ++w)
      sum += __builtin_bit_cast(Float4, arch::load_shared(Types::partial_scores(n, w, block)));
    ROCFLASH_UNROLL
    for (int e = 0; e < 4; ++e)
      scores.part[block / Scores::column_parts][block % Scores::column_parts].at[e] = sum[e];
  }
}

// Epilogue: the warp's columns, normalized, and the LSE.
template <KernelSpec spec>
void store_columns(const DecodeArguments& a, const SequenceView& sequence, const KeySplit& split,
                   const DecodeWorkTile& item,
                   const GenericSoftmax (&softmax)[MlaTypes<spec>::lane_queries],
                   const typename MlaTypes<spec>::Outputs& out) {
  using Types = MlaTypes<spec>;
  using Outputs = typename Types::Outputs;
  constexpr int lane_queries = Types::lane_queries;
  const Problem& p = a.problem;
  const auto gqa_group = static_cast<std::uint32_t>(a.gqa_group);
  const SoftmaxFinalizer<Variant::generic> end(p, 0, has_score_modifiers(p));
  const MlaResults<spec.dtype> to{a, sequence, item.split};
  const int lane = arch::lane(), first = arch::wave() * own_values;
  NonFiniteRows non_finite;
  ROCFLASH_UNROLL
  for (int i = 0; i < lane_queries; ++i) {
    const float sum = row_sum(softmax[i].sum);
    const Normalizer normalizer = end(softmax[i].row_max, sum);
    const int row = Outputs::row(lane, i);
    const bool in_use = row < split.rows;
    const PackedRow packed(split.row_begin + row, gqa_group, item.kv_head);
    if (in_use && lane % row_lanes == 0 && arch::wave() == 0)
      to.store_lse(packed, SplitLse::of(softmax[i].row_max, sum, normalizer.lse));
    float probe = normalizer.factor * 0.0f;  // NaN once an output is not finite
    ROCFLASH_UNROLL
    for (int n = 0; n < Outputs::lane_columns; n += 2) {
      const Float2 x{out.at(i, n), out.at(i, n + 1)};
      probe = __builtin_fmaf(x.y, 0.0f, __builtin_fmaf(x.x, 0.0f, probe));
      if (in_use)
        to.store(packed, first + Outputs::lane_column(lane) + Outputs::column(n),
                 x * normalizer.factor);
    }
    non_finite.add(i, in_use && (probe != 0 || products_overflow(p)));
  }
  arch::syncwarp();
  while (non_finite.any()) {
    const auto taken = non_finite.take();
    const int row = Outputs::row(taken.first_lane, taken.which);
    const PackedRow packed(split.row_begin + row, gqa_group, item.kv_head);
    const int end_column = first + own_values < p.value_dim ? first + own_values : p.value_dim;
    recompute_row(
        ExactScores<spec.dtype>{p, sequence, packed.head, a.caches},
        split.view(p, sequence, packed.query), first, end_column,
        [&](SplitLse x) {
          if (arch::wave() == 0) to.store_lse(packed, x);
        },
        [&](int column, float x) { to.store(packed, column, x); });
  }
}

template <KernelSpec spec>
void decode_mla(const DecodeArguments& a) {
  using Types = MlaTypes<spec>;
  using Scores = typename Types::Scores;
  constexpr DecodeTile tile = Types::tile;
  constexpr int lane_queries = Types::lane_queries, prefetched = tile.stages - 1;

  // Work tile: packed rows, split of the keys, rows of the lane.
  const Problem& p = a.problem;
  const DecodeWorkTile item(a, arch::workgroup_id());
  const SequenceView sequence(p, item.batch);
  const KeySplit split(a, sequence, item.block, tile.rows, item.split, a.splits, tile.keys);
  if (split.rows == 0) return;
  const auto gqa_group = static_cast<std::uint32_t>(a.gqa_group);
  const int lane = arch::lane();
  const auto query_at = [&](int i) {  // query i of the lane
    const PackedRow packed(split.row_begin + Scores::row(lane, i), gqa_group, item.kv_head);
    return split.view(p, sequence, packed.query);
  };

  // Prologue: loads of the first tiles.
  MlaLoader<spec> loader(a, sequence, item.kv_head, split.begin, split.end);
  const auto load_tile = [&](std::int32_t n) {
    const std::int32_t left = split.end - split.begin - n * tile.keys;
    if (left > 0) loader.next(Types::stage(n), left);
    arch::cp_async_commit();
  };
  for (int n = 0; n < prefetched; ++n) load_tile(n);
  const GenericScale scale(p.scale);
  const MlaQueries<spec> q(a, sequence, split, item.kv_head, scale.negate_q);

  const bool modifies_scores = has_score_modifiers(p);
  const float score_scale = modifies_scores ? 1 : scale.softmax_scale;
  GenericSoftmax softmax[lane_queries];
  typename Types::Outputs out = {};
  const std::int32_t tiles = (split.end - split.begin + tile.keys - 1) / tile.keys;
  for (std::int32_t n = 0; n < tiles; ++n) {
    arch::cp_async_wait<prefetched - 1>();
    arch::syncwarp();  // the tile has arrived, and no lane reads the previous one
    load_tile(n + prefetched);

    // S = Q·Kᵀ
    const std::int32_t begin = split.begin + n * tile.keys, end = begin + tile.keys;
    const SharedAddress stage = Types::stage(n), rows = Types::rows(stage);
    Scores scores = {};
    add_product<own_values>(scores, q,
                            typename Types::KeyOperand{operand_address<typename Types::Rows>(
                                rows, matrices_across(lane))});
    add_step(scores, q.rest(),
             typename Types::RestOperand{
                 operand_address<typename Types::Rest>(Types::rest(stage), matrices_across(lane))},
             arch::wave());
    reduce_partial_scores<spec>(scores, n);

    const bool masked = begin < split.common_begin || end > split.common_end;
    if (modifies_scores || masked) {
      const auto key_at = [first = begin + Scores::lane_column(lane)](int column) {
        return first + Scores::column(column);
      };
      for_each<lane_queries>([&](int i) {
        const QueryView query = query_at(i);
        if (modifies_scores) {
          const PackedRow packed(split.row_begin + Scores::row(lane, i), gqa_group, item.kv_head);
          ScoreMod(p, sequence, packed.head)
              .template apply<Scores::lane_columns, FastNaturalLogDomain>(
                  OneQuery{query.index}, key_at,
                  [&](int column) -> float& { return scores.at(i, column); });
        }
        ROCFLASH_UNROLL
        for (int column = 0; column < Scores::lane_columns; ++column)
          scores.at(i, column) =
              query.attends_to(key_at(column)) ? scores.at(i, column) : -infinity;
      });
    }

    update_row_max<Types>(softmax, scores, score_scale, out);

    // O += P·V
    const typename Types::ValueOperand v{
        operand_address<typename Types::Rows>(rows, matrices_down(lane))};
    const auto kept = [&](int i, int key) {
      const PackedRow packed(split.row_begin + Scores::row(lane, i), gqa_group, item.kv_head);
      return kept_by_row(ScoreMod(p, sequence, packed.head), query_at(i).index, begin + key);
    };
    if (p.dropout.on()) {
      exp2_and_row_sum<Types, true>(softmax, scores, score_scale, v, out, lane, kept);
    } else {
      exp2_and_row_sum<Types, false>(softmax, scores, score_scale, v, out, lane, kept);
    }
  }
  arch::cp_async_wait<0>();
  store_columns<spec>(a, sequence, split, item, softmax, out);
}

}  // namespace rocflash::kernel
