// GEMM on AMX: eight tile registers of 16 rows by 64 bytes, and TDPBF16PS. Rows or pairs that do
// not fill a tile are computed with AVX-512.
#pragma once

#include "cpu/gemm/gemm.hpp"

// The tile registers, or their software model, selected by CMake.
#include ROCFLASH_TILE_REGISTERS

namespace rocflash::cpu::ROCFLASH_ISA {

inline constexpr int tile_rows = 16;  // also words per row

// Operands of bf16 pairs in tile format: a tile is 1 KiB contiguous, tiles along k are adjacent,
// and `stride` is the distance between tiles of other rows (or lanes). k and lanes are multiples of
// 16.
struct LeftTiles {
  std::uint32_t* data;
  std::int64_t stride;

  ROCFLASH_INLINE static constexpr std::int64_t stride_for(std::int64_t k) { return k * tile_rows; }
  ROCFLASH_INLINE std::uint32_t* at(std::int64_t n, std::int64_t k) const {
    return data + n / tile_rows * stride + k * tile_rows + n % tile_rows * tile_rows;
  }
  ROCFLASH_INLINE LeftTiles from(std::int64_t n, std::int64_t k) const {
    return {at(n, k), stride};
  }
};
struct RightTiles {
  std::uint32_t* data;
  std::int64_t stride;

  ROCFLASH_INLINE static constexpr std::int64_t stride_for(std::int64_t k, std::int64_t) {
    return k * tile_rows;
  }
  ROCFLASH_INLINE std::uint32_t* at(std::int64_t k, std::int64_t lane) const {
    return data + lane / tile_rows * stride + k * tile_rows;
  }
  ROCFLASH_INLINE RightTiles from(std::int64_t k, std::int64_t lane) const {
    return {at(k, lane), stride};
  }
};

// One term of a sum of products: A(n, k) and B(k, lane).
struct PairProduct {
  LeftTiles a;
  RightTiles b;
};

// Prefetch for the next block, during the current one: rows of A and of C.
struct Ahead {
  LeftTiles a;
  Panel<float> c;
  bool rows;

  ROCFLASH_INLINE void prefetch(std::int64_t n, std::int64_t k) const {
    if (rows)
      for (int r = 0; r < tile_rows; ++r) __builtin_prefetch(a.at(r, n), 0, 3);
    const std::int64_t step = larger(1, 2 * tile_rows * tile_rows / k);
    for (std::int64_t r = n / tile_rows * step; r < (n / tile_rows + 1) * step; ++r) {
      __builtin_prefetch(c.at(r, 0).data, 1, 3);
      __builtin_prefetch(c.at(r, tile_rows).data, 1, 3);
    }
  }
};

// Register blocking of 2x2 tiles, or fewer at the edges: tmm0-3 accumulate C, tmm4-5 hold A, tmm6-7
// hold B.
template <int down, int across, Into into, int terms>
ROCFLASH_INLINE void multiply_block(TileRegisters& tiles, std::int64_t k,
                                    const PairProduct (&products)[terms], Panel<float> c,
                                    const Ahead& ahead) {
  const auto each = [&](auto body) {
    body.template operator()<0, 0>();
    if constexpr (across > 1) body.template operator()<0, 1>();
    if constexpr (down > 1) body.template operator()<1, 0>();
    if constexpr (down > 1 && across > 1) body.template operator()<1, 1>();
  };
  each([&]<int i, int j>() {
    if constexpr (into == Into::overwrite) {
      tiles.template clear<2 * i + j>();
    } else {
      tiles.template load<2 * i + j>(c.at(i * tile_rows, j * tile_rows).data, c.stride);
    }
  });
  // All terms of one tile before the next tile, so that results do not depend on how a sum is
  // divided into calls.
  for (std::int64_t n = 0; n < k; n += tile_rows) {
    for (const PairProduct& p : products) {
      tiles.template load<6>(p.b.at(n, 0), tile_rows);
      tiles.template load<4>(p.a.at(0, n), tile_rows);
      if constexpr (across > 1) tiles.template load<7>(p.b.at(n, tile_rows), tile_rows);
      if constexpr (down > 1) tiles.template load<5>(p.a.at(tile_rows, n), tile_rows);
      if (&p == products) ahead.prefetch(n, k);
      each([&]<int i, int j>() { tiles.template add_products<2 * i + j, 4 + i, 6 + j>(); });
    }
  }
  each([&]<int i, int j>() {
    tiles.template store<2 * i + j>(c.at(i * tile_rows, j * tile_rows).data, c.stride);
  });
}

// C (+)= the sum of the products, n x k by k x lanes.
template <int vectors, Into into, int terms>
[[gnu::noinline]] static void gemm_tiles(TileRegisters& tiles, std::int64_t n, std::int64_t k,
                                         const PairProduct (&products)[terms], Panel<float> c) {
  const std::int64_t rows = floor_to(n, tile_rows), pairs = floor_to(k, tile_rows);
  const auto row_of_blocks = [&]<int down>(std::int64_t i) {
    constexpr int across = vectors > 1 ? 2 : 1;
    for (int m = 0; m < vectors; m += across) {
      PairProduct here[terms];
      for (int t = 0; t < terms; ++t)
        here[t] = {products[t].a.from(i, 0), products[t].b.from(0, m * width)};
      const bool last = m + across >= vectors;
      const std::int64_t next = i + down * tile_rows;
      const Ahead ahead{products[0].a.from(next + m / across * tile_rows, 0),
                        c.at(last ? next : i, last ? 0 : (m + across) * width),
                        next + 2 * tile_rows <= rows};
      multiply_block<down, across, into>(tiles, pairs, here, c.at(i, m * width), ahead);
    }
  };
  if (pairs > 0) {
    std::int64_t i = 0;
    for (; i + 2 * tile_rows <= rows; i += 2 * tile_rows) row_of_blocks.template operator()<2>(i);
    if (i < rows) row_of_blocks.template operator()<1>(i);
  }
  // The remainder of whole tiles: the last pairs and the last rows.
  const auto by_vectors = [&](std::int64_t begin, std::int64_t end, std::int64_t first) {
    for (std::int64_t i = begin; i < end; i += tile_rows) {
      for (int m = 0; m < vectors; ++m) {
        bool written = into == Into::add || first > 0;
        for (std::int64_t at = first; at < k; at += tile_rows) {
          for (const PairProduct& p : products) {
            const auto multiply = written
                                      ? gemm<1, Into::add, Summation::whole, std::uint32_t>
                                      : gemm<1, Into::overwrite, Summation::whole, std::uint32_t>;
            multiply(smaller(tile_rows, end - i), smaller(tile_rows, k - at),
                     {p.a.at(i, at), tile_rows, 1}, {p.b.at(at, m * width), tile_rows},
                     c.at(i, m * width));
            written = true;
          }
        }
      }
    }
  };
  by_vectors(0, rows, pairs);
  by_vectors(rows, n, 0);
}

// GEMM engine on AMX tiles.
class TileEngine {
 public:
  using LeftWords = LeftTiles;
  using RightWords = RightTiles;
  static constexpr int rows_together = max_rows_together;  // rows of v per GEMM in forward

  // C (+)= the products of the layers; with two layers, that of both lower ones is omitted.
  template <int wide, Into into, int layers, class Left, class Right>
  ROCFLASH_INLINE void multiply(std::int64_t n, std::int64_t k, Left left, Right right,
                                Panel<float> c) {
    if constexpr (layers == 1) {
      gemm_tiles<wide, into, 1>(tiles_, n, k, {{left(0), right(0)}}, c);
    } else {
      gemm_tiles<wide, into, 3>(tiles_, n, k,
                                {{left(0), right(0)}, {left(0), right(1)}, {left(1), right(0)}}, c);
    }
  }

 private:
  TileRegisters tiles_;
};

}  // namespace rocflash::cpu::ROCFLASH_ISA
