// Rows of q, k, v and out in global memory, as a schedule reads and writes them: from some row on,
// 16 or 8 bytes at a time. Rows and columns outside the tensor read as 0 and are not written.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/sequence.hpp"
#include "table/kernels.hpp"

namespace rocflash::kernel {

// Up to `count` rows from row `first` on, of one (batch, head). An Offset says where in a block some
// columns are; it is the same for all blocks of a tensor. Plain: rows on 16 bytes and one stride,
// seen through a descriptor whose bound ends them. The plan guarantees that a stride is at least a
// row and that 256 rows stay below 2^31 bytes. load8 and load4 are named for numbers of two bytes.
template <DType dtype, Variant variant, bool pages = true>
class RowBlock {
 public:
  using Offset = std::uint32_t;
  static Offset offset(const Rows& rows, std::int32_t row, std::int32_t column) {
    return column < rows.columns
               ? static_cast<std::uint32_t>(row) *
                         static_cast<std::uint32_t>(rows.row_stride * number_bytes<dtype>) +
                     number_bytes<dtype> * static_cast<std::uint32_t>(column)
               : arch::nowhere;
  }

  RowBlock(const Rows& rows, std::int32_t, std::int64_t batch, std::int64_t first,
           std::int32_t count, std::int64_t head)
      : window_(row_address<dtype>(rows, batch, first, head),
                static_cast<std::uint32_t>(
                    clamp(count * rows.row_stride * number_bytes<dtype>, 0, 0x7fffffff))) {}

  // The rows in the `bytes` from an address on.
  RowBlock(const std::byte* begin, std::int64_t bytes)
      : window_(begin, static_cast<std::uint32_t>(clamp(bytes, 0, 0x7fffffff))) {}

  Words4 load8(Offset offset) const { return window_.load16(offset); }
  Words2 load4(Offset offset) const { return window_.load8(offset); }
  void store4(Words2 value, Offset offset) const { window_.store8(value, offset); }
  void store8(Words4 value, Offset offset) const { window_.store16(value, offset); }

 private:
  arch::Window window_;
};

// Full: any strides, alignment and number of columns, and pages where there may be any.
template <DType dtype, bool pages>
class RowBlock<dtype, Variant::full, pages> {
  static constexpr int bytes = number_bytes<dtype>;
  static_assert(bytes == 2 || bytes == 4);

 public:
  struct Offset {
    std::int32_t row, column;
  };
  static Offset offset(const Rows&, std::int32_t row, std::int32_t column) { return {row, column}; }

  RowBlock(const Rows& rows, std::int32_t caches, std::int64_t batch, std::int64_t first,
           std::int32_t count, std::int64_t head)
      : rows_(rows), batch_(batch), first_(first), head_(head), caches_(caches), count_(count) {}

  Words4 load8(Offset offset) const { return load<Words4>(offset); }
  Words2 load4(Offset offset) const { return load<Words2>(offset); }
  void store8(Words4 value, Offset offset) const {
    store4(value.xy, offset);
    store4(value.zw, {offset.row, offset.column + 8 / bytes});
  }
  void store4(Words2 value, Offset offset) const {
    if (offset.row >= count_) return;
    std::byte* to = address(offset);
    if (offset.column + 8 / bytes <= rows_.columns) {
      arch::store(reinterpret_cast<Unaligned<Words2>*>(to), {value});
      return;
    }
    ROCFLASH_UNROLL
    for (int e = 0; e < 8 / bytes; ++e) {
      if (offset.column + e < rows_.columns) {
        if constexpr (bytes == 4) {
          arch::store(reinterpret_cast<std::uint32_t*>(to) + e, value[e]);
        } else {
          arch::store(reinterpret_cast<std::uint16_t*>(to) + e,
                      static_cast<std::uint16_t>(value[e / 2] >> (16 * (e % 2))));
        }
      }
    }
  }

 private:
  template <class Words>
  struct Unaligned {
    Words words __attribute__((packed, aligned(bytes)));
  };

  std::byte* address(Offset offset) const {
    const std::int64_t row = first_ + offset.row;
    std::byte* begin =
        pages ? const_cast<std::byte*>(key_row<dtype>(rows_, caches_, batch_, row, head_))
              : row_address<dtype>(rows_, batch_, row, head_);
    return begin + bytes * offset.column;
  }
  template <class Words>
  Words load(Offset offset) const {
    constexpr int numbers = sizeof(Words) / bytes;
    Words words = {};
    if (offset.row >= count_ || offset.column >= rows_.columns) return words;
    const std::byte* from = address(offset);
    if (offset.column + numbers <= rows_.columns)
      return arch::load(reinterpret_cast<const Unaligned<Words>*>(from)).words;
    ROCFLASH_UNROLL
    for (int e = 0; e < numbers; ++e) {
      const auto* number = reinterpret_cast<const std::uint16_t*>(from);
      const int left = rows_.columns - 1 - offset.column;
      if constexpr (bytes == 4) {
        if (e <= left) words[e] = arch::load(reinterpret_cast<const std::uint32_t*>(from) + e);
      } else if constexpr (pages) {
        if (e <= left)
          words[e / 2] |= static_cast<std::uint32_t>(arch::load(number + e)) << (16 * (e % 2));
      } else {
        // A column past the end reads the last one instead: that takes no branch, but registers.
        const std::uint32_t bits = arch::load(number + (e < left ? e : left));
        words[e / 2] |= (e <= left ? bits : 0) << (16 * (e % 2));
      }
    }
    return words;
  }

  const Rows& rows_;
  std::int64_t batch_, first_, head_;
  std::int32_t caches_, count_;
};

}  // namespace rocflash::kernel
