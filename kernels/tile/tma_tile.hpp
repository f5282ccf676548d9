// Shared memory tiles in the layout of TMA and WGMMA, and WGMMA's matrix descriptors. Portable C++:
// tests/kernels/tile checks that reads through the descriptors match the layout.
//
// A tile of 16-bit elements is split into column blocks of 64 columns, or of 32 if the number of
// columns is not a multiple of 64. The rows of a column block are contiguous, 128 (64) bytes each;
// column blocks follow each other. TMA and WGMMA permute the 16-byte chunks of a row by XOR with
// the row (128- or 64-byte swizzle).
#pragma once

#include <cstdint>

#include "tile/swizzled.hpp"

namespace rocflash::kernel {

// Swizzle modes, in the encoding of matrix descriptors.
enum class Swizzle : std::uint8_t { none = 0, bytes128 = 1, bytes64 = 2, bytes32 = 3 };

template <int rows_, int columns_>
struct TmaTile {
  static constexpr int rows = rows_, columns = columns_;
  static constexpr int width = columns % 64 == 0 ? 64 : 32;  // columns per column block
  static constexpr int count = columns / width;
  static constexpr int row_bytes = 2 * width;
  static constexpr int column_block_bytes = rows * row_bytes;
  static constexpr int bytes = count * column_block_bytes;
  static constexpr Swizzle swizzle = width == 64 ? Swizzle::bytes128 : Swizzle::bytes64;
  // The swizzle repeats every eight rows. Tiles are aligned to it.
  static constexpr int pattern_bytes = 8 * row_bytes;
  static constexpr int alignment = 1024;
  static_assert(columns % width == 0 && rows % 8 == 0);

  // Byte offset of an element.
  static constexpr int offset(int row, int column) {
    const int chunk = column % width / 8;
    const int xor_mask = width == 64 ? row % 8 : row / 2 % 4;
    return column / width * column_block_bytes + row * row_bytes + 16 * (chunk ^ xor_mask) +
           2 * (column % 8);
  }
};

// The matrix descriptor of an operand in shared memory. Leading and stride byte offsets are
// multiples of 16. Tiles are aligned to the swizzle, so the base offset is 0.
constexpr std::uint64_t make_descriptor(SharedAddress start, int leading, int stride,
                                        Swizzle swizzle) {
  return static_cast<std::uint64_t>((start & 0x3ffffu) >> 4) |
         static_cast<std::uint64_t>(leading >> 4) << 16 |
         static_cast<std::uint64_t>(stride >> 4) << 32 | static_cast<std::uint64_t>(swizzle) << 62;
}

inline constexpr int wgmma_k = 16;  // k of one WGMMA with 16-bit elements

// A descriptor as two words. Advancing by k-steps changes only the low word, without carry.
class Descriptor {
 public:
  constexpr explicit Descriptor(std::uint64_t bits)
      : low_(static_cast<std::uint32_t>(bits)), high_(static_cast<std::uint32_t>(bits >> 32)) {}
  constexpr std::uint64_t advanced(int bytes) const {
    return std::uint64_t{high_} << 32 | (low_ + static_cast<std::uint32_t>(bytes >> 4));
  }

 private:
  std::uint32_t low_, high_;
};

// K-major operand: its lines (rows of A, columns of B) are rows of the tile, from `row` on. Q and K
// in Q·Kᵀ, dO and V in dO·Vᵀ.
template <class Tile_>
class KMajorOperand {
 public:
  using Tile = Tile_;
  static constexpr bool transposed = false;

  constexpr explicit KMajorOperand(SharedAddress tile, int row = 0)
      : first_(make_descriptor(tile + static_cast<std::uint32_t>(row * Tile::row_bytes), 16,
                               Tile::pattern_bytes, Tile::swizzle)) {}
  // The descriptor of a k-step.
  constexpr std::uint64_t step(int n) const {
    const int column = n * wgmma_k;
    return first_.advanced(column / Tile::width * Tile::column_block_bytes +
                           2 * (column % Tile::width));
  }

 private:
  Descriptor first_;
};

// MN-major operand: its lines are columns of the tile, from `column` on, the start of a column
// block; k starts at `row`. V in P·V, K in dS·K.
template <class Tile_>
class MnMajorOperand {
 public:
  using Tile = Tile_;
  static constexpr bool transposed = true;

  constexpr explicit MnMajorOperand(SharedAddress tile, int column = 0, int row = 0)
      : first_(make_descriptor(
            tile + static_cast<std::uint32_t>(column / Tile::width * Tile::column_block_bytes +
                                              row * Tile::row_bytes),
            Tile::column_block_bytes, Tile::pattern_bytes, Tile::swizzle)) {}
  constexpr std::uint64_t step(int n) const {
    return first_.advanced(n * wgmma_k * Tile::row_bytes);
  }

 private:
  Descriptor first_;
};

// Stage index and mbarrier phase of a pipeline. Producer and consumer have states of different
// types: the producer starts in the opposite phase, so that its first waits on the empty mbarriers
// return at once.
template <int stages_, bool is_producer>
class PipelineState {
 public:
  static constexpr int stages = stages_;
  constexpr int stage() const { return static_cast<int>(stage_); }
  // Parity of the phase whose completion to wait for.
  constexpr std::uint32_t parity() const { return phase_; }
  // The previous stage, for arrivals, which do not depend on the phase.
  constexpr PipelineState before() const {
    PipelineState previous = *this;
    previous.stage_ = (stage_ == 0 ? stages : stage_) - 1;
    return previous;
  }
  constexpr void advance() {
    ++stage_;
    if (stage_ == stages) {
      stage_ = 0;
      phase_ ^= 1;
    }
  }

 private:
  std::uint32_t stage_ = 0, phase_ = is_producer ? 1 : 0;
};
template <int stages>
using ProducerState = PipelineState<stages, true>;
template <int stages>
using ConsumerState = PipelineState<stages, false>;

}  // namespace rocflash::kernel
