// The tile of each backward kernel: a pure function of the family and of what the kernel is compiled
// for. A workgroup owns rows of one kind, queries or keys, and streams rows of the other kind.
#pragma once

#include "table/kernels.hpp"

namespace rocflash::kernel {

struct BackwardTile {
  int owned;           // rows whose gradients a workgroup computes
  int streamed;        // rows that it loads at a time
  int threads;         // per workgroup
  int waves_per_simd;  // that registers and LDS must leave room for; the report is held to it
  bool shared_owned = false;  // owned rows stay in shared memory, where registers are too few
  int buffers = 2;  // tiles of streamed rows in shared memory; 0: one, copied without staging
  int dynamic_shared = 0;  // bytes given at launch; AMD kernels declare theirs
};

constexpr bool is_backward(Operation operation) {
  return operation >= Operation::backward_clear && operation <= Operation::backward_sinks;
}
constexpr bool owns_keys(Operation operation) {
  return operation == Operation::backward_fused || operation == Operation::backward_keys ||
         operation == Operation::backward_dk || operation == Operation::backward_dv;
}

constexpr KernelSpec backward_spec(Operation operation, DType dtype, int bucket, Variant variant) {
  return {operation, dtype, bucket, variant};
}

// Two tiles of 32 streamed rows where LDS holds them. Kernels that own queries have k there twice, and v;
// those that own keys have q and dout twice, or what their one result needs.
constexpr int cdna_buffers(Family family, const KernelSpec& spec) {
  const int copies = spec.operation == Operation::backward_keys ? 4
                     : spec.operation == Operation::backward_dv ? 2
                                                                : 3;
  const int bytes = copies * 32 * spec.bucket * static_cast<int>(size_of(spec.dtype));
  const int room = (family == Family::cdna4 ? 160 : 64) << 10, rest = 2 << 10;
  return 2 * bytes + rest <= room ? 2 : 1;
}

constexpr BackwardTile backward_tile(Family family, const KernelSpec& spec) {
  const int bucket = spec.bucket;
  if (spec.operation == Operation::backward_sinks || spec.operation == Operation::backward_clear)
    return {1, 0, 256, 1};
  switch (family) {
    case Family::cdna2:
    case Family::cdna3:
    case Family::cdna4:
      if (spec.operation == Operation::backward_delta) return {128, 0, 256, 1};
      if (spec.operation == Operation::backward_round) return {128, 0, 256, 1};
      // Waves share a tile of dq: each has 32 columns of 32 queries, or more columns.
      if (spec.operation == Operation::backward_fused)
        return {128, bucket <= 64 ? 64 : 32, 256, 1, false, 1};
      return {128, 32, 256, 1, false, cdna_buffers(family, spec)};
    case Family::rdna2:
    case Family::rdna3:
    case Family::rdna4:
      if (spec.operation == Operation::backward_delta) return {128, 0, 256, 1};
      if (bucket <= 128) return {64, 16, 128, 1, true};
      return {32, 16, 64, 1, true, 0};
    case Family::sm80:
      return {128, 0, 256, 1};
  }
  return {};
}

}  // namespace rocflash::kernel
