// Forward on NVIDIA GPUs: one workgroup a block of queries, a warp 16 or 32 of them, key tile after
// key tile.
//
//   registers       scores of one tile, outputs; q too where there is room for it
//   shared memory   q; two tiles of k and of v as they are in memory, one in use and one on its
//   way;
//                   which keys each query sees
//
// A turn of the loop: wait for the present tile; ask for the next one; scores = Q K^T; softmax;
// outputs += P V. Copies go from global to shared memory past the registers, and v is transposed on
// its way into them. One barrier a turn is enough: it tells both that the present tile has arrived
// and that nobody reads the tile before it any more.
//
// Registers are what limits this kernel, and ptxas decides on them. What only edges and the end
// need is computed there anew.
#pragma once

#include "arch/arch.hpp"
#include "attention/exact.hpp"
#include "attention/outside.hpp"
#include "attention/rows.hpp"
#include "attention/score.hpp"
#include "attention/sequence.hpp"
#include "attention/softmax.hpp"
#include "attention/work.hpp"
#include "table/forward.hpp"
#include "tile/swizzled.hpp"

namespace rocflash::kernel {

// Copies `count` rows after `count` rows to shared memory. Plain: rows on 16 bytes and one stride.
template <int bucket, int count, int threads, Variant variant>
class TileCopy {
 public:
  TileCopy(const Rows& rows, std::int32_t, std::int64_t batch, std::int64_t first,
           std::int64_t head)
      : rows_(rows) {
    const Task task(arch::thread());
    from_ = rows.data +
            (batch * rows.batch_stride + (first + task.row) * rows.row_stride +
             head * rows.head_stride) *
                2 +
            16 * task.chunk;
  }

  // The next `count` rows, of which `left` are there.
  void next(SharedAddress tile, std::int32_t left) {
    const Task task(arch::renewed_thread());
    if (left >= count) {
      copy(task, tile, [](int) { return true; });
    } else {
      copy(task, tile, [left = left - task.row](int row) { return row < left; });
    }
    from_ += count * rows_.row_stride * 2;
  }

 private:
  using Task = CopyTask<bucket, count, threads>;
  template <class There>
  void copy(const Task& task, SharedAddress tile, There there) const {
    if (task.idle()) return;
    const SharedAddress to = task.first(tile);
    const bool column_there = 8 * task.chunk < rows_.columns;
    // The plan keeps 256 rows below 2^31 bytes.
    const std::uint32_t stride =
        arch::renew(static_cast<std::uint32_t>(Task::step * rows_.row_stride * 2));
    const std::byte* from = from_;
    ROCFLASH_UNROLL
    for (int n = 0; n < Task::rounds; ++n) {
      arch::copy_async(Task::next(to, n), from, column_there && there(n * Task::step));
      from += stride;
    }
  }

  const Rows& rows_;
  const std::byte* from_;
};

// Full: any strides, alignment and number of columns, pages.
template <int bucket, int count, int threads>
class TileCopy<bucket, count, threads, Variant::full> {
 public:
  TileCopy(const Rows& rows, std::int32_t caches, std::int64_t batch, std::int64_t first,
           std::int64_t head)
      : plain_(rows, caches, batch, first, head),
        rows_(rows),
        batch_(batch),
        first_(first),
        head_(head),
        caches_(caches) {
    const auto bits = reinterpret_cast<std::uintptr_t>(rows.data) |
                      static_cast<std::uintptr_t>(rows.batch_stride * 2) |
                      static_cast<std::uintptr_t>(rows.row_stride * 2) |
                      static_cast<std::uintptr_t>(rows.head_stride * 2) |
                      static_cast<std::uintptr_t>(rows.columns * 2);
    whole_chunks_ = bits % 16 == 0;
    is_plain_ =
        whole_chunks_ && !rows.blocks && rows.row_stride >= 0 && rows.row_stride < (1 << 22);
  }

  void next(SharedAddress tile, std::int32_t left) {
    if (is_plain_) return plain_.next(tile, left);
    const Task task(arch::renewed_thread());
    const SharedAddress to = task.first(tile);
    const int column = 8 * task.chunk;
    if (task.idle()) {
    } else if (whole_chunks_) {
      // All rows are found before the first is asked for: finding one in a page takes a load.
      const std::byte* from[Task::rounds];
      ROCFLASH_UNROLL
      for (int n = 0; n < Task::rounds; ++n) {
        const int row = task.row + n * Task::step;
        from[n] =
            key_row(rows_, caches_, batch_, first_ + (row < left ? row : 0), head_) + 2 * column;
      }
      ROCFLASH_UNROLL
      for (int n = 0; n < Task::rounds; ++n)
        arch::copy_async(Task::next(to, n), from[n],
                         task.row + n * Task::step < left && column < rows_.columns);
    } else {
      const RowBlock<Variant::full> block(rows_, caches_, batch_, first_, left, head_);
      _Pragma("nounroll") for (int n = 0; n < Task::rounds; ++n)
          arch::store_shared(Task::next(to, n), block.load8({task.row + n * Task::step, column}));
    }
    first_ += count;
  }

 private:
  using Task = CopyTask<bucket, count, threads>;
  TileCopy<bucket, count, threads, Variant::plain> plain_;
  const Rows& rows_;
  std::int64_t batch_, first_, head_;
  std::int32_t caches_;
  bool whole_chunks_, is_plain_;
};

// Turns the signs of what this thread has copied.
template <int bucket, int count, int threads>
void turn_signs(SharedAddress tile) {
  using Task = CopyTask<bucket, count, threads>;
  const Task task(arch::thread());
  const SharedAddress begin = task.first(tile);
  for (int n = 0; n < Task::rounds && !task.idle(); ++n)
    arch::store_shared(Task::next(begin, n), arch::load_shared(Task::next(begin, n)) ^ 0x80008000u);
}

// Does it for 0, 1 ... count - 1; unlike a loop, whatever the size of what is done.
template <int count, class Do>
void for_each(Do it) {
  if constexpr (count > 1) for_each<count - 1>(it);
  it(count - 1);
}

// Which of 32 keys, from `first` on, dropout keeps for a query that four neighbouring lanes share:
// each finds out about eight.
inline std::uint32_t kept_by_quad(const ScoreShape& shape, const QueryView& query,
                                  std::int32_t first) {
  const int part = arch::lane() % 4 * 8;
  std::uint32_t kept = shape.kept(query, first + part) << part;
  kept |= arch::from_lane_xor(kept, 1);
  return kept | arch::from_lane_xor(kept, 2);
}

// Writes what the loop has summed. All that it needs to know is found out again, so that the loop
// need not keep it.
template <KernelSpec spec, int lane_queries, class Outputs>
void finish(const ForwardArguments& a, const OnlineSoftmax (&softmax)[lane_queries],
            const Outputs& out) {
  constexpr DType dtype = spec.dtype;
  constexpr int bucket = spec.bucket;
  constexpr Variant variant = spec.variant;
  constexpr ForwardTile tile = forward_tile(this_family, spec);
  constexpr bool full = variant == Variant::full;
  using Mma = arch::Mma<dtype>;
  using Tile = SharedRows<bucket>;
  constexpr int wave_queries = tile.queries / (tile.threads / arch::wave_size),
                column_parts = bucket / Mma::columns;

  const Problem& p = a.problem;
  const WorkItem item(
      a.work, static_cast<std::int32_t>(p.heads),
      static_cast<std::int32_t>(arch::renew(static_cast<std::uint32_t>(arch::group()))));
  const SequenceView sequence(p, item.batch);
  const int thread = arch::renewed_thread();
  const int lane = thread % arch::wave_size, wave_row = thread / arch::wave_size * wave_queries;
  const std::int32_t wave_begin = item.block * tile.queries + wave_row;
  const SharedAddress rows =
      arch::shared_begin() + static_cast<std::uint32_t>(wave_row * Tile::bytes);
  const bool has_sink = full && p.sinks;
  const float sink = has_sink ? sink_of(p, item.head) : 0.0f;

  // Shared memory now serves to bring the columns of a row together; the last tiles may still be in
  // use.
  arch::wait_for_copies<0>();
  arch::barrier();
  float factors[lane_queries];
  std::uint32_t broken = 0;  // bit 4 r + i: query i of the lanes of row r
  static_assert(lane_queries <= 4);
  ROCFLASH_UNROLL
  for (int i = 0; i < lane_queries; ++i) {
    float total = softmax[i].sum;
    total += arch::from_lane_xor(total, 1);
    total += arch::from_lane_xor(total, 2);
    Normaliser normaliser = normalise(softmax[i].reference, total, has_sink, sink);
    if (full && p.dropout.on()) normaliser.factor *= p.dropout.scale();
    factors[i] = normaliser.factor;

    const int row = i / 2 * Mma::rows + i % 2 * 8 + Mma::row(lane);
    const bool in_use = wave_begin + row < sequence.sq;
    const RowStatistic& lse = a.outputs.lse;
    if (lse && lane % 4 == 0 && wave_begin + row < sequence.q_rows)
      arch::store(&lse.at(sequence.batch, item.head, sequence.q_row + wave_begin + row),
                  in_use ? normaliser.lse : infinity);

    float probe = 0;
    ROCFLASH_UNROLL
    for (int column = 0; column < column_parts; ++column) {
      const float x = out[i / 2][column].at[i % 2 * 2], y = out[i / 2][column].at[i % 2 * 2 + 1];
      probe = __builtin_fmaf(y, 0.0f, __builtin_fmaf(x, 0.0f, probe));
      arch::store_shared(
          rows + static_cast<std::uint32_t>(Tile::place(row, column) + 2 * Mma::column(lane)),
          in_use ? arch::narrow_two<dtype>(x * normaliser.factor, y * normaliser.factor) : 0);
    }
    std::uint32_t lanes = arch::ballot(in_use && probe != 0);
    lanes |= lanes >> 1;
    lanes |= lanes >> 2;
    broken |= (lanes & 0x11111111u) << i;
  }
  arch::wave_barrier();

  const RowBlock<variant> to(a.outputs.out, 0, sequence.batch, sequence.q_row + wave_begin,
                             sequence.q_rows - wave_begin, item.head);
  for (int n = lane; n < wave_queries * Tile::chunks; n += arch::wave_size) {
    const int row = n / Tile::chunks, chunk = n % Tile::chunks;
    const Words4 words =
        arch::load_shared(rows + static_cast<std::uint32_t>(Tile::place(row, chunk)));
    to.store4(words.xy, RowBlock<variant>::place(a.outputs.out, row, 8 * chunk));
    to.store4(words.zw, RowBlock<variant>::place(a.outputs.out, row, 8 * chunk + 4));
  }

  arch::wave_barrier();
  while (broken != 0) {
    const int bit = __builtin_ctz(broken), row = bit / 4, which = bit % 4;
    broken &= broken - 1;
    float base = 0, factor = 0;
    ROCFLASH_UNROLL
    for (int i = 0; i < lane_queries; ++i) {
      base = i == which ? softmax[i].base() : base;
      factor = i == which ? factors[i] : factor;
    }
    const QueryView query(p.visibility, sequence,
                          wave_begin + which / 2 * Mma::rows + which % 2 * 8 + row);
    repair(ExactScores<dtype>{p, sequence, item.head, a.caches}, query,
           arch::from_lane(base, 4 * row), arch::from_lane(factor, 4 * row), a.outputs);
  }
}

template <KernelSpec spec>
void forward(const ForwardArguments& a) {
  constexpr DType dtype = spec.dtype;
  constexpr int bucket = spec.bucket;
  constexpr Variant variant = spec.variant;
  constexpr ForwardTile tile = forward_tile(this_family, spec);
  constexpr bool full = variant == Variant::full;
  using Mma = arch::Mma<dtype>;
  using Tile = SharedRows<bucket>;
  constexpr int wave_queries = tile.queries / (tile.threads / arch::wave_size);
  constexpr int parts = wave_queries / Mma::rows;  // of a warp's queries, one product's rows each
  constexpr int key_parts = tile.keys / Mma::columns;  // of a tile
  constexpr int column_parts = bucket / Mma::columns;  // of the outputs
  constexpr int steps = bucket / Mma::depth;
  // Queries of a lane: two of each part.
  constexpr int lane_queries = 2 * parts, lane_keys = 2 * key_parts;

  constexpr int tile_bytes = tile.keys * Tile::bytes;
  constexpr bool q_in_registers = !tile.shared_queries;
  constexpr int room = tile.dynamic_shared - tile.queries * 8;
  constexpr bool q_makes_room = room < tile.queries * Tile::bytes + 4 * tile_bytes;
  static_assert(room >= 4 * tile_bytes && room >= tile.queries * Tile::bytes &&
                (q_in_registers || !q_makes_room));
  const SharedAddress shared_q = arch::shared_begin();
  const SharedAddress shared_k = shared_q + (q_makes_room ? 0 : tile.queries * Tile::bytes);
  const SharedAddress shared_v = shared_k + 2 * tile_bytes;
  const SharedAddress shared_keys = shared_q + room;

  const Problem& p = a.problem;
  const WorkItem item(a.work, static_cast<std::int32_t>(p.heads), arch::group());
  clear_outside<tile.threads>(a, item);
  const SequenceView sequence(p, item.batch);
  const std::int32_t block_begin = item.block * tile.queries;
  if (block_begin >= sequence.q_rows) return;
  const Scale scale(p.scale);

  // Tiles begin on multiples of eight keys, which share their dropout bits.
  const Range block_queries{block_begin, smaller(block_begin + tile.queries, sequence.sq)};
  const Range seen =
      block_queries.empty() ? Range{} : sequence.keys_of(p.visibility, block_queries);
  const Range common =
      block_queries.empty() ? Range{} : sequence.keys_of_all(p.visibility, block_queries);
  const auto first_key = static_cast<std::int32_t>(seen.begin / 8 * 8),
             end_key = static_cast<std::int32_t>(seen.end);

  const std::int64_t first_row = sequence.k_row + first_key, kv_head = p.kv_head(item.head);
  TileCopy<bucket, tile.keys, tile.threads, variant> next_k(p.k, a.caches, sequence.batch,
                                                            first_row, kv_head);
  TileCopy<bucket, tile.keys, tile.threads, variant> next_v(p.v, a.caches, sequence.batch,
                                                            first_row, kv_head);
  // Asks for the tile that begins so many keys before the block's end.
  const auto ask_for = [&](std::int32_t left, std::uint32_t half) {
    if (left > 0) {
      next_k.next(shared_k + half, left);
      next_v.next(shared_v + half, left);
    }
    arch::commit_copies();
  };

  if (const int n = arch::thread(); n < tile.queries) {
    const QueryView query(p.visibility, sequence, block_begin + n);
    arch::store_shared(
        shared_keys + static_cast<std::uint32_t>(8 * n),
        Words2{static_cast<std::uint32_t>(query.begin), static_cast<std::uint32_t>(query.end)});
  }
  static_assert(tile.threads >= tile.queries);

  TileCopy<bucket, tile.queries, tile.threads, variant>(p.q, 0, sequence.batch,
                                                        sequence.q_row + block_begin, item.head)
      .next(shared_q, sequence.sq - block_begin);
  arch::commit_copies();
  if (scale.turn_sign) {
    arch::wait_for_copies<0>();
    turn_signs<bucket, tile.queries, tile.threads>(shared_q);
  }
  if (!q_makes_room) ask_for(end_key - first_key, 0);

  // Where a lane's rows of operands begin.
  const int l = arch::lane();
  const SharedAddress own_q =
      shared_q + static_cast<std::uint32_t>(arch::wave() * wave_queries * Tile::bytes +
                                            Tile::place(l % 16, l / 16));
  const SharedAddress own_k =
      shared_k + static_cast<std::uint32_t>(Tile::place(l % 8 + l / 16 * 8, l / 8 % 2));
  const SharedAddress own_v = shared_v + static_cast<std::uint32_t>(Tile::place(l % 16, l / 16));

  Words4 q[parts][q_in_registers ? steps : 1];
  const auto load_q = [&](int part, int step) {
    return arch::load_matrices(Tile::along(own_q, 2 * step) +
                               static_cast<std::uint32_t>(part * Mma::rows * Tile::bytes));
  };
  if constexpr (q_in_registers) {
    arch::wait_for_copies<q_makes_room ? 0 : 1>();
    arch::barrier();
    ROCFLASH_UNROLL
    for (int part = 0; part < parts; ++part) {
      ROCFLASH_UNROLL
      for (int step = 0; step < steps; ++step) q[part][step] = load_q(part, step);
    }
    if (q_makes_room) {
      arch::barrier();
      ask_for(end_key - first_key, 0);
    }
  }

  const ScoreShape shape(p, sequence, item.head);
  const bool shaped = full && (p.scale == 0 || p.softcap > 0 || p.alibi || p.bias || p.mask);
  const float unit = shaped ? 1 : scale.unit;
  const bool dropout = full && p.dropout.on();
  OnlineSoftmax softmax[lane_queries];
  typename Mma::Result out[parts][column_parts] = {};

  // What all queries see, counted backwards from the last key that one of them sees.
  const auto common_from = static_cast<std::int32_t>(end_key - common.begin),
             common_to = static_cast<std::int32_t>(end_key - common.end);
  std::uint32_t half = 0;  // of the shared memory of k and v, where the present tile is
  for (std::int32_t left = end_key - first_key; left > 0;
       left -= tile.keys, half = tile_bytes - half) {
    arch::wait_for_copies<0>();
    arch::barrier();
    ask_for(left - tile.keys, tile_bytes - half);

    // Which keys each query sees matters at the edges only.
    const std::int32_t begin = end_key - left, end = begin + tile.keys;
    const bool edge = left > common_from || left - tile.keys < common_to;
    const int thread = arch::renewed_thread(), lane = thread % arch::wave_size;
    // Query i of the lane.
    const auto query_at = [&](int i) {
      const int place =
          thread / arch::wave_size * wave_queries + i / 2 * Mma::rows + i % 2 * 8 + Mma::row(lane);
      const Words2 keys = arch::load_shared8(shared_keys + static_cast<std::uint32_t>(place * 8));
      QueryView query;
      query.index = block_begin + place;
      query.begin = static_cast<std::int32_t>(keys.x);
      query.end = static_cast<std::int32_t>(keys.y);
      return query;
    };
    if (edge) {
      bool sees = false;
      ROCFLASH_UNROLL
      for (int i = 0; i < lane_queries; ++i) {
        const QueryView query = query_at(i);
        sees |= begin < query.end && end > query.begin;
      }
      if (!arch::any(sees)) continue;
    }

    typename Mma::Result s[parts][key_parts] = {};
    const SharedAddress k_tile = arch::renew(own_k + half);
    ROCFLASH_UNROLL
    for (int step = 0; step < steps; ++step) {
      if constexpr (!q_in_registers) {
        ROCFLASH_UNROLL
        for (int part = 0; part < parts; ++part) q[part][0] = load_q(part, step);
      }
      ROCFLASH_UNROLL
      for (int key = 0; key < key_parts; key += 2) {
        const Words4 k =
            arch::load_matrices(Tile::along(k_tile, 2 * step) +
                                static_cast<std::uint32_t>(key * Mma::columns * Tile::bytes));
        ROCFLASH_UNROLL
        for (int part = 0; part < parts; ++part) {
          const Words4 rows = q[part][q_in_registers ? step : 0];
          Mma::multiply(s[part][key], rows, k.x, k.y);
          Mma::multiply(s[part][key + 1], rows, k.z, k.w);
        }
      }
    }

    // Score n of query i is that of key_at(n).
    const auto score = [&](int i, int n) -> float& {
      return s[i / 2][n / 2].at[i % 2 * 2 + n % 2];
    };
    const auto key_at = [first = begin + Mma::column(lane)](int n) {
      return first + n / 2 * 8 + n % 2;
    };
    if (shaped || edge) {
      for_each<lane_queries>([&](int i) {
        const QueryView query = query_at(i);
        if (shaped) {
          shape.template shape<lane_keys>(
              query, [&](int n) -> float& { return score(i, n); }, key_at);
        }
        if (edge) {
          ROCFLASH_UNROLL
          for (int n = 0; n < lane_keys; ++n)
            score(i, n) = query.sees(key_at(n)) ? score(i, n) : -infinity;
        }
      });
    }

    float largest[lane_queries];
    bool behind = false;
    ROCFLASH_UNROLL
    for (int i = 0; i < lane_queries; ++i) {
      float x = score(i, 0);
      ROCFLASH_UNROLL
      for (int n = 1; n < lane_keys; ++n) x = __builtin_fmaxf(x, score(i, n));
      x = __builtin_fmaxf(x, arch::from_lane_xor(x, 1));
      largest[i] = __builtin_fmaxf(x, arch::from_lane_xor(x, 2)) * unit;
      behind |= softmax[i].behind(largest[i]);
    }
    if (arch::any(behind)) {
      ROCFLASH_UNROLL
      for (int i = 0; i < lane_queries; ++i) {
        const float factor = softmax[i].follow(largest[i]);
        ROCFLASH_UNROLL
        for (int column = 0; column < column_parts; ++column) {
          out[i / 2][column].at[i % 2 * 2] *= factor;
          out[i / 2][column].at[i % 2 * 2 + 1] *= factor;
        }
      }
    }

    // Weights of 16 keys at a time, so that the products of some run beside the exponentials of the
    // next.
    const SharedAddress v_tile = arch::renew(own_v + half);
    const auto accumulate = [&](bool dropping) {
      [[maybe_unused]] std::uint32_t kept[lane_queries];
      ROCFLASH_UNROLL
      for (int key = 0; key < key_parts; key += 2) {
        ROCFLASH_UNROLL
        for (int i = 0; i < lane_queries; ++i) {
          ROCFLASH_UNROLL
          for (int n = 2 * key; n < 2 * key + 4; ++n) {
            score(i, n) = arch::exp2(__builtin_fmaf(score(i, n), unit, -softmax[i].base()));
            softmax[i].sum += score(i, n);
          }
          if (!dropping) continue;
          if (key % 4 == 0)
            kept[i] =
                kept_by_quad(shape, query_at(i), begin + key * Mma::columns) >> Mma::column(lane);
          ROCFLASH_UNROLL
          for (int n = 0; n < 4; ++n) {
            const bool keep = kept[i] >> (key % 4 * 8 + n / 2 * 8 + n % 2) & 1u;
            score(i, 2 * key + n) = keep ? score(i, 2 * key + n) : 0;
          }
        }
        Words4 weights[parts];
        ROCFLASH_UNROLL
        for (int part = 0; part < parts; ++part)
          weights[part] = Mma::operand(s[part][key], s[part][key + 1]);
        ROCFLASH_UNROLL
        for (int column = 0; column < column_parts; column += 2) {
          const Words4 v = arch::load_matrices_transposed(
              Tile::along(v_tile, column) +
              static_cast<std::uint32_t>(key * Mma::columns * Tile::bytes));
          ROCFLASH_UNROLL
          for (int part = 0; part < parts; ++part) {
            Mma::multiply(out[part][column], weights[part], v.x, v.y);
            Mma::multiply(out[part][column + 1], weights[part], v.z, v.w);
          }
        }
      }
    };
    if (dropout) {
      accumulate(true);
    } else {
      accumulate(false);
    }
  }
  finish<spec>(a, softmax, out);
}

}  // namespace rocflash::kernel
