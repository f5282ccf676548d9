// The tiles of the kernels without matrix instructions: pure functions of the family and of what a
// kernel is compiled for.
#pragma once

#include "table/kernels.hpp"

namespace rocflash::kernel {

// A workgroup owns rows of one kind, queries or keys, and streams rows of the other kind. Its threads
// form a square of 16x16; each computes some rows of it.
struct WideTile {
  int owned;           // rows whose results a workgroup computes
  int streamed;        // rows that it takes at a time
  int slice;           // columns of the results
  int depth;           // columns, or streamed rows, that lie in shared memory at a time
  int waves_per_simd;  // that registers and LDS must leave room for; the report is held to it
};
inline constexpr int wide_threads = 256;

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

// Shared memory stays below 48 KiB on NVIDIA, which is what kernels may declare there.
constexpr WideTile wide_tile(Family family, const KernelSpec& spec) {
  const bool nvidia = vendor_of(family) == Vendor::nvidia;
  const int waves = facts_of(family).wave == 64 ? 1 : 4;
  const int slice = spec.bucket <= 64 ? 64 : 128;
  if (spec.operation == Operation::forward_wide) return {128, 64, slice, nvidia ? 8 : 16, waves};
  if (spec.operation == Operation::backward_wide_delta) return {wide_threads, 0, 1, 0, waves};
  return {64, 64, slice, 16, waves};
}

}  // namespace rocflash::kernel
