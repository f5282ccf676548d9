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
  // Waves that have the same owned rows, and products side by side that a wave's rows take.
  int roles = 1, parts = 1;
};

constexpr bool is_backward(Operation operation) {
  return operation >= Operation::backward_clear && operation <= Operation::backward_sinks;
}
constexpr bool owns_keys(Operation operation) {
  return operation >= Operation::backward_fused && operation <= Operation::backward_dv &&
         operation != Operation::backward_round && operation != Operation::backward_queries;
}

// Weights and gradients of scores are kept 2^raised times as large: gfx90a's matrix instructions take
// subnormal numbers for 0, and in f16 many of them would be. Sums are lowered at the end.
constexpr int raised_weights(Family family, DType dtype) {
  return family == Family::cdna2 && dtype == DType::f16 ? 8 : 0;
}
constexpr float lowering(Family family, DType dtype) {
  return 1.0f / static_cast<float>(1 << raised_weights(family, dtype));
}

// Whether the f32 sums of dq lie in blocks of 16 queries, in the order of the products that are added to them
// (kernels/backward/dq_sums.hpp); else in rows.
constexpr bool sums_in_blocks(Family family) {
  return family == Family::rdna2 || family == Family::rdna3 || family == Family::rdna4 ||
         vendor_of(family) == Vendor::nvidia;
}

// Whether workgroups that own keys take turns at those sums (kernels/backward/amd_in_turn.hpp): gfx10 cannot add f32 to
// memory. The same bits come out every time.
constexpr bool adds_in_turn(Family family) { return family == Family::rdna2; }

// Whether backward_fused gives dv, too. Above 128 columns gfx90a and gfx942 have neither registers for the sums of both
// results of 128 keys nor LDS for a tile of dout as rows and transposed: there it gives dq and dk, and backward_dv
// the rest.
constexpr bool fused_gives_dv(Family family, int bucket) {
  return bucket <= 128 || (family != Family::cdna2 && family != Family::cdna3);
}

// Whether dv alone is computed by steps (kernels/backward/amd_values.hpp).
constexpr bool dv_by_steps(Family family, const KernelSpec& spec) {
  return spec.variant == Variant::plain && !fused_gives_dv(family, spec.bucket);
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
  // gfx908's 256 vector registers hold both operands of 256 columns, but no tile on its way besides.
  if (family == Family::cdna1 && spec.bucket > 128) return 0;
  const int bytes = copies * 32 * spec.bucket * static_cast<int>(size_of(spec.dtype));
  const int room = (family == Family::cdna4 ? 160 : 64) << 10, rest = 2 << 10;
  return 2 * bytes + rest <= room ? 2 : 1;
}

// On NVIDIA tiles lie in shared memory as they are in memory. A workgroup that owns keys has them and
// their values, `buffers` tiles of queries and of dout with 16 bytes per query, and weights and gradients
// of scores, twice where one barrier per tile has to do (buffers 3).
constexpr BackwardTile sm80_key_tile(int row_bytes, int owned, int streamed, int threads,
                                     int buffers, int number_bytes = 2) {
  const int rows = 2 * owned * row_bytes + buffers * streamed * (2 * row_bytes + 16),
            scores = (buffers == 3 ? 2 : 1) * 2 * owned * streamed * number_bytes;
  return {owned, streamed, threads, 1, true, buffers, rows + scores};
}
// One that owns queries has them and dout, and two tiles of keys and of values.
constexpr BackwardTile sm80_query_tile(int row_bytes, int owned, int streamed, int threads) {
  return {owned, streamed, threads, 1, true, 2, (2 * owned + 4 * streamed) * row_bytes};
}
constexpr BackwardTile sm80_backward_tile(const KernelSpec& spec) {
  const int bucket = spec.bucket, row_bytes = bucket * static_cast<int>(size_of(spec.dtype));
  switch (spec.operation) {
    case Operation::backward_fused_large:  // within the 227 KiB of sm_90
      if (bucket <= 64 && spec.variant == Variant::plain)
        return sm80_key_tile(row_bytes, 128, 128, 256, 2);
      if (bucket <= 128) return sm80_key_tile(row_bytes, 128, 64, 256, 3);
      return sm80_key_tile(row_bytes, 64, 64, 256, 2);
    case Operation::backward_fused:
    case Operation::backward_keys:   // within the 99 KiB of every GPU from sm_80 on
      if (spec.dtype == DType::f32)  // several workgroups per multiprocessor of larger GPUs
        return bucket <= 64 ? sm80_key_tile(row_bytes, 64, 32, 128, 2, 4)
                            : sm80_key_tile(row_bytes, 32, 32, 128, 1, 4);
      if (bucket <= 64) return sm80_key_tile(row_bytes, 128, 64, 256, 2);
      if (bucket <= 128) return sm80_key_tile(row_bytes, 64, 32, 128, 3);
      return sm80_key_tile(row_bytes, 32, 32, 128, 1);
    case Operation::backward_queries:
      if (bucket <= 64) return sm80_query_tile(row_bytes, 128, 64, 256);
      if (bucket <= 128) return sm80_query_tile(row_bytes, 64, 64, 128);
      return sm80_query_tile(row_bytes, 64, 16, 128);
    default:
      return {64, 0, 128, 1};  // delta, round: 16 queries per warp
  }
}

// BackwardArguments::sums_by_lane where workgroups take turns at the sums besides (kernels/backward/turns.hpp).
inline constexpr int sums_in_turn = 2;

// Backward by warpgroups: one has tiles of queries copied, the others own 64 keys each.
struct BackwardGroups {
  int groups;                    // that compute
  int queries;                   // of a tile
  int stages = 3, q_stages = 3;  // tiles of dout and of q in shared memory
  // Registers of a thread, after the copying group has given some of its own to the others.
  int copying = 24, computing = 240;
  // Three warpgroups have the same 64 keys: one gives dv, one dk, one dq, some columns of it at a time. The first
  // and the last have registers of their own number.
  bool same_keys = false;
  int weighing = 0, adding = 0;

  constexpr int keys() const { return same_keys ? 64 : 64 * groups; }
  constexpr int threads() const { return 128 * (groups + 1); }
  // Columns of dq that a warpgroup has at a time, and how many warpgroups have some.
  constexpr int query_columns(int bucket) const {
    return same_keys ? 64 : bucket * queries / 64 / groups;
  }
  constexpr int query_groups() const { return same_keys ? 1 : groups; }
  constexpr int registers() const {  // of a thread of each warpgroup, all together
    return copying + (same_keys ? weighing + computing + adding : groups * computing);
  }
};

constexpr BackwardGroups backward_groups(const KernelSpec& spec) {
  if (spec.operation == Operation::backward_warpgroups_large)
    return {.groups = 3,
            .queries = 64,
            .stages = spec.bucket <= 192 ? 3 : 2,
            .q_stages = spec.bucket <= 192 ? 3 : 2,
            .copying = 32,
            .computing = 208,
            .same_keys = true,
            .weighing = 208,
            .adding = 64};
  return {.groups = 2, .queries = 64};
}

// Keys and values, tiles of queries and of dout, two tiles of gradients of scores (or one, and one of weights),
// one of dq in f32; lse and delta of each query and 64 bytes for each tile of queries; which queries see each
// key; 96 bytes for the block; barriers of the keys and of three rings (and of the weights and of additions).
constexpr int backward_groups_shared(const KernelSpec& spec) {
  const BackwardGroups g = backward_groups(spec);
  const int row_bytes = spec.bucket * static_cast<int>(size_of(spec.dtype));
  return (2 * g.keys() + (g.q_stages + g.stages) * g.queries) * row_bytes +
         2 * 2 * g.keys() * g.queries + 4 * g.query_groups() * 64 * g.query_columns(spec.bucket) +
         g.stages * (8 * g.queries + 64) + 8 * g.keys() + 96 +
         8 * 2 * (1 + g.q_stages + 2 * g.stages + (g.same_keys ? 2 : 0));
}

// The same up to 64 columns: the warpgroup that has tiles copied computes the gradients of their queries, too.
struct BackwardRoles {
  int stages = 4;  // tiles of queries, and of dout, in shared memory
  int groups = 2, queries = 64;
  // Registers of a thread, after the group of the queries has given some of its own to the others.
  int serving = 88, computing = 208;

  constexpr int keys() const { return 64 * groups; }
  constexpr int threads() const { return 128 * (groups + 1); }
};
constexpr bool has_roles(const KernelSpec& spec) {
  return spec.operation == Operation::backward_warpgroups && spec.bucket <= 64;
}

// Keys and values, tiles of queries and of dout, two tiles of gradients of scores, one of dq in f32; lse and delta of
// each query and 64 bytes for each tile of queries; which queries see each key; 96 bytes for the block; barriers of
// the keys, of the tiles of queries and of the gradients.
constexpr int backward_roles_shared(const KernelSpec& spec) {
  constexpr BackwardRoles r;
  const int row_bytes = spec.bucket * static_cast<int>(size_of(spec.dtype));
  return 2 * (r.keys() + r.stages * r.queries) * row_bytes + 2 * 2 * r.keys() * r.queries +
         4 * r.queries * spec.bucket + r.stages * (8 * r.queries + 64) + 8 * r.keys() + 96 +
         8 * 2 * (1 + r.stages + 2);
}

// What the host has to know of a workgroup of either kind.
struct BackwardBlock {
  int keys, queries, threads, shared;
  int reports;  // that its additions to dq are done (kernels/backward/planes.hpp)
};
constexpr BackwardBlock backward_block(const KernelSpec& spec) {
  if (has_roles(spec)) {
    constexpr BackwardRoles r;
    return {r.keys(), r.queries, r.threads(), backward_roles_shared(spec), 4};
  }
  const BackwardGroups g = backward_groups(spec);
  return {g.keys(), g.queries, g.threads(), backward_groups_shared(spec), g.same_keys ? 4 : 1};
}

// RDNA's kernel for all gradients, by pairs of waves. gfx10 up to 64 columns: three workgroups share a unit where
// registers allow (bf16 is widened, which takes some).
constexpr BackwardTile paired_tile(Family family, const KernelSpec& spec) {
  const bool small = spec.bucket <= 64 && spec.variant == Variant::plain;
  if (family == Family::rdna4 && small) return {128, 32, 256, 1, false, 1, 0, 2, 2};
  const bool three = family == Family::rdna2 && small && spec.dtype == DType::f16;
  return {64, spec.bucket <= 64 ? 32 : 16, 256, three ? 6 : 1, false, 1, 0, 2};
}

constexpr BackwardTile backward_tile(Family family, const KernelSpec& spec) {
  const int bucket = spec.bucket;
  if (spec.operation == Operation::backward_sinks || spec.operation == Operation::backward_clear)
    return {1, 0, 256, 1};
  switch (family) {
    case Family::cdna1:
    case Family::cdna2:
    case Family::cdna3:
    case Family::cdna4:
      if (spec.operation == Operation::backward_delta) return {128, 0, 256, 1};
      if (spec.operation == Operation::backward_round) return {128, 0, 256, 1};
      // Waves share a tile of dq: each has 32 columns of 32 queries, or more columns.
      if (spec.operation == Operation::backward_fused && bucket > 128 &&
          fused_gives_dv(family, bucket))
        return {64, 32, 256, 1, false, 1, 0, 2};  // in gfx950's LDS
      if (spec.operation == Operation::backward_fused)
        return {128, bucket <= 64 ? 64 : 32, 256, 1, false, 1};
      return {128, 32, 256, 1, false, cdna_buffers(family, spec)};
    case Family::gcn5:
    case Family::rdna2:
    case Family::rdna3:
    case Family::rdna4:
      if (spec.operation == Operation::backward_delta) return {128, 0, 256, 1};
      if (spec.operation == Operation::backward_round) return {128, 0, 256, 1};
      if (spec.operation == Operation::backward_fused) return paired_tile(family, spec);
      if (bucket <= 128) return {64, 16, 128, 1, true};
      return {32, 16, 64, 1, true, 0};
    case Family::sm80:
      return sm80_backward_tile(spec);
    case Family::sm90:
      return {64, 0, 128, 1};  // round: 16 queries per warp
  }
  return {};
}

}  // namespace rocflash::kernel
