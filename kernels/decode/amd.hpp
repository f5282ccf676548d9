// Decode on AMD GPUs: attention of few queries, which reads the keys as fast as memory gives them. Each wave
// has a part of the keys to itself and writes a result of its own; combine/rows.hpp merges them. Waves never wait
// for each other.
//
//   registers   q, the scores of one tile, outputs, the next tile of k and v on its way
//   LDS         one tile of v, transposed, for each wave; of k too where operands are held twice
//
// Everything is computed transposed, as in forward/amd.hpp: scores = K·Qᵀ and out += Vᵀ·Pᵀ. Columns of the products
// are pairs of query and head (attention/packed.hpp).
#pragma once

#include "arch/arch.hpp"
#include "attention/packed.hpp"
#include "attention/rows.hpp"
#include "attention/score.hpp"
#include "attention/sequence.hpp"
#include "attention/softmax.hpp"
#include "decode/amd_end.hpp"
#include "decode/amd_scores.hpp"
#include "decode/amd_staged.hpp"
#include "table/decode.hpp"
#include "tile/amd.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
struct DecodeTypes {
  static constexpr DType dtype = spec.dtype;
  static constexpr int bucket = spec.bucket;
  static constexpr DecodeTile tile = decode_tile(this_family, spec);
  static constexpr int waves = tile.waves(arch::wave_size);

  using Mma = arch::Mma<dtype>;
  static_assert(tile.rows == Mma::columns && tile.keys == Mma::rows);
  // Where a lane's share of an operand is one chunk of a row, k goes from memory straight into it.
  static constexpr bool direct_keys =
      sizeof(typename Mma::Operand) == sizeof(Words4) && tile.stages > 0;

  using Keys = RowTile<bucket * number_bytes<dtype>, tile.keys>;
  using Values = Transposed<Mma, dtype, bucket, tile.keys>;
  using ValueOperand = typename Values::Operand;                       // Vᵀ
  using Queries = KeptLines<Mma, dtype, bucket, tile.shared_queries>;  // Qᵀ
  using Scores = Elements<Mma, tile.keys, tile.rows>;
  using Outputs = Accumulators<Mma, bucket, tile.rows>;  // of Oᵀ

  static constexpr int key_chunks = direct_keys ? 0 : Keys::chunks,
                       value_chunks = Values::Tile::chunks;
};

template <bool direct, class Types>
struct ChooseKeys {
  using Type = DirectLines<typename Types::Mma, Types::dtype, Types::bucket>;
};
template <class Types>
struct ChooseKeys<false, Types> {
  using Type = StagedRows<typename Types::Keys, Types::dtype, Types::bucket, Types::tile.keys>;
};

// The tiles of k and v of one wave on their way from memory.
template <KernelSpec spec>
class KeyStream {
  using Types = DecodeTypes<spec>;

 public:
  typename ChooseKeys<Types::direct_keys, Types>::Type k;
  typename ChooseStaged<arch::transposing_reads, typename Types::Values::Tile,
                        typename Types::Mma::Layout, spec.dtype, spec.bucket,
                        Types::tile.keys>::Type v;

  KeyStream(const DecodeArguments& a, const SequenceView& s, std::int32_t kv_head)
      : a_(a), sequence_(s), head_(kv_head) {}

  // Starts the loads of the tile from `key` on, of which `left` rows exist.
  void load(std::int32_t key, std::int32_t left) {
    visit(true, key, left, [&](const Rows& rows, const auto& block) { load_tile(k, rows, block); });
    visit(false, key, left,
          [&](const Rows& rows, const auto& block) { load_tile(v, rows, block); });
  }
  // The same, all the way to LDS.
  void copy(std::int32_t key, std::int32_t left, SharedWords4* keys, SharedWords4* values) {
    visit(true, key, left,
          [&](const Rows& rows, const auto& block) { copy_tile(k, rows, block, keys); });
    visit(false, key, left,
          [&](const Rows& rows, const auto& block) { copy_tile(v, rows, block, values); });
  }

 private:
  template <class Visit>
  void visit(bool keys, std::int32_t key, std::int32_t left, Visit with) const {
    // Loaded again for each tile: all of it is more than the scalar registers hold.
    const DecodeArguments& a = arch::again(a_);
    visit_rows<spec.dtype, Types::tile.keys>(keys ? a.problem.k : a.problem.v, a.caches, sequence_,
                                             key, left, head_, with);
  }

  const DecodeArguments& a_;
  const SequenceView& sequence_;
  std::int32_t head_;
};

// K · Qᵀ, a few steps at a time: fragments that are read further ahead would take registers that the
// tile on its way needs.
template <KernelSpec spec, class K, class Q>
typename DecodeTypes<spec>::Scores multiply_keys(const K& k, const Q& q) {
  using Mma = typename DecodeTypes<spec>::Mma;
  typename DecodeTypes<spec>::Scores scores;
  typename Mma::Result sum = {};
  ROCFLASH_UNROLL
  for (int step = 0; step < spec.bucket / Mma::depth; ++step) {
    sum = Mma::multiply(k.fragment(0, step), q.fragment(0, step), sum);
    if (step % 2 == 1) arch::end_phase(sum);
  }
  ROCFLASH_UNROLL
  for (int r = 0; r < Mma::results; ++r) scores.at[0][r] = sum[r];
  return scores;
}

// The end of a wave's work, a part of the results. It computes its position again rather than keep it in registers
// during the loop.
template <KernelSpec spec>
void finish_part(const DecodeArguments& a, const OnlineSoftmax& softmax,
                 const typename DecodeTypes<spec>::Outputs& out) {
  using Types = DecodeTypes<spec>;
  const DecodeItem item(a, arch::group());
  const SequenceView sequence(a.problem, item.batch);
  const std::int32_t number = item.split * Types::waves + arch::wave();
  const DecodePart part(a, sequence, item.block, Types::tile.rows, number, a.splits * Types::waves,
                        Types::tile.keys);
  finish_results<spec.dtype, Types, PartRows>(a, item, sequence, part, {number, 0, true}, softmax,
                                              out);
}

template <KernelSpec spec>
void decode(const DecodeArguments& a) {
  using Types = DecodeTypes<spec>;
  using Scores = typename Types::Scores;
  constexpr DecodeTile tile = Types::tile;

  ROCFLASH_SHARED_ARRAY Words4 shared_keys[Types::waves][Types::key_chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_values[Types::waves][Types::value_chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_queries[Types::waves][Types::Queries::shared_chunks];

  // The wave's rows, its part of the keys, and the lane's own row.
  const Problem& p = a.problem;
  const DecodeItem item(a, arch::group());
  const SequenceView sequence(p, item.batch);
  const int wave = arch::wave();
  const std::int32_t number = item.split * Types::waves + wave;
  const DecodePart part(a, sequence, item.block, tile.rows, number, a.splits * Types::waves,
                        tile.keys);
  if (part.rows == 0) return;
  const auto group = static_cast<std::uint32_t>(a.group);
  const int own = Scores::lane_column();
  const PackedRow packed(part.row_begin + own, group, item.kv_head);
  if (part.empty()) {
    if (own < part.rows && Scores::lane_row() == 0)
      arch::store(&PartRows{a, sequence, number}.lse(packed), infinity);
    return;
  }
  const QueryView query = part.view(p, sequence, packed.query);

  constexpr bool ahead = tile.stages > 0;
  KeyStream<spec> next(a, sequence, item.kv_head);
  if constexpr (ahead) next.load(part.begin, part.end - part.begin);

  const Scale scale(p.scale);
  const typename Types::Queries q(shared_queries[wave], [&](int row, int chunk) {
    const Words4 words =
        query_chunk<spec.dtype>(p.q, sequence, part, group, item.kv_head, row, chunk);
    return scale.turn_sign ? words ^ 0x80008000u : words;
  });

  const bool shaped = p.scale == 0 || p.softcap > 0 || p.alibi || p.bias || p.mask;
  const float unit = shaped ? 1 : scale.unit;
  OnlineSoftmax softmax;
  typename Types::Outputs out = {};
  for (std::int32_t begin = part.begin; begin < part.end; begin += tile.keys) {
    const std::int32_t end = begin + tile.keys;
    // scores = K · Qᵀ. The tile makes room for the next one as soon as it is in LDS or has been multiplied.
    const auto load_next = [&] {
      if (end < part.end) next.load(end, part.end - end);
    };
    Scores scores;
    arch::wave_fence();
    if constexpr (Types::direct_keys) {
      store_tile(next.v, shared_values[wave]);
      scores = multiply_keys<spec>(next.k, q);
      load_next();
      arch::wave_fence();
    } else {
      if constexpr (ahead) {
        store_tile(next.k, shared_keys[wave]);
        store_tile(next.v, shared_values[wave]);
        arch::end_phase();
        load_next();
      } else {
        next.copy(begin, part.end - begin, shared_keys[wave], shared_values[wave]);
      }
      arch::wave_fence();
      scores = multiply_keys<spec>(
          SharedLines<typename Types::Mma, typename Types::Keys, Side::left>{shared_keys[wave]}, q);
    }
    arch::end_phase();
    weights_of_scores(a, sequence, part, item.kv_head, query, begin, end, shaped, unit, softmax,
                      scores, out);

    // out += Vᵀ · Pᵀ
    add_values(out, typename Types::ValueOperand{shared_values[wave]},
               rounded_weights<spec.dtype>(scores), tile.keys);
  }
  finish_part<spec>(arch::again(a), softmax, out);
}

}  // namespace rocflash::kernel
