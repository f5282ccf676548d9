// Products of tiles without matrix instructions. A workgroup of 16x16 threads computes C += Aᵀ·B: A and
// B lie in shared memory a few lines deep, and each thread adds outer products of its part of a line of A
// and its part of a line of B. Everything is f32 in shared memory, whatever it is in global memory.
//
// Sums are added up one line after the other, each by one fused multiply-add: any two products of the
// same rows have the same bits, wherever they stand in a tile.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/numbers.hpp"
#include "attention/score.hpp"
#include "attention/sequence.hpp"
#include "table/wide.hpp"
#include "tile/vector.hpp"

namespace rocflash::kernel {

using SharedFloat = ROCFLASH_SHARED float;
using SharedFloat4 = ROCFLASH_SHARED Float4;

// Lines in shared memory have a few numbers to spare: transposing writes then meet fewer banks twice.
constexpr int line_length(int numbers) { return numbers + 4; }

// A thread's part of rows x columns results: four of every 64 rows, and four of every 64 columns.
inline int thread_row() { return arch::thread() / 16; }
inline int thread_column() { return arch::thread() % 16; }
template <int rows, int columns>
struct Patch {
  static constexpr int own_rows = rows / 16, own_quads = columns / 64, own_columns = columns / 16;
  static constexpr int row(int i) { return i / 4 * 64 + i % 4; }  // from 4 thread_row() on
  static constexpr int column(int j) { return j / 4 * 64 + j % 4; }
  static int own_row(int i) { return row(i) + 4 * thread_row(); }
  static int own_column(int j) { return column(j) + 4 * thread_column(); }

  Float4 at[own_rows][own_quads] = {};

  // `depth` lines of A and B.
  template <int depth>
  void add_product(const SharedFloat* a, const SharedFloat* b) {
    constexpr int a_length = line_length(rows), b_length = line_length(columns);
    a += 4 * thread_row();
    b += 4 * thread_column();
    ROCFLASH_UNROLL
    for (int d = 0; d < depth; ++d) {
      Float4 x[own_rows / 4], y[own_quads];
      ROCFLASH_UNROLL
      for (int i = 0; i < own_rows / 4; ++i)
        x[i] = *(const SharedFloat4*)(a + d * a_length + 64 * i);
      ROCFLASH_UNROLL
      for (int j = 0; j < own_quads; ++j) y[j] = *(const SharedFloat4*)(b + d * b_length + 64 * j);
      ROCFLASH_UNROLL
      for (int i = 0; i < own_rows; ++i) {
        ROCFLASH_UNROLL
        for (int j = 0; j < own_quads; ++j)
          at[i][j] = __builtin_elementwise_fma(Float4(x[i / 4][i % 4]), y[j], at[i][j]);
      }
    }
  }
};

// Rows of one (sequence, head), numbered from the first one in use.
class RowSource {
 public:
  // `width`: the rows' columns, which several tensors share.
  RowSource(const Rows& rows, int width, DType dtype, std::int64_t batch, std::int64_t first,
            std::int32_t count, std::int64_t head)
      : columns(width),
        count_(count),
        loads_(rows, dtype),
        base_(row_address(rows, dtype, batch, first, head)),
        stride_(rows.row_stride * bytes_of(dtype)) {}

  int columns;

  // Null for rows that are not in use.
  const std::byte* row(std::int32_t index) const {
    return index < count_ ? base_ + index * stride_ : nullptr;
  }
  Words4 load(const std::byte* row, int column) const { return loads_.load(row, column, columns); }
  Float4 widened(Words4 words) const { return loads_.widened(words); }

 protected:
  std::int32_t count_;

 private:
  QuadLoads loads_;
  const std::byte* base_;
  std::int64_t stride_;
};

// The same for k and v, which may lie in pages and have a dtype of their own.
class PagedSource : public RowSource {
 public:
  PagedSource(const ForwardArguments& a, const Rows& rows, int width, const SequenceView& sequence,
              std::int64_t head)
      : RowSource(rows, width, rows.dtype, rows.blocks ? 0 : sequence.batch,
                  rows.blocks ? 0 : sequence.k_row, sequence.sk, head),
        a_(a),
        rows_(rows),
        sequence_(sequence),
        head_(head),
        paged_(rows.blocks != nullptr) {}

  const std::byte* row(std::int32_t index) const {
    if (!paged_ || index >= count_) return RowSource::row(index);
    const Rows& rows = arch::again(rows_);
    return key_row(rows, rows.dtype, arch::again(a_).caches, sequence_.batch,
                   sequence_.k_row + index, head_);
  }

 private:
  const ForwardArguments& a_;
  const Rows& rows_;
  const SequenceView& sequence_;
  std::int64_t head_;
  bool paged_;
};

// What a thread carries from `tile_rows` rows in global memory to lines in shared memory: `depth`
// columns of the rows, each of which becomes a line.
template <int tile_rows, int depth>
class ColumnCarrier {
  static constexpr int quads = depth / 4, together = wide_threads / quads;
  static constexpr int rounds = (tile_rows + together - 1) / together;

 public:
  static constexpr int numbers = depth * line_length(tile_rows);

  // From now on rows from `first` on.
  template <class Source>
  void aim(const Source& source, std::int32_t first) {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) row_[n] = there(n) ? source.row(first + offset(n)) : nullptr;
  }
  // What decides where a thread loads is computed again each time (renewed_thread): hoisted out of all
  // loops, the conditions would fill the scalar registers.
  void load(const RowSource& source, int column) {
    const int own = 4 * (arch::renewed_thread() % quads);
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) words_[n] = source.load(row_[n], column + own);
  }
  // Multiplied with `factor`.
  void store(const RowSource& source, SharedFloat* lines, float factor) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      if (!there(n)) continue;
      SharedFloat* to = lines + 4 * (arch::thread() % quads) * line_length(tile_rows) + offset(n);
      const Float4 four = source.widened(words_[n]);
      ROCFLASH_UNROLL
      for (int e = 0; e < 4; ++e) to[e * line_length(tile_rows)] = four[e] * factor;
    }
  }

 private:
  static int offset(int n) { return arch::thread() / quads + n * together; }
  static bool there(int n) { return tile_rows % together == 0 || offset(n) < tile_rows; }

  const std::byte* row_[rounds];
  Words4 words_[rounds];
};

// The same for `depth` rows, each of which becomes a line of `columns` numbers.
template <int columns, int depth>
class RowCarrier {
  static constexpr int quads = columns / 4, tasks = depth * quads;
  static constexpr int rounds = (tasks + wide_threads - 1) / wide_threads;

 public:
  static constexpr int numbers = depth * line_length(columns);

  template <class Source>
  void load(const Source& source, std::int32_t first, int column) {
    const int thread = arch::renewed_thread();
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      const int task = thread + n * wide_threads;
      if (tasks % wide_threads == 0 || task < tasks)
        words_[n] = source.load(source.row(first + task / quads), column + 4 * (task % quads));
    }
  }
  void store(const RowSource& source, SharedFloat* lines) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      const int task = arch::thread() + n * wide_threads;
      if (tasks % wide_threads == 0 || task < tasks)
        *(SharedFloat4*)(lines + task / quads * line_length(columns) + 4 * (task % quads)) =
            source.widened(words_[n]);
    }
  }

 private:
  Words4 words_[rounds];
};

// The same interval for all lanes, computed in vector registers: chunks divide 64-bit numbers.
inline Span uniform_span(Range range) {
  const Span span = range;
  Span uniform;
  uniform.begin = arch::uniform(span.begin);
  uniform.end = arch::uniform(span.end);
  return uniform;
}

// Two sets of lines in shared memory that take turns: one is filled while the other is in use. One
// barrier between filling and use is enough, as a set is filled again only after the barrier of the
// other one.
template <int numbers>
class Turns {
 public:
  explicit Turns(SharedFloat (&memory)[2][numbers]) : memory_(memory) {}
  SharedFloat* next() {
    turn_ ^= 1;
    return memory_[turn_];
  }

 private:
  SharedFloat (&memory_)[2][numbers];
  int turn_ = arch::in_lanes(0);  // addresses are computed in lanes anyway
};

// result += A·Bᵀ over all columns of both sources' rows, which the carriers are aimed at. Both operands
// are multiplied with `factor` first.
template <int rows, int columns, int depth, class Memory>
void add_products(Patch<rows, columns>& result, ColumnCarrier<rows, depth>& a,
                  const RowSource& a_source, ColumnCarrier<columns, depth>& b,
                  const RowSource& b_source, float factor, Memory& memory) {
  const int width = a_source.columns;
  a.load(a_source, 0);
  b.load(b_source, 0);
  _Pragma("clang loop unroll(disable)") for (int column = 0; column < width; column += depth) {
    SharedFloat* lines = memory.next();
    a.store(a_source, lines, factor);
    b.store(b_source, lines + a.numbers, factor);
    arch::barrier();
    if (column + depth < width) {
      a.load(a_source, column + depth);
      b.load(b_source, column + depth);
    }
    result.template add_product<depth>(lines, lines + a.numbers);
  }
}

// result += Aᵀ·B, A being lines in shared memory and B rows from `first` on, of which the carrier has
// loaded the first ones.
template <int rows, int columns, int depth, class Source, class Memory>
void add_rows(Patch<rows, columns>& result, const SharedFloat* a, int lines_of_a,
              RowCarrier<columns, depth>& b, const Source& b_source, std::int32_t first, int column,
              Memory& memory) {
  _Pragma("clang loop unroll(disable)") for (int line = 0; line < lines_of_a; line += depth) {
    SharedFloat* lines = memory.next();
    b.store(b_source, lines);
    arch::barrier();
    if (line + depth < lines_of_a) b.load(b_source, first + line + depth, column);
    result.template add_product<depth>(a + line * line_length(rows), lines);
  }
}

// The sum, or the largest, of what the sixteen threads of a row of threads have, in all of them.
template <class Combine>
float of_sixteen(float x, Combine combine) {
  x = combine(x, arch::rotated<8>(x));
  x = combine(x, arch::rotated<4>(x));
  x = combine(x, arch::rotated<2>(x));
  return combine(x, arch::rotated<1>(x));
}
inline float sum_of_sixteen(float x) {
  return of_sixteen(x, [](float a, float b) { return a + b; });
}
inline float largest_of_sixteen(float x) {
  return of_sixteen(x, [](float a, float b) { return __builtin_fmaxf(a, b); });
}

}  // namespace rocflash::kernel
