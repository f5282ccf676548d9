// The tile of each decode kernel: a pure function of the family and of what the kernel is compiled for.
//
// Each wave has a part of the keys to itself, which it takes tile by tile; waves of a workgroup share
// nothing but the queries that they serve.
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
  int dynamic_shared = 0;  // bytes given at launch; AMD kernels declare theirs
  bool merges = false;     // waves of a workgroup merge their results before they write them

  constexpr int waves(int wave_size) const { return threads / wave_size; }
  // That a workgroup writes.
  constexpr int parts(int wave_size) const { return merges ? 1 : waves(wave_size); }
};

constexpr KernelSpec decode_spec(DType dtype, int bucket) {
  return {Operation::decode, dtype, bucket, Variant::any};
}

constexpr DecodeTile decode_tile(Family family, const KernelSpec& spec) {
  const int bucket = spec.bucket;
  switch (family) {
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

}  // namespace rocflash::kernel
