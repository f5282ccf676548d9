// Matrix products by AMX: eight tile registers of 16 rows of 64 bytes, and one instruction that
// multiplies tiles of bf16 pairs. Where a product's rows or pairs are not whole tiles, the rest is
// done by vectors.
#pragma once

#include "cpu/isa/gemm.hpp"

#if defined(ROCFLASH_TILES)
#if ROCFLASH_TILES == 2
#include "cpu/isa/tiles_model.hpp"
#endif

namespace rocflash::cpu::ROCFLASH_ISA {

inline constexpr int tile_rows = 16;  // as many words are in a row

#if ROCFLASH_TILES == 1
// Tile registers are the thread's while this lives. Their configuration is palette 1, all of it.
class TileRegisters {
 public:
  ROCFLASH_INLINE TileRegisters() {
    struct alignas(64) {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } configuration;
    _tile_loadconfig(&configuration);
  }
  ROCFLASH_INLINE ~TileRegisters() { _tile_release(); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;

  template <int tile>
  ROCFLASH_INLINE void clear() {
    _tile_zero(tile);
  }
  template <int tile, class Element>
  ROCFLASH_INLINE void load(const Element* from, std::int64_t stride) {
    _tile_loadd(tile, from, static_cast<std::size_t>(stride) * sizeof(Element));
  }
  template <int tile>
  ROCFLASH_INLINE void store(float* to, std::int64_t stride) {
    _tile_stored(tile, to, static_cast<std::size_t>(stride) * sizeof(float));
  }
  // sum[n][lane] += both products of pair k, for all k.
  template <int sum, int left, int right>
  ROCFLASH_INLINE void add_products() {
    _tile_dpbf16ps(sum, left, right);
  }
};
#endif

// One product among the terms that make up a sum.
struct PairProduct {
  StridedOf<std::uint32_t> a;  // of step 1
  Panel<const std::uint32_t> b;
};

// Two tiles of rows by two of lanes, or fewer at the edges: tiles 0 to 3 are sums, 4 and 5 hold A,
// 6 and 7 hold B.
template <int down, int across, Into into, int terms>
ROCFLASH_INLINE void multiply_block(TileRegisters& tiles, std::int64_t k,
                                    const PairProduct (&products)[terms], Panel<float> c) {
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
  for (const PairProduct& p : products) {
    for (std::int64_t n = 0; n < k; n += tile_rows) {
      tiles.template load<6>(p.b.at(n, 0).data, p.b.stride);
      if constexpr (across > 1) tiles.template load<7>(p.b.at(n, tile_rows).data, p.b.stride);
      tiles.template load<4>(p.a.at(0, n).data, p.a.row);
      if constexpr (down > 1) tiles.template load<5>(p.a.at(tile_rows, n).data, p.a.row);
      each([&]<int i, int j>() { tiles.template add_products<2 * i + j, 4 + i, 6 + j>(); });
    }
  }
  each([&]<int i, int j>() {
    tiles.template store<2 * i + j>(c.at(i * tile_rows, j * tile_rows).data, c.stride);
  });
}

// C (+)= the sum of the products, all n x k by k x lanes.
template <int vectors, Into into, int terms>
[[gnu::noinline]] static void gemm_tiles(TileRegisters& tiles, std::int64_t n, std::int64_t k,
                                         const PairProduct (&products)[terms], Panel<float> c) {
  const std::int64_t rows = floor_to(n, tile_rows), pairs = floor_to(k, tile_rows);
  const auto part = [&](std::int64_t i, int m) {
    struct Terms {
      PairProduct of[terms];
    } here;
    for (int t = 0; t < terms; ++t)
      here.of[t] = {products[t].a.at(i, 0), products[t].b.at(0, m * width)};
    return here;
  };
  const auto row_of_blocks = [&]<int down>(std::int64_t i) {
    constexpr int across = vectors > 1 ? 2 : 1;
    for (int m = 0; m < vectors; m += across)
      multiply_block<down, across, into>(tiles, pairs, part(i, m).of, c.at(i, m * width));
  };
  if (pairs > 0) {
    std::int64_t i = 0;
    for (; i + 2 * tile_rows <= rows; i += 2 * tile_rows) row_of_blocks.template operator()<2>(i);
    if (i < rows) row_of_blocks.template operator()<1>(i);
  }
  // What whole tiles left over: the last pairs, and the last rows.
  const auto by_vectors = [&]<Into first>(std::int64_t i, std::int64_t count, std::int64_t begin) {
    if (count == 0) return;
    bool written = first == Into::add;
    for (const PairProduct& p : products) {
      const auto multiply = written ? gemm<vectors, Into::add, Sums::whole, std::uint32_t>
                                    : gemm<vectors, Into::overwrite, Sums::whole, std::uint32_t>;
      multiply(count, k - begin, p.a.at(i, begin), p.b.at(begin, 0), c.at(i, 0));
      written = true;
    }
  };
  if (pairs == 0) return by_vectors.template operator()<into>(0, n, 0);
  if (pairs < k) by_vectors.template operator()<Into::add>(0, rows, pairs);
  by_vectors.template operator()<into>(rows, n - rows, 0);
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
#endif
