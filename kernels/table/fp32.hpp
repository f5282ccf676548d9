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

// Whether fp32_tile has the kernel's tile. The gradients of bias and ALiBi slopes have no other
// schedule. Decode has tiles of its own (decode.hpp).
constexpr bool has_fp32_tile(const KernelSpec& spec) {
  switch (spec.op) {
    case Op::backward_dbias:
    case Op::backward_dalibi_partial:
    case Op::backward_dalibi_reduce:
      return true;
    case Op::decode:
      return false;
    default:
      return spec.schedule == Schedule::fp32;
  }
}
// The products of attention in FP32, with a slice of the columns per workgroup.
constexpr bool computes_fp32_products(const KernelSpec& spec) {
  return has_fp32_tile(spec) && spec.bucket > 0;
}

constexpr KernelSpec fp32_spec(Op op, int head_dim) {
  return {op, Schedule::fp32, DType::f32, bucket_of(op, Schedule::fp32, DType::f32, head_dim),
          Variant::any};
}
// Forward over quantized K and V: one kernel for all 8-bit dtypes and head dimensions.
inline constexpr KernelSpec fp32_quantized_spec{Op::forward, Schedule::fp32, DType::i8, 576,
                                                Variant::any};
inline constexpr KernelSpec fp32_preprocess_spec{Op::backward_preprocess, Schedule::fp32,
                                                 DType::f32, 0, Variant::any};
// The gradients of bias and ALiBi slopes: one kernel for all head dimensions.
constexpr KernelSpec score_mod_spec(Op op) {
  return {op, Schedule::tiled, DType::f32, 0, Variant::any};
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
  if (by_two && computes_fp32_products(spec)) return {128, 64, slice, 16, 2, 512};
  if (spec.op == Op::forward) return {128, 64, slice, nvidia ? 8 : 16, waves};
  if (spec.op == Op::backward_preprocess) return {fp32_threads, 0, 1, 0, waves};
  return {64, 64, slice, 16, waves};
}

}  // namespace rocflash::kernel
