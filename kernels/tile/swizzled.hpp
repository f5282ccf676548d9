// Swizzled shared memory tiles of NVIDIA GPUs, and the cp.async partition of a tile over threads.
#pragma once

#include <cstdint>

namespace rocflash::kernel {

// A 32-bit byte address in the shared state space.
using SharedAddress = std::uint32_t;

// Row-major tile with an XOR swizzle of 16-byte chunks by the row: the eight rows of an ldmatrix
// are in different banks.
template <int row_bytes>
struct SharedRows {
  static constexpr int chunks = row_bytes / 16;
  static constexpr int bytes = row_bytes;
  // XOR mask: 8 chunks for rows of whole 128-byte lines, else 4, where every second row starts in
  // the middle of a line.
  static constexpr int xor_mask = chunks % 8 == 0 ? 7 : 3;
  static_assert(chunks % 8 == 0 || chunks % 8 == 4);

  static int offset(int row, int chunk) {
    return row * bytes + 16 * (chunk ^ (xor_mask == 7 ? row & 7 : row >> 1 & 3));
  }
  // From the address of chunk 0 or 1 to that of the chunk `distance` (even) further in the same
  // row.
  static SharedAddress along(SharedAddress at, int distance) {
    return (at ^ static_cast<std::uint32_t>(16 * (distance & xor_mask))) +
           static_cast<std::uint32_t>(16 * (distance & ~xor_mask));
  }
};

// One thread's share of a copy of `count` rows: one chunk of every `step`-th row.
template <int row_bytes, int count, int threads>
struct CopyTask {
  using Tile = SharedRows<row_bytes>;
  static constexpr int slots = Tile::chunks <= 8    ? 8
                               : Tile::chunks <= 16 ? 16
                                                    : 32;  // threads per row; some may be idle
  static constexpr int step = threads / slots, rounds = count / step;
  static_assert(threads % slots == 0 && count % step == 0);
  static_assert(step % 8 == 0 || (8 % step == 0 && Tile::xor_mask == 7));

  int row, chunk;
  explicit CopyTask(int thread) : row(thread / slots), chunk(thread % slots) {}
  bool idle() const { return Tile::chunks < slots && chunk >= Tile::chunks; }
  // Destination of the first round's chunk, and that of a later round.
  SharedAddress first(SharedAddress tile) const {
    return tile + static_cast<std::uint32_t>(Tile::offset(row, chunk));
  }
  static SharedAddress next(SharedAddress first, int round) {
    return (first ^ static_cast<std::uint32_t>(round * step % 8 * 16)) +
           static_cast<std::uint32_t>(round * step * Tile::bytes);
  }
};

}  // namespace rocflash::kernel
