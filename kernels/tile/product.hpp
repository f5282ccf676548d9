// The two products of attention, done by a wave with its architecture's matrix instruction,
// transposed: scores = K Q^T and outputs += V^T P^T. A lane works for one query.
#pragma once

#include "arch/arch.hpp"
#include "tile/shared.hpp"

namespace rocflash::kernel {

// v in LDS: as it is where reads transpose, else transposed.
template <bool transposing, int bucket, int keys>
struct ChooseValues {
  using Tile = ColumnTile<bucket, keys>;
};
template <int bucket, int keys>
struct ChooseValues<true, bucket, keys> {
  using Tile = RowTile<bucket, keys, true>;
};
template <bool transposing, int bucket, int keys>
using ValuesOf = typename ChooseValues<transposing, bucket, keys>::Tile;

template <DType dtype, int bucket, int keys, bool shared_queries>
struct Products {
  using Mma = arch::Mma<dtype>;
  using Result = typename Mma::Result;
  using Operand = typename Mma::Operand;
  using Keys = RowTile<bucket, keys>;
  using Values = ValuesOf<Mma::transposing, bucket, keys>;

  static constexpr int queries = Mma::columns;  // of a wave
  static constexpr int depth_steps = bucket / Mma::depth;
  static constexpr int key_parts = keys / Mma::rows, column_parts = bucket / Mma::rows;
  static constexpr int operand_chunks = sizeof(Operand) / sizeof(Words4);

  static constexpr int score_count = key_parts * Mma::results;  // scores that a lane holds

  // The query, and the key of score n: key(n) + key_offset().
  static int query() { return Mma::column(arch::lane()); }
  static constexpr int key(int n) {
    return n / Mma::results * Mma::rows + Mma::row(n % Mma::results);
  }
  static int key_offset() { return Mma::row_offset(arch::lane()); }
  // Lanes 0 to queries - 1, each the first of those that work for its query.
  static constexpr std::uint64_t one_lane_a_query = (std::uint64_t{1} << queries) - 1;

  // Columns of out that a lane holds come in parts; those of output n of a part, once
  // put_side_by_side has given the lane whole quads of them, are store_column(part, n) +
  // store_offset().
  static constexpr int part_outputs = Mma::results;
  static constexpr int store_column(int part, int n) {
    return part * Mma::rows + Mma::store_row(n);
  }
  static int store_offset() { return Mma::store_offset(arch::lane()); }
  static void put_side_by_side(float (&o)[part_outputs]) { Mma::put_side_by_side(o); }
  // So many scores, one after the other, belong to one aligned group of eight keys.
  static constexpr int dropout_run = Mma::dropout_run;

  // A wave's queries: in registers, or in LDS as rows of `QueryTile`, each row written and read by
  // the wave itself.
  using QueryTile = RowTile<bucket, queries>;
  static constexpr int query_chunks = shared_queries ? QueryTile::chunks : 0;
  class Queries {
   public:
    // load(row, chunk) gives eight columns of a query; `room` has query_chunks for this wave.
    template <class Load>
    Queries(SharedWords4* room, Load load) : room_(room) {
      if constexpr (shared_queries) {
        constexpr int row_chunks = bucket / chunk_numbers, lanes_a_row = arch::wave_size / queries;
        ROCFLASH_UNROLL
        for (int n = 0; n < row_chunks / lanes_a_row; ++n) {
          const int chunk = n * lanes_a_row + arch::lane() / queries;
          room[QueryTile::place(query(), chunk)] = load(query(), chunk);
        }
      } else {
        ROCFLASH_UNROLL
        for (int step = 0; step < depth_steps; ++step) {
          if constexpr (operand_chunks == 1) {
            part_[step] = load(query(), 2 * step + Mma::operand_chunk(arch::lane()));
          } else {
            part_[step] = join(load(query(), 2 * step), load(query(), 2 * step + 1));
          }
        }
      }
    }
    Operand operator[](int step) const {
      if constexpr (shared_queries) return operand<QueryTile>(room_, query(), 0, step);
      return part_[step];
    }

   private:
    SharedWords4* room_;
    Operand part_[shared_queries ? 1 : depth_steps];
  };
  struct Outputs {
    Result part[column_parts];
  };

  static void scores(const SharedWords4* tile, const Queries& q, float (&s)[score_count]) {
    const int row = Mma::operand_row(arch::lane());
    ROCFLASH_UNROLL
    for (int part = 0; part < key_parts; ++part) {
      Result sum = {};
      ROCFLASH_UNROLL
      for (int step = 0; step < depth_steps; ++step)
        sum = Mma::multiply(operand<Keys>(tile, row, part * Mma::rows, step), q[step], sum);
      ROCFLASH_UNROLL
      for (int r = 0; r < Mma::results; ++r) s[part * Mma::results + r] = sum[r];
    }
  }

  static void accumulate(const SharedWords4* tile, const float (&p)[score_count], Outputs& out) {
    constexpr int steps = keys / Mma::depth, results = score_count / steps;
    ROCFLASH_UNROLL
    for (int step = 0; step < steps; ++step) {
      const Operand weights = Mma::weights(p + step * results);
      ROCFLASH_UNROLL
      for (int part = 0; part < column_parts; ++part)
        out.part[part] = Mma::multiply(value_operand(tile, part, step), weights, out.part[part]);
    }
  }

  static void rescale(Outputs& out, float factor) {
    ROCFLASH_UNROLL
    for (int part = 0; part < column_parts; ++part) out.part[part] *= factor;
  }

  // Over the lanes that hold scores of the same query.
  static float largest(float x) { return __builtin_fmaxf(x, arch::other_half(x)); }
  static float total(float x) { return x + arch::other_half(x); }

 private:
  static Words8 join(Words4 low, Words4 high) {
    return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
  }

  static Operand value_operand(const SharedWords4* tile, int part, int step) {
    if constexpr (Mma::transposing) {
      const int lane = arch::lane();
      const auto read = [&](int key) {
        const Place place =
            Values::place(Mma::transposing_row(lane), Mma::transposing_column(lane) / chunk_numbers,
                          key, part * Mma::rows / chunk_numbers);
        const auto* own =
            (const SharedWords2*)tile + 2 * place.lane + Mma::transposing_column(lane) / 4 % 2;
        return Mma::read_transposed(own + 2 * place.fixed);
      };
      return __builtin_shufflevector(read(Mma::depth * step), read(Mma::depth * step + 8), 0, 1, 2,
                                     3);
    } else {
      return operand<Values>(tile, Mma::operand_row(arch::lane()), part * Mma::rows, step);
    }
  }

  template <class Tile>
  static Operand operand(const SharedWords4* tile, int row, int fixed_row, int step) {
    const auto chunk = [&](int own, int fixed) {
      const Place place = Tile::place(row, own, fixed_row, fixed);
      return (tile + place.lane)[place.fixed];
    };
    if constexpr (operand_chunks == 1) {
      return chunk(Mma::operand_chunk(arch::lane()), 2 * step);
    } else {
      return join(chunk(0, 2 * step), chunk(0, 2 * step + 1));
    }
  }
};

}  // namespace rocflash::kernel
