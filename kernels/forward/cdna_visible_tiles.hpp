// Visible key range of a block of queries and of a wave, in keys and in key tiles (32-bit bounds).
#pragma once

#include "attention/mask_bounds.hpp"
#include "forward/amd_common.hpp"

namespace rocflash::kernel {

// Keys that at least one of `count` queries from `first` on attends to, and keys that all of them
// attend to.
struct VisibleKeySpans {
  Span by_any, by_all;

  VisibleKeySpans(const MaskBounds& bounds, std::int32_t first, std::int32_t count) {
    const std::int32_t last = (first + count < bounds.sq ? first + count : bounds.sq) - 1;
    if (first > last) return;
    by_any.begin = bounds.begin(first);
    by_any.end = bounds.end(last);
    by_all.begin = bounds.begin(last);
    by_all.end = bounds.end(first);
  }
};

// Key tiles that the queries of a wave attend to. The bounds are uniform, so that branches on them
// are scalar.
struct VisibleTiles {
  std::int32_t begin, end;      // tiles that any query attends to
  std::int32_t unmasked_begin;  // tiles that need no mask
  std::uint32_t unmasked_count;

  VisibleTiles(const MaskBounds& bounds, std::int32_t first, std::int32_t count,
               std::int32_t first_key, std::int32_t tile_keys) {
    const VisibleKeySpans visible(bounds, first, count);
    const Span any = visible.by_any, all = visible.by_all;
    // Tiles before `key`: `round_up` is tile_keys − 1 to count a partial tile, else 0.
    const auto tiles_before = [&](std::int32_t key, std::int32_t round_up) {
      return key < first_key ? 0
                             : static_cast<std::int32_t>(
                                   static_cast<std::uint32_t>(key - first_key + round_up) /
                                   static_cast<std::uint32_t>(tile_keys));
    };
    // Rounded down to an even tile, because the main loop is unrolled over both LDS buffers. The
    // additional tile is masked.
    begin = arch::uniform(tiles_before(any.begin, 0) / 2 * 2);
    end = arch::uniform(any.end <= any.begin ? 0 : tiles_before(any.end, tile_keys - 1));
    unmasked_begin = arch::uniform(tiles_before(all.begin, tile_keys - 1));
    const std::int32_t unmasked_end = tiles_before(all.end, 0);
    unmasked_count = static_cast<std::uint32_t>(
        arch::uniform(unmasked_end > unmasked_begin ? unmasked_end - unmasked_begin : 0));
  }
  bool is_unmasked(std::int32_t n) const {
    return static_cast<std::uint32_t>(n - unmasked_begin) < unmasked_count;
  }
};

}  // namespace rocflash::kernel
