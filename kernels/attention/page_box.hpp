// Rows of k or v that the copy engine fetches from one page: as many as divide a page and a tile.
#pragma once

#include "attention/sequence.hpp"

namespace rocflash::kernel {

// Where such a box lies: its page, and its first row there.
struct PageBox {
  std::int32_t page, row;

  // The `count` rows from `begin` on of a sequence; those before `first` are not needed. A box of none that are needed
  // lies outside of all pages, where the copy engine reads 0 and touches nothing, and so do rows below 0.
  PageBox(const Rows& keys, std::int32_t caches, std::int32_t sequence, std::int32_t begin,
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
