// S, P and O of MLA decode with 64 packed rows of Q (decode/sm90_mla.hpp), which are the rows of
// both products: WGMMAs of 128 columns read their operands less often than those of 64 by 64.
//
//   S = Q·Kᵀ     rows of Q by 64 keys
//   O += P·V     rows of Q by 512 columns
#pragma once

#include "decode/sm90_mla_producer.hpp"
#include "forward/sm90_warp_specialized.hpp"

namespace rocflash::kernel {

// The rows of a lane, among 64.
inline int mla_row(int i) {
  return 16 * (arch::wave() % warpgroup_warps) + WarpgroupTile<64>::row(arch::lane(), i);
}

// Types for forward's apply_mask.
template <KernelSpec spec>
struct MaskTypes : MlaWarpSpecializedTypes<spec> {
  using Scores = WarpgroupTile<MlaWarpgroups::keys>;
};

template <KernelSpec spec>
class ManyRowsSoftmax {
  using Types = MlaWarpSpecializedTypes<spec>;
  static_assert(Types::rows == warpgroup_rows);

 public:
  using Scores = WarpgroupTile<Types::keys>;  // rows of q by keys

  // One WGMMA batch.
  template <int depth, bool fresh, class Keys, class Queries>
  static void multiply(Scores& scores ROCFLASH_ASYNC_BEGIN, const Keys& k, const Queries& q) {
    add_scores<spec.dtype, depth, fresh>(scores, q, k);
  }
  static void apply_mask(Scores& scores ROCFLASH_ASYNC_IDLE, std::int32_t begin) {
    kernel::apply_mask<MaskTypes<spec>>(scores, 16 * (arch::wave() % warpgroup_warps), begin);
  }
  bool exp2_and_row_sum(Scores& scores ROCFLASH_ASYNC_IDLE, float scale_log2,
                        const ProducerState<Types::weight_stages>& p_state) {
    float factor[2];
    const bool rescales = update_row_max(softmax_, scores, scale_log2, factor);
    kernel::exp2_and_row_sum(softmax_, scores, scale_log2);
    using Tile = typename Types::WeightTile;
    const int lane = arch::lane(), matrix = lane / 8,
              row = 16 * (arch::wave() % warpgroup_warps) + 8 * (matrix % 2) + lane % 8;
    Types::weight_pipeline().producer_acquire(p_state);
    if (rescales && lane % row_lanes == 0) {
      ROCFLASH_UNROLL
      for (int i = 0; i < 2; ++i)
        arch::store_shared(Types::factor(p_state.stage(), mla_row(i)),
                           __builtin_bit_cast(std::uint32_t, factor[i]));
    }
    ROCFLASH_UNROLL
    for (int n = 0; n < Types::keys / 16; ++n) {
      const auto two = [&](int i, int column) {
        return arch::cvt_pack<spec.dtype>(scores.at(i, 4 * n + column),
                                          scores.at(i, 4 * n + column + 1));
      };
      arch::stmatrix_x4(Types::weights(p_state.stage()) + static_cast<std::uint32_t>(Tile::offset(
                                                              row, 16 * n + 8 * (matrix / 2))),
                        Words4{two(0, 0), two(1, 0), two(0, 2), two(1, 2)});
    }
    return rescales;
  }
  // Epilogue: normalization factors for the other warpgroups, and lse(row, x).
  template <class Lse>
  void close(Lse lse) const {
    ROCFLASH_UNROLL
    for (int i = 0; i < 2; ++i) {
      const Normalizer normalizer =
          normalize(softmax_[i].row_max, row_sum(softmax_[i].sum), false, 0.0f);
      const float factor =
          shifts_exponents(softmax_[i].row_max) ? __builtin_nanf("") : normalizer.factor;
      if (arch::lane() % row_lanes != 0) continue;
      arch::store_shared(Types::end(mla_row(i)),
                         __builtin_bit_cast(Words2, Float2{softmax_[i].base(), factor}));
      lse(mla_row(i), normalizer.lse);
    }
  }

 private:
  OnlineSoftmax softmax_[2];
};

// Half of O: rows of Q by columns.
template <KernelSpec spec>
class ManyRowsOutputs {
  using Types = MlaWarpSpecializedTypes<spec>;
  // The accumulators of one 256-column WGMMA exceed the registers per thread at kernel launch.
  static constexpr int blocks = 2;
  using Tile = WarpgroupTile<Types::half / blocks>;

 public:
  ManyRowsOutputs() {
    ROCFLASH_UNROLL
    for (int m = 0; m < blocks; ++m) out_[m].clear();
  }
  void rescale(int stage) {
    ROCFLASH_UNROLL
    for (int i = 0; i < 2; ++i) {
      const float factor = arch::load_shared_float(Types::factor(stage, mla_row(i)));
      ROCFLASH_UNROLL
      for (int m = 0; m < blocks; ++m) out_[m].scale_row(i, factor);
    }
  }
  // Calls done(block) once that column block of V has been read.
  template <class Done>
  void add(SharedAddress keys, SharedAddress weights, Done done) {
    ROCFLASH_UNROLL
    for (int m = 0; m < blocks; ++m) {
      WgmmaBatch products(out_[m]);
      products.template add<spec.dtype, Types::keys>(
          out_[m], KMajorOperand<typename Types::WeightTile>(weights),
          MnMajorOperand<typename Types::KeyHalf>(keys, Tile::columns * m));
      products.commit();
    }
    wait<1>(out_[0]);
    done(0);
    wait<0>(out_[1]);
    done(1);
  }
  std::uint64_t finish(int first_column) const {
    std::uint64_t non_finite = 0;
    ROCFLASH_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int row = mla_row(i);
      const float factor = __builtin_bit_cast(Float2, arch::load_shared8(Types::end(row))).y;
      const SharedAddress to = Types::result(row, first_column + Tile::lane_column(arch::lane()));
      float probe = factor * 0.0f;  // NaN once a result is not finite
      ROCFLASH_UNROLL
      for (int m = 0; m < blocks; ++m) {
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
        non_finite |= std::uint64_t{lanes >> row_lanes * n & 1}
                      << (16 * (arch::wave() % warpgroup_warps) + 8 * i + n);
    }
    return non_finite;
  }

 private:
  Tile out_[blocks];
};

}  // namespace rocflash::kernel
