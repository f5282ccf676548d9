// Forward on AMD GPUs: one workgroup a block of queries, a wave a few of them, key tile after key
// tile.
//
//   registers   q (all of it), scores of one tile, outputs, the next tile of k and v on its way
//   LDS         k as it is and v transposed, two tiles of each: one in use, one being filled
//
// A turn of the loop: ask memory for the next tile; wait until the present one is in LDS; scores =
// K Q^T; softmax; outputs += V^T P^T; put the next tile into LDS. One barrier a turn is enough: a
// tile is overwritten a turn after its last use.
#pragma once

#include "arch/arch.hpp"
#include "attention/exact.hpp"
#include "attention/outside.hpp"
#include "attention/rows.hpp"
#include "attention/score.hpp"
#include "attention/sequence.hpp"
#include "attention/softmax.hpp"
#include "attention/staging.hpp"
#include "attention/work.hpp"
#include "table/forward.hpp"
#include "tile/product.hpp"

namespace rocflash::kernel {

// The end of a wave's work: the sum over the lanes of a query, the sink, one division, and out it
// goes. It finds out anew where it is, rather than keep all that in registers while the tiles go
// by.
template <class Product, DType dtype, Variant variant, ForwardTile tile>
void finish(const ForwardArguments& a, const OnlineSoftmax& softmax,
            const typename Product::Outputs& out) {
  constexpr bool full = variant == Variant::full;
  const Problem& p = a.problem;
  const WorkItem item(a.work, static_cast<std::int32_t>(p.heads), arch::group());
  const SequenceView sequence(p, item.batch);
  const std::int32_t wave_begin = item.block * tile.queries + arch::wave() * Product::queries;
  const std::int32_t query = wave_begin + Product::query();

  const bool has_sink = full && p.sinks;
  Normaliser normaliser = normalise(softmax.reference, Product::total(softmax.sum), has_sink,
                                    has_sink ? sink_of(p, item.head) : 0.0f);
  if (full && p.dropout.on()) normaliser.factor *= p.dropout.scale();
  const bool in_use = query < sequence.sq;
  const RowStatistic& lse = a.outputs.lse;
  if (lse && Product::key_offset() == 0 && query < sequence.q_rows)
    arch::store(&lse.at(sequence.batch, item.head, sequence.q_row + query),
                in_use ? normaliser.lse : infinity);

  const RowBlock<variant> out_rows(a.outputs.out, 0, sequence.batch, sequence.q_row + wave_begin,
                                   sequence.q_rows - wave_begin, item.head);
  float probe = 0;
  ROCFLASH_UNROLL
  for (int part = 0; part < Product::column_parts; ++part) {
    float o[Product::part_outputs];
    ROCFLASH_UNROLL
    for (int i = 0; i < Product::part_outputs; ++i) {
      o[i] = out.part[part][i];
      probe = __builtin_fmaf(o[i], 0.0f, probe);
      o[i] = in_use ? o[i] * normaliser.factor : 0;
    }
    Product::put_side_by_side(o);
    ROCFLASH_UNROLL
    for (int i = 0; i < Product::part_outputs; i += 4) {
      const Words2 words{narrow_pair<dtype>(o[i], o[i + 1]),
                         narrow_pair<dtype>(o[i + 2], o[i + 3])};
      out_rows.store4(words, RowBlock<variant>::place(
                                 a.outputs.out, Product::query(),
                                 Product::store_column(part, i) + Product::store_offset()));
    }
  }

  std::uint64_t broken =
      arch::ballot(in_use && Product::total(probe) != 0) & Product::one_lane_a_query;
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
  constexpr DType dtype = spec.dtype;
  constexpr int bucket = spec.bucket;
  constexpr Variant variant = spec.variant;
  constexpr ForwardTile tile = forward_tile(this_family, spec);
  constexpr bool full = variant == Variant::full;
  using Product = Products<dtype, bucket, tile.keys, tile.shared_queries>;
  using Keys = typename Product::Keys;
  using Values = typename Product::Values;
  using Block = RowBlock<variant>;
  constexpr int score_count = Product::score_count;
  static_assert(tile.threads / arch::wave_size * Product::queries == tile.queries);

  ROCFLASH_SHARED_ARRAY Words4 shared_keys[2][Keys::chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_values[2][Values::chunks];
  ROCFLASH_SHARED_ARRAY Words4
      shared_queries[tile.threads / arch::wave_size][Product::query_chunks];

  const Problem& p = a.problem;
  const WorkItem item(a.work, static_cast<std::int32_t>(p.heads), arch::group());
  clear_outside<tile.threads>(a, item);
  const SequenceView sequence(p, item.batch);
  const std::int32_t block_begin = item.block * tile.queries;
  if (block_begin >= sequence.q_rows) return;
  const std::int64_t kv_head = p.kv_head(item.head);

  // The wave's queries, and the lane's own.
  const std::int32_t wave_begin = block_begin + arch::wave() * Product::queries;
  const Range wave_queries{wave_begin, smaller(wave_begin + Product::queries, sequence.sq)};
  const QueryView query(p.visibility, sequence, wave_begin + Product::query());
  const Span wave_keys =
      wave_queries.empty() ? Range{} : sequence.keys_of(p.visibility, wave_queries);
  const Span common =
      wave_queries.empty() ? Range{} : sequence.keys_of_all(p.visibility, wave_queries);

  const Scale scale(p.scale);
  const Block q_rows(p.q, 0, sequence.batch, sequence.q_row + wave_begin, sequence.sq - wave_begin,
                     item.head);
  const typename Product::Queries q(shared_queries[arch::wave()], [&](int row, int chunk) {
    Words4 words = q_rows.load8(Block::place(p.q, row, chunk_numbers * chunk));
    if (scale.turn_sign) words ^= 0x80008000u;
    return words;
  });

  // Tiles begin on multiples of eight keys, which share their dropout bits.
  const Range block_queries{block_begin, smaller(block_begin + tile.queries, sequence.sq)};
  const Range seen =
      block_queries.empty() ? Range{} : sequence.keys_of(p.visibility, block_queries);
  const auto first_key = static_cast<std::int32_t>(seen.begin / 8 * 8);
  const std::int32_t tiles =
      seen.empty() ? 0
                   : (static_cast<std::int32_t>(seen.end) - first_key + tile.keys - 1) / tile.keys;

  const ScoreShape shape(p, sequence, item.head);
  OnlineSoftmax softmax;
  typename Product::Outputs out = {};
  RowStaging<Block, Keys, bucket, tile.keys, tile.threads> keys_on_their_way(p.k);
  typename ChooseStaging<Product::Mma::transposing, Block, typename Product::Mma, Values, bucket,
                         tile.keys, tile.threads>::Type values_on_their_way(p.v);
  const auto ask_for = [&](std::int32_t n) {
    const std::int32_t key = first_key + n * tile.keys;
    keys_on_their_way.load(
        Block(p.k, a.caches, sequence.batch, sequence.k_row + key, sequence.sk - key, kv_head));
    values_on_their_way.load(
        Block(p.v, a.caches, sequence.batch, sequence.k_row + key, sequence.sk - key, kv_head));
  };
  const auto put_down = [&](std::int32_t n) {
    keys_on_their_way.store(shared_keys[n % 2]);
    values_on_their_way.store(shared_values[n % 2]);
  };
  if (tiles > 0) {
    ask_for(0);
    put_down(0);
  }
  for (std::int32_t n = 0; n < tiles; ++n) {
    const std::int32_t begin = first_key + n * tile.keys, end = begin + tile.keys;
    if (n + 1 < tiles) ask_for(n + 1);
    arch::barrier();

    if (begin < wave_keys.end && end > wave_keys.begin) {
      float s[score_count];
      Product::scores(shared_keys[n % 2], q, s);
      const auto at = [&](int i) -> float& { return s[i]; };
      const auto key = [&, offset = begin + Product::key_offset()](int i) {
        return offset + Product::key(i);
      };
      float unit = scale.unit;
      if constexpr (full) {
        shape.template shape<score_count>(query, at, key);
        unit = 1;
      }
      if (begin < common.begin || end > common.end) {
        ROCFLASH_UNROLL
        for (int i = 0; i < score_count; ++i) s[i] = query.sees(key(i)) ? s[i] : -infinity;
      }

      float largest = s[0];
      ROCFLASH_UNROLL
      for (int i = 1; i < score_count; ++i) largest = __builtin_fmaxf(largest, s[i]);
      largest = Product::largest(largest) * unit;
      if (arch::any(softmax.behind(largest))) Product::rescale(out, softmax.follow(largest));
      const float base = softmax.base();
      Float2 sum = {};
      ROCFLASH_UNROLL
      for (int i = 0; i < score_count; i += 2) {
        const Float2 exponent = Float2{s[i], s[i + 1]} * unit - base;
        s[i] = arch::exp2(exponent.x);
        s[i + 1] = arch::exp2(exponent.y);
        sum += Float2{s[i], s[i + 1]};
      }
      softmax.sum += sum.x + sum.y;

      if constexpr (full) {
        if (p.dropout.on()) shape.template drop<score_count, Product::dropout_run>(query, at, key);
      }
      Product::accumulate(shared_values[n % 2], s, out);
    }
    if (n + 1 < tiles) put_down(n + 1);
  }

  finish<Product, dtype, variant, tile>(arch::again(a), softmax, out);
}

}  // namespace rocflash::kernel
