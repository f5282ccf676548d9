// Tile shapes of the FP32 path: constexpr functions of the family and the kernel's spec.
#pragma once

#include "table/kernels.hpp"

namespace rocflash::kernel {

// A workgroup owns a block of queries or of keys and streams tiles of the other kind. Its threads
// form rows of 16, which share the rows of a tile.
inline constexpr int fp32_threads = 256;
struct Fp32Tile {
  int owned;           // rows whose results the workgroup accumulates
  int streamed;        // rows per iteration of the main loop
  int slice;           // columns of the results
  int depth;           // columns, or streamed rows, per stage in shared memory
  int waves_per_simd;  // occupancy target; the resource report checks it
  int threads = fp32_threads;
};

// The products of attention in FP32, with a slice of the columns per workgroup.
constexpr bool computes_fp32_products(Operation operation) {
  switch (operation) {
    case Operation::forward_fp32:
    case Operation::backward_fp32_dq:
    case Operation::backward_fp32_dk:
    case Operation::backward_fp32_dv:
      return true;
    default:
      return false;
  }
}
constexpr bool uses_fp32_path(Operation operation) {
  switch (operation) {
    case Operation::backward_fp32_preprocess:
    case Operation::backward_dbias:
    case Operation::backward_dalibi_partial:
    case Operation::backward_dalibi_reduce:
      return true;
    default:
      return computes_fp32_products(operation);
  }
}

constexpr KernelSpec fp32_spec(Operation operation, int head_dim) {
  return {operation, DType::f32, bucket_of(operation, DType::f32, head_dim), Variant::any};
}

// Forward over quantized K and V: one kernel for all 8-bit dtypes and head dimensions.
constexpr KernelSpec fp32_quantized_spec() {
  return {Operation::forward_fp32, DType::i8, 576, Variant::any};
}

// For operations with one kernel for all head dimensions.
constexpr KernelSpec fp32_spec(Operation operation) {
  return {operation, DType::f32, 0, Variant::any};
}

// Whether the family has an MFMA with f32 inputs.
constexpr bool has_fp32_mfma(Family family) {
  return family == Family::cdna1 || family == Family::cdna2 || family == Family::cdna3 ||
         family == Family::cdna4;
}

// On NVIDIA static shared memory is limited to 48 KiB.
constexpr Fp32Tile fp32_tile(Family family, const KernelSpec& spec) {
  const bool nvidia = vendor_of(family) == Vendor::nvidia;
  const int waves = facts_of(family).wave == 64 ? 1 : 4;
  const int slice = spec.bucket <= 64 ? 64 : 128;
  // LDS holds one workgroup. With two waves per SIMD the MFMAs of one overlap with the loads,
  // stores and exponentials of the other. gfx908 has registers for one wave only.
  const bool by_two = has_fp32_mfma(family) && family != Family::cdna1;
  if (by_two && computes_fp32_products(spec.operation)) return {128, 64, slice, 16, 2, 512};
  if (spec.operation == Operation::forward_fp32) return {128, 64, slice, nvidia ? 8 : 16, waves};
  if (spec.operation == Operation::backward_fp32_preprocess) return {fp32_threads, 0, 1, 0, waves};
  return {64, 64, slice, 16, waves};
}

}  // namespace rocflash::kernel
