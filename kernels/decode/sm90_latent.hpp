// Decode on Hopper where the values are the first columns of the keys (decode/latent.hpp), without options. Keys are the
// rows of both products, and rows of q, pairs of query and head, their columns, so that nothing is wasted on few heads:
//
//   Sᵀ = K·Qᵀ      64 keys by rows of q; both operands in shared memory
//   Oᵀ += Vᵀ·Pᵀ    512 columns by rows of q; the same tile of keys again, read transposed, and P in shared memory
//
//   warpgroup 0      one warp: where keys lie, and their copies, by the copy engine
//   warpgroup 1      scores, softmax, weights to shared memory
//   warpgroups 2, 3  half of the outputs each: 256 columns by rows of q, in registers
//
//   shared memory    q; two tiles of keys; one or two tiles of weights
//
// A tile has three parts that are copied and freed on their own: two halves of the values, and the columns that are keys
// alone. Weights are relative to references that follow the largest scores lazily (attention/softmax.hpp); where one has
// moved, the weights come with factors for the outputs so far.
#pragma once

#include "attention/exact.hpp"
#include "attention/softmax.hpp"
#include "decode/latent.hpp"
#include "tile/sm90.hpp"

namespace rocflash::kernel {

// Types and shared memory of one kernel.
template <KernelSpec spec>
struct LatentGroupTypes {
  static constexpr DType dtype = spec.dtype;
  static constexpr int rows = spec.bucket;
  static constexpr LatentGroups groups{rows};
  static constexpr int stages = LatentGroups::stages, weight_stages = groups.weight_stages();
  static constexpr int keys = LatentGroups::keys, half = latent_values / 2;

  using KeyHalf = Panels<keys, half>;
  using KeyRest = Panels<keys, latent_rest>;
  using QueryHalf = Panels<rows, half>;
  using QueryRest = Panels<rows, latent_rest>;
  using WeightTile = Panels<rows, keys>;
  using Scores = GroupTile<rows>;   // keys by rows of q
  using Outputs = GroupTile<rows>;  // 64 columns by rows of q
  static constexpr int lane_rows = Scores::lane_columns, parts = half / group_rows;

  static constexpr int query_bytes = 2 * QueryHalf::bytes + QueryRest::bytes,
                       stage_bytes = 2 * KeyHalf::bytes + KeyRest::bytes;
  static_assert(query_bytes % 1024 == 0 && stage_bytes % 1024 == 0 &&
                WeightTile::bytes % 1024 == 0);

  // Parts 0 and 1 are the halves of the values, part 2 is the rest.
  static SharedAddress q(int part) {
    return arch::shared_begin() + static_cast<std::uint32_t>(part * QueryHalf::bytes);
  }
  static SharedAddress k(int stage, int part) {
    return arch::shared_begin() +
           static_cast<std::uint32_t>(query_bytes + stage * stage_bytes + part * KeyHalf::bytes);
  }
  static SharedAddress weights(int stage) {
    return k(stages, 0) + static_cast<std::uint32_t>(stage * WeightTile::bytes);
  }
  // Results take the place of the keys. Rows are some bytes apart, so that lanes use different banks.
  static SharedAddress result(int row, int column) {
    return k(0, 0) + static_cast<std::uint32_t>(row * (4 * latent_values + 16) + 4 * column);
  }
  static_assert(rows * (4 * latent_values + 16) <= stages * stage_bytes);
  // Words per row of q.
  static SharedAddress factor(int stage, int row) {
    return weights(weight_stages) + static_cast<std::uint32_t>(4 * (stage * rows + row));
  }
  static SharedAddress of_warp(int warp, int row) { return factor(weight_stages + warp, row); }
  static SharedAddress seen_keys(int row) {
    return of_warp(4, 0) + static_cast<std::uint32_t>(8 * row);
  }
  static SharedAddress end(int row) {
    return seen_keys(rows) + static_cast<std::uint32_t>(8 * row);
  }  // base and factor
  // Whether references have moved; rows of q that each warp found broken.
  static SharedAddress moved(int stage) {
    return end(rows) + static_cast<std::uint32_t>(4 * stage);
  }
  static SharedAddress broken(int warp) { return moved(4) + static_cast<std::uint32_t>(8 * warp); }
  static SharedAddress barriers() { return broken(8); }
  static Ring<stages> k_ring(int part) {
    return Ring<stages>(barriers() + static_cast<std::uint32_t>(part * Ring<stages>::bytes));
  }
  static Ring<weight_stages> weight_ring() {
    return Ring<weight_stages>(barriers() + 3 * Ring<stages>::bytes);
  }
  static_assert(16 + 64 + 3 * Ring<stages>::bytes + Ring<weight_stages>::bytes <= 256);
  static_assert(groups.dynamic_shared() <= 232448);
};

inline constexpr int group_warps = arch::warpgroup_size / arch::wave_size;

// Named barriers.
inline constexpr int latent_scores_barrier = 1, latent_end_barrier = 2, latent_values_barrier = 3;

// What a workgroup computes. Whoever needs it again at the end asks again, rather than keep it in registers.
template <KernelSpec spec>
struct LatentWork {
  DecodeItem item;
  SequenceView sequence;
  DecodePart part;

  explicit LatentWork(const DecodeArguments& a)
      : item(a, arch::renewed(arch::group())),
        sequence(a.problem, item.batch),
        part(a, sequence, item.block, LatentGroupTypes<spec>::rows, item.split, a.splits,
             LatentGroupTypes<spec>::keys) {}
  PackedRow row(const DecodeArguments& a, int n) const {
    return PackedRow(part.row_begin + n, static_cast<std::uint32_t>(a.group), item.kv_head);
  }
};

// What the copying warp does. Its lanes look up pages ahead, one box each; the first one starts the copies.
template <KernelSpec spec>
void copy_latent(const LatentWarpgroupsArguments& a, const SequenceView& sequence,
                 const DecodePart& part, std::int32_t kv_head) {
  using Types = LatentGroupTypes<spec>;
  const Rows& keys = a.decode.problem.k;
  const std::int32_t box_rows = a.box_rows, boxes = Types::keys / box_rows;  // of a tile
  const auto page_rows = static_cast<std::uint32_t>(keys.blocks ? keys.block_rows : 0x7fffffff);
  const std::int32_t lane = arch::lane(), last_box = (part.end - 1) / box_rows;
  const std::int32_t* const table =
      keys.blocks ? keys.blocks + sequence.batch * keys.blocks_stride : nullptr;
  const auto look_up = [&](std::int32_t box) {
    const std::int32_t there = box < last_box ? box : last_box;
    if (!table) return static_cast<std::int32_t>(sequence.batch);
    const std::uint32_t row =
        static_cast<std::uint32_t>(there) * static_cast<std::uint32_t>(box_rows);
    return static_cast<std::int32_t>(
        clamp(arch::load(table + row / page_rows), 0, a.decode.caches - 1));
  };
  // Other blocks of rows read the same keys at the same time.
  const arch::Reuse reuse = a.decode.blocks > 1 ? arch::Reuse::much : arch::Reuse::none;
  if (lane == 0) arch::prefetch(a.k);
  FillPlace<Types::stages> place;
  std::int32_t box = part.begin / box_rows, seen = 0;
  std::int32_t pages = look_up(box + lane), next_pages = look_up(box + arch::wave_size + lane);
  for (std::int32_t begin = part.begin; begin < part.end; begin += Types::keys) {
    if (seen == arch::wave_size) {
      seen = 0;
      pages = next_pages;
      next_pages = look_up(box + arch::wave_size + lane);
    }
    // The rest first: it is free first.
    ROCFLASH_UNROLL
    for (int n = 0; n < 3; ++n) {
      const int number = n == 0 ? 2 : n - 1;
      const auto ring = Types::k_ring(number);
      ring.wait_until_empty(place);
      arch::wave_barrier();
      const SharedAddress to = Types::k(place.stage(), number);
      SharedAddress full = 0;
      if (lane == 0)
        full = ring.announce(place, number == 2 ? Types::KeyRest::bytes : Types::KeyHalf::bytes);
      for (std::int32_t i = 0; i < boxes; ++i) {
        const std::int32_t page = __nvvm_shfl_sync_idx_i32(arch::all_lanes, pages, seen + i, 31);
        const auto row =
            static_cast<std::int32_t>(static_cast<std::uint32_t>(begin + i * box_rows) % page_rows);
        if (lane != 0) continue;
        const int panels = number == 2 ? 1 : Types::KeyHalf::count;
        ROCFLASH_UNROLL
        for (int panel = 0; panel < panels; ++panel)
          arch::copy_box(to + static_cast<std::uint32_t>(panel * Types::KeyHalf::panel_bytes +
                                                         i * box_rows * Types::KeyHalf::row_bytes),
                         a.k, full, number * Types::half + 64 * panel, row, kv_head, page, reuse);
      }
    }
    seen += boxes;
    box += boxes;
    place.advance();
  }
}

// q to shared memory, as the right operand of the scores. All threads of some warpgroups.
template <KernelSpec spec>
void copy_latent_queries(const DecodeArguments& a, const SequenceView& sequence,
                         const DecodePart& part, std::int32_t kv_head, int thread, int threads) {
  using Types = LatentGroupTypes<spec>;
  constexpr int chunks = (latent_values + latent_rest) / 8;
  for (int n = thread; n < Types::rows * chunks; n += threads) {
    const int row = n / chunks, chunk = n % chunks, column = 8 * chunk;
    const int number = column / Types::half;
    const int offset = number == 2 ? Types::QueryRest::offset(row, column % Types::half)
                                   : Types::QueryHalf::offset(row, column % Types::half);
    arch::store_shared(
        Types::q(number) + static_cast<std::uint32_t>(offset),
        query_chunk<spec.dtype>(a.problem.q, sequence, part, static_cast<std::uint32_t>(a.group),
                                kv_head, row, chunk));
  }
}

// Rows of a tile from `first` on, whose weights are 0, become 0: they may hold anything.
template <class Types>
void clear_latent_rows(int stage, int first, int thread) {
  constexpr int chunks = Types::KeyHalf::row_bytes / 16;
  const int count = (Types::keys - first) * chunks;
  for (int panel = 0; panel < 2 * Types::KeyHalf::count; ++panel)
    for (int n = thread; n < count; n += arch::warpgroup_size)
      arch::store_shared(Types::k(stage, 0) +
                             static_cast<std::uint32_t>(panel * Types::KeyHalf::panel_bytes +
                                                        first * Types::KeyHalf::row_bytes + 16 * n),
                         Words4{});
}

// The softmax of a lane's rows of q over all keys that the workgroup has seen; four warps have 16 keys of a tile each.
template <KernelSpec spec>
class LatentSoftmax {
  using Types = LatentGroupTypes<spec>;
  using Scores = typename Types::Scores;
  static constexpr int lane_rows = Types::lane_rows;

 public:
  static int row(int n) { return Scores::column(n) + Scores::lane_column(arch::lane()); }

  // Whether a score is far beyond its reference, in any thread of the warpgroup.
  bool behind(const Scores& scores ROCFLASH_SETTLED, float unit) const {
    bool found = false;
    ROCFLASH_UNROLL
    for (int n = 0; n < lane_rows; ++n) found |= softmax_[n].behind(largest(scores, n) * unit);
    return arch::any_of(latent_scores_barrier, arch::warpgroup_size, found);
  }
  // Moves the references. Factors for what was summed so far go to shared memory.
  void follow(const Scores& scores ROCFLASH_SETTLED, float unit, int stage) {
    const int lane = arch::lane(), warp = arch::wave() % group_warps;
    ROCFLASH_UNROLL
    for (int n = 0; n < lane_rows; ++n) {
      const float x =
          over_lanes(largest(scores, n), [](float p, float q) { return __builtin_fmaxf(p, q); });
      if (lane < row_lanes) store(Types::of_warp(warp, row(n)), x);
    }
    arch::barrier(latent_scores_barrier, arch::warpgroup_size);
    ROCFLASH_UNROLL
    for (int n = 0; n < lane_rows; ++n) {
      float x = -infinity;
      ROCFLASH_UNROLL
      for (int w = 0; w < group_warps; ++w)
        x = __builtin_fmaxf(x, arch::load_shared_float(Types::of_warp(w, row(n))));
      const float factor = softmax_[n].follow(x * unit);
      if (warp == 0 && lane < row_lanes) store(Types::factor(stage, row(n)), factor);
    }
  }
  // weights = exp2(scores · unit − reference), and their sums.
  void weigh(Scores& scores ROCFLASH_SETTLED, float unit) {
    ROCFLASH_UNROLL
    for (int n = 0; n < lane_rows; ++n) {
      const float base = softmax_[n].base();
      ROCFLASH_UNROLL
      for (int i = 0; i < Scores::lane_rows; ++i) {
        const float x = arch::exp2(__builtin_fmaf(scores.at(i, n), unit, -base));
        scores.at(i, n) = x;
        softmax_[n].sum += x;
      }
    }
  }
  // The end: sums over all lanes and warps. Then each thread has a row: it sets what the others need, and tells
  // lse(row, x).
  template <class Lse>
  void close(Lse lse) const {
    const int lane = arch::lane(), warp = arch::wave() % group_warps,
              own = arch::thread() % arch::warpgroup_size;
    arch::barrier(latent_scores_barrier, arch::warpgroup_size);  // largest scores have been read
    ROCFLASH_UNROLL
    for (int n = 0; n < lane_rows; ++n) {
      const float x = over_lanes(softmax_[n].sum, [](float p, float q) { return p + q; });
      if (lane < row_lanes) store(Types::of_warp(warp, row(n)), x);
      if (lane < row_lanes && warp == 0) store(Types::end(row(n)), softmax_[n].reference);
    }
    arch::barrier(latent_scores_barrier, arch::warpgroup_size);
    if (own >= Types::rows) return;
    float sum = 0;
    ROCFLASH_UNROLL
    for (int w = 0; w < group_warps; ++w) sum += arch::load_shared_float(Types::of_warp(w, own));
    OnlineSoftmax softmax;
    softmax.reference = arch::load_shared_float(Types::end(own));
    const Normaliser normaliser = normalise(softmax.reference, sum, false, 0.0f);
    arch::store_shared(Types::end(own),
                       __builtin_bit_cast(Words2, Float2{softmax.base(), normaliser.factor}));
    lse(own, normaliser.lse);
  }

 private:
  static float largest(const Scores& scores ROCFLASH_SETTLED, int n) {
    return __builtin_fmaxf(scores.at(0, n), scores.at(1, n));
  }
  // Over the eight lanes of a warp that have the same rows of q.
  template <class Merge>
  static float over_lanes(float x, Merge merge) {
    ROCFLASH_UNROLL
    for (int bits = row_lanes; bits < arch::wave_size; bits *= 2)
      x = merge(x, arch::from_lane_xor(x, bits));
    return x;
  }
  static void store(SharedAddress to, float x) {
    arch::store_shared(to, __builtin_bit_cast(std::uint32_t, x));
  }

  OnlineSoftmax softmax_[lane_rows];
};

// What the warpgroup of the scores does.
template <KernelSpec spec>
void score_latent(const DecodeArguments& a, std::int32_t first_key, std::int32_t end_key,
                  std::int32_t common_begin, std::int32_t common_end) {
  using Types = LatentGroupTypes<spec>;
  using Scores = typename Types::Scores;
  using WeightTile = typename Types::WeightTile;
  using KeyHalf = RowLines<typename Types::KeyHalf>;
  using QueryHalf = RowLines<typename Types::QueryHalf>;
  constexpr DType dtype = spec.dtype;
  const int thread = arch::thread() % arch::warpgroup_size, lane = arch::lane(),
            warp = thread / arch::wave_size;
  const float unit = Scale(a.problem.scale).unit;
  const auto left = Types::k_ring(0), right = Types::k_ring(1), rest = Types::k_ring(2);
  const auto weight_ring = Types::weight_ring();
  // Where the lane stores weights: matrices of eight keys by eight rows of q, transposed on the way.
  const int matrix = lane / 8, weight_row = 8 * (matrix / 2) + lane % 8,
            weight_key = 16 * warp + 8 * (matrix % 2);
  DrainPlace<Types::stages> place;
  FillPlace<Types::weight_stages> weight_place;
  LatentSoftmax<spec> softmax;

#pragma clang loop unroll(disable)
  for (std::int32_t begin = first_key; begin < end_key; begin += Types::keys) {
    const int stage = place.stage(), weight_stage = weight_place.stage();
    Scores scores;
    // Renewed: descriptors of all steps would take more registers than there are.
    const SharedAddress q = arch::renew(Types::q(0)), k = Types::k(stage, 0);
    left.wait(place);
    Products first;
    first.template multiply<dtype, Types::half>(scores, KeyHalf(k), QueryHalf(q));
    first.commit();
    right.wait(place);
    Products second;
    second.template add<dtype, Types::half>(scores, KeyHalf(k + Types::KeyHalf::bytes),
                                            QueryHalf(q + Types::QueryHalf::bytes));
    second.commit();
    rest.wait(place);
    Products third;
    third.template add<dtype, latent_rest>(
        scores, RowLines<typename Types::KeyRest>(k + 2 * Types::KeyHalf::bytes),
        RowLines<typename Types::QueryRest>(q + 2 * Types::QueryHalf::bytes));
    third.commit();
    wait<0>(scores);
    if (lane == 0) rest.release(place);

    if (begin < common_begin || begin + Types::keys > common_end) {
      ROCFLASH_UNROLL
      for (int n = 0; n < Types::lane_rows; ++n) {
        const Words2 seen = arch::load_shared8(Types::seen_keys(softmax.row(n)));
        ROCFLASH_UNROLL
        for (int i = 0; i < Scores::lane_rows; ++i) {
          const auto key = static_cast<std::uint32_t>(begin + 16 * warp + Scores::row(lane, i));
          scores.at(i, n) = key - seen.x < seen.y - seen.x ? scores.at(i, n) : -infinity;
        }
      }
    }
    const bool moves = softmax.behind(scores, unit);
    weight_ring.wait_until_empty(weight_place);
    if (moves) softmax.follow(scores, unit, weight_stage);
    softmax.weigh(scores, unit);

    ROCFLASH_UNROLL
    for (int n = 0; n < Types::rows / 16; ++n) {
      const auto two = [&](int i, int column) {
        return arch::narrow_two<dtype>(scores.at(i, 4 * n + column),
                                       scores.at(i, 4 * n + column + 1));
      };
      arch::store_matrices_transposed(
          Types::weights(weight_stage) +
              static_cast<std::uint32_t>(WeightTile::offset(16 * n + weight_row, weight_key)),
          Words4{two(0, 0), two(1, 0), two(0, 2), two(1, 2)});
    }
    if (thread == 0) arch::store_shared(Types::moved(weight_stage), std::uint32_t{moves});
    if (begin + Types::keys > end_key) clear_latent_rows<Types>(stage, end_key - begin, thread);
    arch::publish_shared();
    arch::wave_barrier();
    if (lane == 0) weight_ring.announce(weight_place, 0);
    place.advance();
    weight_place.advance();
  }
  const LatentWork<spec> work(arch::again(a));
  softmax.close([&](int row, float lse) {
    if (row < work.part.rows)
      LatentResults<dtype>{a, work.sequence, work.item.split}.store_lse(work.row(a, row), lse);
  });
}

// Rows of results from shared memory to where they belong, by turns of some warps. Those that are not finite are
// computed again, one by one (attention/exact.hpp).
template <KernelSpec spec>
void store_latent(const DecodeArguments& a, int first, int step, std::uint64_t broken) {
  using Types = LatentGroupTypes<spec>;
  const LatentWork<spec> work(arch::again(a));
  const LatentResults<spec.dtype> to{a, work.sequence, work.item.split};
#pragma clang loop unroll(disable)
  for (int row = first; row < work.part.rows; row += step) {
    const PackedRow packed = work.row(a, row);
    if (broken >> row & 1) {
      const auto end = __builtin_bit_cast(Float2, arch::load_shared8(Types::end(row)));
      repair(
          ExactScores<spec.dtype>{a.problem, work.sequence, packed.head, a.caches},
          work.part.view(a.problem, work.sequence, packed.query), end.x, end.y, 0,
          a.problem.value_dim, [&](float lse) { to.store_lse(packed, lse); },
          [&](int column, float x) { to.store(packed, column, x); });
      continue;
    }
    for (int column = 4 * arch::lane(); column < latent_values; column += 4 * arch::wave_size)
      to.store(packed, column,
               __builtin_bit_cast(Float4, arch::load_shared(Types::result(row, column))));
  }
}

// What a warpgroup of the values does; they count from 0.
template <KernelSpec spec>
void weigh_latent(const DecodeArguments& a, std::int32_t first_key, std::int32_t end_key,
                  int group) {
  using Types = LatentGroupTypes<spec>;
  using Outputs = typename Types::Outputs;
  using KeyHalf = typename Types::KeyHalf;
  constexpr DType dtype = spec.dtype;
  constexpr int parts = Types::parts, lane_rows = Types::lane_rows;
  const int thread = arch::thread() % arch::warpgroup_size, lane = arch::lane(),
            warp = thread / arch::wave_size;
  const auto ring = Types::k_ring(group);
  const auto weight_ring = Types::weight_ring();
  const auto row_of = [&](int n) { return Outputs::column(n) + Outputs::lane_column(lane); };
  DrainPlace<Types::stages> place;
  DrainPlace<Types::weight_stages> weight_place;
  Outputs out[parts];
  ROCFLASH_UNROLL
  for (int m = 0; m < parts; ++m) out[m].clear();

#pragma clang loop unroll(disable)
  for (std::int32_t begin = first_key; begin < end_key; begin += Types::keys) {
    const int stage = place.stage(), weight_stage = weight_place.stage();
    weight_ring.wait(weight_place);
    ring.wait(place);
    if (arch::load_shared4(Types::moved(weight_stage)) != 0) {
      ROCFLASH_UNROLL
      for (int n = 0; n < lane_rows; ++n) {
        const float factor = arch::load_shared_float(Types::factor(weight_stage, row_of(n)));
        ROCFLASH_UNROLL
        for (int m = 0; m < parts; ++m) {
          out[m].at(0, n) *= factor;
          out[m].at(1, n) *= factor;
        }
      }
    }
    const RowLines<typename Types::WeightTile> weights(Types::weights(weight_stage));
    ROCFLASH_UNROLL
    for (int m = 0; m < parts; ++m) {
      Products products(out[m]);
      products.template add<dtype, Types::keys>(
          out[m], ColumnLines<KeyHalf>(Types::k(stage, group), group_rows * m), weights);
      products.commit();
    }
    ROCFLASH_UNROLL
    for (int m = 0; m < parts; ++m) wait<0>(out[m]);
    if (lane == 0) {
      ring.release(place);
      weight_ring.release(weight_place);
    }
    place.advance();
    weight_place.advance();
  }

  // The end: all tiles have been read, and results take their place on the way to rows of their own.
  arch::let_next_launch_start();
  arch::barrier(latent_end_barrier, 3 * arch::warpgroup_size);
  std::uint64_t broken = 0;  // rows of q with results that are not finite
  ROCFLASH_UNROLL
  for (int n = 0; n < lane_rows; ++n) {
    const int row = row_of(n);
    const float factor = __builtin_bit_cast(Float2, arch::load_shared8(Types::end(row))).y;
    const SharedAddress to =
        Types::result(row, Types::half * group + 16 * warp + Outputs::row(lane, 0));
    float probe = 0;
    ROCFLASH_UNROLL
    for (int m = 0; m < parts; ++m) {
      ROCFLASH_UNROLL
      for (int i = 0; i < Outputs::lane_rows; ++i) {
        const float x = out[m].at(i, n);
        probe = __builtin_fmaf(x, 0.0f, probe);
        arch::store_shared(to + static_cast<std::uint32_t>(4 * (group_rows * m + 8 * i)),
                           __builtin_bit_cast(std::uint32_t, x* factor));
      }
    }
    std::uint32_t lanes = arch::ballot(probe != 0);
    lanes |= lanes >> 16;
    lanes |= lanes >> 8;
    lanes |= lanes >> 4;
    ROCFLASH_UNROLL
    for (int l = 0; l < row_lanes; ++l)
      broken |= std::uint64_t{lanes >> l & 1} << (Outputs::column(n) + Outputs::lane_column(l));
  }
  constexpr int warps = group_warps * LatentGroups::value_groups;
  const int own = group_warps * group + warp;
  if (lane == 0) arch::store_shared(Types::broken(own), __builtin_bit_cast(Words2, broken));
  arch::barrier(latent_values_barrier, LatentGroups::value_groups * arch::warpgroup_size);
  broken = 0;
  for (int w = 0; w < warps; ++w)
    broken |= __builtin_bit_cast(std::uint64_t, arch::load_shared8(Types::broken(w)));
  store_latent<spec>(a, own, warps, broken);
}

template <KernelSpec spec>
void latent_warpgroups(const LatentWarpgroupsArguments& a) {
  using Types = LatentGroupTypes<spec>;
  constexpr LatentGroups groups = Types::groups;
  const DecodeArguments& d = a.decode;
  const LatentWork<spec> work(d);
  const DecodePart& part = work.part;
  if (part.rows == 0) return;
  if (arch::thread() == 0) {
    for (int n = 0; n < 3; ++n) Types::k_ring(n).make(group_warps);
    Types::weight_ring().make(LatentGroups::value_groups * group_warps, group_warps);
    arch::publish_barriers();
  }
  arch::barrier();
  const int group = arch::warpgroup();
  if (group == 0) {
    arch::give_registers<groups.copying>();
    if (arch::thread() < arch::wave_size)
      copy_latent<spec>(a, work.sequence, part, work.item.kv_head);
    return;
  }
  const int thread = arch::thread() - arch::warpgroup_size;
  copy_latent_queries<spec>(d, work.sequence, part, work.item.kv_head, thread,
                            3 * arch::warpgroup_size);
  if (thread < Types::rows) {
    const QueryView view = part.view(d.problem, work.sequence, work.row(d, thread).query);
    arch::store_shared(Types::seen_keys(thread), Words2{static_cast<std::uint32_t>(view.begin),
                                                        static_cast<std::uint32_t>(view.end)});
  }
  arch::publish_shared();
  arch::barrier(latent_end_barrier, 3 * arch::warpgroup_size);
  if (group == 1) {
    arch::take_registers<groups.scoring>();
    score_latent<spec>(d, part.begin, part.end, part.common_begin, part.common_end);
    arch::reach_barrier(latent_end_barrier, 3 * arch::warpgroup_size);
  } else {
    arch::take_registers<groups.weighing>();
    weigh_latent<spec>(d, part.begin, part.end, group - 2);
  }
}

}  // namespace rocflash::kernel
