// Forward where two waves of a SIMD take turns: CDNA, whose matrix unit works beside the vector unit.
// While one wave multiplies, the other takes exponentials.
//
//   registers   q (all of it), scores or weights of one tile, outputs, a tile of k and v on its way
//   LDS         k as it is and v transposed, two tiles of each: one in use, one being filled
//
// A turn of a wave is all products in a row, outputs of the tile before and scores of tile n; then
// follow the weights of tile n, while the other wave of its SIMD has its turn. Half of the waves, one
// on each SIMD, start a turn later. Turns are kept apart by barriers, but for the last ones, behind which
// nothing follows in LDS. A wave gives its turn away some products before it is done, when it has read all
// it needs from LDS: the other one reads its first operands while these run.
//
// In halves (ForwardTypes) the two waves of a SIMD have the same queries, and each of them half of every
// tile's keys, so that turns are half as long; at the end one merges the results of both.
//
// Together tile n of k and tile n − 1 of v are "pair" n, which both waves read in their turn n. It may be
// overwritten once both had that turn; so each writes its share of pair n + 1 in its turn n.
#pragma once

#include "attention/sight.hpp"
#include "forward/amd_parts.hpp"
#include "tile/ahead.hpp"

namespace rocflash::kernel {

// The keys in use that at least one of `count` queries from `first` on sees, and those that all of them see.
struct SeenInSight {
  Span by_any, by_all;

  SeenInSight(const Sight& sight, std::int32_t first, std::int32_t count) {
    const std::int32_t last = (first + count < sight.sq ? first + count : sight.sq) - 1;
    if (first > last) return;
    by_any.begin = sight.begin(first);
    by_any.end = sight.end(last);
    by_all.begin = sight.begin(last);
    by_all.end = sight.end(first);
  }
};

// Which tiles of keys the queries of a wave see: the same numbers in all lanes, for scalar branches.
struct SeenTiles {
  std::int32_t begin, end;   // by any of the queries
  std::int32_t whole_begin;  // by all of them
  std::uint32_t whole_count;

  SeenTiles(const Sight& sight, std::int32_t first, std::int32_t count, std::int32_t first_key,
            std::int32_t tile) {
    const SeenInSight seen(sight, first, count);
    const Span any = seen.by_any, all = seen.by_all;
    // Tiles of the keys before `key`, the last one as well if it is cut.
    const auto before = [&](std::int32_t key, std::int32_t more) {
      return key < first_key
                 ? 0
                 : static_cast<std::int32_t>(static_cast<std::uint32_t>(key - first_key + more) /
                                             static_cast<std::uint32_t>(tile));
    };
    // An even one: that before it, if it is not seen, is masked.
    begin = arch::uniform(before(any.begin, 0) / 2 * 2);
    end = arch::uniform(any.end <= any.begin ? 0 : before(any.end, tile - 1));
    whole_begin = arch::uniform(before(all.begin, tile - 1));
    const std::int32_t whole_end = before(all.end, 0);
    whole_count = static_cast<std::uint32_t>(
        arch::uniform(whole_end > whole_begin ? whole_end - whole_begin : 0));
  }
  bool whole(std::int32_t n) const {
    return static_cast<std::uint32_t>(n - whole_begin) < whole_count;
  }
};

// The weights of one query, tile by tile, as softmax.hpp has it, but without a look for the largest
// score: their sum shows whether one of them is too large for the reference. Only then is it looked
// for, and the tile's weights are computed again.
struct SummedSoftmax : OnlineSoftmax {
  static constexpr float most = 256;  // as much as weights may be: 2^slack
  float base_ = 0;
  float limit_ = -1;  // of a tile's sum; below any where the reference is still -infinity

  bool fits(float sum) const { return sum <= limit_; }
  float follow(float largest) {
    const float factor = OnlineSoftmax::follow(largest);
    base_ = OnlineSoftmax::base();
    limit_ = reference == -infinity ? -1 : most;
    return factor;
  }
};

// Weights of one tile and their sum. One exponential and three other instructions at a time: that is
// what fits beside a matrix instruction of gfx942. Packed instructions would not run beside one.
template <DType dtype, class Scores, class Weights>
float weigh(const Scores& scores, float unit, float base, Weights& weights) {
  const float (&s)[Scores::per_column] = scores.at[0];
  constexpr int count = Scores::per_column, batch = 16;
  float sum = 0;
  float exponent = __builtin_fmaf(s[0], unit, -base);
  ROCFLASH_UNROLL
  for (int first = 0; first < count; first += batch) {
    std::uint32_t bits[batch];
    float weight = 0;
    ROCFLASH_UNROLL
    for (int n = 0; n < batch; ++n) {
      const float before = weight;
      weight = arch::exp2(exponent);
      if (first + n + 1 < count) exponent = __builtin_fmaf(s[first + n + 1], unit, -base);
      if (n > 0) {
        sum += before;
        bits[n - 1] = weight_bits<dtype>(before);
      }
      arch::in_order();
    }
    sum += weight;
    bits[batch - 1] = weight_bits<dtype>(weight);
    ROCFLASH_UNROLL
    for (int n = 0; n < batch; n += 2) {
      const int word = (first + n) / 2;
      weights.step_[word / 4][word % 4] = joined_weights<dtype>(bits[n], bits[n + 1]);
    }
  }
  return sum;
}

// Waves n and n + half of them have the same queries and other keys: the former get the results of both.
// Outputs go through LDS, two parts in each of `rooms`; a wave's own room there starts at merge_room().
template <class Types>
int merge_room() {
  return arch::wave() % (Types::waves / 2) * 8 * arch::wave_size;
}
template <class Types>
void merge_halves(SummedSoftmax& softmax, typename Types::Outputs& out,
                  SharedWords4* const (&rooms)[2]) {
  using Mma = typename Types::Mma;
  static_assert(Types::Outputs::row_parts <= 4 && Mma::results == 16);
  constexpr int half = Types::waves / 2;
  const int wave = arch::wave();
  auto* const statistics = (ROCFLASH_SHARED float*)rooms[0] + arch::lane();
  arch::barrier();  // nobody reads keys or values any more
  statistics[2 * wave * arch::wave_size] = softmax.reference;
  statistics[(2 * wave + 1) * arch::wave_size] = softmax.sum;
  arch::barrier();
  const int other = wave < half ? wave + half : wave - half;
  const float reference = statistics[2 * other * arch::wave_size];
  const float sum = statistics[(2 * other + 1) * arch::wave_size];
  out.scale(softmax.follow(reference));
  softmax.sum += sum * (reference == -infinity ? 0 : arch::exp2(reference - softmax.reference));
  arch::barrier();
  const auto for_each_chunk = [&](auto use) {
    ROCFLASH_UNROLL
    for (int part = 0; part < Types::Outputs::row_parts; ++part) {
      SharedWords4* const room = rooms[part / 2] + merge_room<Types>() + arch::lane();
      ROCFLASH_UNROLL
      for (int n = 0; n < 4; ++n)
        use(room[(part % 2 * 4 + n) * arch::wave_size], out.part[part][0], 4 * n);
    }
  };
  if (wave >= half)
    for_each_chunk([](SharedWords4& chunk, const typename Mma::Result& o, int n) {
      const float x[4] = {o[n], o[n + 1], o[n + 2], o[n + 3]};
      chunk = __builtin_bit_cast(Words4, x);
    });
  arch::barrier();
  if (wave < half)
    for_each_chunk([](const SharedWords4& chunk, typename Mma::Result& o, int n) {
      const Words4 words = chunk;
      ROCFLASH_UNROLL
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t word = words[i];
        o[n + i] += __builtin_bit_cast(float, word);
      }
    });
}

// What else is done in a turn whose wave may have others.
struct NothingBeside {
  template <int n, int half>
  void operator()() const {}
};

template <KernelSpec spec>
void forward_in_turns(const ForwardArguments& a) {
  using Types = ForwardTypes<spec>;
  using Mma = typename Types::Mma;
  using Block = typename Types::Block;
  using Scores = typename Types::Scores;
  constexpr ForwardTile tile = Types::tile;
  static_assert(!Types::full);

  // Not less than WaveRows of all waves, for q at the start and out at the end.
  using Exchange = WaveRows<Mma>;
  constexpr int least = Types::waves * Exchange::Tile::chunks / 2;
  constexpr int key_chunks = Types::Keys::chunks, value_chunks = Types::Values::Tile::chunks;
  ROCFLASH_SHARED_ARRAY Words4 shared_keys[2][key_chunks > least ? key_chunks : least];
  ROCFLASH_SHARED_ARRAY Words4 shared_values[2][value_chunks > least ? value_chunks : least];

  // The workgroup's queries, the wave's, and the lane's own.
  const Problem& p = a.problem;
  const Lengths& l = p.lengths;
  fetch(a.work.blocks, a.work.groups, a.work.partitions, p.heads, p.kv_heads, l.batch, l.rows_q,
        l.rows_k, l.cu_q, l.cu_k, l.used_q, l.used_k, l.leftpad_k, p.max_q, p.max_k, p.k.data,
        p.k.batch_stride, p.k.row_stride, p.k.head_stride, p.k.columns, p.q.data, p.q.batch_stride,
        p.q.row_stride, p.q.head_stride, p.q.columns, p.visibility.left, p.visibility.right,
        p.visibility.chunk);
  const WorkItem item = work_by_plane(a.work, static_cast<std::int32_t>(p.heads),
                                      arch::group() + (Types::halves ? a.first_group : 0));
  if (__builtin_expect(l.packed_q(), false)) clear_outside<tile.threads>(a, item, spec.dtype);
  const SequenceView sequence = sequence_view(p, item.batch);
  const Position position(item, sequence);
  const std::int32_t block_begin = item.block * tile.queries;
  if (block_begin >= sequence.q_rows) return;
  const bool second = arch::wave() >= Types::waves / 2;
  const bool other_half = Types::halves && second;
  const int first_row = other_half ? Types::wave_keys : 0;  // of a tile, for this wave
  const std::int32_t wave_begin =
      block_begin + (arch::wave() - (other_half ? Types::query_waves : 0)) * Types::wave_queries;

  // q by whole lines of memory, through LDS.
  constexpr int q_parts = (spec.bucket + Exchange::columns - 1) / Exchange::columns;
  Words4 q_words[q_parts][Exchange::rounds];
  const auto load_q = [&] {
    const Block q_rows(
        plane_row<spec.dtype>(p.q, sequence.batch, sequence.q_row + wave_begin, item.head),
        bytes_of_rows<spec.dtype, Types::wave_queries>(p.q, sequence.sq - wave_begin));
    ROCFLASH_UNROLL
    for (int part = 0; part < q_parts; ++part) {
      ROCFLASH_UNROLL
      for (int n = 0; n < Exchange::rounds; ++n) {
        const typename Exchange::Place place(n);
        q_words[part][n] =
            q_rows.load8(Block::offset(p.q, place.row, part * Exchange::columns + 8 * place.chunk));
      }
    }
  };
  const Scale scale(p.scale);
  MadeFragments<Mma, spec.bucket / Mma::depth> q;
  const auto take_q = [&] {
    if (scale.turn_sign) {
      ROCFLASH_UNROLL
      for (auto& part : q_words) {
        ROCFLASH_UNROLL
        for (Words4& words : part) words ^= 0x80008000u;
      }
    }
    // Waves of both halves have the same rooms, one after the other.
    SharedWords4* const room =
        &shared_values[0][0] + arch::wave() % (Types::waves / 2) * Exchange::Tile::chunks;
    ROCFLASH_UNROLL
    for (int part = 0; part < q_parts; ++part) {
      ROCFLASH_UNROLL
      for (int n = 0; n < Exchange::rounds; ++n)
        room[typename Exchange::Place(n).room()] = q_words[part][n];
      arch::wave_fence();
      constexpr int steps_here = Exchange::columns / Mma::depth;
      ROCFLASH_UNROLL
      for (int step = 0; step < steps_here; ++step) {
        if (part * steps_here + step < spec.bucket / Mma::depth)
          q.step_[part * steps_here + step] =
              SharedLines<Mma, typename Exchange::Tile, Side::right>{room}.fragment(0, step);
      }
      arch::wave_fence();
    }
  };

  // The first keys before anything else: they mostly lie in a cache, where others have asked for them. Then
  // q, for which memory takes as long as a turn for each half of the waves.
  const Sight sight(p.visibility, sequence.sq, sequence.sk);
  const std::int32_t first_key =
      arch::uniform(block_begin < sequence.sq ? sight.begin(block_begin) : 0);
  const std::int64_t kv_head = p.heads == p.kv_heads ? item.head : p.kv_head(item.head);
  typename Types::FirstStaging first_keys(p.k, arch::thread() % (tile.threads / 2));
  if (!second)
    first_keys.load(Block(arch::uniform(plane_row<spec.dtype>(p.k, sequence.batch,
                                                              sequence.k_row + first_key, kv_head)),
                          bytes_of_rows<spec.dtype, tile.keys>(p.k, sequence.sk - first_key)));
  load_q();
  arch::in_order();

  const Span seen = SeenInSight(sight, block_begin, tile.queries).by_any;
  const std::int32_t tiles = arch::uniform(
      seen.end <= seen.begin ? 0 : (seen.end - first_key + tile.keys - 1) / tile.keys);
  KeyTiles<spec> next(a, sequence, kv_head, first_key);
  next.find_keys();  // the first ones, which are on their way
  next.find_keys();
  next.find_values();
  const SeenTiles sees(sight, wave_begin, Types::wave_queries, first_key, tile.keys);
  // After the wave's keys: what both compute would otherwise be done by vector instructions.
  const std::int32_t own = wave_begin + Scores::lane_column();
  const std::int32_t own_begin = sight.begin(own), own_end = sight.end(own);
  const std::uint32_t own_keys = own < sequence.sq && own_end > own_begin
                                     ? static_cast<std::uint32_t>(own_end - own_begin)
                                     : 0;

  SummedSoftmax softmax;
  typename Types::Outputs out = {};
  ROCFLASH_UNROLL
  for (auto& part : out.part) arch::settle(part[0]);  // not behind the wait for q
  if (second) {
    arch::barrier();
  } else {
    first_keys.store(shared_keys[0]);
  }
  next.load_keys();
  next.load_values();
  take_q();

  constexpr int steps = Types::wave_keys / Mma::depth, score_steps = spec.bucket / Mma::depth;
  MadeFragments<Mma, steps> weights;
  // All products of a turn, with the operands from LDS read ahead of them.
  // `beside` has something to do after the first or only instruction of a step, and behind it.
  const auto multiply = [&]<bool outputs_too, bool scores_too, class Beside = NothingBeside>(
                            int now, bool last, Scores& scores, Beside beside = {}) {
    constexpr bool more = __is_same(Beside, NothingBeside);
    constexpr int parts = Types::Outputs::row_parts;
    // Of the outputs, which part and which step along the keys: the last time part by part, so that each
    // is done as early as can be.
    constexpr auto part_of = [](int n) { return scores_too ? n % parts : n / steps; };
    constexpr auto step_of = [](int n) { return scores_too ? n / parts : n % steps; };
    constexpr int first = outputs_too ? steps * parts : 0;
    constexpr int count = first + (scores_too ? Scores::row_parts * score_steps : 0);
    // Steps after the turn is given away.
    constexpr int early = smaller(Mma::instructions == 1 ? 5 : 3, count / 4);
    // Steps from one write, or additional read, to the next.
    constexpr int apart = count >= 32 ? 4 : 3;
    // All is read when the turn is given away (read_ahead_slowly).
    constexpr int before = count - early - 2;
    static_assert(3 + before + (before + apart - 1) / apart >= count);
    const typename Types::ValueOperand v = Types::values_from(shared_values[now], first_row);
    const typename Types::KeyOperand k{shared_keys[now] + first_row * Types::Keys::row_chunks};
    typename Mma::Result sum;
    read_ahead_slowly<Mma, count, 4 + early, apart>(
        [&](int n) {
          return n < first ? v.fragment(part_of(n), step_of(n))
                           : k.fragment((n - first) / score_steps, (n - first) % score_steps);
        },
        [&]<int n>(const typename Mma::Operand& left, auto read_another) {
          const auto behind = [&] {
            arch::in_order();
            read_another();
            constexpr int latest = count - early - 1;
            ROCFLASH_UNROLL
            for (int i = 0; i < next.stores; ++i) {
              constexpr int first_store = apart - 1;
              if (more && n == smaller(first_store + apart * i, latest) && (scores_too || !last))
                next.store_one(i, shared_keys[1 - now], shared_values[1 - now]);
            }
            // In steps whose reads leave time for it.
            constexpr int at = first < latest - 4 ? first : latest - 4;
            if (more && n == at + 2) next.find_keys();
            if (more && n == at + 4) next.find_values();
            beside.template operator()<n, 0>();
            arch::in_order();
          };
          if constexpr (n < first) {
            typename Mma::Result& o = out.part[part_of(n)][0];
            o = Mma::multiply_around(left, weights.fragment(0, step_of(n)), o, behind);
            arch::settle(o);
            beside.template operator()<n, 1>();
          } else {
            constexpr int m = n - first;
            if (m % score_steps == 0) sum = {};
            sum = Mma::multiply_around(left, q.fragment(0, m % score_steps), sum, behind);
            arch::settle(sum);
            if (m % score_steps == score_steps - 1) {
              ROCFLASH_UNROLL
              for (int r = 0; r < Mma::results; ++r)
                scores.at[0][m / score_steps * Mma::results + r] = sum[r];
            }
          }
          if (n == count - early - 1) {
            // The rest goes before the other wave's products, so that its weights can start.
            arch::set_priority<2>();
            if (scores_too || !last) arch::barrier();
          }
        });
  };
  // Weights of tile n, from its scores, while other waves have their turn.
  const auto weigh_tile = [&]<bool first>(std::int32_t n, Scores& scores) {
    float (&s)[Scores::per_column] = scores.at[0];
    if (__builtin_expect(!sees.whole(n), false)) {
      const std::int32_t key =
          first_key + n * tile.keys + first_row + Scores::lane_row() - own_begin;
      ROCFLASH_UNROLL
      for (int i = 0; i < Scores::per_column; ++i)
        s[i] = static_cast<std::uint32_t>(key + Scores::row(i)) < own_keys ? s[i] : -infinity;
    }
    float sum = 0;
    if constexpr (!first) sum = weigh<spec.dtype>(scores, scale.unit, softmax.base_, weights);
    if (first || __builtin_expect(arch::any(!softmax.fits(sum)), false)) {
      const float factor = softmax.follow(column_maximum(scores, 0) * scale.unit);
      if constexpr (!first) out.scale(factor);
      sum = weigh<spec.dtype>(scores, scale.unit, softmax.base_, weights);
    }
    softmax.sum += sum;
    ROCFLASH_UNROLL
    for (int step = 0; step < steps; ++step) arch::end_phase(weights.step_[step]);
  };
  // A turn; with products of its own or, where the wave sees neither tile, without.
  const auto turn = [&]<bool outputs_too, bool scores_too>(std::int32_t n, int now) {
    Scores scores;
    if (scores_too || n < tiles || !second) arch::barrier();
    arch::set_priority<1>();
    if constexpr (outputs_too || scores_too) {
      multiply.template operator()<outputs_too, scores_too>(now, n == tiles, scores);
    } else {
      if (n < tiles) {
        next.store_keys(shared_keys[1 - now]);
        next.store_values(shared_values[1 - now]);
        next.find_keys();
        next.find_values();
      }
      if (n < tiles) arch::barrier();
    }
    if (!scores_too && n == tiles) return;
    arch::set_priority<0>();
    next.load_keys();
    next.load_values();
    if constexpr (scores_too) weigh_tile.template operator()<!outputs_too>(n, scores);
  };
  // The last turn of all, of a wave whose queries are all in use: each part of the outputs is finished beside
  // the products of the next one. Nobody reads keys any more, so that there is room. (The other waves
  // have the time of this turn for their ends.)
  const auto last_turn = [&](int now) {
    using End = Ending<spec>;
    End ending(arch::again(a), position, softmax,
               &shared_keys[0][0] + arch::wave() * Exchange::Tile::chunks);
    constexpr int parts = Types::Outputs::row_parts, quads = Mma::results / 4,
                  quads_beside = quads / steps;
    Words4 lines[Exchange::rounds];
    std::uint32_t word = 0;
    // Half `half` of some quads of the part before.
    const auto beside = [&]<int n, int half>() {
      constexpr int part = n / steps - 1, step = n % steps;
      if constexpr (n == 0 && half == 0) ending.sum_up();
      if constexpr (n == 1 && half == 0) ending.normalise();
      if constexpr (n == 1 && half == 1) ending.find_rows();
      if constexpr (n == 2 && half == 0) ending.store_lse();
      if constexpr (part >= 0) {
        if constexpr (step == 0 && half == 0 && part > 0 && part % End::line_parts == 0)
          ending.read_lines(lines);
        if constexpr (step == steps - 1 && half == 1 && part > 0 && part % End::line_parts == 0)
          ending.store_lines(lines, part - 1);
        const typename Mma::Result& o = out.part[part][0];
        ROCFLASH_UNROLL
        for (int quad = step * quads_beside; quad < (step + 1) * quads_beside; ++quad) {
          const int i = 4 * quad + 2 * half;
          const std::uint32_t now_narrow = ending.narrow(o[i], o[i + 1]);
          if (half == 0)
            word = now_narrow;
          else
            ending.put({word, now_narrow}, part, 4 * quad);
        }
      }
      arch::in_order();
    };
    Scores none;
    arch::set_priority<1>();
    multiply.template operator()<true, false>(now, true, none, beside);
    // The lines of the part before the last where it ends one.
    if constexpr (parts > 1 && (parts - 1) % End::line_parts == 0) {
      ending.read_lines(lines);
      ending.store_lines(lines, parts - 2);
    }
    ending.finish_part(out.part[parts - 1][0], parts - 1, true);
    return ending.finished();
  };
  Finished finished = {};
  // (CDNA1's registers are too few.)
  constexpr bool may_end_beside = !Types::halves && this_family != Family::cdna1;
  const bool ends_beside =
      arch::uniform(may_end_beside && second && sees.begin < sees.end && sees.end == tiles &&
                    wave_begin + Types::wave_queries <= position.sq);
  std::int32_t n = 0;
  for (; n < sees.begin; ++n) turn.template operator()<false, false>(n, n % 2);
  const bool sees_any = n < sees.end;
  if (sees_any) {
    turn.template operator()<false, true>(n++, 0);
    for (; n + 1 < sees.end; n += 2) {
      turn.template operator()<true, true>(n, 1);
      turn.template operator()<true, true>(n + 1, 0);
    }
    if (n < sees.end) turn.template operator()<true, true>(n++, 1);
  }
  if (ends_beside) {
    if constexpr (may_end_beside) finished = last_turn(n % 2);
  } else {
    if (sees_any) {
      turn.template operator()<true, false>(n, n % 2);
      ++n;
    }
    for (; n <= tiles; ++n) turn.template operator()<false, false>(n, n % 2);
    int room = arch::wave() * Exchange::Tile::chunks;
    if constexpr (Types::halves) {
      merge_halves<Types>(softmax, out, {&shared_keys[0][0], &shared_values[0][0]});
      if (second) return;
      room = merge_room<Types>();
    }
    // Nobody reads keys any more. The vector unit is rather for those who still have weights to compute.
    arch::set_priority<0>();
    finished =
        finish_outputs<spec>(arch::again(a), position, softmax, out, &shared_keys[0][0] + room);
  }
  repair_rows<spec>(arch::again(a), position, softmax, finished);
}

}  // namespace rocflash::kernel
