// Rows of q, k, v and out in global memory, as a schedule reads and writes them: from some row on,
// eight or four columns at a time. Rows and columns that are not there read as 0 and are not
// written.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/sequence.hpp"

namespace rocflash::kernel {

// Up to `count` rows from row `first` on, of one (batch, head). Plain: rows on 16 bytes and one
// stride, seen through a descriptor whose bound ends them. The plan sees to it that a stride is at
// least a row and that 256 rows stay below 2^31 bytes.
template <Variant variant>
class RowBlock {
 public:
  RowBlock(const Rows& rows, std::int32_t, std::int64_t batch, std::int64_t first,
           std::int32_t count, std::int64_t head)
      : window_(
            rows.data +
                (batch * rows.batch_stride + first * rows.row_stride + head * rows.head_stride) * 2,
            static_cast<std::uint32_t>(clamp(count * rows.row_stride * 2, 0, 0x7fffffff))),
        stride_(static_cast<std::uint32_t>(rows.row_stride * 2)),
        columns_(rows.columns) {}

  Words4 load8(std::int32_t row, std::int32_t column) const {
    return window_.load16(offset(row, column));
  }
  Words2 load4(std::int32_t row, std::int32_t column) const {
    return window_.load8(offset(row, column));
  }
  void store4(Words2 value, std::int32_t row, std::int32_t column) const {
    window_.store8(value, offset(row, column));
  }

 private:
  std::uint32_t offset(std::int32_t row, std::int32_t column) const {
    return column < columns_
               ? static_cast<std::uint32_t>(row) * stride_ + 2 * static_cast<std::uint32_t>(column)
               : arch::nowhere;
  }
  arch::Window window_;
  std::uint32_t stride_;
  std::int32_t columns_;
};

// Full: any strides, alignment and number of columns, pages.
template <>
class RowBlock<Variant::full> {
 public:
  RowBlock(const Rows& rows, std::int32_t caches, std::int64_t batch, std::int64_t first,
           std::int32_t count, std::int64_t head)
      : rows_(rows), batch_(batch), first_(first), head_(head), caches_(caches), count_(count) {}

  Words4 load8(std::int32_t row, std::int32_t column) const { return load<Words4>(row, column); }
  Words2 load4(std::int32_t row, std::int32_t column) const { return load<Words2>(row, column); }
  void store4(Words2 value, std::int32_t row, std::int32_t column) const {
    if (row >= count_) return;
    std::byte* to = address(row, column);
    if (column + 4 <= rows_.columns) {
      struct Unaligned {
        Words2 words __attribute__((packed, aligned(2)));
      };
      arch::store(reinterpret_cast<Unaligned*>(to), Unaligned{value});
      return;
    }
    ROCFLASH_UNROLL
    for (int e = 0; e < 4; ++e) {
      if (column + e < rows_.columns)
        arch::store(reinterpret_cast<std::uint16_t*>(to) + e,
                    static_cast<std::uint16_t>(value[e / 2] >> (16 * (e % 2))));
    }
  }

 private:
  std::byte* address(std::int32_t row, std::int32_t column) const {
    return const_cast<std::byte*>(key_row(rows_, caches_, batch_, first_ + row, head_)) +
           2 * column;
  }
  template <class Words>
  Words load(std::int32_t row, std::int32_t column) const {
    constexpr int numbers = sizeof(Words) / 2;
    Words words = {};
    if (row >= count_ || column >= rows_.columns) return words;
    const std::byte* from = address(row, column);
    if (column + numbers <= rows_.columns) {
      struct Unaligned {
        Words words __attribute__((packed, aligned(2)));
      };
      return arch::load(reinterpret_cast<const Unaligned*>(from)).words;
    }
    ROCFLASH_UNROLL
    for (int e = 0; e < numbers; ++e) {
      if (column + e < rows_.columns)
        words[e / 2] |=
            static_cast<std::uint32_t>(arch::load(reinterpret_cast<const std::uint16_t*>(from) + e))
            << (16 * (e % 2));
    }
    return words;
  }

  const Rows& rows_;
  std::int64_t batch_, first_, head_;
  std::int32_t caches_, count_;
};

}  // namespace rocflash::kernel
