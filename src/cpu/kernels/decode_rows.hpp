// Rows of the KV cache for decode: addresses of a tile's rows, software prefetch, and an access
// order that does not trigger useless hardware prefetches.
#pragma once

#include "cpu/gemm/rows.hpp"

// An unnamed namespace, so that non-inlined functions have no linkable copies (core/inline.hpp).
namespace rocflash::cpu::ROCFLASH_ISA {
namespace {

constexpr int tile_keys = decode_keys;

// Row addresses of a tile of keys and of the next one, resolved once for all heads and columns.
// Slots after the last key repeat it: their scores are discarded and their weights are 0.
template <class Stored>
struct KeyRows {
  const Stored* row[2 * tile_keys] = {};  // of the first head; the second half is the next tile
  std::int64_t head_stride;
  int columns;
  int count = 0, next_count = 0;

  // Resolves the next tile. If there is none its rows are those of this tile, which are harmless to
  // prefetch.
  ROCFLASH_INLINE void resolve_next(const RowBlock& block) {
    const Rows& rows = block.rows;
    head_stride = rows.head_stride;
    columns = rows.columns;
    next_count = block.count;
    const Stored** next = row + tile_keys;
    for (int n = 0; n < next_count;) {
      const auto* first = reinterpret_cast<const Stored*>(block.row(n));
      const std::int64_t together = smaller(rows.rows_together(block.begin + n), next_count - n);
      for (std::int64_t i = 0; i < together; ++i) next[n++] = first + i * rows.row_stride;
    }
    for (int n = next_count; n < tile_keys; ++n)
      next[n] = next_count > 0 ? next[next_count - 1] : row[n];
  }
  ROCFLASH_INLINE void advance() {
    count = next_count;
    for (int n = 0; n < tile_keys; ++n) row[n] = row[tile_keys + n];
  }
};

// Prefetches a line into L2: a tile is too large for L1.
inline constexpr int line = 64;
ROCFLASH_INLINE void prefetch_line(const void* at) { __builtin_prefetch(at, 0, 2); }

// While a line of a row is processed, the same line of later rows is prefetched: one tile in
// advance, and again half a tile in advance, because CPUs drop prefetches when too many are in
// flight.
constexpr int half_tile = tile_keys / 2;
template <class Stored>
ROCFLASH_INLINE void prefetch_next(const Stored* const* row, std::int64_t offset) {
  prefetch_line(row[tile_keys] + offset);
  prefetch_line(row[half_tile] + offset);
}

// Prefetches the start of all rows of the next tile. A TLB miss stalls the first access to a page;
// this overlaps several of them.
template <class Stored>
ROCFLASH_INLINE void prefetch_pages(const KeyRows<Stored>& rows) {
  for (int n = 0; n < rows.next_count; ++n) prefetch_line(rows.row[tile_keys + n]);
}

// Prefetches the first rows of a thread, which no earlier tile has prefetched.
template <class Stored>
ROCFLASH_INLINE void prefetch_first_rows(const KeyRows<Stored>& rows, int heads) {
  constexpr int step = line / static_cast<int>(sizeof(Stored));
  for (int n = 0; n < smaller(half_tile, rows.next_count); ++n)
    for (int g = 0; g < heads; ++g)
      for (int c = 0; c < rows.columns; c += step)
        prefetch_line(rows.row[tile_keys + n] + g * rows.head_stride + c);
}

// The order in which the keys of half a tile are accumulated, `keys` at a time. Constant strides
// make the hardware prefetcher run past the end of pages; bit-reversed order has no constant
// stride.
template <int keys>
struct KeyOrder {
  constexpr KeyOrder() {
    constexpr int count = half_tile / keys;
    for (int n = 0; n < count; ++n) {
      int reversed = 0;
      for (int bit = 1; bit < count; bit *= 2) reversed = 2 * reversed + ((n & bit) != 0);
      scattered[n] = static_cast<std::uint8_t>(reversed * keys);
      in_order[n] = static_cast<std::uint8_t>(n * keys);
    }
  }
  std::uint8_t scattered[half_tile / keys] = {}, in_order[half_tile / keys] = {};
};

}  // namespace
}  // namespace rocflash::cpu::ROCFLASH_ISA
