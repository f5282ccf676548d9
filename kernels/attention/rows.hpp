// Blocks of rows of Q, K, V and O in global memory, with loads and stores of 16 or 8 bytes. Loads
// out of bounds return 0; stores out of bounds are dropped.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/sequence.hpp"
#include "table/kernels.hpp"

namespace rocflash::kernel {

// Up to `count` rows from row `first` on, of one (batch, head) slice. An Offset locates columns
// within a block; it is the same for all blocks of a tensor. Specialized variant: 16-byte aligned
// rows with one stride, accessed through a buffer resource whose num_records ends them. The launch
// plan guarantees that the stride is at least a row and that 256 rows are less than 2^31 bytes.
// load8 and load4 are named after the count of two-byte elements.
template <DType dtype, Variant variant, bool pages = true>
class RowBlock {
 public:
  using Offset = std::uint32_t;
  static Offset offset(const Rows& rows, std::int32_t row, std::int32_t column) {
    return column < rows.columns
               ? static_cast<std::uint32_t>(row) *
                         static_cast<std::uint32_t>(rows.row_stride * element_bytes<dtype>) +
                     element_bytes<dtype> * static_cast<std::uint32_t>(column)
               : arch::out_of_bounds;
  }

  RowBlock(const Rows& rows, std::int32_t, std::int64_t batch, std::int64_t first,
           std::int32_t count, std::int64_t head)
      : resource_(row_address<dtype>(rows, batch, first, head),
                  static_cast<std::uint32_t>(
                      clamp(count * rows.row_stride * element_bytes<dtype>, 0, 0x7fffffff))) {}

  // The rows in the `bytes` from an address on.
  RowBlock(const std::byte* begin, std::int64_t bytes)
      : resource_(begin, static_cast<std::uint32_t>(clamp(bytes, 0, 0x7fffffff))) {}

  Words4 load8(Offset offset) const { return resource_.load16(offset); }
  Words2 load4(Offset offset) const { return resource_.load8(offset); }
  void store4(Words2 value, Offset offset) const { resource_.store8(value, offset); }
  void store8(Words4 value, Offset offset) const { resource_.store16(value, offset); }

 private:
  arch::BufferResource resource_;
};

// Unsigned integer of `bytes` bytes.
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

// Generic variant: any strides, alignment and number of columns; a paged KV cache if `pages`.
template <DType dtype, bool pages>
class RowBlock<dtype, Variant::generic, pages> {
  static constexpr int bytes = element_bytes<dtype>;
  static_assert(bytes == 2 || bytes == 4);

  using Element = typename UnsignedOf<bytes>::Type;

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
    // The last columns of a row, one by one: rare, so code size matters more than speed.
    auto bits = __builtin_bit_cast(std::uint64_t, value);
    _Pragma("clang loop unroll(disable)") for (int e = 0; e < rows_.columns - offset.column; ++e) {
      arch::store(reinterpret_cast<Element*>(to) + e, static_cast<Element>(bits));
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
    constexpr int elements = sizeof(Words) / bytes;
    Words words = {};
    // Without pages, before the bounds check: the columns of a row share the address computation. A
    // block table entry may be read only in bounds.
    const std::byte* from = pages ? nullptr : address(offset);
    if (offset.row >= count_ || offset.column >= rows_.columns) return words;
    if (pages) from = address(offset);
    using Bits = typename UnsignedOf<sizeof(Words)>::Type;
    if (rows_.columns >= elements) {
      // At the end of a row the load ends with its last element; preceding elements are shifted
      // out.
      const int over = offset.column + elements - rows_.columns;
      words = arch::load(
                  reinterpret_cast<const Unaligned<Words>*>(from - bytes * (over > 0 ? over : 0)))
                  .words;
      if (over > 0)
        words = __builtin_bit_cast(Words, __builtin_bit_cast(Bits, words) >> (8 * bytes * over));
    } else {
      Bits bits = 0;
      _Pragma("clang loop unroll(disable)") for (int e = rows_.columns - 1; e >= 0; --e) bits =
          bits << (8 * bytes) | arch::load(reinterpret_cast<const Element*>(from) + e);
      words = __builtin_bit_cast(Words, bits);
    }
    return words;
  }

  const Rows& rows_;
  std::int64_t batch_, first_, head_;
  std::int32_t caches_, count_;
};

}  // namespace rocflash::kernel
