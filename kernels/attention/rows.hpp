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

// A number of so many bytes.
template <int bytes>
struct UnsignedOf;
template <>
struct UnsignedOf<2> {
  using Type = std::uint16_t;
};
template <>
struct UnsignedOf<4> {
  using Type = std::uint32_t;
};
template <>
struct UnsignedOf<8> {
  using Type = std::uint64_t;
};
template <>
struct UnsignedOf<16> {
  using Type = unsigned __int128;
};

// Full: any strides, alignment and number of columns, and pages where there may be any.
template <DType dtype, bool pages>
class RowBlock<dtype, Variant::full, pages> {
  static constexpr int bytes = number_bytes<dtype>;
  static_assert(bytes == 2 || bytes == 4);

  using Number = typename UnsignedOf<bytes>::Type;

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
    // The last columns of a row, one by one: rare, so its code is to be short.
    auto bits = __builtin_bit_cast(std::uint64_t, value);
    _Pragma("clang loop unroll(disable)") for (int e = 0; e < rows_.columns - offset.column; ++e) {
      arch::store(reinterpret_cast<Number*>(to) + e, static_cast<Number>(bits));
      bits >>= 8 * bytes;
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
    // Before the condition, where it can be shared by all columns of a row; a page must exist.
    const std::byte* from = pages ? nullptr : address(offset);
    if (offset.row >= count_ || offset.column >= rows_.columns) return words;
    if (pages) from = address(offset);
    using Bits = typename UnsignedOf<sizeof(Words)>::Type;
    if (rows_.columns >= numbers) {
      // At the end of a row, its last numbers, of which the first ones are shifted out.
      const int over = offset.column + numbers - rows_.columns;
      words = arch::load(
                  reinterpret_cast<const Unaligned<Words>*>(from - bytes * (over > 0 ? over : 0)))
                  .words;
      if (over > 0)
        words = __builtin_bit_cast(Words, __builtin_bit_cast(Bits, words) >> (8 * bytes * over));
    } else {
      Bits bits = 0;
      _Pragma("clang loop unroll(disable)") for (int e = rows_.columns - 1; e >= 0; --e) bits =
          bits << (8 * bytes) | arch::load(reinterpret_cast<const Number*>(from) + e);
      words = __builtin_bit_cast(Words, bits);
    }
    return words;
  }

  const Rows& rows_;
  std::int64_t batch_, first_, head_;
  std::int32_t caches_, count_;
};

}  // namespace rocflash::kernel
