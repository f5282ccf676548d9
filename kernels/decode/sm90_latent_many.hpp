// Scores, weights and outputs of rows that are keys and values where q has 64 rows (decode/sm90_latent.hpp), the rows of
// both products: outputs are products of 128 columns, which read their operands less often than 64 by 64 do.
//
//   S = Q·Kᵀ     rows of q by 64 keys
//   O += P·V     rows of q by 512 columns
#pragma once

#include "decode/sm90_latent_tiles.hpp"
#include "forward/sm90.hpp"

namespace rocflash::kernel {

// The rows of a lane, among 64.
inline int latent_row(int i) {
  return 16 * (arch::wave() % group_warps) + GroupTile<64>::row(arch::lane(), i);
}

// As forward's hide_keys wants them.
template <KernelSpec spec>
struct RowsOf : LatentGroupTypes<spec> {
  using Scores = GroupTile<LatentGroups::keys>;
};

template <KernelSpec spec>
class ManyRowsSoftmax {
  using Types = LatentGroupTypes<spec>;
  static_assert(Types::rows == group_rows);

 public:
  using Scores = GroupTile<Types::keys>;  // rows of q by keys

  // A group of products.
  template <int depth, bool fresh, class Keys, class Queries>
  static void multiply(Scores& scores ROCFLASH_TAKES_OFF, const Keys& k, const Queries& q) {
    add_scores<spec.dtype, depth, fresh>(scores, q, k);
  }
  static void hide_keys(Scores& scores ROCFLASH_SETTLED, std::int32_t begin) {
    kernel::hide_keys<RowsOf<spec>>(scores, 16 * (arch::wave() % group_warps), begin);
  }
  bool weigh(Scores& scores ROCFLASH_SETTLED, float unit,
             const FillPlace<Types::weight_stages>& place) {
    float factor[2];
    const bool moves = follow_largest(softmax_, scores, unit, factor);
    kernel::weigh(softmax_, scores, unit);
    using Tile = typename Types::WeightTile;
    const int lane = arch::lane(), matrix = lane / 8,
              row = 16 * (arch::wave() % group_warps) + 8 * (matrix % 2) + lane % 8;
    Types::weight_ring().wait_until_empty(place);
    if (moves && lane % row_lanes == 0) {
      ROCFLASH_UNROLL
      for (int i = 0; i < 2; ++i)
        arch::store_shared(Types::factor(place.stage(), latent_row(i)),
                           __builtin_bit_cast(std::uint32_t, factor[i]));
    }
    ROCFLASH_UNROLL
    for (int n = 0; n < Types::keys / 16; ++n) {
      const auto two = [&](int i, int column) {
        return arch::narrow_two<spec.dtype>(scores.at(i, 4 * n + column),
                                            scores.at(i, 4 * n + column + 1));
      };
      arch::store_matrices(Types::weights(place.stage()) + static_cast<std::uint32_t>(Tile::offset(
                                                               row, 16 * n + 8 * (matrix / 2))),
                           Words4{two(0, 0), two(1, 0), two(0, 2), two(1, 2)});
    }
    return moves;
  }
  // The end: what the others need, and lse(row, x).
  template <class Lse>
  void close(Lse lse) const {
    ROCFLASH_UNROLL
    for (int i = 0; i < 2; ++i) {
      const Normaliser normaliser =
          normalise(softmax_[i].reference, row_sum(softmax_[i].sum), false, 0.0f);
      if (arch::lane() % row_lanes != 0) continue;
      arch::store_shared(Types::end(latent_row(i)),
                         __builtin_bit_cast(Words2, Float2{softmax_[i].base(), normaliser.factor}));
      lse(latent_row(i), normaliser.lse);
    }
  }

 private:
  OnlineSoftmax softmax_[2];
};

// Half of the outputs: rows of q by columns.
template <KernelSpec spec>
class ManyRowsOutputs {
  using Types = LatentGroupTypes<spec>;
  // Sums of 256 columns in one instruction are more registers than a thread has when the kernel starts.
  static constexpr int parts = 2;
  using Tile = GroupTile<Types::half / parts>;

 public:
  ManyRowsOutputs() {
    ROCFLASH_UNROLL
    for (int m = 0; m < parts; ++m) out_[m].clear();
  }
  void rescale(int stage) {
    ROCFLASH_UNROLL
    for (int i = 0; i < 2; ++i) {
      const float factor = arch::load_shared_float(Types::factor(stage, latent_row(i)));
      ROCFLASH_UNROLL
      for (int m = 0; m < parts; ++m) out_[m].scale_row(i, factor);
    }
  }
  // Tells done(part) once it has read that part of the columns.
  template <class Done>
  void add(SharedAddress keys, SharedAddress weights, Done done) {
    ROCFLASH_UNROLL
    for (int m = 0; m < parts; ++m) {
      Products products(out_[m]);
      products.template add<spec.dtype, Types::keys>(
          out_[m], RowLines<typename Types::WeightTile>(weights),
          ColumnLines<typename Types::KeyHalf>(keys, Tile::columns * m));
      products.commit();
    }
    wait<1>(out_[0]);
    done(0);
    wait<0>(out_[1]);
    done(1);
  }
  std::uint64_t finish(int first_column) const {
    std::uint64_t broken = 0;
    ROCFLASH_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int row = latent_row(i);
      const float factor = __builtin_bit_cast(Float2, arch::load_shared8(Types::end(row))).y;
      const SharedAddress to = Types::result(row, first_column + Tile::lane_column(arch::lane()));
      float probe = 0;  // NaN once a result is not finite
      ROCFLASH_UNROLL
      for (int m = 0; m < parts; ++m) {
        ROCFLASH_UNROLL
        for (int n = 0; n < Tile::lane_columns; n += 2) {
          const Float2 x{out_[m].at(i, n), out_[m].at(i, n + 1)};
          probe = __builtin_fmaf(x.y, 0.0f, __builtin_fmaf(x.x, 0.0f, probe));
          arch::store_shared(
              to + static_cast<std::uint32_t>(4 * (Tile::columns * m + Tile::column(n))),
              __builtin_bit_cast(Words2, x * factor));
        }
      }
      std::uint32_t lanes = arch::ballot(probe != 0);
      lanes |= lanes >> 2;
      lanes |= lanes >> 1;
      ROCFLASH_UNROLL
      for (int n = 0; n < 8; ++n)
        broken |= std::uint64_t{lanes >> row_lanes * n & 1}
                  << (16 * (arch::wave() % group_warps) + 8 * i + n);
    }
    return broken;
  }

 private:
  Tile out_[parts];
};

}  // namespace rocflash::kernel
