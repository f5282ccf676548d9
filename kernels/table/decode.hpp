// The tile of each decode kernel: a pure function of the family and of what the kernel is compiled for.
//
// decode: each wave has a part of the keys to itself, which it takes tile by tile; waves of a workgroup share
// nothing but the queries that they serve. decode_clusters, decode_wide: the same. decode_latent: each wave has some columns of all rows.
#pragma once

#include "table/kernels.hpp"

namespace rocflash::kernel {

struct DecodeTile {
  int rows;            // pairs of query and head, one per row of the matrix product
  int keys;            // rows of k and v that a wave loads at a time
  int threads;         // per workgroup
  int waves_per_simd;  // that registers and LDS must leave room for; the report is held to it
  bool shared_queries = false;  // q stays in shared memory, where registers are too few for it
  int stages = 1;  // tiles of each wave in shared memory; AMD: 1, and 0 where none is loaded ahead
  int dynamic_shared = 0;        // bytes given at launch; AMD kernels declare theirs
  bool merges = false;           // waves of a workgroup merge their results before they write them
  int columns = 0;               // of the results in a part
  bool divides_columns = false;  // waves of a workgroup take the same keys, and some columns each

  constexpr int waves(int wave_size) const { return threads / wave_size; }
  // Waves of a workgroup that take keys of their own.
  constexpr int key_waves(int wave_size) const { return divides_columns ? 1 : waves(wave_size); }
  // That a workgroup writes.
  constexpr int parts(int wave_size) const { return merges ? 1 : waves(wave_size); }
};

constexpr KernelSpec decode_spec(DType dtype, int bucket) {
  return {Operation::decode, dtype, bucket, Variant::any};
}

// Rows that hold keys and values: the values are the first columns, up to `latent_values`; keys have up to
// `latent_rest` columns more. Four waves divide both among them.
inline constexpr int latent_values = 512, latent_rest = 64, latent_waves = 4;

constexpr KernelSpec latent_spec(DType dtype) {
  return {Operation::decode_latent, dtype, latent_values + latent_rest, Variant::any};
}

constexpr DecodeTile latent_tile(Family family) {
  const int threads = latent_waves * facts_of(family).wave;
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
      // Two tiles, and the waves' shares of the scores of two.
      tile.rows = 16;
      tile.waves_per_simd = 2;
      tile.stages = 2;
      tile.dynamic_shared = tile.stages * tile.keys * (latent_values + latent_rest) * 2 +
                            2 * latent_waves * tile.rows * tile.keys * 4;
      break;
    case Family::sm90:
      break;
  }
  tile.merges = tile.divides_columns = true;
  tile.columns = latent_values;
  return tile;
}

// latent_warpgroups: keys are the rows of both products, rows of q their columns, and the bucket says how many. One
// warpgroup copies, one computes scores and weights, two weigh half of the values each.
struct LatentGroups {
  static constexpr int keys = 64, stages = 2, value_groups = 2, threads = 4 * 128;
  static constexpr int copying = 56, scoring = 136, weighing = 160;  // registers per thread
  static_assert(copying + scoring + value_groups * weighing <= 512);
  int rows;

  constexpr int weight_stages() const { return rows <= 32 ? 2 : 1; }
  // q, tiles of keys, weights; then numbers per row: factors of each stage, largest scores or sums of the four warps,
  // which keys it sees, what ends it. Barriers and a few words more.
  constexpr int dynamic_shared() const {
    const int row_bytes = (latent_values + latent_rest) * 2;
    return (rows + stages * keys) * row_bytes + weight_stages() * rows * keys * 2 +
           rows * (4 * weight_stages() + 4 * 4 + 8 + 8) + 256;
  }
};
constexpr KernelSpec latent_groups_spec(DType dtype, int rows) {
  return {Operation::latent_warpgroups, dtype, rows, Variant::any};
}
constexpr DecodeTile latent_groups_tile(const KernelSpec& spec) {
  const LatentGroups groups{spec.bucket};
  DecodeTile tile{.rows = groups.rows,
                  .keys = LatentGroups::keys,
                  .threads = LatentGroups::threads,
                  .waves_per_simd = 1};
  tile.stages = LatentGroups::stages;
  tile.dynamic_shared = groups.dynamic_shared();
  tile.merges = tile.divides_columns = true;
  tile.columns = latent_values;
  return tile;
}

constexpr DecodeTile key_tile(Family family, const KernelSpec& spec) {
  const int bucket = spec.bucket;
  switch (family) {
    case Family::gcn5:
      if (bucket <= 128) return {32, 16, 256, 1, bucket == 128};
      return {32, 16, 128, 1, true, 0};
    case Family::
        cdna1:  // 128 vector registers of two waves, 256 of one, do not hold what others do
      if (bucket > 128) return {32, 32, 128, 1, true};
      return {32, 32, 256, bucket <= 64 ? 2 : 1};
    case Family::cdna2:
    case Family::cdna3:
    case Family::cdna4:
      return {32, 32, 256, bucket <= 128 ? 2 : 1};
    case Family::rdna2:
    case Family::rdna3:  // both hold every operand twice
      if (bucket <= 128) return {16, 16, 128, 2, bucket == 128};
      return {16, 16, 64, 1, true, 0};
    case Family::rdna4:
      if (bucket <= 128) return {16, 16, 128, 2};
      return {16, 16, 64, 1, true, 0};
    case Family::sm80: {
      // Up to 96 KiB of tiles: two workgroups fit into the shared memory of Hopper, and then two
      // thirds of it are on their way from memory at any time.
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

// decode_clusters. Rows in shared memory are 16 bytes apart, so that eight of them lie in different banks.
inline constexpr int row_gap = 16;
inline constexpr int largest_cluster = 8;  // that every Hopper has room for
constexpr KernelSpec clusters_spec(DType dtype, int bucket) {
  return {Operation::decode_clusters, dtype, bucket, Variant::any};
}
// decode_long: the same tile without gaps.
constexpr KernelSpec long_spec(DType dtype, int bucket) {
  return {Operation::decode_long, dtype, bucket, Variant::any};
}
constexpr DecodeTile clusters_tile(const KernelSpec& spec) {
  const int gap = spec.operation == Operation::decode_long ? 0 : row_gap,
            row_bytes = spec.bucket * static_cast<int>(size_of(spec.dtype)) + gap;
  DecodeTile tile{
      .rows = 16, .keys = spec.bucket <= 64 ? 32 : 16, .threads = 128, .waves_per_simd = 2};
  tile.stages = 3;
  tile.dynamic_shared = tile.threads / 32 * tile.stages * 2 * tile.keys * row_bytes;
  tile.merges = true;
  tile.columns = spec.bucket;
  return tile;
}

// decode_wide: four rows, so that sixteen lanes own a row and one of four keys each; eight columns of k and v per lane.
constexpr KernelSpec wide_decode_spec(DType cache, int bucket) {
  return {Operation::decode_wide, cache, bucket, Variant::any};
}
constexpr DecodeTile wide_decode_tile(Family family, const KernelSpec& spec) {
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
  if (spec.operation == Operation::decode_clusters || spec.operation == Operation::decode_long)
    return clusters_tile(spec);
  if (spec.operation == Operation::decode_latent) return latent_tile(family);
  if (spec.operation == Operation::latent_warpgroups) return latent_groups_tile(spec);
  DecodeTile tile = spec.operation == Operation::decode_wide ? wide_decode_tile(family, spec)
                                                             : key_tile(family, spec);
  tile.columns = spec.bucket;
  return tile;
}

}  // namespace rocflash::kernel
