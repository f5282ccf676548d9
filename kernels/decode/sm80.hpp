// Decode on NVIDIA GPUs from sm_80 on: attention of few queries, which reads the keys as fast as memory gives
// them. Each warp has a part of the keys to itself, and waits for no other before the end. Then the warps of a
// workgroup merge their results, and combine/rows.hpp merges those of workgroups.
//
//   registers       q, the scores of one tile, outputs
//   shared memory   for each warp `stages` tiles of k and v: one in use, the others on their way; at the
//                   end its results
//
// Rows of the product are pairs of query and head (attention/packed.hpp). Products, softmax and what options do to
// scores are forward's.
#pragma once

#include "attention/broken_rows.hpp"
#include "attention/numbers.hpp"
#include "attention/packed.hpp"
#include "decode/sm80_cursor.hpp"
#include "forward/sm80.hpp"
#include "table/decode.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
struct DecodeTypes {
  static constexpr DType dtype = spec.dtype;
  static constexpr int bucket = spec.bucket;
  static constexpr DecodeTile tile = decode_tile(this_family, spec);
  static constexpr int waves = tile.waves(arch::wave_size);

  using Mma = arch::Mma<dtype>;
  using Rows = SharedRows<bucket * number_bytes<dtype>>;
  using Queries = KeptRows<Mma, Rows, tile.rows, bucket, tile.shared_queries>;  // Q
  using KeyOperand = RightRows<Mma, Rows>;                                      // Kᵀ
  using ValueOperand = RightColumns<Mma, Rows>;                                 // V
  using Scores = WarpTile<Mma, tile.rows, tile.keys>;
  using Outputs = WarpTile<Mma, tile.rows, bucket>;
  static constexpr int lane_queries = Scores::lane_rows;

  static constexpr int tile_bytes = tile.keys * Rows::bytes, stage_bytes = 2 * tile_bytes;
  static_assert(tile.rows == Mma::rows && tile.rows <= tile.keys && tile.stages >= 2);
  static constexpr int warp_bytes = tile.dynamic_shared / waves;
  static_assert(warp_bytes ==
                tile.stages * stage_bytes + (tile.shared_queries ? tile.rows * Rows::bytes : 0));

  // Stage n of this warp: k, then v.
  static SharedAddress stage(std::int32_t n) {
    return arch::shared_begin() +
           static_cast<std::uint32_t>(arch::wave() * warp_bytes + n % tile.stages * stage_bytes);
  }
  // A warp's results at the end: f32 rows, 32 bytes apart so that eight of them lie in different banks, and their lse.
  static constexpr int result_bytes = bucket * 4 + 32;
  static_assert(tile.rows * (result_bytes + 4) <= warp_bytes);
  static SharedAddress result(int warp, int row, int column) {
    return arch::shared_begin() +
           static_cast<std::uint32_t>(warp * warp_bytes + row * result_bytes + 4 * column);
  }
  static SharedAddress result_lse(int warp, int row) {
    return result(warp, tile.rows, 0) + static_cast<std::uint32_t>(4 * row);
  }
  // q, which moves on to registers where they hold it, out of the stage that is filled last.
  static SharedAddress queries() {
    return arch::shared_begin() +
           static_cast<std::uint32_t>(arch::wave() * warp_bytes +
                                      (tile.stages - !tile.shared_queries) * stage_bytes);
  }
};

// The tiles of k and v of one warp on their way to shared memory, past the registers.
template <KernelSpec spec>
class KeyStream {
  using Types = DecodeTypes<spec>;
  using Task =
      CopyTask<Types::bucket * number_bytes<spec.dtype>, Types::tile.keys, arch::wave_size>;

 public:
  KeyStream(const DecodeArguments& a, const SequenceView& s, std::int64_t kv_head,
            std::int32_t first_key, std::int32_t end_key)
      : k_(a.problem.k), v_(a.problem.v), cursor_(a, s, kv_head, first_key, end_key) {}

  // Starts the copies of the next tile, of which `left` rows exist.
  void next(SharedAddress to, std::int32_t left) {
    const Task task(arch::lane());
    if (cursor_.in_one_run()) {
      copy_run(k_, task, to, left);
      copy_run(v_, task, to + Types::tile_bytes, left);
    } else {
      copy_rows(k_, task, to, left);
      copy_rows(v_, task, to + Types::tile_bytes, left);
    }
    cursor_.advance(left);
  }

 private:
  static constexpr int chunk_columns = 16 / number_bytes<spec.dtype>;

  void copy_run(const Rows& rows, const Task& task, SharedAddress tile, std::int32_t left) const {
    if (task.idle()) return;
    const SharedAddress to = task.first(tile);
    const bool column_there = chunk_columns * task.chunk < rows.columns;
    const std::byte* from = cursor_.in_run(rows, task.row) + 16 * task.chunk;
    const std::int64_t stride = rows.row_stride * (Task::step * number_bytes<spec.dtype>);
    ROCFLASH_UNROLL
    for (int n = 0; n < Task::rounds; ++n) {
      const bool there = column_there && task.row + n * Task::step < left;
      arch::copy_async(Task::next(to, n), there ? from : rows.data, there);
      from += stride;
    }
  }
  void copy_rows(const Rows& rows, const Task& task, SharedAddress tile, std::int32_t left) const {
    if (task.idle()) return;
    const SharedAddress to = task.first(tile);
    const int column = chunk_columns * task.chunk;
    // All addresses come before the first copy: finding a row in a page takes a load.
    const std::byte* from[Task::rounds];
    ROCFLASH_UNROLL
    for (int n = 0; n < Task::rounds; ++n)
      from[n] =
          cursor_.found(rows, task.row + n * Task::step, left) + number_bytes<spec.dtype> * column;
    ROCFLASH_UNROLL
    for (int n = 0; n < Task::rounds; ++n) {
      const bool there = task.row + n * Task::step < left && column < rows.columns;
      arch::copy_async(Task::next(to, n), there ? from[n] : rows.data, there);
    }
  }

  const Rows &k_, &v_;
  KeyCursor<spec.dtype, Types::tile.keys> cursor_;
};

// q of a block of rows, to shared memory.
template <KernelSpec spec>
void load_queries(const DecodeArguments& a, const SequenceView& s, const DecodePart& part,
                  std::int32_t kv_head, bool turn_sign, SharedAddress tile) {
  using Types = DecodeTypes<spec>;
  using Rows = typename Types::Rows;
  const auto group = static_cast<std::uint32_t>(a.group);
  for (int n = arch::lane(); n < Types::tile.rows * Rows::chunks; n += arch::wave_size) {
    const int row = n / Rows::chunks, chunk = n % Rows::chunks;
    Words4 words = query_chunk<spec.dtype>(a.problem.q, s, part, group, kv_head, row, chunk);
    if (turn_sign) words ^= 0x80008000u;
    arch::store_shared(tile + static_cast<std::uint32_t>(Rows::offset(row, chunk)), words);
  }
}

inline void store_float(SharedAddress to, float x) {
  arch::store_shared(to, __builtin_bit_cast(std::uint32_t, x));
}

// The end of a warp's work: each row divided by its sum, in f32, and its lse, in shared memory.
template <KernelSpec spec>
void finish_part(const DecodeArguments& a, const SequenceView& sequence, const DecodePart& part,
                 std::int32_t kv_head,
                 const OnlineSoftmax (&softmax)[DecodeTypes<spec>::lane_queries],
                 const typename DecodeTypes<spec>::Outputs& out) {
  using Types = DecodeTypes<spec>;
  using Outputs = typename Types::Outputs;
  constexpr int lane_queries = Types::lane_queries;
  const Problem& p = a.problem;
  const auto group = static_cast<std::uint32_t>(a.group);
  const Finish<Variant::full> end(p, 0);
  const int lane = arch::lane(), warp = arch::wave();
  arch::wait_for_copies<0>();
  arch::wave_barrier();  // nobody reads tiles any more
  float factors[lane_queries];
  BrokenRows broken;
  ROCFLASH_UNROLL
  for (int i = 0; i < lane_queries; ++i) {
    const Normaliser normaliser = end(softmax[i].reference, row_sum(softmax[i].sum));
    factors[i] = normaliser.factor;
    const int row = Outputs::row(lane, i);
    if (lane % row_lanes == 0) store_float(Types::result_lse(warp, row), normaliser.lse);
    const SharedAddress to = Types::result(warp, row, Outputs::lane_column(lane));
    float probe = 0;  // NaN once an output is not finite
    ROCFLASH_UNROLL
    for (int n = 0; n < Outputs::lane_columns; n += 2) {
      const Float2 x{out.at(i, n), out.at(i, n + 1)};
      probe = __builtin_fmaf(x.y, 0.0f, __builtin_fmaf(x.x, 0.0f, probe));
      arch::store_shared(to + static_cast<std::uint32_t>(4 * Outputs::column(n)),
                         __builtin_bit_cast(Words2, x * normaliser.factor));
    }
    broken.add(i, row < part.rows && (probe != 0 || products_overflow(p)));
  }
  arch::wave_barrier();
  while (broken.any()) {
    const auto taken = broken.take();
    const RowNormal normal(taken, softmax, factors);
    const int row = Outputs::row(taken.first_lane, taken.which);
    const PackedRow packed(part.row_begin + row, group, kv_head);
    repair(
        ExactScores<spec.dtype>{p, sequence, packed.head, a.caches},
        part.view(p, sequence, packed.query), normal.base, normal.factor, 0, p.value_dim,
        [&](float lse) { store_float(Types::result_lse(warp, row), lse); },
        [&](int column, float x) { store_float(Types::result(warp, row, column), x); });
  }
}

// The results of a workgroup's warps in one: weighted by their shares of the sum, as combine/rows.hpp does.
// A row becomes part of the results, or the result itself.
template <KernelSpec spec>
void merge_warps(const DecodeArguments& a) {
  using Types = DecodeTypes<spec>;
  // Computed again, so that the loop over keys need not keep it.
  const DecodeItem item(
      a, static_cast<std::int32_t>(arch::renew(static_cast<std::uint32_t>(arch::group()))));
  const SequenceView sequence(a.problem, item.batch);
  const DecodePart part(a, sequence, item.block, Types::tile.rows, 0, 1, Types::tile.keys);
  const PartRows to{a, sequence, item.split};
  constexpr int row_chunks = spec.bucket / 4;
  for (int n = arch::thread(); n < part.rows * row_chunks; n += Types::tile.threads) {
    const int row = n / row_chunks, column = n % row_chunks * 4;
    const PackedRow packed(part.row_begin + row, static_cast<std::uint32_t>(a.group), item.kv_head);
    const bool has_sink = a.direct && a.sinks;
    const float sink =
        has_sink ? number_at(a.sinks.data, a.sinks.dtype, packed.head * a.sinks.head_stride)
                 : -infinity;
    float lse[Types::waves], highest = sink, sum = 0;
    ROCFLASH_UNROLL
    for (int w = 0; w < Types::waves; ++w) {
      lse[w] = arch::load_shared_float(Types::result_lse(w, row));
      if (lse[w] != infinity) highest = __builtin_fmaxf(highest, lse[w]);
    }
    Float4 value = {};
    ROCFLASH_UNROLL
    for (int w = 0; w < Types::waves; ++w) {
      if (lse[w] == infinity) continue;  // it saw no key, and left no values
      const float share = arch::exp2((lse[w] - highest) * log2_e);
      sum += share;
      const Words4 words = arch::load_shared(Types::result(w, row, column));
      if (share != 0) value += share * __builtin_bit_cast(Float4, words);
    }
    if (has_sink && sink != -infinity) sum += arch::exp2((sink - highest) * log2_e);
    value = sum == 0 ? Float4{} : value * (1 / sum);
    if (sum != sum) value = sum;  // NaN, even without any values
    const float total = sum == 0 ? infinity : highest + arch::log2(sum) * ln_2;
    if (!a.direct) {
      arch::store(reinterpret_cast<Float4*>(to.out(packed) + column), value);
      if (column == 0) arch::store(&to.lse(packed), total);
      continue;
    }
    const std::int64_t query = sequence.q_row + packed.query;
    std::byte* out = row_address<spec.dtype>(a.outputs.out, sequence.batch, query, packed.head);
    ROCFLASH_UNROLL
    for (int e = 0; e < 4; ++e) {
      if (column + e < a.outputs.out.columns)
        arch::store(reinterpret_cast<std::uint16_t*>(out) + column + e,
                    narrow<spec.dtype>(value[e]));
    }
    if (a.outputs.lse && column == 0)
      arch::store(&a.outputs.lse.at(sequence.batch, packed.head, query), total);
  }
}

template <KernelSpec spec>
void decode(const DecodeArguments& a) {
  using Types = DecodeTypes<spec>;
  using Rows = typename Types::Rows;
  using Scores = typename Types::Scores;
  constexpr DecodeTile tile = Types::tile;
  constexpr int lane_queries = Types::lane_queries, ahead = tile.stages - 1;

  // The warp's rows, its part of the keys, and the rows of the lane.
  const Problem& p = a.problem;
  const DecodeItem item(a, arch::group());
  const SequenceView sequence(p, item.batch);
  const std::int32_t number = item.split * Types::waves + arch::wave();
  const DecodePart part(a, sequence, item.block, tile.rows, number, a.splits * Types::waves,
                        tile.keys);
  if (part.rows == 0) return;
  const auto group = static_cast<std::uint32_t>(a.group);
  const int lane = arch::lane();
  if (part.empty()) {
    if (lane < tile.rows) store_float(Types::result_lse(arch::wave(), lane), infinity);
    arch::barrier();
    return merge_warps<spec>(a);
  }
  QueryView query[lane_queries];
  ROCFLASH_UNROLL
  for (int i = 0; i < lane_queries; ++i)
    query[i] = part.view(
        p, sequence, PackedRow(part.row_begin + Scores::row(lane, i), group, item.kv_head).query);

  // The first tiles start on their way, and q after them, through what the last of the stages leaves free.
  KeyStream<spec> stream(a, sequence, item.kv_head, part.begin, part.end);
  const auto copy_tile = [&](std::int32_t n) {
    const std::int32_t left = part.end - part.begin - n * tile.keys;
    if (left > 0) stream.next(Types::stage(n), left);
    arch::commit_copies();
  };
  for (int n = 0; n < ahead; ++n) copy_tile(n);
  const Scale scale(p.scale);
  load_queries<spec>(a, sequence, part, item.kv_head, scale.turn_sign, Types::queries());
  arch::wave_barrier();
  typename Types::Queries q(operand_address<Rows>(Types::queries(), matrices_down(lane)));
  q.load();

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
    const SharedAddress stage = Types::stage(n);
    Scores scores = {};
    add_product<spec.bucket>(
        scores, q, typename Types::KeyOperand{operand_address<Rows>(stage, matrices_across(lane))});
    const bool edge = begin < part.common_begin || end > part.common_end;
    if (shaped || edge) {
      const auto key_at = [first = begin + Scores::lane_column(lane)](int column) {
        return first + Scores::column(column);
      };
      for_each<lane_queries>([&](int i) {
        if (shaped) {
          const PackedRow packed(part.row_begin + Scores::row(lane, i), group, item.kv_head);
          ScoreShape(p, sequence, packed.head)
              .template shape<Scores::lane_columns>(
                  query[i], [&](int column) -> float& { return scores.at(i, column); }, key_at);
        }
        ROCFLASH_UNROLL
        for (int column = 0; column < Scores::lane_columns; ++column)
          scores.at(i, column) = query[i].sees(key_at(column)) ? scores.at(i, column) : -infinity;
      });
    }

    follow_largest<Types>(softmax, scores, unit, out);

    // out += P · V
    const typename Types::ValueOperand v{
        operand_address<Rows>(stage + Types::tile_bytes, matrices_down(lane))};
    const auto kept = [&](int i, int key) {
      const PackedRow packed(part.row_begin + Scores::row(lane, i), group, item.kv_head);
      return kept_by_row(ScoreShape(p, sequence, packed.head), query[i], begin + key);
    };
    if (p.dropout.on()) {
      weigh_values<Types, true>(softmax, scores, unit, v, out, lane, kept);
    } else {
      weigh_values<Types, false>(softmax, scores, unit, v, out, lane, kept);
    }
  }
  finish_part<spec>(a, sequence, part, item.kv_head, softmax, out);
  arch::barrier();
  merge_warps<spec>(a);
}

}  // namespace rocflash::kernel
