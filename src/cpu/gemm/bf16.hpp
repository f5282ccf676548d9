// The GEMMs of attention on bf16 pairs (f32.hpp lists them), on vector dot products or AMX.
#pragma once

#include "cpu/gemm/nonfinite.hpp"

// An unnamed namespace, so that non-inlined functions have no linkable copies (core/inline.hpp).
namespace rocflash::cpu::ROCFLASH_ISA {
namespace {

template <class, class>
inline constexpr bool is_same = false;
template <class Type>
inline constexpr bool is_same<Type, Type> = true;

// GEMMs on pairs of bf16 elements that are adjacent along the summed dimension. Weights are rounded
// to bf16, as in naive attention. With two layers each operand is a sum of two bf16 values, which
// represents f16 exactly; the product of both lower layers is omitted. Infinities and NaNs are
// added in f32 (nonfinite.hpp).
template <int vectors_, int layers, class Engine>
class Bf16PairGemm {
  using Words = std::uint32_t;
  using LeftWords = typename Engine::LeftWords;
  using RightWords = typename Engine::RightWords;

 public:
  static constexpr int vectors = vectors_, panel = vectors * width;
  using Exponent = QuickExponential;

  static constexpr bool packs = true;
  static constexpr int rows_together = Engine::rows_together;

  ROCFLASH_INLINE Bf16PairGemm(Scratch& scratch, int max_columns)
      : packed_(take(scratch, max_rows_together, panel)),
        packed_lanes_(take(scratch, stream_rows, max_gradient_block)),
        spare_rows_(scratch.take(operand_floats(stream_rows, max_columns))),
        spare_lanes_(scratch.take(operand_floats(panel, max_columns))) {}

  // The words of one operand: one layer or two.
  template <class Layout>
  struct Operand {
    Operand() = default;
    ROCFLASH_INLINE Operand(Layout layout, std::int64_t layer) : words(layout), layer_size(layer) {}
    ROCFLASH_INLINE Layout layer(int n) const {
      return {words.data + n * layer_size, words.stride};
    }
    Layout words;
    std::int64_t layer_size;
    Origin origin;
    float factor = 1.0f;  // power of two by which the elements were multiplied
    bool finite = true;
  };

  // A(row, column / 2)
  struct Rows : Operand<LeftWords> {
    ROCFLASH_INLINE Rows(Scratch& scratch, int columns, int rows = stream_rows)
        : Operand<LeftWords>(
              {take(scratch, rows, columns), LeftWords::stride_for(in_vectors(columns, 2))},
              rows * in_vectors(columns, 2)) {}
    ROCFLASH_INLINE void load(const RowBlock& block, float by = 1.0f) {
      this->origin = block;
      this->factor = by;
      load_operand(*this, layers == 2,
                   [&](auto take) { return load_row_words(*this, block, take); });
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
    ROCFLASH_INLINE void load(const RowBlock& block, float by = 1.0f) {
      this->origin = block;
      this->factor = by;
      load_operand(*this, true, [&](auto take) { return load_transposed(*this, block, take); });
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
    ROCFLASH_INLINE void load(const RowBlock& block, float by = 1.0f) {
      Rows::load(block, by);
      Values::load(block, by);
    }
  };
  // B(column / 2, lane)
  struct LaneOperand : Operand<RightWords> {
    LaneOperand() = default;
    ROCFLASH_INLINE LaneOperand(Scratch& scratch, int columns)
        : Operand<RightWords>({take(scratch, panel, columns),
                               RightWords::stride_for(in_vectors(columns, 2), panel)},
                              in_vectors(columns, 2) * panel) {}
    ROCFLASH_INLINE void load(const RowBlock& block, float by = 1.0f) {
      this->origin = block;
      this->factor = by;
      load_operand(*this, layers == 2,
                   [&](auto take) { return load_lane_pairs(*this, block, take); });
    }
  };
  // B(row / 2, column)
  struct ColumnOperand : Operand<RightWords> {
    ROCFLASH_INLINE ColumnOperand(Scratch& scratch, int rows, int columns)
        : Operand<RightWords>({take(scratch, rows, columns),
                               RightWords::stride_for(rows / 2, 2 * in_vectors(columns, 2))},
                              rows * in_vectors(columns, 2)) {}
    ROCFLASH_INLINE void load(const RowBlock& block, float by = 1.0f) {
      this->factor = by;
      load_operand(*this, true, [&](auto take) { return load_row_pairs(*this, block, take); });
    }
  };

  ROCFLASH_INLINE void score(const Rows& rows, std::int64_t count, const LaneOperand& lanes,
                             Panel<float> c) {
    multiply<vectors, Into::overwrite>(
        count, (rows.origin.rows->columns + 1) / 2, [&](int n) { return rows.layer(n); },
        [&](int n) { return lanes.layer(n); }, c);
    // An infinity times a lower layer of 0 would be NaN, so two layers hold finite elements only.
    if (layers == 2 && !(rows.finite && lanes.finite)) add_nonfinite_scores(rows, count, lanes, c);
  }
  ROCFLASH_INLINE void accumulate(const Values& values, std::int64_t count,
                                  Panel<const float> weights, Panel<float> c,
                                  bool of_gradients = false) {
    // Gradients may be infinite; weights only in unused lanes.
    const bool whole = !of_gradients || can_split(weights, count, {0, panel});
    const auto weight = [&](std::int64_t n, int m) {
      return n < count ? finite_part(load(weights.at(n, m).data), whole) : Float{};
    };
    for (std::int64_t n = 0; n < count; n += 2)
      for (int m = 0; m < panel; m += width) pack(n, m, weight(n, m), weight(n + 1, m));
    multiply_packed(values, {0, count}, c);
    if (!values.finite || !whole) add_nonfinite_values(values, count, weights, c);
  }
  // The same in two steps: packs up to `max_rows_together` rows of weights, finite or NaN.
  ROCFLASH_INLINE void pack(std::int64_t row, int lane, Float lower, Float upper) const {
    const Word pair = pair_up(lower, upper);
    store(packed_rows(0).at(row / 2, lane), pair);
    if constexpr (layers == 2) {
      store(packed_rows(1).at(row / 2, lane),
            pair_up(lower - (Float)(pair << 16), upper - (Float)(pair & 0xffff0000u)));
    }
  }
  // Packed rows begin at a tile boundary.
  ROCFLASH_INLINE void accumulate_packed(const Values& values, Range packed, Panel<float> c) {
    multiply_packed(values, packed, c);
    if (!values.finite) add_nonfinite_packed(values, packed, c);
  }
  // The same for weights that may be infinite; only their `finite_part` was packed.
  ROCFLASH_INLINE void accumulate_packed(const Values& values, Range packed,
                                         Panel<const float> weights, Panel<float> c) {
    multiply_packed(values, packed, c);
    add_nonfinite_values(values, packed.size(), weights, c);
  }
  // Packs weights of two adjacent vectors of lanes for `reduce_lanes_packed`.
  ROCFLASH_INLINE void pack_lanes(std::int64_t row, std::int64_t lane, Float first,
                                  Float second) const {
    Word w[layers];
    split(first, second, w);
    for (int i = 0; i < layers; ++i) store(packed_lanes(i).at(row, lane / 2), w[i]);
  }
  ROCFLASH_INLINE void reduce_lanes(Panel<const float> weights, std::int64_t count, Range lanes,
                                    const ColumnOperand& values, const RowBlock& block,
                                    Panel<float> c) {
    const bool whole = can_split(weights, count, lanes);
    const auto weight = [&](std::int64_t n, std::int64_t m) {
      return m < lanes.end ? finite_part(load(weights.at(n, m).data), whole) : Float{};
    };
    for (std::int64_t n = 0; n < count; ++n) {
      // Panels are at least one vector wide; the second one exists if it has lanes.
      for (std::int64_t m = lanes.begin; m < lanes.end; m += 2 * width)
        pack_lanes(n, m, weight(n, m), weight(n, m + width));
    }
    multiply_lanes(count, lanes, values, block.rows.columns, c);
    if (!values.finite || !whole) add_nonfinite_lanes(weights, count, lanes, block, c);
  }
  ROCFLASH_INLINE void reduce_lanes_packed(std::int64_t count, Range lanes,
                                           const ColumnOperand& values, int columns,
                                           Panel<float> c) {
    multiply_lanes(count, lanes, values, columns, c);
  }
  ROCFLASH_INLINE void reduce_lanes_packed(std::int64_t count, Range lanes,
                                           const ColumnOperand& values, const RowBlock& block,
                                           Panel<const float> weights, Panel<float> c) {
    multiply_lanes(count, lanes, values, block.rows.columns, c);
    add_nonfinite_lanes(weights, count, lanes, block, c);
  }

  // The part of the weights that layers can represent if some are not finite.
  ROCFLASH_INLINE static Float finite_part(Float weight, bool whole) {
    return whole ? weight : select(nan_unless_finite(weight) == 0.0f, weight, Float{});
  }

 private:
  ROCFLASH_INLINE void multiply_packed(const Values& values, Range packed, Panel<float> c) {
    multiply<vectors, Into::add>(
        values.origin.rows->columns, (packed.size() + 1) / 2,
        [&](int n) { return values.layer(n); },
        [&](int n) { return packed_rows(n).from(packed.begin / 2, 0); }, c);
  }
  ROCFLASH_INLINE void multiply_lanes(std::int64_t count, Range lanes, const ColumnOperand& values,
                                      int columns, Panel<float> c) {
    over_columns(columns, [&]<int wide>(int at) {
      multiply<wide, Into::add>(
          count, (lanes.size() + 1) / 2,
          [&](int n) { return packed_lanes(n).from(0, lanes.begin / 2); },
          [&](int n) { return values.layer(n).from(lanes.begin / 2, at); }, c.at(0, at));
    });
  }

  ROCFLASH_INLINE static Words* take(Scratch& scratch, int rows, int columns) {
    return reinterpret_cast<Words*>(scratch.take(operand_floats(rows, columns)));
  }
  // Words of `numbers` elements, `each` per word, rounded up to vectors.
  ROCFLASH_INLINE static constexpr std::int64_t in_vectors(std::int64_t numbers, int each) {
    return (numbers + each * width - 1) / (each * width) * width;
  }
  // The largest magnitude of tensor elements.
  struct Magnitude {
    Word bits{};

    ROCFLASH_INLINE void update(Word numbers) { bits = larger_halves(bits, numbers & 0x7fff7fffu); }
    ROCFLASH_INLINE bool finite() const {
      constexpr std::uint16_t infinite = layers == 1 ? 0x7f80 : 0x7c00;
      return !any_half_from(bits, infinite);
    }
  };

  // Infinite weights cannot be split into layers: times a lower layer of 0 they would be NaN.
  ROCFLASH_INLINE static bool can_split(Panel<const float> weights, std::int64_t count,
                                        Range lanes) {
    if constexpr (layers == 1) return true;
    Float taint{};
    for (std::int64_t n = 0; n < count; ++n)
      for (std::int64_t m = lanes.begin; m < lanes.end; m += width)
        taint = fused(load(weights.at(n, m).data), Float{}, taint);
    return !any_nan(taint);
  }
  // Rounds to bf16, and the remainder to the second layer.
  ROCFLASH_INLINE static void split(Float a, Float b, Word (&to)[layers]) {
    to[0] = pack_bf16(a, b);
    if constexpr (layers == 2) {
      Short half[2];
      __builtin_memcpy(half, &to[0], sizeof half);
      to[1] = pack_bf16(a - from_bf16(half[0]), b - from_bf16(half[1]));
    }
  }
  // Conversion on load: none, or scaled by a power of two with non-finite elements cleared.
  struct Unchanged {};
  struct Scaled {
    float factor;
    bool cleared;
    ROCFLASH_INLINE Float operator()(Float x) const {
      x *= factor;
      return cleared ? select(nan_unless_finite(x) == 0.0f, x, Float{}) : x;
    }
  };
  // Loads an operand; `cleared`: with 0 for non-finite elements.
  template <class Operand_, class Load>
  ROCFLASH_INLINE static void load_operand(Operand_& to, bool cleared, Load load_with) {
    to.finite = to.factor == 1.0f ? load_with(Unchanged{}) : load_with(Scaled{to.factor, false});
    if (!to.finite && cleared) load_with(Scaled{to.factor, true});
  }
  // Loads 2 * width columns of a row, of which `left` exist; 0 past them.
  template <class Take>
  ROCFLASH_INLINE static void load_pairs(const std::byte* from, int left, Word (&to)[layers],
                                         Magnitude& largest, Take take_as) {
    Word numbers;
    if (left >= 2 * width) {
      numbers = load_as<Word>(from);
    } else {
      std::uint16_t some[2 * width] = {};
      __builtin_memcpy(some, from, 2 * static_cast<std::size_t>(left));
      numbers = load_as<Word>(some);
    }
    largest.update(numbers);
    constexpr bool changes = !is_same<Take, Unchanged>;
    if constexpr (layers == 1) {
      to[0] = numbers;
      if constexpr (changes) {
        const Float lower = take_as((Float)(numbers << 16)),
                    upper = take_as((Float)(numbers & 0xffff0000u));
        to[0] = ((Word)lower >> 16) | ((Word)upper & 0xffff0000u);
      }
    } else {
      Half half[2];
      __builtin_memcpy(half, &numbers, sizeof half);
      Float a = __builtin_convertvector(half[0], Float),
            b = __builtin_convertvector(half[1], Float);
      if constexpr (changes) {
        a = take_as(a);
        b = take_as(b);
      }
      split(a, b, to);
    }
  }

  // These four return whether all elements are finite.
  template <class Take>
  [[gnu::noinline]] static bool load_row_words(const Rows& to, const RowBlock& block,
                                               Take take_as) {
    Magnitude largest;
    const int columns = block.rows.columns;
    for (int n = 0; n < block.count; ++n) {
      const std::byte* row = block.row(n);
      for (int c = 0; c < columns; c += 2 * width) {
        Word w[layers];
        load_pairs(row + 2 * c, columns - c, w, largest, take_as);
        for (int i = 0; i < layers; ++i) store(to.layer(i).at(n, c / 2), w[i]);
      }
    }
    return largest.finite();
  }
  // Interleaves rows 2n and 2n + 1; 0 for a missing row.
  template <class Take>
  [[gnu::noinline]] static bool load_row_pairs(const ColumnOperand& to, const RowBlock& block,
                                               Take take_as) {
    Magnitude largest;
    const int columns = block.rows.columns;
    for (int n = 0; n < block.count; n += 2) {
      const std::byte *lower = block.row(n),
                      *upper = n + 1 < block.count ? block.row(n + 1) : nullptr;
      for (int c = 0; c < columns; c += 2 * width) {
        Word a[layers], b[layers] = {};
        load_pairs(lower + 2 * c, columns - c, a, largest, take_as);
        if (upper) load_pairs(upper + 2 * c, columns - c, b, largest, take_as);
        for (int i = 0; i < layers; ++i) {
          store(to.layer(i).at(n / 2, c), pair_first(a[i], b[i]));
          store(to.layer(i).at(n / 2, c + width), pair_second(a[i], b[i]));
        }
      }
    }
    return largest.finite();
  }
  template <class Take>
  [[gnu::noinline]] static bool load_transposed(const Values& to, const RowBlock& block,
                                                Take take_as) {
    Magnitude largest;
    const int columns = block.rows.columns;
    for (int first = 0; first < block.count; first += 2 * width) {
      const LaneRows lower(block, first), upper(block, first + width);
      const auto row = [&](int n) -> const std::byte* {
        if (n < width) return n < lower.count ? lower.row[n] : nullptr;
        return n - width < upper.count ? upper.row[n - width] : nullptr;
      };
      for (int c = 0; c < columns; c += 2 * width) {
        Word first_half[layers][width], second_half[layers][width];
        for (int n = 0; n < width; ++n) {
          Word a[layers] = {}, b[layers] = {};
          if (row(2 * n)) load_pairs(row(2 * n) + 2 * c, columns - c, a, largest, take_as);
          if (row(2 * n + 1)) load_pairs(row(2 * n + 1) + 2 * c, columns - c, b, largest, take_as);
          for (int i = 0; i < layers; ++i) {
            first_half[i][n] = pair_first(a[i], b[i]);
            second_half[i][n] = pair_second(a[i], b[i]);
          }
        }
        for (int i = 0; i < layers; ++i) {
          const auto put = [&](Word(&v)[width], int begin) {
            if (begin >= columns) return;
            transpose(v);
            for (int n = 0; n < smaller(width, columns - begin); ++n)
              store(to.layer(i).at(begin + n, first / 2), v[n]);
          };
          put(first_half[i], c);
          put(second_half[i], c + width);
        }
      }
    }
    return largest.finite();
  }
  template <class Take>
  [[gnu::noinline]] static bool load_lane_pairs(const LaneOperand& to, const RowBlock& block,
                                                Take take_as) {
    Magnitude largest;
    const int columns = block.rows.columns, pairs = (columns + 1) / 2;
    for (int first = 0; first < panel; first += width) {
      const LaneRows rows(block, first);
      for (int c = 0; c < pairs; c += width) {
        Word v[layers][width];
        for (int n = 0; n < width; ++n) {
          Word w[layers] = {};
          if (n < rows.count) load_pairs(rows.row[n] + 4 * c, columns - 2 * c, w, largest, take_as);
          for (int i = 0; i < layers; ++i) v[i][n] = w[i];
        }
        for (int i = 0; i < layers; ++i) {
          transpose(v[i]);
          for (int n = 0; n < smaller(width, pairs - c); ++n)
            store(to.layer(i).at(c + n, first), v[i][n]);
        }
      }
    }
    return largest.finite();
  }

  // Adds the terms that the packed GEMMs leave out, in f32 from the tensors.
  [[gnu::noinline]] void add_nonfinite_scores(const Rows& rows, std::int64_t count,
                                              const LaneOperand& lanes, Panel<float> c) {
    const std::int64_t stride = padded(rows.origin.rows->columns);
    load_rows(spare_rows_, stride, rows.origin.block(count), rows.factor);
    load_lanes(spare_lanes_, panel, lanes.origin.block(panel), lanes.factor);
    // Scores have no weights: 0 times an infinity is NaN.
    add_nonfinite<vectors, Weights::neither>(count, rows.origin.rows->columns,
                                             {spare_rows_, stride, 1},
                                             Panel<const float>{spare_lanes_, panel}, c);
  }
  [[gnu::noinline]] void add_nonfinite_values(const Values& values, std::int64_t count,
                                              Panel<const float> weights, Panel<float> c) {
    const int columns = values.origin.rows->columns;
    load_rows(spare_rows_, padded(columns), values.origin.block(count));
    add_nonfinite<vectors, Weights::right>(columns, count, {spare_rows_, 1, padded(columns)},
                                           weights, c);
  }
  // The upper layer of a packed weight is 0 only if the weight is 0.
  [[gnu::noinline]] void add_nonfinite_packed(const Values& values, Range packed, Panel<float> c) {
    const int columns = values.origin.rows->columns;
    const std::int64_t stride = padded(columns);
    for (std::int64_t r = 0; r < packed.size(); r += 2) {
      const RowBlock pair = values.origin.from(r).block(smaller(2, packed.size() - r));
      load_rows(spare_rows_, stride, pair);
      float weights[2 * panel];
      for (int m = 0; m < panel; m += width) {
        const Word both = load(packed_rows(0).at((packed.begin + r) / 2, m));
        store(weights + m, (Float)(both << 16));
        store(weights + panel + m, (Float)(both & 0xffff0000u));
      }
      add_nonfinite<vectors, Weights::right>(columns, pair.count, {spare_rows_, 1, stride},
                                             Panel<const float>{weights, panel}, c);
    }
  }
  [[gnu::noinline]] void add_nonfinite_lanes(Panel<const float> weights, std::int64_t count,
                                             Range lanes, const RowBlock& block, Panel<float> c) {
    add_nonfinite_rows(count, {weights.at(0, lanes.begin).data, weights.stride, 1},
                       Origin(block).from(lanes.begin).block(lanes.size()), spare_rows_, c);
  }

  // Packed weights: B(row / 2, lane) and A(row, lane / 2).
  ROCFLASH_INLINE RightWords packed_rows(int layer) const {
    constexpr std::int64_t pairs = max_rows_together / 2;
    return {packed_ + layer * pairs * panel, RightWords::stride_for(pairs, panel)};
  }
  ROCFLASH_INLINE LeftWords packed_lanes(int layer) const {
    constexpr std::int64_t pairs = max_gradient_block / 2;
    return {packed_lanes_ + layer * stream_rows * pairs, LeftWords::stride_for(pairs)};
  }

  template <int wide, Into into, class Left, class Right>
  ROCFLASH_INLINE void multiply(std::int64_t n, std::int64_t k, Left left, Right right,
                                Panel<float> c) {
    engine_.template multiply<wide, into, layers>(n, k, left, right, c);
  }

  Words *packed_, *packed_lanes_;
  float *spare_rows_, *spare_lanes_;
  Engine engine_;
};

}  // namespace
}  // namespace rocflash::cpu::ROCFLASH_ISA
