// Gradients of the bias and of ALiBi slopes on the FP32 path, for every dtype and head dimension.
// dS is recomputed tile by tile, and reduced where bias or slope is broadcast. No two workgroups
// write the same element.
//
//   dbias            each workgroup owns tiles of dbias, and visits all sequences, heads and blocks
//                    of queries and keys to which they were broadcast
//   dalibi partial   each workgroup reduces one block of queries of one (batch, head) slice
//   dalibi reduce    each workgroup reduces the partial results of one slope at a time
#pragma once

#include "arch/arch.hpp"
#include "attention/work_tile.hpp"
#include "fp32/gradients.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
using ScoreGradients =
    Fp32Gradients<Owner::queries, GradientOf::score, fp32_tile(this_family, spec)>;

constexpr std::int32_t blocks_of(std::int64_t rows, int tile) {
  return static_cast<std::int32_t>((rows + tile - 1) / tile);
}

// Splits a linear index into its coordinates, the fastest first, in VGPRs: 64-bit divisions need
// more SGPRs than are free.
class LinearIndex {
 public:
  explicit LinearIndex(std::int64_t number) : rest_(number) {}
  std::int32_t next(std::int64_t count) {
    const std::int64_t quotient = count > 0 ? rest_ / count : 0;
    const auto coordinate = static_cast<std::int32_t>(rest_ - quotient * count);
    rest_ = quotient;
    return arch::uniform(coordinate);
  }

 private:
  std::int64_t rest_;
};

inline bool uniform_bool(bool condition) { return arch::uniform(condition ? 1 : 0) != 0; }

// One tile of dbias. In a broadcast dimension the tile has index 0, and its visits cover the whole
// dimension.
struct BiasTile {
  std::int32_t batch, head, query_block, key_block;
  bool exists;

  BiasTile(const BackwardArguments& a, std::int64_t number) {
    const ScoreSizes sizes = a.tensors.dbias_sizes(a.problem);
    const std::int64_t key_blocks = blocks_of(sizes.keys, 64),
                       query_blocks = blocks_of(sizes.queries, 64);
    exists = uniform_bool(number < key_blocks * query_blocks * sizes.heads * sizes.batch);
    LinearIndex index(number);
    key_block = index.next(key_blocks);
    query_block = index.next(query_blocks);
    head = index.next(sizes.heads);
    batch = index.next(sizes.batch);
  }
};

// One block of queries of one (batch, head) slice to which a tile of the bias was broadcast.
struct BiasVisit {
  std::int32_t batch, head, query_block, key_begin, key_end;  // blocks; the last ones are of keys
  bool exists;

  BiasVisit(const BackwardArguments& a, std::int64_t tile, std::int64_t number) {
    const BiasTile own(a, tile);
    const PerScore& to = a.tensors.dbias;
    const std::int64_t batches = to.batch_stride != 0 ? 1 : a.problem.batch(),
                       heads = to.head_stride != 0 ? 1 : a.problem.heads,
                       blocks = to.query_stride != 0 ? 1 : blocks_of(a.problem.max_q, 64);
    exists = own.exists && uniform_bool(number < batches * heads * blocks);
    LinearIndex index(number);
    head = own.head + index.next(heads);
    query_block = own.query_block + index.next(blocks);
    batch = own.batch + index.next(batches);
    key_begin = own.key_block;
    key_end = to.key_stride != 0 ? key_begin + 1 : blocks_of(a.problem.max_k, 64);
  }
};

// Sums 64 rows for each of 64 columns into line 0 of LDS.
inline void sum_rows(const ThreadTile<64, 64>& tile, SharedFloat* memory) {
  ROCFLASH_UNROLL
  for (int n = 0; n < 4; ++n)
    memory[thread_row() * 64 + ThreadTile<64, 64>::own_column(n)] =
        (tile.at(0, n) + tile.at(1, n)) + (tile.at(2, n) + tile.at(3, n));
  arch::barrier();
  const int column = arch::opaque_thread();
  if (column < 64) {
    float sum = 0;
    for (int row = 0; row < 16; ++row) sum += memory[row * 64 + column];
    memory[column] = sum;
  }
  arch::barrier();
}

// Reduces the broadcast dimensions of the tile, and stores the result.
inline void store_bias(const BackwardArguments& a, const BiasTile& own,
                       const ThreadTile<64, 64>& sums, SharedFloat* memory) {
  using Tile = ThreadTile<64, 64>;
  const PerScore& to = a.tensors.dbias;
  const Problem& p = a.problem;
  const float factor = p.dropout.on() ? p.dropout.scale() : 1.0f;
  const std::int64_t first = own.batch * to.batch_stride + own.head * to.head_stride;
  const std::int64_t first_key = 64 * std::int64_t{own.key_block};
  // Thread indices are computed here: kept across tiles they would occupy SGPRs.
  const int n = arch::opaque_thread();
  if (to.query_stride == 0) {
    sum_rows(sums, memory);
    if (to.key_stride == 0) {
      float sum = 0;
      for (int column = 0; n == 0 && column < 64; ++column) sum += memory[column];
      if (n == 0) store_element(to.data, to.dtype, first, sum * factor);
    } else if (n < 64 && first_key + n < p.max_k) {
      store_element(to.data, to.dtype, first + (first_key + n) * to.key_stride, memory[n] * factor);
    }
    return;
  }
  ROCFLASH_UNROLL
  for (int r = 0; r < Tile::own_rows; ++r) {
    const std::int64_t query = 64 * std::int64_t{own.query_block} + Tile::own_row(r);
    const std::int64_t row = first + query * to.query_stride;
    const Float4 four{sums.at(r, 0), sums.at(r, 1), sums.at(r, 2), sums.at(r, 3)};
    if (to.key_stride == 0) {
      const float sum = sum_16_lanes((four[0] + four[1]) + (four[2] + four[3]));
      if (n % 16 == 0 && query < p.max_q) store_element(to.data, to.dtype, row, sum * factor);
    } else {
      ROCFLASH_UNROLL
      for (int e = 0; e < 4; ++e) {
        const std::int64_t key = first_key + Tile::own_column(e);
        if (query < p.max_q && key < p.max_k)
          store_element(to.data, to.dtype, row + key * to.key_stride, four[e] * factor);
      }
    }
  }
}

template <KernelSpec spec>
void backward_dbias(const BackwardArguments& a) {
  constexpr Fp32Tile tile = fp32_tile(this_family, spec);
  using Gradients = ScoreGradients<spec>;
  using Scores = typename Gradients::Scores;
  static_assert(tile.owned == 64 && tile.streamed == 64 && Gradients::floats >= 16 * 64);
  ROCFLASH_SHARED_ARRAY float shared_lines[2][Gradients::floats];
  ROCFLASH_SHARED_ARRAY typename Gradients::Shared shared;
  typename Gradients::Memory memory(shared_lines);

  _Pragma("clang loop unroll(disable)") for (std::int64_t number =
                                                 arch::to_vgpr(std::int64_t{arch::workgroup_id()});
                                             ; number += arch::reload_kernargs(a).work.workgroups) {
    if (!BiasTile(arch::reload_kernargs(a), number).exists) return;
    Scores sums;
    _Pragma("clang loop unroll(disable)") for (std::int64_t visits = arch::to_vgpr(std::int64_t{0});
                                               ; ++visits) {
      // Computed for each visit instead of being kept in SGPRs.
      const BackwardArguments& b = arch::reload_kernargs(a);
      const BiasVisit visit(b, number, visits);
      if (!visit.exists) break;
      const SequenceView sequence(b.problem, visit.batch);
      const std::int32_t first = 64 * visit.query_block;
      if (first >= sequence.sq) continue;
      const Visibility& visibility = b.problem.visibility;
      const VisibleKeys keys(visibility, sequence, arch::to_vgpr(first), 64);
      const Span visible = uniform_span(keys.by_any);
      arch::barrier();
      Gradients::store_mask_bounds(visibility, sequence, first, shared);
      Gradients tiles(b, sequence, visit.head, shared);
      tiles.own(first);
      const Span blocks = Range{larger(visit.key_begin, visible.begin / 64),
                                smaller(visit.key_end, (visible.end + 63) / 64)};
      _Pragma("clang loop unroll(disable)") for (std::int32_t j = blocks.begin; j < blocks.end;
                                                 ++j) {
        Scores weights, gradients;
        tiles.template compute<true>(64 * j, true, memory, weights, gradients);
        ROCFLASH_UNROLL
        for (int n = 0; n < 4 * Scores::own_rows; ++n)
          sums.set(n / 4, n % 4, sums.at(n / 4, n % 4) + gradients.at(n / 4, n % 4));
      }
    }
    arch::barrier();
    store_bias(arch::reload_kernargs(a), BiasTile(arch::reload_kernargs(a), number), sums,
               shared_lines[0]);
    arch::barrier();
  }
}

template <KernelSpec spec>
void backward_dalibi_partial(const BackwardArguments& a) {
  constexpr Fp32Tile tile = fp32_tile(this_family, spec);
  using Gradients = ScoreGradients<spec>;
  using Scores = typename Gradients::Scores;
  ROCFLASH_SHARED_ARRAY float shared_lines[2][Gradients::floats];
  ROCFLASH_SHARED_ARRAY typename Gradients::Shared shared;
  typename Gradients::Memory memory(shared_lines);

  const WorkTile item(a.work, static_cast<std::int32_t>(a.problem.heads), arch::workgroup_id());
  const SequenceView sequence(a.problem, item.batch);
  const std::int32_t first = item.block * tile.owned;
  float sum = 0;
  if (first < sequence.sq) {
    const VisibleKeys keys(a.problem.visibility, sequence, arch::to_vgpr(first), tile.owned);
    const Span visible = uniform_span(keys.by_any), visible_to_all = uniform_span(keys.by_all);
    Gradients::store_mask_bounds(a.problem.visibility, sequence, first, shared);
    Gradients tiles(a, sequence, item.head, shared);
    tiles.own(first);
    _Pragma("clang loop unroll(disable)") for (std::int32_t begin =
                                                   visible.begin / dropout_keys * dropout_keys;
                                               begin < visible.end; begin += tile.streamed) {
      const bool edge = begin < visible_to_all.begin ||
                        begin + tile.streamed > visible_to_all.end ||
                        first + tile.owned > sequence.sq;
      Scores weights, gradients;
      tiles.template compute<true>(begin, edge, memory, weights, gradients);
      ROCFLASH_UNROLL
      for (int r = 0; r < Scores::own_rows; ++r) {
        ROCFLASH_UNROLL
        for (int n = 0; n < 4; ++n) {
          const std::int32_t distance = first + Scores::own_row(r) + sequence.sk - sequence.sq -
                                        begin - Scores::own_column(n);
          sum -= gradients.at(r, n) * static_cast<float>(distance < 0 ? -distance : distance);
        }
      }
    }
  }
  const float total = workgroup_sum<spec, fp32_threads>(sum);
  if (arch::thread() == 0)
    arch::store(&a.dalibi_partial.at(item.batch, item.head, item.block), total);
}

template <KernelSpec spec>
void backward_dalibi_reduce(const BackwardArguments& a) {
  const Problem& p = a.problem;
  const PerHead& to = a.tensors.dalibi;
  const std::int64_t slopes = p.heads * (to.batch_stride != 0 ? p.batch() : 1);
  for (std::int64_t slope = arch::workgroup_id(); slope < slopes; slope += a.work.workgroups) {
    const std::int64_t head = slope % p.heads, batch = slope / p.heads;
    const std::int64_t begin = to.batch_stride != 0 ? batch : 0,
                       end = to.batch_stride != 0 ? batch + 1 : p.batch();
    float sum = 0;
    for (std::int64_t n = begin * a.work.blocks + arch::thread(); n < end * a.work.blocks;
         n += fp32_threads)
      sum += arch::load(&a.dalibi_partial.at(n / a.work.blocks, head, n % a.work.blocks));
    const float total = workgroup_sum<spec, fp32_threads>(sum);
    if (arch::thread() == 0)
      arch::store(
          reinterpret_cast<float*>(to.data) + begin * to.batch_stride + head * to.head_stride,
          total * (p.dropout.on() ? p.dropout.scale() : 1.0f));
  }
}

}  // namespace rocflash::kernel
