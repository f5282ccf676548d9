// The products of attention in pairs of bf16 numbers (products.hpp says which there are).
#pragma once

#include "cpu/isa/tile.hpp"
#include "cpu/isa/tiles.hpp"

// Nameless, so that functions which are not inlined have no linkable copies (core/inline.hpp).
namespace rocflash::cpu::ROCFLASH_ISA {
namespace {

#if defined(__AVX512BF16__)
// Products of pairs of bf16 numbers: neighbouring columns, rows or lanes, whatever is summed over.
// Computed weights are rounded to bf16, as plain attention rounds them. With two planes every
// operand is a sum of two bf16 numbers, which an f16 number is exactly; the product of both lower
// parts is left out. Values that are infinite or NaN are weighed in f32, where weights of 0 can be
// skipped.
template <int vectors_, int planes>
class InPairs {
  using Words = std::uint32_t;

 public:
  static constexpr int vectors = vectors_, panel = vectors * width;
  using Exponent = QuickExponential;

  static constexpr bool packs = true;
#if defined(ROCFLASH_TILES)
  static constexpr int rows_together = most_rows_together;
#else
  static constexpr int rows_together = 2 * stream_rows;
#endif

  ROCFLASH_INLINE InPairs(Scratch& scratch, int most_columns)
      : packed_(take(scratch, most_rows_together, panel)),
        packed_lanes_(take(scratch, stream_rows, most_gradient_block)),
        spare_rows_(scratch.take(operand_floats(stream_rows, most_columns))),
        spare_lanes_(scratch.take(operand_floats(panel, most_columns))) {}

  // Where an operand came from, for the few that must be loaded again as floats.
  struct Origin {
    Origin() = default;
    ROCFLASH_INLINE Origin(const RowBlock& b)  // NOLINT: a block, kept
        : rows(&b.rows), batch(b.batch), begin(b.begin), head(b.head), count(b.count) {}
    ROCFLASH_INLINE RowBlock block(std::int64_t most) const {
      return {*rows, batch, begin, head, static_cast<int>(smaller(count, most))};
    }
    ROCFLASH_INLINE Origin from(std::int64_t row) const {
      Origin part = *this;
      part.begin += row;
      part.count -= static_cast<int>(row);
      return part;
    }
    const rocflash::Rows* rows = nullptr;
    std::int64_t batch = 0, begin = 0, head = 0;
    int count = 0;
  };

  // Words of one operand: a plane, or two.
  template <class Layout>
  struct Operand {
    Operand() = default;
    ROCFLASH_INLINE Operand(Layout layout, std::int64_t plane) : words(layout), plane_size(plane) {}
    ROCFLASH_INLINE Layout plane(int n) const {
      return {words.data + n * plane_size, words.stride};
    }
    Layout words;
    std::int64_t plane_size;
    Origin origin;
    bool finite = true;
  };

  // A(row, column / 2)
  struct Rows : Operand<LeftWords> {
    ROCFLASH_INLINE Rows(Scratch& scratch, int columns, int rows = stream_rows)
        : Operand<LeftWords>(
              {take(scratch, rows, columns), LeftWords::stride_for(in_vectors(columns, 2))},
              rows * in_vectors(columns, 2)) {}
    ROCFLASH_INLINE void load(const RowBlock& block) {
      this->origin = block;
      this->finite = load_row_words(*this, block);
    }
    ROCFLASH_INLINE Rows from(std::int64_t row) const {
      Rows part = *this;
      part.words = this->words.from(row, 0);
      part.origin = this->origin.from(row);
      return part;
    }
  };
  // A(column, row / 2)
  struct Values : Operand<LeftWords> {
    ROCFLASH_INLINE Values(Scratch& scratch, int columns, int rows = stream_rows)
        : Operand<LeftWords>({take(scratch, rows, columns), LeftWords::stride_for(rows / 2)},
                             in_vectors(columns, 1) * rows / 2) {}
    ROCFLASH_INLINE void load(const RowBlock& block) {
      this->origin = block;
      this->finite = load_transposed(*this, block);
    }
    ROCFLASH_INLINE Values from(std::int64_t row) const {
      Values part = *this;
      part.words = this->words.from(0, row / 2);
      part.origin = this->origin.from(row);
      return part;
    }
  };
  struct RowsAndValues : Rows, Values {
    ROCFLASH_INLINE RowsAndValues(Scratch& scratch, int columns)
        : Rows(scratch, columns), Values(scratch, columns) {}
    ROCFLASH_INLINE void load(const RowBlock& block) {
      Rows::load(block);
      Values::load(block);
    }
  };
  // B(column / 2, lane)
  struct InLanes : Operand<RightWords> {
    InLanes() = default;
    ROCFLASH_INLINE InLanes(Scratch& scratch, int columns)
        : Operand<RightWords>({take(scratch, panel, columns),
                               RightWords::stride_for(in_vectors(columns, 2), panel)},
                              in_vectors(columns, 2) * panel) {}
    ROCFLASH_INLINE void load(const RowBlock& block) {
      this->origin = block;
      this->finite = load_lane_pairs(*this, block);
    }
  };
  // B(row / 2, column)
  struct InColumns : Operand<RightWords> {
    ROCFLASH_INLINE InColumns(Scratch& scratch, int rows, int columns)
        : Operand<RightWords>({take(scratch, rows, columns),
                               RightWords::stride_for(rows / 2, 2 * in_vectors(columns, 2))},
                              rows * in_vectors(columns, 2)) {}
    ROCFLASH_INLINE void load(const RowBlock& block) {
      this->finite = load_row_pairs(*this, block);
    }
  };

  ROCFLASH_INLINE void score(const Rows& rows, std::int64_t count, const InLanes& lanes,
                             Panel<float> c) {
    // An infinite number times the other's lower part, which may be 0, would be NaN.
    if (planes == 2 && !(rows.finite && lanes.finite)) return score_in_float(rows, count, lanes, c);
    multiply<vectors, Into::overwrite>(
        count, (rows.origin.rows->columns + 1) / 2, [&](int n) { return rows.plane(n); },
        [&](int n) { return lanes.plane(n); }, c);
  }
  ROCFLASH_INLINE void weigh(const Values& values, std::int64_t count, Panel<const float> weights,
                             Panel<float> c, bool of_gradients = false) {
    // Gradients may be infinite; weights are not, but where lanes are not in use.
    if (!values.finite || (of_gradients && !can_split(weights, count, {0, panel})))
      return weigh_with_care(values, count, weights, c);
    for (std::int64_t n = 0; n < count; n += 2) {
      for (int m = 0; m < panel; m += width) {
        pack(n, m, load(weights.at(n, m).data),
             n + 1 < count ? load(weights.at(n + 1, m).data) : Float{});
      }
    }
    weigh_packed(values, {0, count}, c);
  }
  // The same in two steps, with room for the weights of `most_rows_together` rows. For finite
  // values.
  ROCFLASH_INLINE void pack(std::int64_t row, int lane, Float lower, Float upper) const {
    const Word pair = pair_up(lower, upper);
    store(packed_rows(0).at(row / 2, lane), pair);
    if constexpr (planes == 2) {
      store(packed_rows(1).at(row / 2, lane),
            pair_up(lower - (Float)(pair << 16), upper - (Float)(pair & 0xffff0000u)));
    }
  }
  // The packed rows begin with a whole tile.
  ROCFLASH_INLINE void weigh_packed(const Values& values, Range packed, Panel<float> c) {
    multiply<vectors, Into::add>(
        values.origin.rows->columns, (packed.size() + 1) / 2,
        [&](int n) { return values.plane(n); },
        [&](int n) { return packed_rows(n).from(packed.begin / 2, 0); }, c);
  }
  // Weights of two neighbouring vectors of lanes, for `spread_packed`.
  ROCFLASH_INLINE void pack_lanes(std::int64_t row, std::int64_t lane, Float first,
                                  Float second) const {
    Word w[planes];
    split(first, second, w);
    for (int i = 0; i < planes; ++i) store(packed_lanes(i).at(row, lane / 2), w[i]);
  }
  ROCFLASH_INLINE void spread(Panel<const float> weights, std::int64_t count, Range lanes,
                              const InColumns& values, const RowBlock& block, Panel<float> c) {
    if (!values.finite || !can_split(weights, count, lanes))
      return spread_with_care(weights, count, lanes, block, c);
    for (std::int64_t n = 0; n < count; ++n) {
      // Panels are at least one vector wide; a second one exists where it has lanes.
      for (std::int64_t m = lanes.begin; m < lanes.end; m += 2 * width) {
        pack_lanes(n, m, load(weights.at(n, m).data),
                   m + width < lanes.end ? load(weights.at(n, m + width).data) : Float{});
      }
    }
    spread_packed(count, lanes, values, block.rows.columns, c);
  }
  ROCFLASH_INLINE void spread_packed(std::int64_t count, Range lanes, const InColumns& values,
                                     int columns, Panel<float> c) {
    over_columns(columns, [&]<int wide>(int at) {
      multiply<wide, Into::add>(
          count, (lanes.size() + 1) / 2,
          [&](int n) { return packed_lanes(n).from(0, lanes.begin / 2); },
          [&](int n) { return values.plane(n).from(lanes.begin / 2, at); }, c.at(0, at));
    });
  }

 private:
  ROCFLASH_INLINE static Words* take(Scratch& scratch, int rows, int columns) {
    return reinterpret_cast<Words*>(scratch.take(operand_floats(rows, columns)));
  }
  // Numbers, `each` to a word, in whole vectors of words.
  ROCFLASH_INLINE static constexpr std::int64_t in_vectors(std::int64_t numbers, int each) {
    return (numbers + each * width - 1) / (each * width) * width;
  }
  // Of numbers as they are in the tensors.
  struct Magnitude {
    __m512i bits = _mm512_setzero_si512();

    ROCFLASH_INLINE void see(Word numbers) {
      bits = _mm512_max_epu16(bits, (__m512i)(numbers & 0x7fff7fffu));
    }
    ROCFLASH_INLINE bool finite() const {
      constexpr short infinite = planes == 1 ? 0x7f80 : 0x7c00;
      return _mm512_cmpge_epu16_mask(bits, _mm512_set1_epi16(infinite)) == 0;
    }
  };

  struct AsPairs {
    ROCFLASH_INLINE static Float round(Float weight) {
      return planes == 1 ? from_bf16(to_bf16(weight)) : weight;
    }
  };
  // Infinite weights cannot be split: their products with the values' lower parts, which may be 0,
  // would be NaN.
  ROCFLASH_INLINE static bool can_split(Panel<const float> weights, std::int64_t count,
                                        Range lanes) {
    if constexpr (planes == 1) return true;
    Float taint{};
    for (std::int64_t n = 0; n < count; ++n)
      for (std::int64_t m = lanes.begin; m < lanes.end; m += width)
        taint = fused(load(weights.at(n, m).data), Float{}, taint);
    return !any_nan(taint);
  }
  // The bf16 part of numbers, and that of what is left of them without it.
  ROCFLASH_INLINE static void split(Float a, Float b, Word (&to)[planes]) {
    to[0] = side_by_side(a, b);
    if constexpr (planes == 2) {
      Short half[2];
      __builtin_memcpy(half, &to[0], sizeof half);
      to[1] = side_by_side(a - from_bf16(half[0]), b - from_bf16(half[1]));
    }
  }
  // 2 * width columns of a row from `from` on, of which there are `left`; 0 beyond them.
  ROCFLASH_INLINE static void load_pairs(const std::byte* from, int left, Word (&to)[planes],
                                         Magnitude& largest) {
    Word numbers;
    if (left >= 2 * width) {
      numbers = load_as<Word>(from);
    } else {
      std::uint16_t some[2 * width] = {};
      __builtin_memcpy(some, from, 2 * static_cast<std::size_t>(left));
      numbers = load_as<Word>(some);
    }
    largest.see(numbers);
    if constexpr (planes == 1) {
      to[0] = numbers;
    } else {
      Half half[2];
      __builtin_memcpy(half, &numbers, sizeof half);
      split(__builtin_convertvector(half[0], Float), __builtin_convertvector(half[1], Float), to);
    }
  }

  // These four return whether all numbers are finite.
  [[gnu::noinline]] static bool load_row_words(const Rows& to, const RowBlock& block) {
    Magnitude largest;
    const int columns = block.rows.columns;
    for (int n = 0; n < block.count; ++n) {
      const std::byte* row = block.row(n);
      for (int c = 0; c < columns; c += 2 * width) {
        Word w[planes];
        load_pairs(row + 2 * c, columns - c, w, largest);
        for (int i = 0; i < planes; ++i) store(to.plane(i).at(n, c / 2), w[i]);
      }
    }
    return largest.finite();
  }
  // Rows 2n and 2n + 1, number by number; 0 for a row that is not there.
  [[gnu::noinline]] static bool load_row_pairs(const InColumns& to, const RowBlock& block) {
    Magnitude largest;
    const int columns = block.rows.columns;
    for (int n = 0; n < block.count; n += 2) {
      const std::byte *lower = block.row(n),
                      *upper = n + 1 < block.count ? block.row(n + 1) : nullptr;
      for (int c = 0; c < columns; c += 2 * width) {
        Word a[planes], b[planes] = {};
        load_pairs(lower + 2 * c, columns - c, a, largest);
        if (upper) load_pairs(upper + 2 * c, columns - c, b, largest);
        for (int i = 0; i < planes; ++i) {
          store(to.plane(i).at(n / 2, c), pair_first(a[i], b[i]));
          store(to.plane(i).at(n / 2, c + width), pair_second(a[i], b[i]));
        }
      }
    }
    return largest.finite();
  }
  [[gnu::noinline]] static bool load_transposed(const Values& to, const RowBlock& block) {
    Magnitude largest;
    const int columns = block.rows.columns;
    for (int first = 0; first < block.count; first += 2 * width) {
      const LaneRows lower(block, first), upper(block, first + width);
      const auto row = [&](int n) -> const std::byte* {
        if (n < width) return n < lower.count ? lower.row[n] : nullptr;
        return n - width < upper.count ? upper.row[n - width] : nullptr;
      };
      for (int c = 0; c < columns; c += 2 * width) {
        Word first_half[planes][width], second_half[planes][width];
        for (int n = 0; n < width; ++n) {
          Word a[planes] = {}, b[planes] = {};
          if (row(2 * n)) load_pairs(row(2 * n) + 2 * c, columns - c, a, largest);
          if (row(2 * n + 1)) load_pairs(row(2 * n + 1) + 2 * c, columns - c, b, largest);
          for (int i = 0; i < planes; ++i) {
            first_half[i][n] = pair_first(a[i], b[i]);
            second_half[i][n] = pair_second(a[i], b[i]);
          }
        }
        for (int i = 0; i < planes; ++i) {
          const auto put = [&](Word(&v)[width], int begin) {
            if (begin >= columns) return;
            transpose(v);
            for (int n = 0; n < smaller(width, columns - begin); ++n)
              store(to.plane(i).at(begin + n, first / 2), v[n]);
          };
          put(first_half[i], c);
          put(second_half[i], c + width);
        }
      }
    }
    return largest.finite();
  }
  [[gnu::noinline]] static bool load_lane_pairs(const InLanes& to, const RowBlock& block) {
    Magnitude largest;
    const int columns = block.rows.columns, pairs = (columns + 1) / 2;
    for (int first = 0; first < panel; first += width) {
      const LaneRows rows(block, first);
      for (int c = 0; c < pairs; c += width) {
        Word v[planes][width];
        for (int n = 0; n < width; ++n) {
          Word w[planes] = {};
          if (n < rows.count) load_pairs(rows.row[n] + 4 * c, columns - 2 * c, w, largest);
          for (int i = 0; i < planes; ++i) v[i][n] = w[i];
        }
        for (int i = 0; i < planes; ++i) {
          transpose(v[i]);
          for (int n = 0; n < smaller(width, pairs - c); ++n)
            store(to.plane(i).at(c + n, first), v[i][n]);
        }
      }
    }
    return largest.finite();
  }

  [[gnu::noinline]] void score_in_float(const Rows& rows, std::int64_t count, const InLanes& lanes,
                                        Panel<float> c) {
    const int columns = rows.origin.rows->columns;
    load_rows(spare_rows_, padded(columns), rows.origin.block(count));
    load_lanes(spare_lanes_, panel, lanes.origin.block(panel));
    gemm<vectors, Into::overwrite>(count, columns, {spare_rows_, padded(columns), 1},
                                   Panel<const float>{spare_lanes_, panel}, c);
  }

  [[gnu::noinline]] void weigh_with_care(const Values& values, std::int64_t count,
                                         Panel<const float> weights, Panel<float> c) {
    const int columns = values.origin.rows->columns;
    load_rows(spare_rows_, padded(columns), values.origin.block(count));
    gemm_skipping_zeros<vectors, Weights::right, AsPairs>(
        columns, count, {spare_rows_, 1, padded(columns)}, weights, c);
  }

  // Computed weights: B(row / 2, lane), and A(row, lane / 2).
  ROCFLASH_INLINE RightWords packed_rows(int plane) const {
    constexpr std::int64_t pairs = most_rows_together / 2;
    return {packed_ + plane * pairs * panel, RightWords::stride_for(pairs, panel)};
  }
  ROCFLASH_INLINE LeftWords packed_lanes(int plane) const {
    constexpr std::int64_t pairs = most_gradient_block / 2;
    return {packed_lanes_ + plane * stream_rows * pairs, LeftWords::stride_for(pairs)};
  }

  [[gnu::noinline]] void spread_with_care(Panel<const float> weights, std::int64_t count,
                                          Range lanes, const RowBlock& block, Panel<float> c) {
    const std::int64_t stride = padded(block.rows.columns);
    for (std::int64_t n = lanes.begin; n < lanes.end; n += stream_rows) {
      const RowBlock part{block.rows, block.batch, block.begin + n, block.head,
                          static_cast<int>(smaller(stream_rows, lanes.end - n))};
      load_rows(spare_rows_, stride, part);
      over_columns(block.rows.columns, [&]<int wide>(int at) {
        gemm_skipping_zeros<wide, Weights::left, AsPairs>(
            count, part.count, {weights.at(0, n).data, weights.stride, 1},
            Panel<const float>{spare_rows_, stride}.at(0, at), c.at(0, at));
      });
    }
  }

  // The planes' products, but for that of both lower ones.
  template <int wide, Into into, class Left, class Right>
  ROCFLASH_INLINE void multiply(std::int64_t n, std::int64_t k, Left left, Right right,
                                Panel<float> c) {
#if defined(ROCFLASH_TILES)
    if constexpr (planes == 1) {
      gemm_tiles<wide, into, 1>(tiles_, n, k, {{left(0), right(0)}}, c);
    } else {
      gemm_tiles<wide, into, 3>(tiles_, n, k,
                                {{left(0), right(0)}, {left(0), right(1)}, {left(1), right(0)}}, c);
    }
#else
    static_assert(planes == 1, "without tiles, f16 is faster in f32");
    gemm<wide, into, Sums::whole, Words>(n, k, {left(0).data, left(0).stride, 1},
                                         {right(0).data, right(0).stride}, c);
#endif
  }

  Words *packed_, *packed_lanes_;
  float *spare_rows_, *spare_lanes_;
#if defined(ROCFLASH_TILES)
  TileRegisters tiles_;
#endif
};
#endif

}  // namespace
}  // namespace rocflash::cpu::ROCFLASH_ISA
