// Backward on Hopper, by workgroups that own a block of keys of one key head. One warpgroup has tiles of
// queries copied to shared memory, of all heads that share the keys; two compute, 64 keys each:
//
//   Sᵀ = K·Qᵀ   dPᵀ = V·dOᵀ   keys by queries, in registers
//   P, dS                     from those, rounded: left operands of the next two as they are
//   dV += Pᵀ·dO   dK += dSᵀ·Q   keys by columns, in registers all the time
//   dQ = dS·K                 over the keys of both warpgroups, so dS goes through shared memory. Each
//                             warpgroup has half of dQ and has it added to f32 sums in global memory
//                             (dq_sums.hpp) by copies that add, in any order.
//
// Products are in flight all the time: weights are computed under dP, gradients of scores under dV; behind
// those dQ, dK and the next tile's S follow each other, and dQ leaves under them.
//
//   registers       S, dP, dK, dV, dQ in f32; P and dS as operands
//   shared memory   k, v; two tiles each of q and dout, with what belongs to their queries; two of dS; one
//                   of dQ; which queries see each key
#pragma once

#include "arch/arch.hpp"
#include "attention/broken_rows.hpp"
#include "attention/sequence.hpp"
#include "attention/softmax.hpp"
#include "attention/work.hpp"
#include "backward/dq_sums.hpp"
#include "backward/exact.hpp"
#include "backward/query_tiles.hpp"
#include "backward/statistic.hpp"
#include "table/backward.hpp"
#include "tile/quads.hpp"
#include "tile/sm90.hpp"
#include "tile/unrolled.hpp"

namespace rocflash::kernel {

// Words in shared memory that one thread writes for others: nobody keeps them in registers.
template <class Word>
class SharedWords {
 public:
  explicit SharedWords(SharedAddress at) : at_(at) {}
  std::int32_t operator[](Word word) const {
    return static_cast<std::int32_t>(arch::load_shared4(at_ + 4 * word));
  }
  float* floats(Word word) const {
    return __builtin_bit_cast(float*, arch::load_shared8(at_ + 4 * word));
  }
  void store(Word word, std::int32_t x) const {
    arch::store_shared(at_ + 4 * word, static_cast<std::uint32_t>(x));
  }
  void store(Word word, const float* x) const {
    arch::store_shared(at_ + 4 * word, __builtin_bit_cast(Words2, x));
  }

 private:
  SharedAddress at_;
};

// A tile of queries.
struct TileOrder {
  enum Word {
    sums = 0,   // where dq of its first queries is, 2 words
    query = 2,  // its first
    rows,       // of the sequence from there on
    is_edge     // some query does not see some key
  };
  static constexpr std::uint32_t bytes = 32;
};

// The keys of a workgroup and the queries that they meet.
struct BlockOrder {
  enum Word {
    lse = 0,
    delta = 2,
    sums = 4,  // of the first query of the first head, 2 words each
    keys = 6,  // of the sequence, from the block's first on
    k_row,     // of the tensor, and so on: what copies are told
    k_batch,
    k_head,
    q_row,
    q_batch,
    sq,
    first,
    end,
    common_begin,
    common_end,
    start,
    count  // as QueryTiles has them
  };
  static constexpr std::uint32_t bytes = 80;
};

// The types and the shared memory of one kernel.
template <KernelSpec spec>
struct KeyGroupsTypes {
  static constexpr DType dtype = spec.dtype;
  static constexpr int bucket = spec.bucket;
  static constexpr BackwardGroups tile = backward_groups(spec);
#define EARLY true
#define DIRECT true
  static constexpr bool early = EARLY && bucket > 64, direct = DIRECT;
  static constexpr int stages = tile.stages, queries = tile.queries, keys = tile.keys();
  static constexpr int computing_threads = tile.groups * arch::warpgroup_size;

  using KeyTile = Panels<keys, bucket>;
  using QueryTile = Panels<queries, bucket>;
  using ScoreTile = Panels<keys, queries>;  // one row per key
  using Scores = GroupTile<queries>;
  // P and dS as operands: a part of the queries after the other, which takes fewer registers.
  static constexpr int parts = queries / 64, part_columns = Scores::lane_columns / parts;
  using Weights = Fragments<64 / product_depth>;
  using KeySums = GroupTile<bucket>;
  // dQ: 64 queries of a warpgroup, and the share of the columns that is left for it.
  static constexpr int query_parts = queries / group_rows;
  static constexpr int query_columns = bucket * query_parts / tile.groups;
  using QuerySums = GroupTile<query_columns>;
  static constexpr int strips = query_columns / DqSums::columns;  // of a warp's 16 queries
  static constexpr std::uint32_t warp_sums = 4 * DqSums::block_floats * strips;
  static_assert(query_parts <= tile.groups && tile.groups % query_parts == 0);
  static_assert(query_columns % KeyTile::width == 0 && ScoreTile::width == group_rows);

  using Tiles = QueryTiles<keys, queries>;
  using TileWords = SharedWords<TileOrder::Word>;
  using BlockWords = SharedWords<BlockOrder::Word>;
  using Place = DrainPlace<stages>;
  using QueryRing = Ring<stages>;

  static SharedAddress k() { return arch::shared_begin(); }
  static SharedAddress v() { return k() + KeyTile::bytes; }
  static SharedAddress q(int stage) {
    return k() + 2 * KeyTile::bytes + static_cast<std::uint32_t>(stage * QueryTile::bytes);
  }
  static SharedAddress dout(int stage) { return q(stages + stage); }
  static SharedAddress ds(std::uint32_t half) { return q(2 * stages) + half * ScoreTile::bytes; }
  static SharedAddress dq(int group, int warp) {
    return ds(2) + static_cast<std::uint32_t>(4 * group + warp) * warp_sums;
  }
  // Of a stage: lse of each query, delta of each, the order.
  static constexpr std::uint32_t statistic_bytes = 8 * queries + TileOrder::bytes;
  static SharedAddress lse(int stage) {
    return dq(tile.groups, 0) + static_cast<std::uint32_t>(stage) * statistic_bytes;
  }
  static SharedAddress delta(int stage) { return lse(stage) + 4 * queries; }
  static TileWords order(int stage) { return TileWords(lse(stage) + 8 * queries); }
  static SharedAddress seeing(int key) {  // its first query and how many
    return lse(stages) + 8 * static_cast<std::uint32_t>(key);
  }
  static BlockWords block() { return BlockWords(seeing(keys)); }
  static Ring<1> key_ring() { return Ring<1>(seeing(keys) + BlockOrder::bytes); }
  static QueryRing ring(std::uint32_t n) {
    return QueryRing(seeing(keys) + BlockOrder::bytes + Ring<1>::bytes + n * QueryRing::bytes);
  }
  static QueryRing q_ring() { return ring(0); }
  static QueryRing dout_ring() { return ring(1); }
  static QueryRing statistics_ring() { return ring(2); }
  static constexpr int shared_bytes =
      2 * KeyTile::bytes + 2 * stages * QueryTile::bytes + 2 * ScoreTile::bytes +
      tile.groups * 4 * static_cast<int>(warp_sums) + stages * static_cast<int>(statistic_bytes) +
      8 * keys + static_cast<int>(BlockOrder::bytes) + Ring<1>::bytes + 3 * QueryRing::bytes;
  static_assert(shared_bytes == backward_groups_shared(spec));
  static_assert(KeyTile::bytes % 1024 == 0 && QueryTile::bytes % 1024 == 0 &&
                ScoreTile::bytes % 1024 == 0);
};

// The keys of a workgroup. Under a causal mask the first ones are seen by most queries: they go first.
template <class Types>
struct OwnKeys {
  WorkItem item;
  SequenceView sequence;
  std::int32_t begin;

  explicit OwnKeys(const BackwardArguments& a, int group = arch::group())
      : item(a.work, static_cast<std::int32_t>(a.problem.kv_heads), group),
        sequence(a.problem, item.batch),
        begin((a.work.blocks - 1 - item.block) * Types::keys) {}
  bool exist() const { return begin < sequence.sk; }
  std::int32_t rows() const { return sequence.sk - begin; }
};

// Tells all roles about the block, before they part. Everybody has found the keys.
template <class Types>
void store_block(const BackwardArguments& a, const OwnKeys<Types>& own) {
  const Problem& p = a.problem;
  const SequenceView& sequence = own.sequence;
  // One warp after the other has something to do.
  if (const int key = arch::thread() - arch::warpgroup_size; key >= 0 && key < Types::keys) {
    const KeyView view(p.visibility, sequence, own.begin + key);
    arch::store_shared(Types::seeing(key),
                       Words2{static_cast<std::uint32_t>(view.begin),
                              static_cast<std::uint32_t>(view.end - view.begin)});
  }
  if (arch::thread() != 0) return;
  const auto block = Types::block();
  const auto head = static_cast<std::int64_t>(own.item.head) * p.group();
  block.store(BlockOrder::lse, &a.tensors.lse.at(sequence.batch, head, sequence.q_row));
  block.store(BlockOrder::delta, &a.delta.at(sequence.batch, head, sequence.q_row));
  block.store(BlockOrder::sums, DqSums(a, sequence, head).start(0, 0));
  block.store(BlockOrder::keys, own.rows());
  block.store(BlockOrder::k_row, static_cast<std::int32_t>(sequence.k_row) + own.begin);
  block.store(BlockOrder::k_batch, p.lengths.packed_k() ? 0 : own.item.batch);
  block.store(BlockOrder::k_head, own.item.head);
  block.store(BlockOrder::q_row, static_cast<std::int32_t>(sequence.q_row));
  block.store(BlockOrder::q_batch, p.lengths.packed_q() ? 0 : own.item.batch);
  block.store(BlockOrder::sq, sequence.sq);
  const typename Types::Tiles tiles(p.visibility, sequence, own.begin);
  block.store(BlockOrder::first, tiles.first);
  block.store(BlockOrder::end, tiles.end);
  block.store(BlockOrder::common_begin, tiles.common_begin);
  block.store(BlockOrder::common_end, tiles.common_end);
  block.store(BlockOrder::start, tiles.start);
  block.store(BlockOrder::count, tiles.count);
}

// Calls tile(query, head) for each tile of the block, in order; heads of the group count from 0.
template <class Types, class Tile>
void for_each_tile(std::int32_t group, Tile tile) {
  const auto block = Types::block();
  std::int32_t query = block[BlockOrder::start], head = 0;
  for (std::int32_t left = block[BlockOrder::count] * group; left > 0; --left) {
    tile(query, head);
    query += Types::queries;
    if (query >= block[BlockOrder::end]) query = block[BlockOrder::first];
    if (query == block[BlockOrder::start]) ++head;
  }
}

// What the copying thread does.
template <KernelSpec spec>
void copy_rows(const BackwardWarpgroupsArguments& a) {
  using Types = KeyGroupsTypes<spec>;
  using KeyTile = typename Types::KeyTile;
  using QueryTile = typename Types::QueryTile;
  const auto block = Types::block();
  const auto keys_full = Types::key_ring().announce(FillPlace<1>(), 2 * KeyTile::bytes);
  const auto copy_keys = [&](SharedAddress to, const TensorMap& map) {
    copy_tile<KeyTile>(to, map, keys_full, block[BlockOrder::k_row], block[BlockOrder::k_head],
                       block[BlockOrder::k_batch], arch::Reuse::none);
  };
  copy_keys(Types::k(), a.k);
  copy_keys(Types::v(), a.v);
  const auto group = static_cast<std::int32_t>(a.backward.problem.group());
  FillPlace<Types::stages> place;
  for_each_tile<Types>(group, [&](std::int32_t query, std::int32_t head) {
    const auto copy = [&](SharedAddress to, const TensorMap& map,
                          const typename Types::QueryRing& ring) {
      copy_tile<QueryTile>(to, map, ring.fill(place, QueryTile::bytes),
                           block[BlockOrder::q_row] + query,
                           block[BlockOrder::k_head] * group + head, block[BlockOrder::q_batch],
                           arch::Reuse::much);
    };
    copy(Types::q(place.stage()), a.q, Types::q_ring());
    copy(Types::dout(place.stage()), a.dout, Types::dout_ring());
    place.advance();
  });
}

// What a second warp of the copying group does: lse, delta and the order of each tile. Queries past the
// sequence's end get an lse at which all weights are 0.
template <KernelSpec spec>
void copy_statistics(const BackwardArguments& a) {
  using Types = KeyGroupsTypes<spec>;
  const auto block = Types::block();
  const auto ring = Types::statistics_ring();
  FillPlace<Types::stages> place;
  for_each_tile<Types>(static_cast<std::int32_t>(a.problem.group()), [&](std::int32_t query,
                                                                         std::int32_t head) {
    const std::int32_t rows = block[BlockOrder::sq] - query;
    ring.wait_until_empty(place);
    const auto copy = [&](SharedAddress to, BlockOrder::Word base, std::int64_t head_stride,
                          float factor, float otherwise) {
      const float* const from = block.floats(base) + head * head_stride + query;
      _Pragma("clang loop unroll(disable)") for (int n = arch::lane(); n < Types::queries;
                                                 n += arch::wave_size) {
        const float x = n < rows ? statistic(arch::load(from + n), factor) : otherwise;
        arch::store_shared(to + static_cast<std::uint32_t>(4 * n),
                           __builtin_bit_cast(std::uint32_t, x));
      }
    };
    copy(Types::lse(place.stage()), BlockOrder::lse, a.tensors.lse.head_stride,
         PowersOfTwo::of_natural, infinity);
    copy(Types::delta(place.stage()), BlockOrder::delta, a.delta.head_stride, 1, 0);
    if (arch::lane() == 0) {
      const auto order = Types::order(place.stage());
      order.store(TileOrder::sums, block.floats(BlockOrder::sums) + head * a.dq_sums.head_stride +
                                       std::int64_t{query} * spec.bucket);
      order.store(TileOrder::query, query);
      order.store(TileOrder::rows, rows);
      order.store(TileOrder::is_edge, query < block[BlockOrder::common_begin] ||
                                          query + Types::queries > block[BlockOrder::common_end]);
    }
    arch::wave_barrier();
    if (arch::lane() == 0) ring.announce(place, 0);
    place.advance();
  });
}

// Named barrier of the warpgroups that compute.
template <class Types>
void meet() {
  arch::barrier(1, Types::computing_threads);
}

// Rows of a tile in shared memory from `rows` on belong to others, whose numbers need not be finite: they
// become 0. All warpgroups that compute, which meet behind it. Mostly there are none.
template <class Types, class Tile>
void clear_rows_behind(SharedAddress tile, std::int32_t rows) {
  constexpr int chunks = Tile::row_bytes / 16;  // of a row of a panel
  if (rows >= Tile::rows) return;
  const int thread = arch::renewed_thread() - arch::warpgroup_size;
  _Pragma("clang loop unroll(disable)") for (int n = thread; n < Tile::count * Tile::rows * chunks; n += Types::computing_threads)
    if (n / chunks % Tile::rows >= rows)
      arch::store_shared(tile + static_cast<std::uint32_t>(16 * n), Words4{});
  arch::publish_shared();
  meet<Types>();
}

// Puts 0 in the places of queries that do not see the key of their row, whatever is there.
template <class Types, int first, int count>
void hide_queries(typename Types::Scores& scores ROCFLASH_SETTLED, int first_row, int lane,
                  std::int32_t first_query) {
  using Scores = typename Types::Scores;
  ROCFLASH_UNROLL
  for (int i = 0; i < Scores::lane_rows; ++i) {
    const Words2 seeing = arch::load_shared8(Types::seeing(first_row + Scores::row(lane, i)));
    const auto begin =
        static_cast<std::int32_t>(seeing.x) - first_query - Scores::lane_column(lane);
    ROCFLASH_UNROLL
    for (int n = first; n < first + count; ++n) {
      const bool sees = static_cast<std::uint32_t>(Scores::column(n) - begin) < seeing.y;
      scores.at(i, n) = sees ? scores.at(i, n) : 0.0f;
    }
  }
}

// The numbers of a lane's columns n and n + 1.
template <class Scores>
Float2 two_of(SharedAddress numbers, int lane, int n) {
  return __builtin_bit_cast(
      Float2, arch::load_shared8(numbers + static_cast<std::uint32_t>(
                                               4 * (Scores::lane_column(lane) + Scores::column(n)))));
}

// S becomes P.
template <class Scores>
void weigh(Scores& s ROCFLASH_SETTLED, SharedAddress lse, int lane, float unit) {
  ROCFLASH_UNROLL
  for (int n = 0; n < Scores::lane_columns; n += 2) {
    const Float2 base = two_of<Scores>(lse, lane, n);
    ROCFLASH_UNROLL
    for (int i = 0; i < Scores::lane_rows; ++i) {
      s.at(i, n) = arch::exp2(__builtin_fmaf(s.at(i, n), unit, -base.x));
      s.at(i, n + 1) = arch::exp2(__builtin_fmaf(s.at(i, n + 1), unit, -base.y));
    }
  }
}

// dP becomes dS, in columns [first, first + count) of a lane.
template <int first, int count, class Scores>
void differentiate(const Scores& p ROCFLASH_SETTLED, Scores& d ROCFLASH_SETTLED,
                   SharedAddress delta, int lane) {
  ROCFLASH_UNROLL
  for (int n = first; n < first + count; n += 2) {
    const Float2 mean = two_of<Scores>(delta, lane, n);
    ROCFLASH_UNROLL
    for (int i = 0; i < Scores::lane_rows; ++i) {
      d.at(i, n) = p.at(i, n) * (d.at(i, n) - mean.x);
      d.at(i, n + 1) = p.at(i, n + 1) * (d.at(i, n + 1) - mean.y);
    }
  }
}

// A warp's rows of a part of dSᵀ to shared memory.
template <class Types>
void store_gradients(const typename Types::Weights& ds ROCFLASH_SETTLED, SharedAddress tile,
                     int first_row, int lane, int part) {
  using Tile = typename Types::ScoreTile;
  const int row = first_row + lane % 16, column = group_rows * part + lane / 16 * 8;
  ROCFLASH_UNROLL
  for (int n = 0; n < Types::Weights::steps; ++n)
    arch::store_matrices(
        tile + static_cast<std::uint32_t>(Tile::offset(row, column + product_depth * n)),
        ds.words(n));
}

// A warp's 16 queries of dQ to the sums in global memory. `stage` is the warp's own shared memory.
template <class Types>
void add_queries(const typename Types::QuerySums& dq ROCFLASH_SETTLED, SharedAddress stage,
                 int lane, float* to, bool there) {
  if constexpr (Types::direct) {
    if (there) {
      ROCFLASH_UNROLL
      for (int n = 0; n < Types::strips; ++n)
        asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(
                         to + DqSums::block_floats * n + 4 * lane),
                     "f"(dq.at(0, 2 * n)), "f"(dq.at(0, 2 * n + 1)), "f"(dq.at(1, 2 * n)),
                     "f"(dq.at(1, 2 * n + 1))
                     : "memory");
    }
    return;
  }
  if (lane == 0) arch::wait_for_reads<0>();
  arch::wave_barrier();
  ROCFLASH_UNROLL
  for (int n = 0; n < Types::strips; ++n)
    arch::store_shared(
        stage + static_cast<std::uint32_t>(4 * DqSums::block_floats * n + 16 * lane),
        __builtin_bit_cast(Words4, Float4{dq.at(0, 2 * n), dq.at(0, 2 * n + 1), dq.at(1, 2 * n),
                                          dq.at(1, 2 * n + 1)}));
  arch::publish_shared();
  arch::wave_barrier();
  if (lane == 0) {
    if (there) arch::add_floats(to, stage, static_cast<int>(Types::warp_sums));
    arch::commit_stores();
  }
}

// Sums of dk or dv as rows of the tensor. Returns those that are not finite, and all where products may
// overflow. Four lanes that share a row turn their words so that each stores sixteen bytes.
template <class Types, bool is_dk>
BrokenRows store_keys(const BackwardArguments& a, const OwnKeys<Types>& own, int first_row,
                const typename Types::KeySums& sums ROCFLASH_SETTLED) {
  using Sums = typename Types::KeySums;
  constexpr DType dtype = Types::dtype;
  const Rows& to = is_dk ? a.tensors.dk : a.tensors.dv;
  BrokenRows broken;
  if (!to) return broken;
  const float factor = is_dk ? a.problem.scale : 1.0f;
  const int lane = arch::lane();
  ROCFLASH_UNROLL
  for (int i = 0; i < Sums::lane_rows; ++i) {
    const std::int32_t key = first_row + Sums::row(lane, i);
    const bool exists = key < own.rows();
    std::byte* const row = row_address<dtype>(to, own.sequence.batch,
                                              own.sequence.k_row + own.begin + key, own.item.head);
    float probe = 0;  // NaN once a sum is not finite
    ROCFLASH_UNROLL
    for (int n = 0; n < Sums::lane_columns; n += 2 * row_lanes) {
      Words4 words;
      ROCFLASH_UNROLL
      for (int j = 0; j < row_lanes; ++j) {
        const float x = sums.at(i, n + 2 * j), y = sums.at(i, n + 2 * j + 1);
        probe = __builtin_fmaf(y, 0.0f, __builtin_fmaf(x, 0.0f, probe));
        words[j] = arch::narrow_two<dtype>(x * factor, y * factor);
      }
      words = turned_in_quad(words);
      const int column = Sums::column(n) + 8 * (lane % row_lanes);
      if (exists && column < to.columns)
        arch::store(reinterpret_cast<Words4*>(row + column * number_bytes<dtype>), words);
    }
    broken.add(i, exists && (probe != 0 || products_overflow(a.problem)));
  }
  return broken;
}

// What a thread of the computing warpgroups has. Asked for again in each turn of the loop, which has no
// registers to keep it in.
struct GroupThread {
  int number = arch::renewed_thread() % arch::warpgroup_size;
  int lane = number % arch::wave_size, warp = number / arch::wave_size;

  int first_row(int group) const { return group_rows * group + 16 * warp; }  // of the warp's keys
  bool reports() const { return number == 0; }
};

// What a computing warpgroup does; they count from 0.
template <KernelSpec spec>
void compute_gradients(const BackwardArguments& a, int group) {
  using Types = KeyGroupsTypes<spec>;
  using KeyTile = typename Types::KeyTile;
  using QueryTile = typename Types::QueryTile;
  using ScoreTile = typename Types::ScoreTile;
  constexpr DType dtype = spec.dtype;
  constexpr int bucket = spec.bucket;
  const auto q_ring = Types::q_ring(), dout_ring = Types::dout_ring(),
             statistics_ring = Types::statistics_ring();

  typename Types::KeySums dk, dv;
  dk.clear();
  dv.clear();
  std::int32_t left =
      Types::block()[BlockOrder::count] * static_cast<std::int32_t>(a.problem.group());
  Types::key_ring().wait(DrainPlace<1>());
  clear_rows_behind<Types, KeyTile>(Types::k(), Types::block()[BlockOrder::keys]);
  clear_rows_behind<Types, KeyTile>(Types::v(), Types::block()[BlockOrder::keys]);

  if (left > 0) {
    typename Types::Place place;
    typename Types::Scores s, d;
    typename Types::QuerySums dq;
    typename Types::Weights p[Types::parts], ds[Types::parts];
    const auto wait_for_queries = [&](const typename Types::Place& of) {
      statistics_ring.wait(of);
      q_ring.wait(of);
      clear_rows_behind<Types, QueryTile>(Types::q(of.stage()),
                                          Types::order(of.stage())[TileOrder::rows]);
    };
    const auto wait_for_values = [&](const typename Types::Place& of) {
      dout_ring.wait(of);
      clear_rows_behind<Types, QueryTile>(Types::dout(of.stage()),
                                          Types::order(of.stage())[TileOrder::rows]);
    };
    wait_for_queries(place);
    Products first;
    first.template multiply<dtype, bucket>(s, RowLines<KeyTile>(Types::k(), group_rows * group),
                                           RowLines<QueryTile>(Types::q(place.stage())));
    first.commit();
    wait<0>(s);
    if constexpr (Types::early) {
      wait_for_values(place);
      Products values;
      values.template multiply<dtype, bucket>(d, RowLines<KeyTile>(Types::v(), group_rows * group),
                                              RowLines<QueryTile>(Types::dout(place.stage())));
      values.commit();
    }

#pragma clang loop unroll(disable)
    while (true) {
      const int stage = place.stage();
      const auto order = Types::order(stage);
      const int own = arch::renewed(group);
      if constexpr (!Types::early) {
        wait_for_values(place);
        Products values;
        values.template multiply<dtype, bucket>(d, RowLines<KeyTile>(Types::v(), group_rows * own),
                                                RowLines<QueryTile>(Types::dout(stage)));
        values.commit();
      }
      const GroupThread thread;
      const int first_row = thread.first_row(own), lane = thread.lane;
      weigh(s, Types::lse(stage), lane, a.problem.scale * PowersOfTwo::of_natural);
      const bool edge = order[TileOrder::is_edge] != 0;
      if (edge)
        hide_queries<Types, 0, Types::Scores::lane_columns>(s, first_row, lane,
                                                            order[TileOrder::query]);

      const SharedAddress ds_tile = Types::ds(static_cast<std::uint32_t>(left) % 2);
      wait<0>(d);
      static_for<Types::parts>([&](auto part) {
        constexpr int first = part.value * Types::part_columns;
        p[part.value].template round<dtype>(s, part.value * Types::Weights::steps);
        Products weights(p[part.value]);
        weights.template add<dtype>(
            dv, p[part.value],
            ColumnLines<QueryTile>(Types::dout(stage), 0, group_rows * part.value));
        weights.commit();
        differentiate<first, Types::part_columns>(s, d, Types::delta(stage), lane);
        if (edge)
          hide_queries<Types, first, Types::part_columns>(d, first_row, lane,
                                                          order[TileOrder::query]);
        ds[part.value].template round<dtype>(d, part.value * Types::Weights::steps);
        store_gradients<Types>(ds[part.value], ds_tile, first_row, lane, part.value);
      });
      float* const sums = order.floats(TileOrder::sums);
      const std::int32_t rows = order[TileOrder::rows];
      arch::publish_shared();
      meet<Types>();
      const bool reports = thread.reports();
      if (reports) statistics_ring.release(place);

      const int query_part = own % Types::query_parts,
                query_column = own / Types::query_parts * Types::query_columns;
      Products queries;
      queries.template multiply<dtype, Types::keys>(
          dq, ColumnLines<ScoreTile>(ds_tile, group_rows * query_part),
          ColumnLines<KeyTile>(Types::k(), query_column));
      queries.commit();
      static_for<Types::parts>([&](auto part) { wait<1>(dv, p[part.value]); });
      if (reports) dout_ring.release(place);
      Products gradients(ds[0]);
      static_for<Types::parts>([&](auto part) {
        gradients.template add<dtype>(
            dk, ds[part.value],
            ColumnLines<QueryTile>(Types::q(stage), 0, group_rows * part.value));
      });
      gradients.commit();
      --left;
      typename Types::Place next = place;
      next.advance();
      if (left > 0) wait_for_queries(next);
      // The last tile has no next one: it multiplies whatever is there.
      Products ahead;
      ahead.template multiply<dtype, bucket>(s, RowLines<KeyTile>(Types::k(), group_rows * own),
                                             RowLines<QueryTile>(Types::q(next.stage())));
      ahead.commit();

      wait<2>(dq);
      const int first_query = group_rows * query_part + 16 * thread.warp;
      add_queries<Types>(dq, Types::dq(own, thread.warp), lane,
                         sums + (first_query / DqSums::rows * (bucket / DqSums::columns) +
                                 query_column / DqSums::columns) *
                                    DqSums::block_floats,
                         first_query < rows);
      if constexpr (Types::early) {
        if (left > 0) wait_for_values(next);
        Products values;
        values.template multiply<dtype, bucket>(d, RowLines<KeyTile>(Types::v(), group_rows * own),
                                                RowLines<QueryTile>(Types::dout(next.stage())));
        values.commit();
      }
      static_for<Types::parts>(
          [&](auto part) { wait<(Types::early ? 1 : 0)>(dk, ds[part.value]); });
      wait<(Types::early ? 1 : 0)>(s);
      if (reports) q_ring.release(place);
      place = next;
      if (left == 0) break;
    }
    if constexpr (Types::early) wait<0>(d);
  }
  // Found out again, so that the loop need not keep it.
  const OwnKeys<Types> own(a, arch::renewed(arch::group()));
  const int first_row = GroupThread().first_row(group);
  BrokenRows broken = store_keys<Types, true>(a, own, first_row, dk),
             broken_dv = store_keys<Types, false>(a, own, first_row, dv);
  if (arch::lane() == 0) arch::wait_for_stores<0>();
  arch::wave_barrier();
  bool is_dk = true;
  while (broken.any() || broken_dv.any()) {
    if (!broken.any()) {
      broken = broken_dv;
      broken_dv = {};
      is_dk = false;
    }
    const auto row = broken.take();
    exact_dk_dv<dtype>(a, own.sequence, own.item.head,
                       own.begin + first_row + Types::KeySums::row(row.first_lane, row.which),
                       is_dk, !is_dk);
  }
}

template <KernelSpec spec>
void backward_warpgroups(const BackwardWarpgroupsArguments& a) {
  using Types = KeyGroupsTypes<spec>;
  constexpr BackwardGroups tile = Types::tile;
  {
    const OwnKeys<Types> own(a.backward);
    if (!own.exist()) return;
    store_block(a.backward, own);
  }
  if (arch::thread() == 0) {
    Types::key_ring().make(tile.groups);
    for (std::uint32_t n = 0; n < 3; ++n) Types::ring(n).make(tile.groups);
    arch::publish_barriers();
  }
  arch::barrier();
  const int group = arch::warpgroup();
  if (group == 0) {
    arch::give_registers<tile.copying>();
    if (arch::thread() == 0) copy_rows<spec>(a);
    if (arch::wave() == 1) copy_statistics<spec>(a.backward);
  } else {
    arch::take_registers<tile.computing>();
    compute_gradients<spec>(a.backward, group - 1);
  }
}

}  // namespace rocflash::kernel
