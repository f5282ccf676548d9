// Rows of a key-value cache for decode: where a tile's rows lie, asking memory for those to come,
// and an order that does not mislead it.
#pragma once

#include "cpu/products/rows.hpp"

// Nameless, so that functions which are not inlined have no linkable copies (core/inline.hpp).
namespace rocflash::cpu::ROCFLASH_ISA {
namespace {

constexpr int tile_keys = decode_keys;

// Rows of the cache that a tile of keys and the one after it name, found once for all heads and
// columns. What lies beyond the last key of a tile names it again: its scores are thrown away, its
// weights are 0.
template <class Stored>
struct KeyRows {
  const Stored* row[2 * tile_keys] = {};  // of the first head; the second half is the next tile's
  std::int64_t head_stride;
  int columns;
  int count = 0, next_count = 0;

  // The next tile. Where nothing follows its rows are this one's again, for which there is no harm
  // in asking.
  ROCFLASH_INLINE void find_next(const RowBlock& block) {
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
  ROCFLASH_INLINE void go_on() {
    count = next_count;
    for (int n = 0; n < tile_keys; ++n) row[n] = row[tile_keys + n];
  }
};

// Asks for a line into the second-level cache: a tile is too large for the first.
inline constexpr int line = 64;
ROCFLASH_INLINE void ask(const void* at) { __builtin_prefetch(at, 0, 2); }

// While a line of a row is at work the same line of rows to come is asked for: a tile ahead and,
// since CPUs drop requests when too many are under way, once more half a tile ahead.
constexpr int half_tile = tile_keys / 2;
template <class Stored>
ROCFLASH_INLINE void ask_ahead(const Stored* const* row, std::int64_t offset) {
  ask(row[tile_keys] + offset);
  ask(row[half_tile] + offset);
}

// The beginnings of all rows of the next tile. Looking up where a page of memory lies holds up
// whatever asks for it first; several are looked up at once.
template <class Stored>
ROCFLASH_INLINE void ask_for_pages(const KeyRows<Stored>& rows) {
  for (int n = 0; n < rows.next_count; ++n) ask(rows.row[tile_keys + n]);
}

// The first rows of all, for which nobody has asked yet.
template <class Stored>
ROCFLASH_INLINE void ask_for_next(const KeyRows<Stored>& rows, int heads) {
  constexpr int step = line / static_cast<int>(sizeof(Stored));
  for (int n = 0; n < smaller(half_tile, rows.next_count); ++n)
    for (int g = 0; g < heads; ++g)
      for (int c = 0; c < rows.columns; c += step)
        ask(rows.row[tile_keys + n] + g * rows.head_stride + c);
}

// The order in which the keys of half a tile are weighed, `keys` at a time. Loads whose addresses
// grow by steady steps make the hardware fetch what lies further on, past a page's end and out of
// memory's order; with bits reversed no two steps are alike.
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
