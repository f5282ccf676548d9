// Tile shapes of the decode kernels: constexpr functions of the family and the kernel's spec.
//
// decode: each wave takes its own range of keys, tile by tile; the waves of a workgroup share only
// Q. decode_mla: the waves take the same keys and divide the columns.
#pragma once

#include "table/kernels.hpp"

namespace rocflash::kernel {

struct DecodeTile {
  int rows;                      // packed GQA rows (query, head) of the MMA's M dimension
  int keys;                      // rows of K and V that a wave loads per iteration
  int threads;                   // per workgroup
  int waves_per_simd;            // occupancy target; the resource report checks it
  bool shared_queries = false;   // Q stays in shared memory, because of register pressure
  int stages = 1;                // K/V stages of each wave; AMD: 1, or 0 without prefetch
  int dynamic_shared = 0;        // bytes passed at launch; AMD kernels declare LDS statically
  bool combines_waves = false;   // the workgroup combines the results of its waves
  int columns = 0;               // of the partial results
  bool divides_columns = false;  // the waves take the same keys and divide the columns

  constexpr int waves(int wave_size) const { return threads / wave_size; }
  // Waves of a workgroup with a key range of their own.
  constexpr int key_waves(int wave_size) const { return divides_columns ? 1 : waves(wave_size); }
  // Partial results that a workgroup stores.
  constexpr int parts(int wave_size) const { return combines_waves ? 1 : waves(wave_size); }
};

constexpr KernelSpec decode_spec(DType dtype, int bucket) {
  return {Op::decode, Schedule::tiled, dtype, bucket, Variant::any};
}

// MLA's latent KV cache: V is the first `mla_values` columns of K, and K has up to `mla_rest`
// columns more (the RoPE part). Four waves divide the columns of both.
inline constexpr int mla_values = 512, mla_rest = 64, mla_waves = 4;

constexpr KernelSpec mla_spec(DType dtype) {
  return {Op::decode_mla, Schedule::tiled, dtype, mla_values + mla_rest, Variant::any};
}

constexpr DecodeTile mla_tile(Family family) {
  const int threads = mla_waves * facts_of(family).wave;
  DecodeTile tile{.rows = 32, .keys = 32, .threads = threads, .waves_per_simd = 1};
  switch (family) {
    case Family::cdna1:
    case Family::cdna2:
    case Family::cdna3:
    case Family::cdna4:
      break;
    case Family::gcn5:
      tile.keys = 16;
      break;
    case Family::rdna2:
    case Family::rdna3:
    case Family::rdna4:
      tile.rows = tile.keys = 16;
      tile.waves_per_simd = 2;
      tile.shared_queries = family != Family::rdna4;
      break;
    case Family::sm80:
      // Two K stages, and the waves' partial scores of two tiles.
      tile.rows = 16;
      tile.waves_per_simd = 2;
      tile.stages = 2;
      tile.dynamic_shared = tile.stages * tile.keys * (mla_values + mla_rest) * 2 +
                            2 * mla_waves * tile.rows * tile.keys * 4;
      break;
    case Family::sm90:
      break;
  }
  tile.combines_waves = tile.divides_columns = true;
  tile.columns = mla_values;
  return tile;
}

// Warp-specialized decode_mla: keys are the M dimension of both GEMMs and packed rows of Q the N
// dimension, as many as the bucket says. One producer warpgroup, one warpgroup for S and P, two for
// PV with half of the value columns each.
struct MlaWarpgroups {
  static constexpr int keys = 64, stages = 2, value_warpgroups = 2, threads = 4 * 128;
  // Registers per thread, after setmaxnreg.
  static constexpr int producer_registers = 56, score_registers = 136, value_registers = 160;
  static_assert(producer_registers + score_registers + value_warpgroups * value_registers <= 512);
  int rows;

  constexpr int weight_stages() const { return rows <= 32 ? 2 : 1; }
  // Q, the K stages, P; per row the rescale factors of each stage, row max or row sum of four
  // warps, the mask bounds and the normalizer; mbarriers and a few words more.
  constexpr int dynamic_shared() const {
    const int row_bytes = (mla_values + mla_rest) * 2;
    return (rows + stages * keys) * row_bytes + weight_stages() * rows * keys * 2 +
           rows * (4 * weight_stages() + 4 * 4 + 8 + 8) + 256;
  }
};
constexpr KernelSpec mla_warp_specialized_spec(DType dtype, int rows) {
  return {Op::decode_mla, Schedule::warp_specialized, dtype, rows, Variant::any};
}
constexpr DecodeTile mla_warp_specialized_tile(const KernelSpec& spec) {
  const MlaWarpgroups warpgroups{spec.bucket};
  DecodeTile tile{.rows = warpgroups.rows,
                  .keys = MlaWarpgroups::keys,
                  .threads = MlaWarpgroups::threads,
                  .waves_per_simd = 1};
  tile.stages = MlaWarpgroups::stages;
  tile.dynamic_shared = warpgroups.dynamic_shared();
  tile.combines_waves = tile.divides_columns = true;
  tile.columns = mla_values;
  return tile;
}

constexpr DecodeTile key_tile(Family family, const KernelSpec& spec) {
  const int bucket = spec.bucket;
  switch (family) {
    case Family::gcn5:
      if (bucket <= 128) return {32, 16, 256, 1, bucket == 128};
      return {32, 16, 128, 1, true, 0};
    case Family::
        cdna1:  // 128 VGPRs at two waves per SIMD, 256 at one: fewer than the other CDNA have
      if (bucket > 128) return {32, 32, 128, 1, true};
      return {32, 32, 256, bucket <= 64 ? 2 : 1};
    case Family::cdna2:
    case Family::cdna3:
    case Family::cdna4:
      return {32, 32, 256, bucket <= 128 ? 2 : 1};
    case Family::rdna2:
    case Family::rdna3:  // both halves of a wave hold every operand
      if (bucket <= 128) return {16, 16, 128, 2, bucket == 128};
      return {16, 16, 64, 1, true, 0};
    case Family::rdna4:
      if (bucket <= 128) return {16, 16, 128, 2};
      return {16, 16, 64, 1, true, 0};
    case Family::sm80: {
      // Up to 96 KiB of stages: two CTAs per SM on Hopper, with two thirds of the stages in flight.
      const int row_bytes = bucket * static_cast<int>(size_of(spec.dtype)), rows = 16;
      if (bucket <= 128) {
        const int keys = bucket <= 64 ? 32 : 16, stages = 3;
        return {rows, keys, 128, 2, false, stages, 4 * stages * 2 * keys * row_bytes, true};
      }
      return {rows, 16, 64, 2, true, 2, 2 * (2 * 2 * 16 + rows) * row_bytes, true};
    }
    case Family::sm90:
      break;
  }
  return {};
}

// The cluster schedule: rows in shared memory are padded by 16 bytes, so that eight rows of
// ldmatrix are bank-conflict-free.
inline constexpr int row_gap = 16;
inline constexpr int largest_cluster = 8;  // the portable cluster size
constexpr KernelSpec cluster_spec(DType dtype, int bucket) {
  return {Op::decode, Schedule::cluster, dtype, bucket, Variant::any};
}
// The split-KV schedule: the same tile without padding.
constexpr KernelSpec splitkv_spec(DType dtype, int bucket) {
  return {Op::decode, Schedule::splitkv, dtype, bucket, Variant::any};
}
constexpr DecodeTile cluster_tile(const KernelSpec& spec) {
  const int gap = spec.schedule == Schedule::splitkv ? 0 : row_gap,
            row_bytes = spec.bucket * static_cast<int>(size_of(spec.dtype)) + gap;
  DecodeTile tile{
      .rows = 16, .keys = spec.bucket <= 64 ? 32 : 16, .threads = 128, .waves_per_simd = 2};
  tile.stages = 3;
  tile.dynamic_shared = tile.threads / 32 * tile.stages * 2 * tile.keys * row_bytes;
  tile.combines_waves = true;
  tile.columns = spec.bucket;
  return tile;
}

// The FP32 schedule: four rows; sixteen lanes own a row with one of four keys each, and eight
// columns of K and V per lane. 8-bit caches of all dtypes have one kernel, listed as i8.
constexpr KernelSpec fp32_decode_spec(DType cache, int head_dim) {
  const DType listed = is_8_bit(cache) ? DType::i8 : cache;
  return {Op::decode, Schedule::fp32, listed,
          bucket_of(Op::decode, Schedule::fp32, listed, head_dim), Variant::any};
}
constexpr DecodeTile fp32_decode_tile(Family family, const KernelSpec& spec) {
  const int wave = facts_of(family).wave;
  const bool few_registers = family == Family::gcn5 || family == Family::cdna1,
             nvidia = vendor_of(family) == Vendor::nvidia;
  const int waves = few_registers              ? 1
                    : wave == 64               ? 2
                    : !nvidia                  ? 4
                    : spec.dtype == DType::f32 ? 2
                                               : 3;
  return {.rows = 4,
          .keys = 4 * wave / (spec.bucket / 8),
          .threads = 4 * wave,
          .waves_per_simd = waves};
}

constexpr DecodeTile decode_tile(Family family, const KernelSpec& spec) {
  if (spec.op == Op::decode_mla)
    return spec.schedule == Schedule::warp_specialized ? mla_warp_specialized_tile(spec)
                                                       : mla_tile(family);
  if (spec.schedule == Schedule::cluster || spec.schedule == Schedule::splitkv)
    return cluster_tile(spec);
  DecodeTile tile =
      spec.schedule == Schedule::fp32 ? fp32_decode_tile(family, spec) : key_tile(family, spec);
  tile.columns = spec.bucket;
  return tile;
}

}  // namespace rocflash::kernel
