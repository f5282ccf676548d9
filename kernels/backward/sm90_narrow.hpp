// Backward on Hopper up to 64 columns, as sm90.hpp does it, with the work divided in another way. Sums of a
// warpgroup are half as many, so that registers hold its keys and values as operands. And the warpgroup that has
// tiles of queries copied computes dQ of them:
//
//   keys, two warpgroups      S, dP, P, dS, dV, dK of 64 keys each. They store dS, and never wait for each other:
//                             only for the queries' warpgroup, should it be two tiles behind.
//   queries, one warpgroup    dQ = dS·K, and its way to the sums; tiles and what belongs to their queries
//
// Nobody reports that a tile has been read: whoever has stored dS of a tile has done all products of the tile before.
//
// Per tile of 64 queries and 128 keys of 64 columns, clocks of a multiprocessor: products 1280; shared memory 1536
// (S, dP, dV and dK read one operand, 128 each; dQ two, 256; its way out 256, lse and delta 256, tiles in 128, dS
// 128); exponentials 512.
#pragma once

#include "backward/sm90.hpp"

namespace rocflash::kernel {

// The types and the shared memory of one kernel.
template <KernelSpec spec>
struct KeyRolesTypes {
  static constexpr DType dtype = spec.dtype;
  static constexpr bool keys_add = false;
  static constexpr int bucket = spec.bucket;
  static constexpr BackwardRoles tile = {};
  static constexpr int stages = tile.stages, queries = tile.queries, keys = tile.keys();
  static constexpr int computing_threads = tile.groups * arch::warpgroup_size;

  using KeyTile = Panels<keys, bucket>;
  using QueryTile = Panels<queries, bucket>;
  using ScoreTile = Panels<keys, queries>;  // one row per key
  using Scores = GroupTile<queries>;
  using Weights = Fragments<queries / product_depth>;  // P and dS as operands
  using KeySums = GroupTile<bucket>;
  using HeldKeys = HeldFragments<bucket / product_depth>;  // k and v as operands
  static constexpr int query_columns = bucket;
  using QuerySums = GroupTile<bucket>;
  static constexpr int strips = query_columns / DqSums::columns;  // of a warp's 16 queries
  static constexpr std::uint32_t warp_sums = 4 * DqSums::block_floats * strips;  // bytes
  static_assert(queries == group_rows && ScoreTile::count == 1 && KeyTile::count == 1);

  using Tiles = QueryTiles<keys, queries>;
  using TileWords = SharedWords<TileOrder::Word>;
  using BlockWords = SharedWords<BlockOrder::Word>;

  static SharedAddress k() { return arch::shared_begin(); }
  static SharedAddress v() { return k() + KeyTile::bytes; }
  static SharedAddress q(int stage) {
    return k() + 2 * KeyTile::bytes + static_cast<std::uint32_t>(stage * QueryTile::bytes);
  }
  static SharedAddress dout(int stage) { return q(stages + stage); }
  static SharedAddress ds(int half) {
    return dout(stages) + static_cast<std::uint32_t>(half * ScoreTile::bytes);
  }
  static SharedAddress dq(int warp) { return ds(2) + static_cast<std::uint32_t>(warp) * warp_sums; }
  // Of a stage: -lse of each query in powers of two, delta of each, the order.
  static constexpr std::uint32_t statistic_bytes = 8 * queries + TileOrder::bytes;
  static SharedAddress minus_lse(int stage) {
    return dq(4) + static_cast<std::uint32_t>(stage) * statistic_bytes;
  }
  static SharedAddress delta(int stage) { return minus_lse(stage) + 4 * queries; }
  static TileWords order(int stage) { return TileWords(minus_lse(stage) + 8 * queries); }
  static SharedAddress seeing(int key) {  // its first query and how many
    return minus_lse(stages) + 8 * static_cast<std::uint32_t>(key);
  }
  static BlockWords block() { return BlockWords(seeing(keys)); }
  static Ring<1> key_ring() { return Ring<1>(seeing(keys) + BlockOrder::bytes); }
  // Tiles of queries, which nobody reports as read, and of gradients of scores, which a named barrier announces.
  static Ring<stages> query_ring() {
    return Ring<stages>(seeing(keys) + BlockOrder::bytes + Ring<1>::bytes);
  }
  static Ring<2> gradient_ring() {
    return Ring<2>(seeing(keys) + BlockOrder::bytes + Ring<1>::bytes + Ring<stages>::bytes);
  }
  static constexpr int shared_bytes =
      2 * KeyTile::bytes + 2 * stages * QueryTile::bytes + 2 * ScoreTile::bytes +
      4 * static_cast<int>(warp_sums) + stages * static_cast<int>(statistic_bytes) + 8 * keys +
      static_cast<int>(BlockOrder::bytes) + Ring<1>::bytes + Ring<stages>::bytes + Ring<2>::bytes;
  static_assert(shared_bytes == backward_roles_shared(spec));
  static_assert(KeyTile::bytes % 1024 == 0 && QueryTile::bytes % 1024 == 0 &&
                ScoreTile::bytes % 1024 == 0);
};

// The named barrier that says that dS of a tile is there: one of two by turns, as its memory is.
inline int tile_there(std::int32_t number) { return 2 + number % 2; }
inline constexpr int all_added = 4;  // the one of the queries' warpgroup at its end

// What belongs to the queries of a tile, two of which a lane has: loaded long before it is stored.
struct TileStatistics {
  Float2 lse, delta;

  template <class Types>
  void load(const BackwardArguments& a, const TileCursor<Types>& tile) {
    const auto block = Types::block();
    const std::int32_t rows = block[BlockOrder::sq] - tile.query;
    const auto number = [&](BlockOrder::Word base, std::int64_t head_stride, int n) {
      return n < rows ? arch::load(block.floats(base) + tile.head * head_stride + tile.query + n)
             : base == BlockOrder::lse ? infinity
                                       : 0.0f;
    };
    const int n = 2 * arch::lane();
    lse = {number(BlockOrder::lse, a.tensors.lse.head_stride, n),
           number(BlockOrder::lse, a.tensors.lse.head_stride, n + 1)};
    delta = {number(BlockOrder::delta, a.delta.head_stride, n),
             number(BlockOrder::delta, a.delta.head_stride, n + 1)};
  }
  template <class Types>
  void store(int stage) const {
    const auto put = [](SharedAddress to, Float2 x, float factor) {
      arch::store_shared(
          to + static_cast<std::uint32_t>(8 * arch::lane()),
          __builtin_bit_cast(Words2, (Float2{statistic(x.x, factor), statistic(x.y, factor)})));
    };
    put(Types::minus_lse(stage), lse, -PowersOfTwo::of_natural);
    put(Types::delta(stage), delta, 1);
  }
};

// Starts copies of a tile to its stage, by one thread.
template <KernelSpec spec>
void start_tile(const BackwardWarpgroupsArguments& a, const TileCursor<KeyRolesTypes<spec>>& tile,
                const FillPlace<KeyRolesTypes<spec>::stages>& place, std::int32_t group) {
  using Types = KeyRolesTypes<spec>;
  using QueryTile = typename Types::QueryTile;
  const auto block = Types::block();
  const SharedAddress full = Types::query_ring().announce(place, 2 * QueryTile::bytes);
  const auto copy = [&](SharedAddress to, const TensorMap& map) {
    copy_tile<QueryTile>(to, map, full, block[BlockOrder::q_row] + tile.query,
                         block[BlockOrder::k_head] * group + tile.head, block[BlockOrder::q_batch],
                         arch::Reuse::much);
  };
  copy(Types::q(place.stage()), a.q);
  copy(Types::dout(place.stage()), a.dout);
}

// What else belongs to it: by one warp, each lane of which announces what it stored.
template <KernelSpec spec>
void finish_tile(const BackwardArguments& a, const TileStatistics& statistics,
                 const TileCursor<KeyRolesTypes<spec>>& tile,
                 const FillPlace<KeyRolesTypes<spec>::stages>& place, std::int32_t number,
                 std::int32_t left) {
  using Types = KeyRolesTypes<spec>;
  const auto block = Types::block();
  const auto order = Types::order(place.stage());
  statistics.template store<Types>(place.stage());
  if (arch::lane() == 0) {
    order.store(TileOrder::sums, block.floats(BlockOrder::sums) +
                                     tile.head * a.dq_sums.head_stride +
                                     std::int64_t{tile.query} * spec.bucket);
    order.store(TileOrder::query, tile.query);
    order.store(TileOrder::rows, block[BlockOrder::sq] - tile.query);
    order.store(TileOrder::left, left);
    order.store(TileOrder::is_edge,
                tile.query < block[BlockOrder::common_begin] ||
                    tile.query + Types::queries > block[BlockOrder::common_end]);
    order.store(TileOrder::number, number);
    if (DqTurns::in_order(a))
      store_turn<Types>(a, tile.query, tile.head, order, Types::order(place.before().stage()));
  }
  Types::query_ring().announce(place, 0);
}
inline constexpr int tile_fillers = 1 + arch::wave_size;  // that announce something

// What the warpgroup of the queries does.
template <KernelSpec spec>
void serve_queries(const BackwardWarpgroupsArguments& a) {
  using Types = KeyRolesTypes<spec>;
  using KeyTile = typename Types::KeyTile;
  using ScoreTile = typename Types::ScoreTile;
  const BackwardArguments& b = a.backward;
  const auto block = Types::block();
  const auto group = static_cast<std::int32_t>(b.problem.group());
  const std::int32_t count = block[BlockOrder::count] * group;  // of tiles
  const bool copies = arch::thread() == 0, stores = arch::wave() == 1;
  if (copies) {
    const auto full = Types::key_ring().announce(FillPlace<1>(), 2 * KeyTile::bytes);
    const auto copy = [&](SharedAddress to, const TensorMap& map) {
      copy_tile<KeyTile>(to, map, full, block[BlockOrder::k_row], block[BlockOrder::k_head],
                         block[BlockOrder::k_batch], arch::Reuse::none);
    };
    copy(Types::k(), a.k);
    copy(Types::v(), a.v);
  }
  if (stores) begin_behind_delta();
  // The next tile to be copied.
  TileCursor<Types> tile;
  FillPlace<Types::stages> place;
  const auto advance = [&] {
    tile.advance();
    place.advance();
  };
#pragma clang loop unroll(disable)
  for (std::int32_t n = 0; n < Types::stages && n < count; ++n, advance()) {
    if (copies) start_tile<spec>(a, tile, place, group);
    if (stores) {
      TileStatistics statistics;
      statistics.load(b, tile);
      finish_tile<spec>(b, statistics, tile, place, n, count - 1 - n);
    }
  }

  // The tile whose dQ is next. Where blocks take turns: the counter of the last tile but one.
  DrainPlace<Types::stages> now;
  const bool in_order = DqTurns::in_order(b);
  const float* passed = nullptr;
#pragma clang loop unroll(disable)
  for (std::int32_t number = 0; number < count; ++number, now.advance()) {
    const std::int32_t next = number + Types::stages - 1;
    const bool more = number > 0 && next < count;
    TileStatistics statistics = {};
    if (more && stores) statistics.load(b, tile);
    typename Types::QuerySums dq;
    arch::barrier(tile_there(number), Types::tile.threads());
    {
      Products queries;
      queries.template multiply<spec.dtype, Types::keys>(
          dq, ColumnLines<ScoreTile>(Types::ds(number % 2)), ColumnLines<KeyTile>(Types::k()));
      queries.commit();
    }
    // Nobody reads the tile before any more.
    if (more && copies) start_tile<spec>(a, tile, place, group);
    const auto order = Types::order(now.stage());
    const int warp = arch::wave(), lane = arch::lane();
    bool has_come = !in_order || lane != 0;
    if (in_order && warp == 3 && lane == 0) {
      // All warps have waited for their additions to the tile before the last one.
      pass_turn(passed);
      passed = order.floats(TileOrder::before);
    }
    if (!has_come) has_come = is_turn(order);
    wait<0>(dq);
    if (copies) Types::gradient_ring().release_stage(number % 2);
    add_queries<Types>(
        dq, Types::dq(warp), lane,
        order.floats(TileOrder::sums) + DqSums::rows * spec.bucket * warp,
        DqSums::rows * warp < order[TileOrder::rows],
        [&] {
          if (in_order) wait_for_turn(order, has_come);
        },
        [&] {
          if (in_order) arch::wait_for_stores<1>();
        });
    if (!more) continue;
    if (stores) finish_tile<spec>(b, statistics, tile, place, next, count - 1 - next);
    advance();
  }
  if (arch::lane() == 0) arch::wait_for_stores<0>();
  report_additions(b);
  if (!in_order || count == 0) return;
  arch::barrier(all_added, arch::warpgroup_size);
  if (arch::thread() != 3 * arch::wave_size) return;
  pass_turn(passed);
  pass_turn(Types::order(now.before().stage()).floats(TileOrder::counter));
}

// What a warpgroup that owns keys does; they count from 0.
template <KernelSpec spec>
void compute_held_keys(const BackwardArguments& a, int group) {
  using Types = KeyRolesTypes<spec>;
  using KeyTile = typename Types::KeyTile;
  using QueryTile = typename Types::QueryTile;
  constexpr DType dtype = spec.dtype;
  const auto tiles = Types::query_ring();

  typename Types::KeySums dk, dv;
  dk.clear();
  dv.clear();
  Types::key_ring().wait(DrainPlace<1>());
  clear_rows_behind<Types, KeyTile>(Types::k(), Types::block()[BlockOrder::keys]);
  clear_rows_behind<Types, KeyTile>(Types::v(), Types::block()[BlockOrder::keys]);

  if (Types::block()[BlockOrder::count] > 0) {
    DrainPlace<Types::stages> place;
    typename Types::Scores s, d;
    typename Types::Weights p, ds;
    typename Types::HeldKeys k, v;
    {
      const GroupThread thread;
      k.template load<KeyTile>(Types::k(), thread.first_row(group), thread.lane);
      v.template load<KeyTile>(Types::v(), thread.first_row(group), thread.lane);
    }
    // Waits for the tile that `place` is at.
    const auto wait_for_tile = [&] {
      tiles.wait(place);
      const std::int32_t rows = Types::order(place.stage())[TileOrder::rows];
      clear_rows_behind<Types, QueryTile>(Types::q(place.stage()), rows);
      clear_rows_behind<Types, QueryTile>(Types::dout(place.stage()), rows);
    };
    {
      wait_for_tile();
      Products scores(dk);
      scores.template multiply<dtype>(s, k, RowLines<QueryTile>(Types::q(0)));
      scores.commit();
      Products values;
      values.template multiply<dtype>(d, v, RowLines<QueryTile>(Types::dout(0)));
      values.commit();
      wait<1>(s);
    }

#pragma clang loop unroll(disable)
    while (true) {
      const int stage = place.stage();
      const auto order = Types::order(stage);
      const GroupThread thread;
      const int first_row = thread.first_row(group), lane = thread.lane;
      weigh(s, Types::minus_lse(stage), lane, a.problem.scale * PowersOfTwo::of_natural);
      if (order[TileOrder::is_edge] != 0)
        hide_queries<Types>(s, first_row, lane, order[TileOrder::query]);
      p.template round<dtype>(s);
      wait<0>(d);
      {
        Products weights(p);
        weights.template add<dtype>(dv, p, ColumnLines<QueryTile>(Types::dout(stage)));
        weights.commit();
      }
      differentiate(s, d, Types::delta(stage), lane);
      if (order[TileOrder::is_edge] != 0)
        hide_queries<Types>(d, first_row, lane, order[TileOrder::query]);
      ds.template round<dtype>(d);
      const std::int32_t left = order[TileOrder::left], number = order[TileOrder::number];
      Types::gradient_ring().wait_until_empty(number % 2,
                                              static_cast<std::uint32_t>(number / 2 % 2 ^ 1));
      store_gradients<Types>(ds, Types::ds(number % 2), first_row, lane);
      arch::publish_shared();
      arch::reach_barrier(tile_there(number), Types::tile.threads());
      {
        Products gradients(ds);
        gradients.template add<dtype>(dk, ds, ColumnLines<QueryTile>(Types::q(stage)));
        gradients.commit();
      }
      wait<1>(dv, p);
      place.advance();
      if (left > 0) wait_for_tile();
      // The last tile has no next one: it multiplies whatever is there.
      {
        Products scores;
        scores.template multiply<dtype>(s, k, RowLines<QueryTile>(Types::q(place.stage())));
        scores.commit();
      }
      wait<1>(dk, ds);
      {
        Products values;
        values.template multiply<dtype>(d, v, RowLines<QueryTile>(Types::dout(place.stage())));
        values.commit();
      }
      wait<1>(s);
      if (left == 0) break;
    }
    wait<0>(d);
  }
  finish_keys<Types>(a, group, dk, dv);
}

template <KernelSpec spec>
void backward_by_roles(const BackwardWarpgroupsArguments& a) {
  using Types = KeyRolesTypes<spec>;
  constexpr BackwardRoles tile = Types::tile;
  {
    const OwnKeys<Types> own(a.backward);
    if (!own.exist()) return leave_plane(a.backward, backward_block(spec).reports);
    store_block(a.backward, own);
  }
  if (arch::thread() == 0) {
    Types::key_ring().make(1);
    Types::query_ring().make(1, tile_fillers);
    Types::gradient_ring().make(1);
    arch::publish_barriers();
  }
  arch::barrier();
  const int group = arch::warpgroup();
  if (group == 0) {
    arch::give_registers<tile.serving>();
    serve_queries<spec>(a);
  } else {
    arch::take_registers<tile.computing>();
    compute_held_keys<spec>(a.backward, group - 1);
  }
}

template <KernelSpec spec>
void backward_warpgroups(const BackwardWarpgroupsArguments& a) {
  if constexpr (has_roles(spec)) {
    backward_by_roles<spec>(a);
  } else {
    backward_by_groups<spec>(a);
  }
}

}  // namespace rocflash::kernel
