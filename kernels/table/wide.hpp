// The tiles of the kernels without matrix instructions: pure functions of the family and of what a
// kernel is compiled for.
#pragma once

#include "table/kernels.hpp"

namespace rocflash::kernel {

// A workgroup owns rows of one kind, queries or keys, and streams rows of the other kind. Its threads
// form rows of sixteen; each computes some rows of it.
inline constexpr int wide_threads = 256;
struct WideTile {
  int owned;           // rows whose results a workgroup computes
  int streamed;        // rows that it takes at a time
  int slice;           // columns of the results
  int depth;           // columns, or streamed rows, that lie in shared memory at a time
  int waves_per_simd;  // that registers and LDS must leave room for; the report is held to it
  int threads = wide_threads;
};

constexpr bool is_wide(Operation operation) {
  return operation >= Operation::forward_wide && operation <= Operation::backward_slopes;
}

constexpr KernelSpec wide_spec(Operation operation, int head_size) {
  return {operation, DType::f32, bucket_of(operation, DType::f32, head_size), Variant::any};
}

// Operations that have one kernel for all head sizes.
constexpr KernelSpec wide_spec(Operation operation) {
  return {operation, DType::f32, 0, Variant::any};
}

// Whether a matrix instruction multiplies f32 numbers as they are.
constexpr bool multiplies_floats(Family family) {
  return family == Family::cdna1 || family == Family::cdna2 || family == Family::cdna3 ||
         family == Family::cdna4;
}

// Shared memory stays below 48 KiB on NVIDIA, which is what kernels may declare there.
constexpr WideTile wide_tile(Family family, const KernelSpec& spec) {
  const bool nvidia = vendor_of(family) == Vendor::nvidia;
  const int waves = facts_of(family).wave == 64 ? 1 : 4;
  const int slice = spec.bucket <= 64 ? 64 : 128;
  // LDS has room for one workgroup. With two waves on each SIMD the matrix unit works for one of them while the other
  // loads, stores or weighs. (gfx908 has registers for one.)
  const bool by_two = multiplies_floats(family) && family != Family::cdna1;
  if (by_two && spec.operation >= Operation::forward_wide &&
      spec.operation <= Operation::backward_wide_dv &&
      spec.operation != Operation::backward_wide_delta)
    return {128, 64, slice, 16, 2, 512};
  if (spec.operation == Operation::forward_wide) return {128, 64, slice, nvidia ? 8 : 16, waves};
  if (spec.operation == Operation::backward_wide_delta) return {wide_threads, 0, 1, 0, waves};
  return {64, 64, slice, 16, waves};
}

}  // namespace rocflash::kernel
