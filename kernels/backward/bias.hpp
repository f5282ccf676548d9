// Gradients of the bias and of ALiBi's slopes, for every dtype and head size, without matrix
// instructions. The gradient of a score is computed once more, tile by tile, and added up where the bias
// or the slope has one element for several scores. No two workgroups add to the same number.
//
//   bias    each workgroup owns tiles of dbias, and visits every sequence, head, block of queries and
//           block of keys whose scores they were added to
//   alibi   each workgroup adds up one block of queries of one sequence and head: one number each
//   slopes  each workgroup adds up the numbers of one slope at a time
#pragma once

#include "arch/arch.hpp"
#include "attention/work.hpp"
#include "wide/gradients.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
using ScoreGradients =
    WideGradients<Owner::queries, GradientOf::score, wide_tile(this_family, spec)>;

constexpr std::int32_t blocks_of(std::int64_t rows, int tile) {
  return static_cast<std::int32_t>((rows + tile - 1) / tile);
}

// Takes a number in lanes apart into digits, the fastest first. (Divisions of 64-bit numbers need more
// registers than there are scalar ones to spare.)
class Digits {
 public:
  explicit Digits(std::int64_t number) : rest_(number) {}
  std::int32_t next(std::int64_t count) {
    const std::int64_t quotient = count > 0 ? rest_ / count : 0;
    const auto digit = static_cast<std::int32_t>(rest_ - quotient * count);
    rest_ = quotient;
    return arch::uniform(digit);
  }

 private:
  std::int64_t rest_;
};

// A condition that is the same in every lane.
inline bool everywhere(bool condition) { return arch::uniform(condition ? 1 : 0) != 0; }

// One tile of dbias: what is owned in each dimension. A dimension with one element for all owns number
// 0, and its visits go over all that the dimension has.
struct BiasTile {
  std::int32_t batch, head, query_block, key_block;
  bool exists;

  BiasTile(const BackwardArguments& a, std::int64_t number) {
    const ScoreSizes sizes = a.tensors.dbias_sizes(a.problem);
    const std::int64_t key_blocks = blocks_of(sizes.keys, 64),
                       query_blocks = blocks_of(sizes.queries, 64);
    exists = everywhere(number < key_blocks * query_blocks * sizes.heads * sizes.batch);
    Digits digits(number);
    key_block = digits.next(key_blocks);
    query_block = digits.next(query_blocks);
    head = digits.next(sizes.heads);
    batch = digits.next(sizes.batch);
  }
};

// One block of queries of one sequence and head whose scores a tile of dbias was added to.
struct BiasVisit {
  std::int32_t batch, head, query_block, key_begin, key_end;  // blocks; the last ones are of keys
  bool exists;

  BiasVisit(const BackwardArguments& a, std::int64_t tile, std::int64_t number) {
    const BiasTile own(a, tile);
    const PerScore& to = a.tensors.dbias;
    const std::int64_t batches = to.batch_stride != 0 ? 1 : a.problem.batch(),
                       heads = to.head_stride != 0 ? 1 : a.problem.heads,
                       blocks = to.query_stride != 0 ? 1 : blocks_of(a.problem.max_q, 64);
    exists = own.exists && everywhere(number < batches * heads * blocks);
    Digits digits(number);
    head = own.head + digits.next(heads);
    query_block = own.query_block + digits.next(blocks);
    batch = own.batch + digits.next(batches);
    key_begin = own.key_block;
    key_end = to.key_stride != 0 ? key_begin + 1 : blocks_of(a.problem.max_k, 64);
  }
};

// The sum over 64 rows, for each of 64 columns, into line 0 of shared memory.
inline void sum_rows(const Patch<64, 64>& tile, SharedFloat* memory) {
  ROCFLASH_UNROLL
  for (int n = 0; n < 4; ++n)
    memory[thread_row() * 64 + Patch<64, 64>::own_column(n)] =
        (tile.at(0, n) + tile.at(1, n)) + (tile.at(2, n) + tile.at(3, n));
  arch::barrier();
  const int column = arch::renewed_thread();
  if (column < 64) {
    float sum = 0;
    for (int row = 0; row < 16; ++row) sum += memory[row * 64 + column];
    memory[column] = sum;
  }
  arch::barrier();
}

// Adds up what the tile has one element for, and stores it.
inline void store_bias(const BackwardArguments& a, const BiasTile& own, const Patch<64, 64>& sums,
                       SharedFloat* memory) {
  using Tile = Patch<64, 64>;
  const PerScore& to = a.tensors.dbias;
  const Problem& p = a.problem;
  const float factor = p.dropout.on() ? p.dropout.scale() : 1.0f;
  const std::int64_t first = own.batch * to.batch_stride + own.head * to.head_stride;
  const std::int64_t first_key = 64 * std::int64_t{own.key_block};
  // Which thread does what is found out here: kept from tile to tile it would fill scalar registers.
  const int n = arch::renewed_thread();
  if (to.query_stride == 0) {
    sum_rows(sums, memory);
    if (to.key_stride == 0) {
      float sum = 0;
      for (int column = 0; n == 0 && column < 64; ++column) sum += memory[column];
      if (n == 0) store_number(to.data, to.dtype, first, sum * factor);
    } else if (n < 64 && first_key + n < p.max_k) {
      store_number(to.data, to.dtype, first + (first_key + n) * to.key_stride, memory[n] * factor);
    }
    return;
  }
  ROCFLASH_UNROLL
  for (int r = 0; r < Tile::own_rows; ++r) {
    const std::int64_t query = 64 * std::int64_t{own.query_block} + Tile::own_row(r);
    const std::int64_t row = first + query * to.query_stride;
    const Float4 four{sums.at(r, 0), sums.at(r, 1), sums.at(r, 2), sums.at(r, 3)};
    if (to.key_stride == 0) {
      const float sum = sum_of_sixteen((four[0] + four[1]) + (four[2] + four[3]));
      if (n % 16 == 0 && query < p.max_q) store_number(to.data, to.dtype, row, sum * factor);
    } else {
      ROCFLASH_UNROLL
      for (int e = 0; e < 4; ++e) {
        const std::int64_t key = first_key + Tile::own_column(e);
        if (query < p.max_q && key < p.max_k)
          store_number(to.data, to.dtype, row + key * to.key_stride, four[e] * factor);
      }
    }
  }
}

template <KernelSpec spec>
void backward_bias(const BackwardArguments& a) {
  constexpr WideTile tile = wide_tile(this_family, spec);
  using Gradients = ScoreGradients<spec>;
  using Scores = typename Gradients::Scores;
  static_assert(tile.owned == 64 && tile.streamed == 64 && Gradients::numbers >= 16 * 64);
  ROCFLASH_SHARED_ARRAY float shared_lines[2][Gradients::numbers];
  ROCFLASH_SHARED_ARRAY typename Gradients::Shared shared;
  typename Gradients::Memory memory(shared_lines);

  _Pragma("clang loop unroll(disable)") for (std::int64_t number =
                                                 arch::in_lanes(std::int64_t{arch::group()});
                                             ; number += arch::again(a).work.groups) {
    if (!BiasTile(arch::again(a), number).exists) return;
    Scores sums;
    _Pragma("clang loop unroll(disable)") for (std::int64_t visits =
                                                   arch::in_lanes(std::int64_t{0});
                                               ; ++visits) {
      // Found out for each visit rather than kept in scalar registers.
      const BackwardArguments& b = arch::again(a);
      const BiasVisit visit(b, number, visits);
      if (!visit.exists) break;
      const SequenceView sequence(b.problem, visit.batch);
      const std::int32_t first = 64 * visit.query_block;
      if (first >= sequence.sq) continue;
      const Visibility& visibility = b.problem.visibility;
      const SeenKeys keys(visibility, sequence, arch::in_lanes(first), 64);
      const Span seen = uniform_span(keys.by_any);
      arch::barrier();
      Gradients::look(visibility, sequence, first, shared);
      Gradients tiles(b, sequence, visit.head, shared);
      tiles.own(first);
      _Pragma("clang loop unroll(disable)") for (std::int32_t j = visit.key_begin;
                                                 j < visit.key_end; ++j) {
        const std::int32_t begin = 64 * j;
        if (begin >= seen.end || begin + 64 <= seen.begin) continue;
        Scores weights, gradients;
        tiles.template compute<true>(begin, true, memory, weights, gradients);
        ROCFLASH_UNROLL
        for (int n = 0; n < 4 * Scores::own_rows; ++n)
          sums.set(n / 4, n % 4, sums.at(n / 4, n % 4) + gradients.at(n / 4, n % 4));
      }
    }
    arch::barrier();
    store_bias(arch::again(a), BiasTile(arch::again(a), number), sums, shared_lines[0]);
    arch::barrier();
  }
}

template <KernelSpec spec>
void backward_alibi(const BackwardArguments& a) {
  constexpr WideTile tile = wide_tile(this_family, spec);
  using Gradients = ScoreGradients<spec>;
  using Scores = typename Gradients::Scores;
  ROCFLASH_SHARED_ARRAY float shared_lines[2][Gradients::numbers];
  ROCFLASH_SHARED_ARRAY typename Gradients::Shared shared;
  typename Gradients::Memory memory(shared_lines);

  const WorkItem item(a.work, static_cast<std::int32_t>(a.problem.heads), arch::group());
  const SequenceView sequence(a.problem, item.batch);
  const std::int32_t first = item.block * tile.owned;
  float sum = 0;
  if (first < sequence.sq) {
    const SeenKeys keys(a.problem.visibility, sequence, arch::in_lanes(first), tile.owned);
    const Span seen = uniform_span(keys.by_any), seen_by_all = uniform_span(keys.by_all);
    Gradients::look(a.problem.visibility, sequence, first, shared);
    Gradients tiles(a, sequence, item.head, shared);
    tiles.own(first);
    _Pragma("clang loop unroll(disable)") for (std::int32_t begin =
                                                   seen.begin / dropout_keys * dropout_keys;
                                               begin < seen.end; begin += tile.streamed) {
      const bool edge = begin < seen_by_all.begin || begin + tile.streamed > seen_by_all.end ||
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
  const float total = sum_of_group<spec, wide_threads>(sum);
  if (arch::thread() == 0) arch::store(&a.slope_sums.at(item.batch, item.head, item.block), total);
}

template <KernelSpec spec>
void backward_slopes(const BackwardArguments& a) {
  const Problem& p = a.problem;
  const PerHead& to = a.tensors.dalibi;
  const std::int64_t slopes = p.heads * (to.batch_stride != 0 ? p.batch() : 1);
  for (std::int64_t slope = arch::group(); slope < slopes; slope += a.work.groups) {
    const std::int64_t head = slope % p.heads, batch = slope / p.heads;
    const std::int64_t begin = to.batch_stride != 0 ? batch : 0,
                       end = to.batch_stride != 0 ? batch + 1 : p.batch();
    float sum = 0;
    for (std::int64_t n = begin * a.work.blocks + arch::thread(); n < end * a.work.blocks;
         n += wide_threads)
      sum += arch::load(&a.slope_sums.at(n / a.work.blocks, head, n % a.work.blocks));
    const float total = sum_of_group<spec, wide_threads>(sum);
    if (arch::thread() == 0)
      arch::store(
          reinterpret_cast<float*>(to.data) + begin * to.batch_stride + head * to.head_stride,
          total * (p.dropout.on() ? p.dropout.scale() : 1.0f));
  }
}

}  // namespace rocflash::kernel
