// Tiles in shared memory as Hopper's matrix unit and copy engine take them, and the descriptors
// that tell the matrix unit where an operand lies. Ordinary C++: tests/kernels/tile reads tiles by the
// descriptors' rules and compares.
//
// A tile of 16-bit numbers is cut into panels of 64 columns, or of 32 where its columns are no
// multiple of 64. A panel has all rows of the tile, one behind the other, 128 (64) bytes each;
// panels follow each other. Chunks of 16 bytes of a row change places by XOR with the row: the copy
// engine writes them so, and the matrix unit reads them so.
#pragma once

#include <cstdint>

#include "tile/swizzled.hpp"

namespace rocflash::kernel {

// How many bytes of a row change places among each other, as descriptors number it.
enum class Swizzle : std::uint8_t { none = 0, bytes128 = 1, bytes64 = 2, bytes32 = 3 };

template <int rows_, int columns_>
struct Panels {
  static constexpr int rows = rows_, columns = columns_;
  static constexpr int width = columns % 64 == 0 ? 64 : 32;  // columns of a panel
  static constexpr int count = columns / width;
  static constexpr int row_bytes = 2 * width;
  static constexpr int panel_bytes = rows * row_bytes;
  static constexpr int bytes = count * panel_bytes;
  static constexpr Swizzle swizzle = width == 64 ? Swizzle::bytes128 : Swizzle::bytes64;
  // The pattern repeats after eight rows. Tiles start where it starts.
  static constexpr int pattern_bytes = 8 * row_bytes;
  static constexpr int alignment = 1024;
  static_assert(columns % width == 0 && rows % 8 == 0);

  // Where a number lies, in bytes from the tile's start.
  static constexpr int offset(int row, int column) {
    const int chunk = column % width / 8;
    const int swapped = width == 64 ? row % 8 : row / 2 % 4;
    return column / width * panel_bytes + row * row_bytes + 16 * (chunk ^ swapped) +
           2 * (column % 8);
  }
};

// What `wgmma` is told about an operand in shared memory, in 64 bits. Offsets are in bytes and
// multiples of 16. The pattern of the swizzle starts at a multiple of its size, so the field for
// its offset is 0.
constexpr std::uint64_t describe(SharedAddress start, int leading, int stride, Swizzle swizzle) {
  return static_cast<std::uint64_t>((start & 0x3ffffu) >> 4) |
         static_cast<std::uint64_t>(leading >> 4) << 16 |
         static_cast<std::uint64_t>(stride >> 4) << 32 | static_cast<std::uint64_t>(swizzle) << 62;
}

inline constexpr int product_depth = 16;  // of one instruction, in 16-bit numbers

// A descriptor as its two words. Steps of the depth change the low one alone, and never carry over.
class Descriptor {
 public:
  constexpr explicit Descriptor(std::uint64_t bits)
      : low_(static_cast<std::uint32_t>(bits)), high_(static_cast<std::uint32_t>(bits >> 32)) {}
  constexpr std::uint64_t further(int bytes) const {
    return std::uint64_t{high_} << 32 | (low_ + static_cast<std::uint32_t>(bytes >> 4));
  }

 private:
  std::uint32_t low_, high_;
};

// An operand whose lines (rows of A, columns of B) are rows of the tile, from `row` on: the depth
// runs along the columns. Q, K and V in Q·Kᵀ and dO·Vᵀ.
template <class Tile_>
class RowLines {
 public:
  using Tile = Tile_;
  static constexpr bool transposed = false;

  constexpr explicit RowLines(SharedAddress tile, int row = 0)
      : first_(describe(tile + static_cast<std::uint32_t>(row * Tile::row_bytes), 16,
                        Tile::pattern_bytes, Tile::swizzle)) {}
  // The descriptor of a step of the depth.
  constexpr std::uint64_t step(int n) const {
    const int column = n * product_depth;
    return first_.further(column / Tile::width * Tile::panel_bytes + 2 * (column % Tile::width));
  }

 private:
  Descriptor first_;
};

// An operand whose lines are columns of the tile, from `column` on, which starts a panel: the depth
// runs along the rows, from `row` on. V in P·V, K in dS·K.
template <class Tile_>
class ColumnLines {
 public:
  using Tile = Tile_;
  static constexpr bool transposed = true;

  constexpr explicit ColumnLines(SharedAddress tile, int column = 0, int row = 0)
      : first_(describe(tile + static_cast<std::uint32_t>(column / Tile::width * Tile::panel_bytes +
                                                          row * Tile::row_bytes),
                        Tile::panel_bytes, Tile::pattern_bytes, Tile::swizzle)) {}
  constexpr std::uint64_t step(int n) const {
    return first_.further(n * product_depth * Tile::row_bytes);
  }

 private:
  Descriptor first_;
};

// Which stage of a ring of buffers is next, and which phase its barriers are in. Whoever fills and
// whoever empties a stage count on their own; the two are different types, since a filler finds
// fresh barriers in the phase that it waits for, and an emptier does not.
template <int stages_, bool fills>
class RingPlace {
 public:
  static constexpr int stages = stages_;
  constexpr int stage() const { return static_cast<int>(stage_); }
  // What to wait for: a barrier's phase of this parity is over.
  constexpr std::uint32_t parity() const { return phase_; }
  // The one before it: for reports, which do not ask for the phase.
  constexpr RingPlace before() const {
    RingPlace place = *this;
    place.stage_ = (stage_ == 0 ? stages : stage_) - 1;
    return place;
  }
  constexpr void advance() {
    ++stage_;
    if (stage_ == stages) {
      stage_ = 0;
      phase_ ^= 1;
    }
  }

 private:
  std::uint32_t stage_ = 0, phase_ = fills ? 1 : 0;
};
template <int stages>
using FillPlace = RingPlace<stages, true>;
template <int stages>
using DrainPlace = RingPlace<stages, false>;

}  // namespace rocflash::kernel
