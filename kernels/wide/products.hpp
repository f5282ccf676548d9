// Products of tiles in f32 arithmetic. A workgroup of 16x16 threads computes C += Aᵀ·B: A and B lie in shared
// memory a few lines deep. By CDNA's matrix instruction, or, where f32 has none, each thread adds outer products of
// its part of a line of A and its part of a line of B. Everything is f32 in shared memory, whatever it is in
// global memory.
//
// Sums are added up one line after the other, each by one fused multiply-add, by the matrix instruction too: any
// two products of the same rows have the same bits, wherever they stand in a tile.
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

// A thread's part of rows x columns results: four of all rows that the threads have at a time, and four of every 64
// columns.
inline int thread_row() { return arch::thread() / 16; }
inline int thread_column() { return arch::thread() % 16; }
template <int rows, int columns, int threads = wide_threads>
struct Patch {
  static constexpr int together = threads / 4;  // rows
  static constexpr int own_rows = 4 * rows / together, own_quads = columns / 64,
                       own_columns = columns / 16;
  static constexpr int row(int i) { return i / 4 * together + i % 4; }  // from 4 thread_row() on
  static constexpr int column(int j) { return j / 4 * 64 + j % 4; }
  static int own_row(int i) { return row(i) + 4 * thread_row(); }
  static int own_column(int j) { return column(j) + 4 * thread_column(); }

  float at(int i, int j) const { return part_[place(i, j)][element(i, j)]; }
  void set(int i, int j, float x) { part_[place(i, j)][element(i, j)] = x; }

  // `depth` lines of A and B.
  template <int depth>
  void add_product(const SharedFloat* a, const SharedFloat* b) {
    constexpr int a_length = line_length(rows), b_length = line_length(columns);
    if constexpr (by_matrix) {
      // Sixteen rows and sixteen columns at a time: a wave's rows as they are, and of the columns every fourth, so
      // that a lane has four neighbours of each. Four lines, one for each sixteen lanes.
      using Mma = arch::Mma<DType::f32>;
      const int line = arch::lane() / 16;
      a += line * a_length + 16 * arch::wave() + thread_column();
      b += line * b_length + 4 * thread_column();
      ROCFLASH_UNROLL
      for (int d = 0; d < depth; d += Mma::depth) {
        float x[own_rows / 4];
        Float4 y[own_quads];
        ROCFLASH_UNROLL
        for (int i = 0; i < own_rows / 4; ++i) x[i] = a[d * a_length + together * i];
        ROCFLASH_UNROLL
        for (int j = 0; j < own_quads; ++j)
          y[j] = *(const SharedFloat4*)(b + d * b_length + 64 * j);
        ROCFLASH_UNROLL
        for (int i = 0; i < own_rows / 4; ++i) {
          ROCFLASH_UNROLL
          for (int j = 0; j < own_columns; ++j) {
            Float4& sums = part_[i * own_columns + j];
            sums = Mma::multiply(x[i], y[j / 4][j % 4], sums);
          }
        }
      }
    } else {
      a += 4 * thread_row();
      b += 4 * thread_column();
      ROCFLASH_UNROLL
      for (int d = 0; d < depth; ++d) {
        Float4 x[own_rows / 4], y[own_quads];
        ROCFLASH_UNROLL
        for (int i = 0; i < own_rows / 4; ++i)
          x[i] = *(const SharedFloat4*)(a + d * a_length + together * i);
        ROCFLASH_UNROLL
        for (int j = 0; j < own_quads; ++j)
          y[j] = *(const SharedFloat4*)(b + d * b_length + 64 * j);
        ROCFLASH_UNROLL
        for (int i = 0; i < own_rows; ++i) {
          ROCFLASH_UNROLL
          for (int j = 0; j < own_quads; ++j) {
            Float4& sums = part_[i * own_quads + j];
            sums = __builtin_elementwise_fma(Float4(x[i / 4][i % 4]), y[j], sums);
          }
        }
      }
    }
  }

  // The same for A in registers: the numbers of this lane, as Aᵀ's lines lie in memory, one for every four lines.
  template <int depth>
  void add_kept_product(const float* a, const SharedFloat* b) {
    static_assert(by_matrix && own_rows == 4);
    constexpr int b_length = line_length(columns);
    using Mma = arch::Mma<DType::f32>;
    b += arch::lane() / 16 * b_length + 4 * thread_column();
    ROCFLASH_UNROLL
    for (int d = 0; d < depth; d += Mma::depth) {
      ROCFLASH_UNROLL
      for (int j = 0; j < own_quads; ++j) {
        const Float4 y = *(const SharedFloat4*)(b + d * b_length + 64 * j);
        ROCFLASH_UNROLL
        for (int n = 4 * j; n < 4 * j + 4; ++n)
          part_[n] = Mma::multiply(a[d / Mma::depth], y[n % 4], part_[n]);
      }
    }
  }
  // The row and the first line that a lane keeps.
  static int kept_row() { return 16 * arch::wave() + thread_column(); }
  static int kept_line() { return arch::lane() / 16; }

 private:
  static constexpr bool by_matrix = multiplies_floats(this_family);
  // Four rows of a column lie together, as the matrix instruction has them, or four columns of a row.
  static constexpr int place(int i, int j) {
    return by_matrix ? i / 4 * own_columns + j : i * own_quads + j / 4;
  }
  static constexpr int element(int i, int j) { return by_matrix ? i % 4 : j % 4; }

  Float4 part_[own_rows * own_quads] = {};
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

  // f32 rows that vectors can be loaded from, `depth` columns at a time, need no branches, which pays where products
  // take little time. Rows that are not in use are then the last one that is; nothing of theirs counts.
  template <int depth>
  bool plain() const {
    return multiplies_floats(this_family) && loads_.plain() && columns % depth == 0;
  }
  const std::byte* plain_row(std::int32_t index) const {
    return base_ + (index < count_ ? index : count_ - 1) * stride_;
  }
  static Words4 load_plain(const std::byte* row, int column) {
    return QuadLoads::load_plain(row, column);
  }

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

  template <int depth>
  bool plain() const {
    return !paged_ && RowSource::plain<depth>();
  }
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
template <int tile_rows, int depth, int threads = wide_threads>
class ColumnCarrier {
  static constexpr int quads = depth / 4, together = threads / quads;
  static constexpr int rounds = (tile_rows + together - 1) / together;

 public:
  static constexpr int numbers = depth * line_length(tile_rows);

  // From now on rows from `first` on.
  template <class Source>
  void aim(const Source& source, std::int32_t first) {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) row_[n] = there(n) ? source.row(first + offset(n)) : nullptr;
  }
  void aim_plain(const RowSource& source, std::int32_t first) {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) row_[n] = source.plain_row(first + offset(n));
  }
  // What decides where a thread loads is computed again each time (renewed_thread): hoisted out of all
  // loops, the conditions would fill the scalar registers.
  void load(const RowSource& source, int column) {
    const int own = 4 * (arch::renewed_thread() % quads);
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) words_[n] = source.load(row_[n], column + own);
  }
  void load_plain(int column) {
    const int own = 4 * (arch::thread() % quads);
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) words_[n] = RowSource::load_plain(row_[n], column + own);
  }
  // Multiplied with `factor`.
  template <bool plain>
  void store(const RowSource& source, SharedFloat* lines, float factor) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      if (!there(n)) continue;
      SharedFloat* to = lines + 4 * (arch::thread() % quads) * line_length(tile_rows) + offset(n);
      const Float4 four = plain ? __builtin_bit_cast(Float4, words_[n]) : source.widened(words_[n]);
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
template <int columns, int depth, int threads = wide_threads>
class RowCarrier {
  static constexpr int quads = columns / 4, tasks = depth * quads;
  static constexpr int rounds = (tasks + threads - 1) / threads;

 public:
  static constexpr int numbers = depth * line_length(columns);

  template <class Source>
  void load(const Source& source, std::int32_t first, int column) {
    const int thread = arch::renewed_thread();
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      const int task = thread + n * threads;
      if (tasks % threads == 0 || task < tasks)
        words_[n] = source.load(source.row(first + task / quads), column + 4 * (task % quads));
    }
  }
  // What `add_rows` starts with.
  template <class Source>
  void start(const Source& source, std::int32_t first, int column) {
    if (source.template plain<4>()) {
      load_plain(source, first, column);
    } else {
      load(source, first, column);
    }
  }
  // Where the source is plain; `columns` numbers from `column` on need not all be there.
  void load_plain(const RowSource& source, std::int32_t first, int column) {
    const int thread = arch::thread();
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      const int task = thread + n * threads, own = column + 4 * (task % quads);
      words_[n] = RowSource::load_plain(source.plain_row(first + task / quads),
                                        own < source.columns ? own : 0);
    }
  }
  template <bool plain>
  void store(const RowSource& source, SharedFloat* lines) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      const int task = arch::thread() + n * threads;
      if (tasks % threads == 0 || task < tasks)
        *(SharedFloat4*)(lines + task / quads * line_length(columns) + 4 * (task % quads)) =
            plain ? __builtin_bit_cast(Float4, words_[n]) : source.widened(words_[n]);
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
template <int rows, int columns, int depth, int threads, class Left, class Right, class Memory>
void add_products(Patch<rows, columns, threads>& result, ColumnCarrier<rows, depth, threads>& a,
                  const Left& a_source, ColumnCarrier<columns, depth, threads>& b,
                  const Right& b_source, float factor, Memory& memory) {
  const int width = a_source.columns;
  a.load(a_source, 0);
  b.load(b_source, 0);
  _Pragma("clang loop unroll(disable)") for (int column = 0; column < width; column += depth) {
    SharedFloat* lines = memory.next();
    a.template store<false>(a_source, lines, factor);
    b.template store<false>(b_source, lines + a.numbers, factor);
    arch::barrier();
    if (column + depth < width) {
      a.load(a_source, column + depth);
      b.load(b_source, column + depth);
    }
    result.template add_product<depth>(lines, lines + a.numbers);
  }
}

// The same with A in registers and plain rows.
template <int rows, int columns, int depth, int threads, int count, class Memory>
void add_kept_products(Patch<rows, columns, threads>& result, const float (&a)[count],
                       ColumnCarrier<columns, depth, threads>& b, const RowSource& source,
                       float factor, Memory& memory) {
  const int width = source.columns;
  b.load_plain(0);
  ROCFLASH_UNROLL
  for (int column = 0; column < 4 * count; column += depth) {
    if (column >= width) break;
    SharedFloat* lines = memory.next();
    b.template store<true>(source, lines, factor);
    arch::barrier();
    b.load_plain(column + depth < width ? column + depth : 0);
    result.template add_kept_product<depth>(a + column / 4, lines);
  }
}

// result += Aᵀ·B, A being lines in shared memory and B rows from `first` on, of which the carrier has
// loaded the first ones, all of them plain or as they come.
template <bool plain, int rows, int columns, int depth, int threads, class Source, class Memory>
void add_rows_as(Patch<rows, columns, threads>& result, const SharedFloat* a, int lines_of_a,
                 RowCarrier<columns, depth, threads>& b, const Source& b_source, std::int32_t first,
                 int column, Memory& memory) {
  _Pragma("clang loop unroll(disable)") for (int line = 0; line < lines_of_a; line += depth) {
    SharedFloat* lines = memory.next();
    b.template store<plain>(b_source, lines);
    arch::barrier();
    if constexpr (plain) {
      b.load_plain(b_source, first + line + depth, column);
    } else {
      if (line + depth < lines_of_a) b.load(b_source, first + line + depth, column);
    }
    result.template add_product<depth>(a + line * line_length(rows), lines);
  }
}
template <int rows, int columns, int depth, int threads, class Source, class Memory>
void add_rows(Patch<rows, columns, threads>& result, const SharedFloat* a, int lines_of_a,
              RowCarrier<columns, depth, threads>& b, const Source& b_source, std::int32_t first,
              int column, Memory& memory) {
  if (b_source.template plain<4>()) {
    add_rows_as<true>(result, a, lines_of_a, b, b_source, first, column, memory);
  } else {
    add_rows_as<false>(result, a, lines_of_a, b, b_source, first, column, memory);
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
