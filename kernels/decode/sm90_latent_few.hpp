// Scores, weights and outputs of rows that are keys and values where q has few rows (decode/sm90_latent.hpp). Keys are the
// rows of both products and rows of q their columns, so that nothing is wasted on few of them:
//
//   Sᵀ = K·Qᵀ      64 keys by rows of q
//   Oᵀ += Vᵀ·Pᵀ    512 columns by rows of q
#pragma once

#include "decode/sm90_latent_tiles.hpp"

namespace rocflash::kernel {

// The softmax of a lane's rows of q over all keys that the workgroup has seen; four warps have 16 keys of a tile each.
template <KernelSpec spec>
class FewRowsSoftmax {
  using Types = LatentGroupTypes<spec>;

 public:
  using Scores = GroupTile<spec.bucket>;  // keys by rows of q
  static constexpr int lane_rows = Scores::lane_columns;

  static int row(int n) { return Scores::column(n) + Scores::lane_column(arch::lane()); }

  // A group of products.
  template <int depth, bool fresh, class Keys, class Queries>
  static void multiply(Scores& scores ROCFLASH_TAKES_OFF, const Keys& k, const Queries& q) {
    add_scores<spec.dtype, depth, fresh>(scores, k, q);
  }
  // Hides keys that a row does not see. Only tiles at edges need it.
  static void hide_keys(Scores& scores ROCFLASH_SETTLED, std::int32_t begin) {
    const int lane = arch::lane(), warp = arch::wave() % group_warps;
    ROCFLASH_UNROLL
    for (int n = 0; n < lane_rows; ++n) {
      const Words2 seen = arch::load_shared8(Types::seen_keys(row(n)));
      ROCFLASH_UNROLL
      for (int i = 0; i < Scores::lane_rows; ++i) {
        const auto key = static_cast<std::uint32_t>(begin + 16 * warp + Scores::row(lane, i));
        scores.at(i, n) = key - seen.x < seen.y - seen.x ? scores.at(i, n) : -infinity;
      }
    }
  }
  // Scores become weights, exp2(scores · unit − reference), and go to shared memory, behind factors for what was summed so
  // far where a reference moves. Returns whether one did.
  bool weigh(Scores& scores ROCFLASH_SETTLED, float unit,
             const FillPlace<Types::weight_stages>& place) {
    const bool moves = behind(scores, unit);
    if (moves) {
      Types::weight_ring().wait_until_empty(place);
      follow(scores, unit, place.stage());
    }
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
    // Matrices of eight keys by eight rows of q, transposed on the way.
    using Tile = typename Types::WeightTile;
    const int lane = arch::lane(), matrix = lane / 8, first = 8 * (matrix / 2) + lane % 8,
              key = 16 * (arch::wave() % group_warps) + 8 * (matrix % 2);
    Types::weight_ring().wait_until_empty(place);
    ROCFLASH_UNROLL
    for (int n = 0; n < Types::rows / 16; ++n) {
      const auto two = [&](int i, int column) {
        return arch::narrow_two<spec.dtype>(scores.at(i, 4 * n + column),
                                            scores.at(i, 4 * n + column + 1));
      };
      arch::store_matrices_transposed(
          Types::weights(place.stage()) +
              static_cast<std::uint32_t>(Tile::offset(16 * n + first, key)),
          Words4{two(0, 0), two(1, 0), two(0, 2), two(1, 2)});
    }
    return moves;
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

// Half of the outputs: columns by rows of q.
template <KernelSpec spec>
class FewRowsOutputs {
  using Types = LatentGroupTypes<spec>;
  using Tile = GroupTile<spec.bucket>;  // 64 columns by rows of q
  using Values = ColumnLines<typename Types::KeyHalf>;
  static constexpr int parts = Types::half / group_rows, lane_rows = Tile::lane_columns;

 public:
  FewRowsOutputs() {
    ROCFLASH_UNROLL
    for (int m = 0; m < parts; ++m) out_[m].clear();
  }
  void rescale(int stage) {
    ROCFLASH_UNROLL
    for (int n = 0; n < lane_rows; ++n) {
      const float factor = arch::load_shared_float(Types::factor(stage, row(n)));
      ROCFLASH_UNROLL
      for (int m = 0; m < parts; ++m) {
        out_[m].at(0, n) *= factor;
        out_[m].at(1, n) *= factor;
      }
    }
  }
  // Tells done(part) once it has read that part of the columns.
  template <class Done>
  void add(SharedAddress keys, SharedAddress weights, Done done) {
    ROCFLASH_UNROLL
    for (int m = 0; m < parts; ++m) {
      Products products(out_[m]);
      products.template add<spec.dtype, Types::keys>(out_[m], Values(keys, group_rows * m),
                                                     RowLines<typename Types::WeightTile>(weights));
      products.commit();
    }
    wait<2>(out_[0]);
    wait<2>(out_[1]);
    done(0);
    wait<0>(out_[2]);
    wait<0>(out_[3]);
    done(1);
  }
  // To shared memory, as rows. Returns rows of q with results that are not finite, as bits.
  std::uint64_t finish(int first_column) const {
    const int lane = arch::lane(), warp = arch::wave() % group_warps;
    std::uint64_t broken = 0;
    ROCFLASH_UNROLL
    for (int n = 0; n < lane_rows; ++n) {
      const float factor = __builtin_bit_cast(Float2, arch::load_shared8(Types::end(row(n)))).y;
      const SharedAddress to = Types::result(row(n), first_column + 16 * warp + Tile::row(lane, 0));
      float probe = 0;  // NaN once a result is not finite
      ROCFLASH_UNROLL
      for (int m = 0; m < parts; ++m) {
        ROCFLASH_UNROLL
        for (int i = 0; i < Tile::lane_rows; ++i) {
          const float x = out_[m].at(i, n);
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
        broken |= std::uint64_t{lanes >> l & 1} << (Tile::column(n) + Tile::lane_column(l));
    }
    return broken;
  }

 private:
  static int row(int n) { return Tile::column(n) + Tile::lane_column(arch::lane()); }

  Tile out_[parts];
};

}  // namespace rocflash::kernel
