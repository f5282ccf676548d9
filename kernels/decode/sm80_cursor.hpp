// Address of a warp's next key tile: contiguous rows (not paged, or within one page), or rows that
// are looked up in the block table one by one.
#pragma once

#include "attention/arguments.hpp"
#include "attention/sequence.hpp"

namespace rocflash::kernel {

template <DType dtype, int tile_keys>
class KeyCursor {
 public:
  KeyCursor(const DecodeArguments& a, const SequenceView& s, std::int64_t kv_head,
            std::int32_t first_key, std::int32_t end_key)
      : keys_(a.problem.k),
        batch_(s.batch),
        row_(static_cast<std::uint32_t>(s.k_row + first_key)),
        caches_(a.caches),
        head_(kv_head) {
    if (!keys_.blocks) {
      page_rows_ = 0xffffffffu;
      page_ = batch_;
    } else {
      page_rows_ = static_cast<std::uint32_t>(keys_.block_rows);
      // The block table may be empty for a sequence without keys.
      page_ = first_key < end_key ? page_of(row_) : 0;
    }
  }

  // Whether the tile's rows are contiguous at the row stride.
  bool is_contiguous() const { return page_rows_ - row_ % page_rows_ >= tile_keys; }
  // Row `row` of a contiguous tile.
  const std::byte* contiguous_row(const Rows& rows, int row) const {
    return row_address<dtype>(rows, page_, std::int64_t{row_ % page_rows_} + row, head_);
  }
  // Row `row` of any tile, through the block table; clamped to the first row where out of bounds.
  const std::byte* paged_row(const Rows& rows, int row, std::int32_t left) const {
    return key_row<dtype>(rows, caches_, batch_,
                          row_ + static_cast<std::uint32_t>(row < left ? row : 0), head_);
  }
  // To the next tile. Its block table entry is loaded now: the latency overlaps with this tile.
  void advance(std::int32_t left) {
    row_ += tile_keys;
    if (keys_.blocks && left > tile_keys) page_ = page_of(row_);
  }

 private:
  std::int64_t page_of(std::uint32_t row) const {
    return clamp(arch::load(keys_.blocks + batch_ * keys_.blocks_stride + row / page_rows_), 0,
                 caches_ - 1);
  }

  const Rows& keys_;
  std::int64_t batch_, page_;
  std::uint32_t row_, page_rows_;
  std::int32_t caches_;
  std::int64_t head_;
};

}  // namespace rocflash::kernel
