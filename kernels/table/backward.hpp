// Tile shapes of the backward kernels: constexpr functions of the family and the kernel's spec. A
// workgroup owns a block of queries or of keys and streams tiles of the other kind.
#pragma once

#include "table/kernels.hpp"

namespace rocflash::kernel {

struct BackwardTile {
  int owned;                  // rows whose gradients the workgroup accumulates
  int streamed;               // rows per iteration of the main loop
  int threads;                // per workgroup
  int waves_per_simd;         // occupancy target; the resource report checks it
  bool shared_owned = false;  // owned rows stay in shared memory, because of register pressure
  int buffers = 2;            // stages of the streamed tiles; 0: one, without register staging
  int dynamic_shared = 0;     // bytes passed at launch; AMD kernels declare LDS statically
  int roles = 1;              // waves that share the same owned rows
  int parts = 1;              // MMA column blocks of a wave's owned rows
};

// The operations of the backward pass.
constexpr bool is_backward(Op op) {
  switch (op) {
    case Op::backward_zero_fill:
    case Op::backward_preprocess:
    case Op::backward:
    case Op::backward_postprocess:
    case Op::backward_dq:
    case Op::backward_dkdv:
    case Op::backward_dk:
    case Op::backward_dv:
    case Op::backward_dsinks:
    case Op::backward_dbias:
    case Op::backward_dalibi_partial:
    case Op::backward_dalibi_reduce:
      return true;
    default:
      return false;
  }
}
// Whether the workgroup owns a block of keys and streams queries.
constexpr bool owns_keys(Op op) {
  return op == Op::backward || op == Op::backward_dkdv || op == Op::backward_dk ||
         op == Op::backward_dv;
}

// gfx90a's MFMA flushes subnormal f16 inputs to 0. P and dS are scaled by 2^n before the conversion
// to f16, and the epilogue scales the accumulators back.
constexpr int subnormal_scale_log2(Family family, DType dtype) {
  return family == Family::cdna2 && dtype == DType::f16 ? 8 : 0;
}
constexpr float inverse_subnormal_scale(Family family, DType dtype) {
  return 1.0f / static_cast<float>(1 << subnormal_scale_log2(family, dtype));
}

// Whether the FP32 dQ accumulator is in blocks of 16 queries in the layout of the MMA results
// (kernels/backward/dq_accumulator.hpp). Otherwise it is row-major.
constexpr bool dq_accum_in_blocks(Family family) {
  return family == Family::rdna2 || family == Family::rdna3 || family == Family::rdna4 ||
         vendor_of(family) == Vendor::nvidia;
}

// Whether dQ accumulation is always ordered (kernels/backward/rdna2_dq_ordered.hpp): gfx10 has no
// FP32 atomic add in global memory. The result is deterministic.
constexpr bool has_ordered_dq(Family family) { return family == Family::rdna2; }

// Whether the fused kernel computes dV too. Above head dimension 128, gfx90a and gfx942 lack
// registers for the dK and dV accumulators of 128 keys, and LDS for dO both row-major and
// transposed. There the fused kernel computes dQ and dK, and backward_dv computes dV.
constexpr bool fused_gives_dv(Family family, int bucket) {
  return bucket <= 128 || (family != Family::cdna2 && family != Family::cdna3);
}

// Whether backward_dv is the software-pipelined kernel (kernels/backward/amd_dv.hpp).
constexpr bool pipelines_dv(Family family, const KernelSpec& spec) {
  return spec.variant == Variant::specialized && !fused_gives_dv(family, spec.bucket);
}

constexpr KernelSpec backward_spec(Op op, DType dtype, int bucket, Variant variant) {
  return {op, Schedule::tiled, dtype, bucket, variant};
}
// The kernel of all gradients.
constexpr KernelSpec backward_spec(Schedule schedule, DType dtype, int bucket, Variant variant) {
  return {Op::backward, schedule, dtype, bucket, variant};
}

// Double buffering of 32 streamed rows where it fits in LDS. Kernels that own queries hold K
// row-major and transposed, and V; kernels that own keys hold Q and dO in both layouts, or what
// their one gradient needs.
constexpr int cdna_buffers(Family family, const KernelSpec& spec) {
  const int copies = spec.op == Op::backward_dkdv ? 4 : spec.op == Op::backward_dv ? 2 : 3;
  // gfx908's 256 VGPRs hold both operands at head dimension 256, and no tile in flight.
  if (family == Family::cdna1 && spec.bucket > 128) return 0;
  const int bytes = copies * 32 * spec.bucket * static_cast<int>(size_of(spec.dtype));
  const int lds = (family == Family::cdna4 ? 160 : 64) << 10, other = 2 << 10;
  return 2 * bytes + other <= lds ? 2 : 1;
}

// NVIDIA tiles are row-major in shared memory; ldmatrix.trans reads the transposed operands. A CTA
// that owns keys holds K and V, `buffers` stages of Q and dO with 16 bytes of row statistics per
// query, and P and dS. With three stages P and dS are double-buffered, so that one barrier per tile
// suffices.
constexpr BackwardTile sm80_key_tile(int row_bytes, int owned, int streamed, int threads,
                                     int buffers, int element_size = 2) {
  const int rows = 2 * owned * row_bytes + buffers * streamed * (2 * row_bytes + 16),
            scores = (buffers == 3 ? 2 : 1) * 2 * owned * streamed * element_size;
  return {owned, streamed, threads, 1, true, buffers, rows + scores};
}
// A CTA that owns queries holds Q and dO, and two stages of K and V.
constexpr BackwardTile sm80_query_tile(int row_bytes, int owned, int streamed, int threads) {
  return {owned, streamed, threads, 1, true, 2, (2 * owned + 4 * streamed) * row_bytes};
}
constexpr BackwardTile sm80_backward_tile(const KernelSpec& spec) {
  const int bucket = spec.bucket, row_bytes = bucket * static_cast<int>(size_of(spec.dtype));
  if (spec.schedule == Schedule::fused_large_smem) {  // up to 227 KiB of sm_90
    if (bucket <= 64 && spec.variant == Variant::specialized)
      return sm80_key_tile(row_bytes, 128, 128, 256, 2);
    if (bucket <= 128) return sm80_key_tile(row_bytes, 128, 64, 256, 3);
    return sm80_key_tile(row_bytes, 64, 64, 256, 2);
  }
  switch (spec.op) {
    case Op::backward:
    case Op::backward_dkdv:          // up to 99 KiB: all GPUs from sm_80 on
      if (spec.dtype == DType::f32)  // several CTAs per SM of larger GPUs
        return bucket <= 64 ? sm80_key_tile(row_bytes, 64, 32, 128, 2, 4)
                            : sm80_key_tile(row_bytes, 32, 32, 128, 1, 4);
      if (bucket <= 64) return sm80_key_tile(row_bytes, 128, 64, 256, 2);
      if (bucket <= 128) return sm80_key_tile(row_bytes, 64, 32, 128, 3);
      return sm80_key_tile(row_bytes, 32, 32, 128, 1);
    case Op::backward_dq:
      if (bucket <= 64) return sm80_query_tile(row_bytes, 128, 64, 256);
      if (bucket <= 128) return sm80_query_tile(row_bytes, 64, 64, 128);
      return sm80_query_tile(row_bytes, 64, 16, 128);
    default:
      return {64, 0, 128, 1};  // preprocess, postprocess: 16 queries per warp
  }
}

// BackwardArguments::dq_accum_layout for ordered dQ accumulation (kernels/backward/dq_ordered.hpp).
inline constexpr int dq_accum_ordered = 2;

// Warp-specialized backward: one producer warpgroup, and consumer warpgroups of 64 keys each.
struct BackwardWarpgroups {
  int consumers;                                          // consumer warpgroups
  int queries;                                            // per stage
  int stages = 3, q_stages = 3;                           // pipeline stages of dO and of Q
  int producer_registers = 24, consumer_registers = 240;  // per thread, after setmaxnreg
  // Three consumer warpgroups share 64 keys: one computes dV, one dK, one dQ in blocks of columns.
  // The dV and dQ warpgroups have register counts of their own.
  bool shares_keys = false;
  int dv_registers = 0, dq_registers = 0;

  constexpr int keys() const { return shares_keys ? 64 : 64 * consumers; }
  constexpr int threads() const { return 128 * (consumers + 1); }
  // Columns of dQ that one warpgroup accumulates at a time, and the warpgroups that accumulate dQ.
  constexpr int query_columns(int bucket) const {
    return shares_keys ? 64 : bucket * queries / 64 / consumers;
  }
  constexpr int dq_warpgroups() const { return shares_keys ? 1 : consumers; }
  constexpr int registers() const {  // per thread, summed over all warpgroups
    return producer_registers + (shares_keys ? dv_registers + consumer_registers + dq_registers
                                             : consumers * consumer_registers);
  }
};

constexpr BackwardWarpgroups backward_warpgroups(const KernelSpec& spec) {
  if (spec.schedule == Schedule::warp_specialized_large)
    return {.consumers = 3,
            .queries = 64,
            .stages = spec.bucket <= 192 ? 3 : 2,
            .q_stages = spec.bucket <= 192 ? 3 : 2,
            .producer_registers = 32,
            .consumer_registers = 208,
            .shares_keys = true,
            .dv_registers = 208,
            .dq_registers = 64};
  return {.consumers = 2, .queries = 64};
}

// Shared memory: K and V; the stages of Q and dO; two tiles of dS (or one of dS and one of P); dQ
// in FP32; per stage LSE and delta of each query and 64 bytes of tile state; the mask bounds of
// each key; 96 bytes of WorkTileInfo; the mbarriers of K/V and of three pipelines (shares_keys:
// also of P and of the dQ reductions).
constexpr int backward_warpgroups_smem(const KernelSpec& spec) {
  const BackwardWarpgroups g = backward_warpgroups(spec);
  const int row_bytes = spec.bucket * static_cast<int>(size_of(spec.dtype));
  return (2 * g.keys() + (g.q_stages + g.stages) * g.queries) * row_bytes +
         2 * 2 * g.keys() * g.queries + 4 * g.dq_warpgroups() * 64 * g.query_columns(spec.bucket) +
         g.stages * (8 * g.queries + 64) + 8 * g.keys() + 96 +
         8 * 2 * (1 + g.q_stages + 2 * g.stages + (g.shares_keys ? 2 : 0));
}

constexpr bool is_warp_specialized_backward(const KernelSpec& spec) {
  return spec.op == Op::backward && (spec.schedule == Schedule::warp_specialized ||
                                     spec.schedule == Schedule::warp_specialized_large);
}

// Head dimensions up to 64: the producer warpgroup also computes dQ.
struct BackwardRoles {
  int stages = 4;  // pipeline stages of Q and of dO
  int consumers = 2, queries = 64;
  int dq_registers = 88, consumer_registers = 208;  // per thread, after setmaxnreg

  constexpr int keys() const { return 64 * consumers; }
  constexpr int threads() const { return 128 * (consumers + 1); }
};
constexpr bool has_roles(const KernelSpec& spec) {
  return spec.schedule == Schedule::warp_specialized && spec.bucket <= 64;
}

// Shared memory: as backward_warpgroups_smem, with the mbarriers of K/V, of Q/dO and of dS.
constexpr int backward_roles_smem(const KernelSpec& spec) {
  constexpr BackwardRoles r;
  const int row_bytes = spec.bucket * static_cast<int>(size_of(spec.dtype));
  return 2 * (r.keys() + r.stages * r.queries) * row_bytes + 2 * 2 * r.keys() * r.queries +
         4 * r.queries * spec.bucket + r.stages * (8 * r.queries + 64) + 8 * r.keys() + 96 +
         8 * 2 * (1 + r.stages + 2);
}

// What the launch plan needs of either kind of warp-specialized CTA.
struct BackwardWorkTile {
  int keys, queries, threads, shared;
  // Arrivals per CTA when its dQ reductions are complete (kernels/backward/sm90_pdl.hpp).
  int reports;
};
constexpr BackwardWorkTile backward_work_tile(const KernelSpec& spec) {
  if (has_roles(spec)) {
    constexpr BackwardRoles r;
    return {r.keys(), r.queries, r.threads(), backward_roles_smem(spec), 4};
  }
  const BackwardWarpgroups g = backward_warpgroups(spec);
  return {g.keys(), g.queries, g.threads(), backward_warpgroups_smem(spec), g.shares_keys ? 4 : 1};
}

// The fused kernel of RDNA, by pairs of waves. gfx10 with f16 up to head dimension 64 targets three
// workgroups per compute unit. bf16 is converted to f32 there, which costs registers.
constexpr BackwardTile paired_tile(Family family, const KernelSpec& spec) {
  const bool small = spec.bucket <= 64 && spec.variant == Variant::specialized;
  if (family == Family::rdna4 && small) return {128, 32, 256, 1, false, 1, 0, 2, 2};
  const bool three = family == Family::rdna2 && small && spec.dtype == DType::f16;
  return {64, spec.bucket <= 64 ? 32 : 16, 256, three ? 6 : 1, false, 1, 0, 2};
}

constexpr BackwardTile backward_tile(Family family, const KernelSpec& spec) {
  const int bucket = spec.bucket;
  if (spec.op == Op::backward_dsinks || spec.op == Op::backward_zero_fill) return {1, 0, 256, 1};
  switch (family) {
    case Family::cdna1:
    case Family::cdna2:
    case Family::cdna3:
    case Family::cdna4:
      if (spec.op == Op::backward_preprocess) return {128, 0, 256, 1};
      if (spec.op == Op::backward_postprocess) return {128, 0, 256, 1};
      // The waves share a dQ tile: each accumulates 32 columns of 32 queries, or more columns.
      if (spec.op == Op::backward && bucket > 128 && fused_gives_dv(family, bucket))
        return {64, 32, 256, 1, false, 1, 0, 2};  // needs gfx950's 160 KiB of LDS
      if (spec.op == Op::backward) return {128, bucket <= 64 ? 64 : 32, 256, 1, false, 1};
      return {128, 32, 256, 1, false, cdna_buffers(family, spec)};
    case Family::gcn5:
    case Family::rdna2:
    case Family::rdna3:
    case Family::rdna4:
      if (spec.op == Op::backward_preprocess) return {128, 0, 256, 1};
      if (spec.op == Op::backward_postprocess) return {128, 0, 256, 1};
      if (spec.op == Op::backward) return paired_tile(family, spec);
      if (bucket <= 128) return {64, 16, 128, 1, true};
      return {32, 16, 64, 1, true, 0};
    case Family::sm80:
      return sm80_backward_tile(spec);
    case Family::sm90:
      return {64, 0, 128, 1};  // postprocess: 16 queries per warp
  }
  return {};
}

}  // namespace rocflash::kernel
