// TMA boxes of K or V in a paged KV cache: the rows of a box divide a page and a tile.
#pragma once

#include "attention/sequence.hpp"

namespace rocflash::kernel {

// Coordinates of a box: page and first row.
struct PagedTmaBox {
  std::int32_t page, row;

  // Rows [begin, begin + count) of a sequence; those before `first` are not needed. A box without
  // needed rows is out of bounds: TMA fills it with 0 and reads nothing. The same holds for
  // negative rows.
  PagedTmaBox(const Rows& keys, std::int32_t caches, std::int32_t sequence, std::int32_t begin,
              std::int32_t count, std::int32_t first)
      : page(0), row(-count) {
    if (begin + count <= first) return;
    std::int64_t batch = sequence, in_page = begin < 0 ? 0 : begin;
    find_page(keys, caches, batch, in_page);
    page = static_cast<std::int32_t>(batch);
    row = begin < 0 ? begin : static_cast<std::int32_t>(in_page);
  }
};

}  // namespace rocflash::kernel
