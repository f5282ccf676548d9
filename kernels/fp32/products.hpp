// Products of tiles on the FP32 path. A workgroup of 16x16 threads computes C += Aᵀ·B, with a few
// lines (rows of the depth) of A and B in shared memory. CDNA uses its f32 matrix instruction;
// elsewhere each thread adds outer products of its fragments. Shared memory is f32, whatever the
// tensor's dtype.
//
// Sums are accumulated line by line with one fused multiply-add each, also by the matrix
// instruction: two products of the same rows are bit-identical, wherever they are in a tile.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/elements.hpp"
#include "attention/quantized.hpp"
#include "attention/score_mod.hpp"
#include "attention/sequence.hpp"
#include "table/fp32.hpp"
#include "tile/vector.hpp"

namespace rocflash::kernel {

using SharedFloat = ROCFLASH_SHARED float;
using SharedFloat4 = ROCFLASH_SHARED Float4;

// Lines in shared memory are padded by four floats: transposing writes have fewer bank conflicts.
constexpr int line_length(int floats) { return floats + 4; }

// A thread's fragment of rows x columns results: four adjacent rows of every `together`, and four
// adjacent columns of every 64.
inline int thread_row() { return arch::thread() / 16; }
inline int thread_column() { return arch::thread() % 16; }
template <int rows, int columns, int threads = fp32_threads>
struct ThreadTile {
  static constexpr int together = threads / 4;  // rows
  static constexpr int own_rows = 4 * rows / together, own_quads = columns / 64,
                       own_columns = columns / 16;
  static constexpr int row(int i) { return i / 4 * together + i % 4; }  // from 4 thread_row() on
  static constexpr int column(int j) { return j / 4 * 64 + j % 4; }
  static int own_row(int i) { return row(i) + 4 * thread_row(); }
  static int own_column(int j) { return column(j) + 4 * thread_column(); }

  float at(int i, int j) const { return fragment_[vector(i, j)][element(i, j)]; }
  void set(int i, int j, float x) { fragment_[vector(i, j)][element(i, j)] = x; }

  // `depth` lines of A and B.
  template <int depth>
  void add_product(const SharedFloat* a, const SharedFloat* b) {
    constexpr int a_length = line_length(rows), b_length = line_length(columns);
    if constexpr (uses_mfma) {
      // 16x16 results at a time: the wave's rows in order and every fourth column, so that a lane
      // has four adjacent ones of each. Four lines, one per sixteen lanes.
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
            Float4& sums = fragment_[i * own_columns + j];
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
            Float4& sums = fragment_[i * own_quads + j];
            sums = __builtin_elementwise_fma(Float4(x[i / 4][i % 4]), y[j], sums);
          }
        }
      }
    }
  }

  // The same with A in registers: the lane's elements of Aᵀ, one for every four lines.
  template <int depth>
  void add_resident_product(const float* a, const SharedFloat* b) {
    static_assert(uses_mfma && own_rows == 4);
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
          fragment_[n] = Mma::multiply(a[d / Mma::depth], y[n % 4], fragment_[n]);
      }
    }
  }
  // Row and first line of A that a lane holds in registers.
  static int resident_row() { return 16 * arch::wave() + thread_column(); }
  static int resident_line() { return arch::lane() / 16; }

 private:
  static constexpr bool uses_mfma = has_fp32_mfma(this_family);
  // A vector holds four rows of a column, as in the MFMA layout, or four columns of a row.
  static constexpr int vector(int i, int j) {
    return uses_mfma ? i / 4 * own_columns + j : i * own_quads + j / 4;
  }
  static constexpr int element(int i, int j) { return uses_mfma ? i % 4 : j % 4; }

  Float4 fragment_[own_rows * own_quads] = {};
};

// Rows of one (batch, head) slice, counted from the first one in use.
class RowSource {
 public:
  using Row = const std::byte*;

  // `width`: columns in use, the same for several tensors.
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

  // Aligned f32 rows allow branch-free vector loads of `depth` columns, which pays where MFMAs make
  // the products fast. Rows out of bounds are then clamped to the last one: their results are not
  // used.
  template <int depth>
  bool is_vectorizable() const {
    return has_fp32_mfma(this_family) && loads_.is_f32_vector() && columns % depth == 0;
  }
  const std::byte* clamped_row(std::int32_t index) const {
    return base_ + (index < count_ ? index : count_ - 1) * stride_;
  }
  static Words4 load_vector(const std::byte* row, int column) {
    return QuadLoads::load_vector(row, column);
  }

 protected:
  std::int32_t count_;

 private:
  QuadLoads loads_;
  const std::byte* base_;
  std::int64_t stride_;
};

// The same for K and V, which may be paged and have a dtype of their own.
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
  bool is_vectorizable() const {
    return !paged_ && RowSource::is_vectorizable<depth>();
  }
  const std::byte* row(std::int32_t index) const {
    if (!paged_ || index >= count_) return RowSource::row(index);
    const Rows& rows = arch::reload_kernargs(rows_);
    return key_row(rows, rows.dtype, arch::reload_kernargs(a_).caches, sequence_.batch,
                   sequence_.k_row + index, head_);
  }

 private:
  const ForwardArguments& a_;
  const Rows& rows_;
  const SequenceView& sequence_;
  std::int64_t head_;
  bool paged_;
};

// Quantized K or V, paged or not. A row is selected with its scale, which travels with the codes.
class QuantizedSource {
 public:
  struct Row {
    const std::byte* data = nullptr;
    float scale = 0;
  };

  QuantizedSource(const ForwardArguments& a, const Rows& rows, const Descale& descale, int width,
                  const SequenceView& sequence, std::int64_t head, CodeValues values)
      : columns(width),
        a_(a),
        rows_(rows),
        descale_(descale),
        sequence_(sequence),
        head_(head),
        values_(values) {}

  int columns;

  template <int depth>
  bool is_vectorizable() const {
    return false;
  }
  // Null for rows that are not in use.
  Row row(std::int32_t index) const {
    if (index >= sequence_.sk) return {};
    const Rows& rows = arch::reload_kernargs(rows_);
    const std::int32_t caches = arch::reload_kernargs(a_).caches;
    const std::int64_t at = sequence_.k_row + index;
    return {row_address(rows, caches, sequence_.batch, at, head_),
            scale_of(arch::reload_kernargs(descale_), rows, caches, sequence_.batch, at, head_)};
  }
  // Four codes in the first word, and the scale in the second.
  Words4 load(Row row, int column) const {
    Words4 words = {};
    if (row.data == nullptr) return words;
    words.y = __builtin_bit_cast(std::uint32_t, row.scale);
    const std::byte* from = row.data + column;
    if (column + 4 <= columns && reinterpret_cast<std::uintptr_t>(from) % 4 == 0) {
      words.x = arch::load(reinterpret_cast<const std::uint32_t*>(from));
      return words;
    }
    ROCFLASH_UNROLL
    for (int e = 0; e < 4; ++e) {
      if (column + e >= columns) break;
      const std::uint32_t code = arch::load(reinterpret_cast<const std::uint8_t*>(from) + e);
      words.x |= code << (8 * e);
    }
    return words;
  }
  Float4 widened(Words4 words) const {
    const std::uint32_t scale = words.y;  // bit_cast of a vector's element reads its first one
    return decode_quad(values_, words.x) * __builtin_bit_cast(float, scale);
  }

 private:
  const ForwardArguments& a_;
  const Rows& rows_;
  const Descale& descale_;
  const SequenceView& sequence_;
  std::int64_t head_;
  CodeValues values_;
};

// The source of K and V.
template <bool quantized>
struct KeySource : PagedSource {
  using Staged = RowSource;
  KeySource(const ForwardArguments& a, const Rows& rows, const Descale&, int width,
            const SequenceView& sequence, std::int64_t head, CodeValues)
      : PagedSource(a, rows, width, sequence, head) {}
};
template <>
struct KeySource<true> : QuantizedSource {
  using Staged = QuantizedSource;
  using QuantizedSource::QuantizedSource;
};

// Register staging of `depth` columns of `tile_rows` rows: each column becomes a line in shared
// memory.
template <int tile_rows, int depth, int threads = fp32_threads, class Staged = RowSource>
class Fp32ColumnStaging {
  using Row = typename Staged::Row;
  static constexpr int quads = depth / 4, together = threads / quads;
  static constexpr int rounds = (tile_rows + together - 1) / together;

 public:
  static constexpr int floats = depth * line_length(tile_rows);

  // Selects the rows from `first` on.
  template <class Source>
  void select_rows(const Source& source, std::int32_t first) {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) row_[n] = in_bounds(n) ? source.row(first + offset(n)) : Row{};
  }
  template <class Source>
  void select_clamped_rows(const Source& source, std::int32_t first) {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) row_[n] = source.clamped_row(first + offset(n));
  }
  // Bounds are computed again for each load (opaque_thread): hoisted out of the loops, the
  // conditions would fill the SGPRs.
  void load(const Staged& source, int column) {
    const int own = 4 * (arch::opaque_thread() % quads);
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) words_[n] = source.load(row_[n], column + own);
  }
  void load_vectors(int column) {
    const int own = 4 * (arch::thread() % quads);
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) words_[n] = RowSource::load_vector(row_[n], column + own);
  }
  // Multiplied with `factor`.
  template <bool vectorized>
  void store(const Staged& source, SharedFloat* lines, float factor) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      if (!in_bounds(n)) continue;
      SharedFloat* to = lines + 4 * (arch::thread() % quads) * line_length(tile_rows) + offset(n);
      const Float4 four =
          vectorized ? __builtin_bit_cast(Float4, words_[n]) : source.widened(words_[n]);
      ROCFLASH_UNROLL
      for (int e = 0; e < 4; ++e) to[e * line_length(tile_rows)] = four[e] * factor;
    }
  }

 private:
  static int offset(int n) { return arch::thread() / quads + n * together; }
  static bool in_bounds(int n) { return tile_rows % together == 0 || offset(n) < tile_rows; }

  Row row_[rounds];
  Words4 words_[rounds];
};

// Register staging of `depth` rows: each becomes a line of `columns` floats.
template <int columns, int depth, int threads = fp32_threads>
class Fp32RowStaging {
  static constexpr int quads = columns / 4, tasks = depth * quads;
  static constexpr int rounds = (tasks + threads - 1) / threads;

 public:
  static constexpr int floats = depth * line_length(columns);

  template <class Source>
  void load(const Source& source, std::int32_t first, int column) {
    const int thread = arch::opaque_thread();
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      const int task = thread + n * threads;
      if (tasks % threads == 0 || task < tasks)
        words_[n] = source.load(source.row(first + task / quads), column + 4 * (task % quads));
    }
  }
  // Issues the first loads of `add_rows`.
  template <class Source>
  void start(const Source& source, std::int32_t first, int column) {
    if (source.template is_vectorizable<4>()) {
      load_vectors(source, first, column);
    } else {
      load(source, first, column);
    }
  }
  // For a vectorizable source; the `columns` elements from `column` on may exceed the row.
  template <class Source>
  void load_vectors(const Source& source, std::int32_t first, int column) {
    const int thread = arch::thread();
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      const int task = thread + n * threads, own = column + 4 * (task % quads);
      words_[n] = RowSource::load_vector(source.clamped_row(first + task / quads),
                                         own < source.columns ? own : 0);
    }
  }
  template <bool vectorized, class Source>
  void store(const Source& source, SharedFloat* lines) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < rounds; ++n) {
      const int task = arch::thread() + n * threads;
      if (tasks % threads == 0 || task < tasks)
        *(SharedFloat4*)(lines + task / quads * line_length(columns) + 4 * (task % quads)) =
            vectorized ? __builtin_bit_cast(Float4, words_[n]) : source.widened(words_[n]);
    }
  }

 private:
  Words4 words_[rounds];
};

// A uniform interval from one computed in VGPRs: chunked attention divides 64-bit integers.
inline Span uniform_span(Range range) {
  const Span span = range;
  Span uniform;
  uniform.begin = arch::uniform(span.begin);
  uniform.end = arch::uniform(span.end);
  return uniform;
}

// Double buffer of lines in shared memory. One barrier between write and read suffices: a buffer is
// written again only after the barrier of the other one.
template <int floats>
class DoubleBuffer {
 public:
  explicit DoubleBuffer(SharedFloat (&memory)[2][floats]) : memory_(memory) {}
  SharedFloat* next() {
    buffer_ ^= 1;
    return memory_[buffer_];
  }

 private:
  SharedFloat (&memory_)[2][floats];
  int buffer_ = arch::to_vgpr(0);  // in a VGPR, as the addresses are
};

// result += A·Bᵀ over all columns of the rows that were selected. Both operands are multiplied with
// `factor` first.
template <int rows, int columns, int depth, int threads, class Left, class Right, class A, class B,
          class Memory>
void add_products(ThreadTile<rows, columns, threads>& result,
                  Fp32ColumnStaging<rows, depth, threads, A>& a, const Left& a_source,
                  Fp32ColumnStaging<columns, depth, threads, B>& b, const Right& b_source,
                  float factor, Memory& memory) {
  const int width = a_source.columns;
  a.load(a_source, 0);
  b.load(b_source, 0);
  _Pragma("clang loop unroll(disable)") for (int column = 0; column < width; column += depth) {
    SharedFloat* lines = memory.next();
    a.template store<false>(a_source, lines, factor);
    b.template store<false>(b_source, lines + a.floats, factor);
    arch::barrier();
    if (column + depth < width) {
      a.load(a_source, column + depth);
      b.load(b_source, column + depth);
    }
    result.template add_product<depth>(lines, lines + a.floats);
  }
}

// The same with A in registers and branch-free loads.
template <int rows, int columns, int depth, int threads, int count, class B, class Source,
          class Memory>
void add_resident_products(ThreadTile<rows, columns, threads>& result, const float (&a)[count],
                           Fp32ColumnStaging<columns, depth, threads, B>& b, const Source& source,
                           float factor, Memory& memory) {
  const int width = source.columns;
  b.load_vectors(0);
  ROCFLASH_UNROLL
  for (int column = 0; column < 4 * count; column += depth) {
    if (column >= width) break;
    SharedFloat* lines = memory.next();
    b.template store<true>(source, lines, factor);
    arch::barrier();
    b.load_vectors(column + depth < width ? column + depth : 0);
    result.template add_resident_product<depth>(a + column / 4, lines);
  }
}

// result += Aᵀ·B: A is in shared memory, B are rows from `first` on, whose first loads were issued.
template <bool vectorized, int rows, int columns, int depth, int threads, class Source,
          class Memory>
void add_rows_as(ThreadTile<rows, columns, threads>& result, const SharedFloat* a, int a_lines,
                 Fp32RowStaging<columns, depth, threads>& b, const Source& b_source,
                 std::int32_t first, int column, Memory& memory) {
  _Pragma("clang loop unroll(disable)") for (int line = 0; line < a_lines; line += depth) {
    SharedFloat* lines = memory.next();
    b.template store<vectorized>(b_source, lines);
    arch::barrier();
    if constexpr (vectorized) {
      b.load_vectors(b_source, first + line + depth, column);
    } else {
      if (line + depth < a_lines) b.load(b_source, first + line + depth, column);
    }
    result.template add_product<depth>(a + line * line_length(rows), lines);
  }
}
template <int rows, int columns, int depth, int threads, class Source, class Memory>
void add_rows(ThreadTile<rows, columns, threads>& result, const SharedFloat* a, int a_lines,
              Fp32RowStaging<columns, depth, threads>& b, const Source& b_source,
              std::int32_t first, int column, Memory& memory) {
  if (b_source.template is_vectorizable<4>()) {
    add_rows_as<true>(result, a, a_lines, b, b_source, first, column, memory);
  } else {
    add_rows_as<false>(result, a, a_lines, b, b_source, first, column, memory);
  }
}

// Reduction over the sixteen threads of a row of threads, with DPP row rotations; all get the
// result.
template <class Combine>
float reduce_16_lanes(float x, Combine combine) {
  x = combine(x, arch::row_ror<8>(x));
  x = combine(x, arch::row_ror<4>(x));
  x = combine(x, arch::row_ror<2>(x));
  return combine(x, arch::row_ror<1>(x));
}
inline float sum_16_lanes(float x) {
  return reduce_16_lanes(x, [](float a, float b) { return a + b; });
}
inline float max_16_lanes(float x) {
  return reduce_16_lanes(x, [](float a, float b) { return __builtin_fmaxf(a, b); });
}

}  // namespace rocflash::kernel
