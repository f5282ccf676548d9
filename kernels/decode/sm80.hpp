// Split-KV decode on NVIDIA GPUs from sm_80 on: few queries, limited by the bandwidth of the KV
// cache. Each warp has a split of the keys and waits for no other warp before the epilogue. Then
// the warps of a workgroup combine their results, and combine/rows.hpp combines those of
// workgroups.
//
//   registers       Q, S of one tile, O
//   shared memory   per warp a pipeline of `stages` K and V tiles; in the epilogue its results
//
// Rows of the product are packed (query, head) rows (attention/gqa_packing.hpp). MMA, softmax and
// score modifiers are those of forward/sm80.hpp.
#pragma once

#include "attention/elements.hpp"
#include "attention/gqa_packing.hpp"
#include "attention/non_finite_rows.hpp"
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
  using Rows = SharedRows<bucket * element_bytes<dtype>>;
  using Queries = ResidentA<Mma, Rows, tile.rows, bucket, tile.shared_queries>;  // Q
  using KeyOperand = KMajorB<Mma, Rows>;                                         // Kᵀ
  using ValueOperand = NMajorB<Mma, Rows>;                                       // V
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
  // A warp's results in the epilogue: f32 rows with 32 bytes of padding, so that eight of them are
  // in different banks, and their LSE.
  static constexpr int result_bytes = bucket * 4 + 32;
  static_assert(tile.rows * (result_bytes + 4) <= warp_bytes);
  static SharedAddress result(int warp, int row, int column) {
    return arch::shared_begin() +
           static_cast<std::uint32_t>(warp * warp_bytes + row * result_bytes + 4 * column);
  }
  static SharedAddress result_lse(int warp, int row) {
    return result(warp, tile.rows, 0) + static_cast<std::uint32_t>(4 * row);
  }
  // In the padding of its row.
  static SharedAddress result_rest(int warp, int row) { return result(warp, row, bucket); }
  // Q. Where it moves on to registers it uses the stage that is filled last.
  static SharedAddress queries() {
    return arch::shared_begin() +
           static_cast<std::uint32_t>(arch::wave() * warp_bytes +
                                      (tile.stages - !tile.shared_queries) * stage_bytes);
  }
};

// cp.async loads of the K and V tiles of one warp.
template <KernelSpec spec>
class KvLoader {
  using Types = DecodeTypes<spec>;
  using Task =
      CopyTask<Types::bucket * element_bytes<spec.dtype>, Types::tile.keys, arch::wave_size>;

 public:
  KvLoader(const DecodeArguments& a, const SequenceView& s, std::int64_t kv_head,
           std::int32_t first_key, std::int32_t end_key)
      : k_(a.problem.k), v_(a.problem.v), cursor_(a, s, kv_head, first_key, end_key) {}

  // Issues the loads of the next tile, of which `left` rows exist.
  void next(SharedAddress to, std::int32_t left) {
    const Task task(arch::lane());
    if (cursor_.is_contiguous()) {
      copy_contiguous(k_, task, to, left);
      copy_contiguous(v_, task, to + Types::tile_bytes, left);
    } else {
      copy_paged(k_, task, to, left);
      copy_paged(v_, task, to + Types::tile_bytes, left);
    }
    cursor_.advance(left);
  }

 private:
  static constexpr int chunk_columns = 16 / element_bytes<spec.dtype>;

  void copy_contiguous(const Rows& rows, const Task& task, SharedAddress tile,
                       std::int32_t left) const {
    if (task.idle()) return;
    const SharedAddress to = task.first(tile);
    const bool column_in_bounds = chunk_columns * task.chunk < rows.columns;
    const std::byte* from = cursor_.contiguous_row(rows, task.row) + 16 * task.chunk;
    const std::int64_t stride = rows.row_stride * (Task::step * element_bytes<spec.dtype>);
    ROCFLASH_UNROLL
    for (int n = 0; n < Task::rounds; ++n) {
      const bool in_bounds = column_in_bounds && task.row + n * Task::step < left;
      arch::cp_async(Task::next(to, n), in_bounds ? from : rows.data, in_bounds);
      from += stride;
    }
  }
  void copy_paged(const Rows& rows, const Task& task, SharedAddress tile, std::int32_t left) const {
    if (task.idle()) return;
    const SharedAddress to = task.first(tile);
    const int column = chunk_columns * task.chunk;
    // All addresses before the first copy: the block table lookups overlap.
    const std::byte* from[Task::rounds];
    ROCFLASH_UNROLL
    for (int n = 0; n < Task::rounds; ++n)
      from[n] = cursor_.paged_row(rows, task.row + n * Task::step, left) +
                element_bytes<spec.dtype> * column;
    ROCFLASH_UNROLL
    for (int n = 0; n < Task::rounds; ++n) {
      const bool in_bounds = task.row + n * Task::step < left && column < rows.columns;
      arch::cp_async(Task::next(to, n), in_bounds ? from[n] : rows.data, in_bounds);
    }
  }

  const Rows &k_, &v_;
  KeyCursor<spec.dtype, Types::tile.keys> cursor_;
};

// Q of a block of packed rows, to shared memory.
template <KernelSpec spec>
void load_queries(const DecodeArguments& a, const SequenceView& s, const KeySplit& split,
                  std::int32_t kv_head, bool negate, SharedAddress tile) {
  using Types = DecodeTypes<spec>;
  using Rows = typename Types::Rows;
  const auto gqa_group = static_cast<std::uint32_t>(a.gqa_group);
  for (int n = arch::lane(); n < Types::tile.rows * Rows::chunks; n += arch::wave_size) {
    const int row = n / Rows::chunks, chunk = n % Rows::chunks;
    Words4 words = query_chunk<spec.dtype>(a.problem.q, s, split, gqa_group, kv_head, row, chunk);
    if (negate) words = negated<spec.dtype>(words);
    arch::store_shared(tile + static_cast<std::uint32_t>(Rows::offset(row, chunk)), words);
  }
}

inline void store_float(SharedAddress to, float x) {
  arch::store_shared(to, __builtin_bit_cast(std::uint32_t, x));
}

// Epilogue of a warp: normalized f32 rows and their LSE, to shared memory.
template <KernelSpec spec>
void store_warp_results(const DecodeArguments& a, const SequenceView& sequence,
                        const KeySplit& split, std::int32_t kv_head,
                        const GenericSoftmax (&softmax)[DecodeTypes<spec>::lane_queries],
                        const typename DecodeTypes<spec>::Outputs& out) {
  using Types = DecodeTypes<spec>;
  using Outputs = typename Types::Outputs;
  constexpr int lane_queries = Types::lane_queries;
  const Problem& p = a.problem;
  const auto gqa_group = static_cast<std::uint32_t>(a.gqa_group);
  const SoftmaxFinalizer<Variant::generic> end(p, 0, has_score_modifiers(p));
  const int lane = arch::lane(), warp = arch::wave();
  arch::cp_async_wait<0>();
  arch::syncwarp();  // no lane reads the tiles any more
  NonFiniteRows non_finite;
  ROCFLASH_UNROLL
  for (int i = 0; i < lane_queries; ++i) {
    const float sum = row_sum(softmax[i].sum);
    const Normalizer normalizer = end(softmax[i].row_max, sum);
    const int row = Outputs::row(lane, i);
    if (lane % row_lanes == 0) {
      const SplitLse own = SplitLse::of(softmax[i].row_max, sum, normalizer.lse);
      store_float(Types::result_lse(warp, row), own.lse);
      store_float(Types::result_rest(warp, row), own.rest);
    }
    const SharedAddress to = Types::result(warp, row, Outputs::lane_column(lane));
    float probe = normalizer.factor * 0.0f;  // NaN once an output is not finite
    ROCFLASH_UNROLL
    for (int n = 0; n < Outputs::lane_columns; n += 2) {
      const Float2 x{out.at(i, n), out.at(i, n + 1)};
      probe = __builtin_fmaf(x.y, 0.0f, __builtin_fmaf(x.x, 0.0f, probe));
      arch::store_shared(to + static_cast<std::uint32_t>(4 * Outputs::column(n)),
                         __builtin_bit_cast(Words2, x * normalizer.factor));
    }
    non_finite.add(i, row < split.rows && (probe != 0 || products_overflow(p)));
  }
  arch::syncwarp();
  while (non_finite.any()) {
    const auto taken = non_finite.take();
    const int row = Outputs::row(taken.first_lane, taken.which);
    const PackedRow packed(split.row_begin + row, gqa_group, kv_head);
    recompute_row(
        ExactScores<spec.dtype>{p, sequence, packed.head, a.caches},
        split.view(p, sequence, packed.query), 0, p.value_dim,
        [&](SplitLse x) {
          store_float(Types::result_lse(warp, row), x.lse);
          store_float(Types::result_rest(warp, row), x.rest);
        },
        [&](int column, float x) { store_float(Types::result(warp, row, column), x); });
  }
}

// Combines the results of a workgroup's warps, weighted with exp(LSE − max LSE) as in
// combine/rows.hpp. A row goes to the partial results, or to the outputs if there is one split.
template <KernelSpec spec>
void combine_warps(const DecodeArguments& a) {
  using Types = DecodeTypes<spec>;
  // Computed again, so that the main loop need not keep it in registers.
  const DecodeWorkTile item(a, static_cast<std::int32_t>(arch::opaque_vgpr(
                                   static_cast<std::uint32_t>(arch::workgroup_id()))));
  const SequenceView sequence(a.problem, item.batch);
  const KeySplit split(a, sequence, item.block, Types::tile.rows, 0, 1, Types::tile.keys);
  const SplitRows to{a, sequence, item.split};
  constexpr int row_chunks = spec.bucket / 4;
  for (int n = arch::thread(); n < split.rows * row_chunks; n += Types::tile.threads) {
    const int row = n / row_chunks, column = n % row_chunks * 4;
    const PackedRow packed(split.row_begin + row, static_cast<std::uint32_t>(a.gqa_group),
                           item.kv_head);
    const bool has_sink = a.direct && a.sinks;
    const float sink =
        has_sink ? load_element(a.sinks.data, a.sinks.dtype, packed.head * a.sinks.head_stride)
                 : -infinity;
    float lse[Types::waves], max_lse = sink, sum = 0;
    ROCFLASH_UNROLL
    for (int w = 0; w < Types::waves; ++w) {
      lse[w] = arch::load_shared_float(Types::result_lse(w, row));
      if (lse[w] != infinity) max_lse = __builtin_fmaxf(max_lse, lse[w]);
    }
    Float4 value = {};
    ROCFLASH_UNROLL
    for (int w = 0; w < Types::waves; ++w) {
      if (lse[w] == infinity) continue;  // fully masked: no values were stored
      const float rest = arch::load_shared_float(Types::result_rest(w, row));
      const float weight = arch::exp2((lse[w] - max_lse + rest) * log2_e);
      sum += weight;
      const Words4 words = arch::load_shared(Types::result(w, row, column));
      if (weight != 0) value += weight * __builtin_bit_cast(Float4, words);
    }
    if (has_sink && sink != -infinity) sum += arch::exp2((sink - max_lse) * log2_e);
    value = sum == 0 ? Float4{} : value * (1 / sum);
    if (sum != sum) value = sum;  // NaN, even without any values
    const float combined_lse = sum == 0 ? infinity : max_lse + arch::log2(sum) * ln_2;
    if (!a.direct) {
      arch::store(reinterpret_cast<Float4*>(to.out(packed) + column), value);
      if (column == 0) to.store_lse(packed, SplitLse::of(max_lse, sum, combined_lse));
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
      arch::store(&a.outputs.lse.at(sequence.batch, packed.head, query), combined_lse);
  }
}

template <KernelSpec spec>
void decode(const DecodeArguments& a) {
  using Types = DecodeTypes<spec>;
  using Rows = typename Types::Rows;
  using Scores = typename Types::Scores;
  constexpr DecodeTile tile = Types::tile;
  constexpr int lane_queries = Types::lane_queries, prefetched = tile.stages - 1;

  // Work tile: packed rows, split of the keys, rows of the lane.
  const Problem& p = a.problem;
  const DecodeWorkTile item(a, arch::workgroup_id());
  const SequenceView sequence(p, item.batch);
  const std::int32_t split_index = item.split * Types::waves + arch::wave();
  const KeySplit split(a, sequence, item.block, tile.rows, split_index, a.splits * Types::waves,
                       tile.keys);
  if (split.rows == 0) return;
  const auto gqa_group = static_cast<std::uint32_t>(a.gqa_group);
  const int lane = arch::lane();
  if (split.empty()) {
    if (lane < tile.rows) store_float(Types::result_lse(arch::wave(), lane), infinity);
    arch::barrier();
    return combine_warps<spec>(a);
  }
  QueryView query[lane_queries];
  ROCFLASH_UNROLL
  for (int i = 0; i < lane_queries; ++i)
    query[i] = split.view(
        p, sequence,
        PackedRow(split.row_begin + Scores::row(lane, i), gqa_group, item.kv_head).query);

  // Prologue: loads of the first tiles, then Q through the stage that is filled last.
  KvLoader<spec> loader(a, sequence, item.kv_head, split.begin, split.end);
  const auto load_tile = [&](std::int32_t n) {
    const std::int32_t left = split.end - split.begin - n * tile.keys;
    if (left > 0) loader.next(Types::stage(n), left);
    arch::cp_async_commit();
  };
  for (int n = 0; n < prefetched; ++n) load_tile(n);
  const GenericScale scale(p.scale);
  load_queries<spec>(a, sequence, split, item.kv_head, scale.negate_q, Types::queries());
  arch::syncwarp();
  typename Types::Queries q(operand_address<Rows>(Types::queries(), matrices_down(lane)));
  q.load();

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
    const SharedAddress stage = Types::stage(n);
    Scores scores = {};
    add_product<spec.bucket>(
        scores, q, typename Types::KeyOperand{operand_address<Rows>(stage, matrices_across(lane))});
    const bool masked = begin < split.common_begin || end > split.common_end;
    if (modifies_scores || masked) {
      const auto key_at = [first = begin + Scores::lane_column(lane)](int column) {
        return first + Scores::column(column);
      };
      for_each<lane_queries>([&](int i) {
        if (modifies_scores) {
          const PackedRow packed(split.row_begin + Scores::row(lane, i), gqa_group, item.kv_head);
          ScoreMod(p, sequence, packed.head)
              .template apply<Scores::lane_columns, FastNaturalLogDomain>(
                  OneQuery{query[i].index}, key_at,
                  [&](int column) -> float& { return scores.at(i, column); });
        }
        ROCFLASH_UNROLL
        for (int column = 0; column < Scores::lane_columns; ++column)
          scores.at(i, column) =
              query[i].attends_to(key_at(column)) ? scores.at(i, column) : -infinity;
      });
    }

    update_row_max<Types>(softmax, scores, score_scale, out);

    // O += P·V
    const typename Types::ValueOperand v{
        operand_address<Rows>(stage + Types::tile_bytes, matrices_down(lane))};
    const auto kept = [&](int i, int key) {
      const PackedRow packed(split.row_begin + Scores::row(lane, i), gqa_group, item.kv_head);
      return kept_by_row(ScoreMod(p, sequence, packed.head), query[i].index, begin + key);
    };
    if (p.dropout.on()) {
      exp2_and_row_sum<Types, true>(softmax, scores, score_scale, v, out, lane, kept);
    } else {
      exp2_and_row_sum<Types, false>(softmax, scores, score_scale, v, out, lane, kept);
    }
  }
  store_warp_results<spec>(a, sequence, split, item.kv_head, softmax, out);
  arch::barrier();
  combine_warps<spec>(a);
}

}  // namespace rocflash::kernel
