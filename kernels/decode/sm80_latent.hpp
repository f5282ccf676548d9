// Decode on NVIDIA GPUs from sm_80 on where the values are the first columns of the keys (decode/latent.hpp): each row
// is read once, by four warps that divide its columns.
//
//   registers       the warp's columns of q, the scores of one tile, its columns of the outputs
//   shared memory   `stages` tiles, one in use and the others on their way: both products read the same
//                   tile; the warps' shares of the scores of two tiles, which take turns
//
// A warp copies and reads its own columns only, so that it waits for no other before the scores. One barrier per tile:
// the warps exchange their shares of the scores, add them up in one order, and then hold the same weights.
#pragma once

#include "decode/latent.hpp"
#include "decode/sm80_cursor.hpp"
#include "forward/sm80.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
struct LatentTypes {
  static constexpr DType dtype = spec.dtype;
  static constexpr DecodeTile tile = decode_tile(this_family, spec);
  static_assert(tile.waves(arch::wave_size) == latent_waves && tile.stages >= 2);

  using Mma = arch::Mma<dtype>;
  using Rows = SharedRows<own_values * number_bytes<dtype>>;   // of one warp
  using Rest = SharedRows<latent_rest * number_bytes<dtype>>;  // of all of them
  using KeyOperand = RightRows<Mma, Rows>;                     // Kᵀ
  using RestOperand = RightRows<Mma, Rest>;
  using ValueOperand = RightColumns<Mma, Rows>;  // V
  using Scores = WarpTile<Mma, tile.rows, tile.keys>;
  using Outputs = WarpTile<Mma, tile.rows, own_values>;
  static constexpr int lane_queries = Scores::lane_rows;

  static constexpr int rows_bytes = tile.keys * Rows::bytes,
                       stage_bytes = latent_waves * rows_bytes + tile.keys * Rest::bytes,
                       share_bytes = tile.rows * tile.keys * 4;
  static_assert(tile.dynamic_shared == tile.stages * stage_bytes + 2 * latent_waves * share_bytes);

  static SharedAddress stage(std::int32_t n) {
    return arch::shared_begin() + static_cast<std::uint32_t>(n % tile.stages * stage_bytes);
  }
  static SharedAddress rows(SharedAddress stage) {
    return stage + static_cast<std::uint32_t>(arch::wave() * rows_bytes);
  }
  static SharedAddress rest(SharedAddress stage) { return stage + latent_waves * rows_bytes; }
  // A lane's own four numbers of part `part` of the scores of tile n, as warp `warp` has them.
  static SharedAddress share(std::int32_t n, int warp, int part) {
    return arch::shared_begin() +
           static_cast<std::uint32_t>(tile.stages * stage_bytes +
                                      (n % 2 * latent_waves + warp) * share_bytes +
                                      (part * arch::wave_size + arch::lane()) * 16);
  }
};

// The warp's columns of the tiles on their way to shared memory, past the registers.
template <KernelSpec spec>
class LatentStream {
  using Types = LatentTypes<spec>;
  using Task = CopyTask<Types::Rows::bytes, Types::tile.keys, arch::wave_size>;
  static constexpr int rest_chunks = own_rest * number_bytes<spec.dtype> / 16,
                       rest_step = arch::wave_size / rest_chunks;  // rows of a round

 public:
  LatentStream(const DecodeArguments& a, const SequenceView& s, std::int64_t kv_head,
               std::int32_t first_key, std::int32_t end_key)
      : keys_(a.problem.k), cursor_(a, s, kv_head, first_key, end_key) {}

  // Starts the copies of the next tile, of which `left` rows exist.
  void next(SharedAddress stage, std::int32_t left) {
    const Task task(arch::lane());
    const SharedAddress to = task.first(Types::rows(stage));
    const int column = latent_column(arch::wave(), 8 * task.chunk),
              rest_row = arch::lane() / rest_chunks,
              rest_chunk = arch::wave() * rest_chunks + arch::lane() % rest_chunks,
              rest_column = latent_values + 8 * rest_chunk;
    const auto rest_to = [&](int row) {
      return Types::rest(stage) + static_cast<std::uint32_t>(Types::Rest::offset(row, rest_chunk));
    };
    if (cursor_.in_one_run()) {
      const std::byte* from = cursor_.in_run(keys_, task.row);
      const std::int64_t stride = keys_.row_stride * (Task::step * number_bytes<spec.dtype>);
      ROCFLASH_UNROLL
      for (int n = 0; n < Task::rounds; ++n) {
        copy(Task::next(to, n), from, column, task.row + n * Task::step < left);
        from += stride;
      }
      ROCFLASH_UNROLL
      for (int row = rest_row; row < Types::tile.keys; row += rest_step)
        copy(rest_to(row), cursor_.in_run(keys_, row), rest_column, row < left);
    } else {
      // Few at a time: finding a row in a page takes a load.
      constexpr int together = 4;
      for (int first = 0; first < Task::rounds; first += together) {
        const std::byte* from[together];
        ROCFLASH_UNROLL
        for (int n = 0; n < together; ++n)
          from[n] = cursor_.found(keys_, task.row + (first + n) * Task::step, left);
        ROCFLASH_UNROLL
        for (int n = 0; n < together; ++n)
          copy(Task::next(to, first + n), from[n], column,
               task.row + (first + n) * Task::step < left);
      }
      for (int row = rest_row; row < Types::tile.keys; row += rest_step)
        copy(rest_to(row), cursor_.found(keys_, row, left), rest_column, row < left);
    }
    cursor_.advance(left);
  }

 private:
  void copy(SharedAddress to, const std::byte* row, int column, bool row_there) const {
    const bool there = row_there && column < keys_.columns;
    arch::copy_async(to, there ? row + number_bytes<spec.dtype> * column : keys_.data, there);
  }

  const Rows& keys_;
  KeyCursor<spec.dtype, Types::tile.keys> cursor_;
};

// The warp's columns of q, as left operands.
template <KernelSpec spec>
class LatentQueries {
  using Types = LatentTypes<spec>;
  using Mma = typename Types::Mma;
  static constexpr int steps = own_columns / Mma::depth, parts = Types::tile.rows / Mma::rows;

 public:
  LatentQueries(const DecodeArguments& a, const SequenceView& s, const DecodePart& part,
                std::int32_t kv_head, bool turn_sign) {
    const Rows& q = a.problem.q;
    const auto group = static_cast<std::uint32_t>(a.group);
    const int lane = arch::lane();
    ROCFLASH_UNROLL
    for (int i = 0; i < 2 * parts; ++i) {
      const int row = Types::Scores::row(lane, i);
      const PackedRow packed(part.row_begin + row, group, kv_head);
      const std::byte* from =
          row_address<spec.dtype>(q, s.batch, s.q_row + packed.query, packed.head);
      ROCFLASH_UNROLL
      for (int n = 0; n < 2 * steps; ++n) {
        const int column = latent_column(arch::wave(), n * 8) + 2 * (lane % row_lanes);
        std::uint32_t word = 0;
        if (row < part.rows && column < q.columns)
          word = arch::load(
              reinterpret_cast<const std::uint32_t*>(from + number_bytes<spec.dtype> * column));
        fragment_[i / 2][n / 2][n % 2 * 2 + i % 2] = turn_sign ? word ^ 0x80008000u : word;
      }
    }
  }
  Words4 fragment(int part, int step) const { return fragment_[part][step]; }

  // The operand of the columns that are keys alone.
  struct OfRest {
    const LatentQueries& all;
    Words4 fragment(int part, int) const { return all.fragment(part, steps - 1); }
  };
  OfRest rest() const { return {*this}; }

 private:
  Words4 fragment_[parts][steps];
};

// The sum of all warps' shares of the scores of tile n, in the same order in each of them.
template <KernelSpec spec>
void exchange_shares(typename LatentTypes<spec>::Scores& scores, std::int32_t n) {
  using Types = LatentTypes<spec>;
  using Scores = typename Types::Scores;
  ROCFLASH_UNROLL
  for (int part = 0; part < Scores::row_parts * Scores::column_parts; ++part) {
    const float (&x)[4] = scores.part[part / Scores::column_parts][part % Scores::column_parts].at;
    arch::store_shared(Types::share(n, arch::wave(), part),
                       __builtin_bit_cast(Words4, Float4{x[0], x[1], x[2], x[3]}));
  }
  arch::barrier();
  ROCFLASH_UNROLL
  for (int part = 0; part < Scores::row_parts * Scores::column_parts; ++part) {
    Float4 sum = {};
    ROCFLASH_UNROLL
    for (int w = 0; w < latent_waves; ++w)
      sum += __builtin_bit_cast(Float4, arch::load_shared(Types::share(n, w, part)));
    ROCFLASH_UNROLL
    for (int e = 0; e < 4; ++e)
      scores.part[part / Scores::column_parts][part % Scores::column_parts].at[e] = sum[e];
  }
}

// The end: each row divided by its sum, and its lse.
template <KernelSpec spec>
void finish_columns(const DecodeArguments& a, const SequenceView& sequence, const DecodePart& part,
                    const DecodeItem& item,
                    const OnlineSoftmax (&softmax)[LatentTypes<spec>::lane_queries],
                    const typename LatentTypes<spec>::Outputs& out) {
  using Types = LatentTypes<spec>;
  using Outputs = typename Types::Outputs;
  constexpr int lane_queries = Types::lane_queries;
  const Problem& p = a.problem;
  const auto group = static_cast<std::uint32_t>(a.group);
  const Finish<Variant::full> end(p, 0);
  const LatentResults<spec.dtype> to{a, sequence, item.split};
  const int lane = arch::lane(), first = arch::wave() * own_values;
  float factors[lane_queries];
  BrokenRows broken;
  ROCFLASH_UNROLL
  for (int i = 0; i < lane_queries; ++i) {
    const Normaliser normaliser = end(softmax[i].reference, row_sum(softmax[i].sum));
    factors[i] = normaliser.factor;
    const int row = Outputs::row(lane, i);
    const bool in_use = row < part.rows;
    const PackedRow packed(part.row_begin + row, group, item.kv_head);
    if (in_use && lane % row_lanes == 0 && arch::wave() == 0) to.store_lse(packed, normaliser.lse);
    float probe = 0;  // NaN once an output is not finite
    ROCFLASH_UNROLL
    for (int n = 0; n < Outputs::lane_columns; n += 2) {
      const Float2 x{out.at(i, n), out.at(i, n + 1)};
      probe = __builtin_fmaf(x.y, 0.0f, __builtin_fmaf(x.x, 0.0f, probe));
      if (in_use)
        to.store(packed, first + Outputs::lane_column(lane) + Outputs::column(n),
                 x * normaliser.factor);
    }
    broken.add(i, in_use && (probe != 0 || products_overflow(p)));
  }
  arch::wave_barrier();
  while (broken.any()) {
    const auto taken = broken.take();
    const RowNormal normal(taken, softmax, factors);
    const int row = Outputs::row(taken.first_lane, taken.which);
    const PackedRow packed(part.row_begin + row, group, item.kv_head);
    const int end_column = first + own_values < p.value_dim ? first + own_values : p.value_dim;
    repair(
        ExactScores<spec.dtype>{p, sequence, packed.head, a.caches},
        part.view(p, sequence, packed.query), normal.base, normal.factor, first, end_column,
        [&](float lse) {
          if (arch::wave() == 0) to.store_lse(packed, lse);
        },
        [&](int column, float x) { to.store(packed, column, x); });
  }
}

template <KernelSpec spec>
void decode_latent(const DecodeArguments& a) {
  using Types = LatentTypes<spec>;
  using Scores = typename Types::Scores;
  constexpr DecodeTile tile = Types::tile;
  constexpr int lane_queries = Types::lane_queries, ahead = tile.stages - 1;

  // The workgroup's rows, its part of the keys, and the rows of the lane.
  const Problem& p = a.problem;
  const DecodeItem item(a, arch::group());
  const SequenceView sequence(p, item.batch);
  const DecodePart part(a, sequence, item.block, tile.rows, item.split, a.splits, tile.keys);
  if (part.rows == 0) return;
  const auto group = static_cast<std::uint32_t>(a.group);
  const int lane = arch::lane();
  const auto query_at = [&](int i) {  // query i of the lane
    const PackedRow packed(part.row_begin + Scores::row(lane, i), group, item.kv_head);
    return part.view(p, sequence, packed.query);
  };

  // The first tiles start on their way.
  LatentStream<spec> stream(a, sequence, item.kv_head, part.begin, part.end);
  const auto copy_tile = [&](std::int32_t n) {
    const std::int32_t left = part.end - part.begin - n * tile.keys;
    if (left > 0) stream.next(Types::stage(n), left);
    arch::commit_copies();
  };
  for (int n = 0; n < ahead; ++n) copy_tile(n);
  const Scale scale(p.scale);
  const LatentQueries<spec> q(a, sequence, part, item.kv_head, scale.turn_sign);

  const bool shaped = p.scale == 0 || p.softcap > 0 || p.alibi || p.bias || p.mask;
  const float unit = shaped ? 1 : scale.unit;
  OnlineSoftmax softmax[lane_queries];
  typename Types::Outputs out = {};
  const std::int32_t tiles = (part.end - part.begin + tile.keys - 1) / tile.keys;
  for (std::int32_t n = 0; n < tiles; ++n) {
    arch::wait_for_copies<ahead - 1>();
    arch::wave_barrier();  // the tile is there, and nobody reads the one before it any more
    copy_tile(n + ahead);

    // scores = Q · Kᵀ
    const std::int32_t begin = part.begin + n * tile.keys, end = begin + tile.keys;
    const SharedAddress stage = Types::stage(n), rows = Types::rows(stage);
    Scores scores = {};
    add_product<own_values>(scores, q,
                            typename Types::KeyOperand{operand_address<typename Types::Rows>(
                                rows, matrices_across(lane))});
    add_step(scores, q.rest(),
             typename Types::RestOperand{
                 operand_address<typename Types::Rest>(Types::rest(stage), matrices_across(lane))},
             arch::wave());
    exchange_shares<spec>(scores, n);

    const bool edge = begin < part.common_begin || end > part.common_end;
    if (shaped || edge) {
      const auto key_at = [first = begin + Scores::lane_column(lane)](int column) {
        return first + Scores::column(column);
      };
      for_each<lane_queries>([&](int i) {
        const QueryView query = query_at(i);
        if (shaped) {
          const PackedRow packed(part.row_begin + Scores::row(lane, i), group, item.kv_head);
          ScoreShape(p, sequence, packed.head)
              .template shape<Scores::lane_columns>(
                  query, [&](int column) -> float& { return scores.at(i, column); }, key_at);
        }
        ROCFLASH_UNROLL
        for (int column = 0; column < Scores::lane_columns; ++column)
          scores.at(i, column) = query.sees(key_at(column)) ? scores.at(i, column) : -infinity;
      });
    }

    follow_largest<Types>(softmax, scores, unit, out);

    // out += P · V
    const typename Types::ValueOperand v{
        operand_address<typename Types::Rows>(rows, matrices_down(lane))};
    const auto kept = [&](int i, int key) {
      const PackedRow packed(part.row_begin + Scores::row(lane, i), group, item.kv_head);
      return kept_by_row(ScoreShape(p, sequence, packed.head), query_at(i), begin + key);
    };
    if (p.dropout.on()) {
      weigh_values<Types, true>(softmax, scores, unit, v, out, lane, kept);
    } else {
      weigh_values<Types, false>(softmax, scores, unit, v, out, lane, kept);
    }
  }
  arch::wait_for_copies<0>();
  finish_columns<spec>(a, sequence, part, item, softmax, out);
}

}  // namespace rocflash::kernel
