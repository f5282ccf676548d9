// Tiles in the shared memory of NVIDIA GPUs, and which thread copies what of them.
#pragma once

#include <cstdint>

namespace rocflash::kernel {

// Addresses of shared memory are bytes in an address space of their own.
using SharedAddress = std::uint32_t;

// Rows of a tile in shared memory, in chunks of 16 bytes that change places by XOR with a function
// of the row, so that eight rows' chunks of one column lie in different banks.
template <int row_bytes>
struct SharedRows {
  static constexpr int chunks = row_bytes / 16;
  static constexpr int bytes = row_bytes;
  // Rows of whole lines of 128 bytes exchange eight chunks; others exchange four, and every second
  // row starts in the middle of a line.
  static constexpr int swapped = chunks % 8 == 0 ? 7 : 3;
  static_assert(chunks % 8 == 0 || chunks % 8 == 4);

  static int offset(int row, int chunk) {
    return row * bytes + 16 * (chunk ^ (swapped == 7 ? row & 7 : row >> 1 & 3));
  }
  // From the address of a chunk below 2 to that of the one `distance` (even) further on in its row.
  static SharedAddress along(SharedAddress at, int distance) {
    return (at ^ static_cast<std::uint32_t>(16 * (distance & swapped))) +
           static_cast<std::uint32_t>(16 * (distance & ~swapped));
  }
};

// One thread's part in copying `count` rows to shared memory: one chunk of every so many rows.
template <int row_bytes, int count, int threads>
struct CopyTask {
  using Tile = SharedRows<row_bytes>;
  static constexpr int slots = Tile::chunks <= 8    ? 8
                               : Tile::chunks <= 16 ? 16
                                                    : 32;  // threads for a row; some may idle
  static constexpr int step = threads / slots, rounds = count / step;
  static_assert(threads % slots == 0 && count % step == 0);
  static_assert(step % 8 == 0 || (8 % step == 0 && Tile::swapped == 7));

  int row, chunk;
  explicit CopyTask(int thread) : row(thread / slots), chunk(thread % slots) {}
  bool idle() const { return Tile::chunks < slots && chunk >= Tile::chunks; }
  // Where the chunk of the first round goes, and then that of another.
  SharedAddress first(SharedAddress tile) const {
    return tile + static_cast<std::uint32_t>(Tile::offset(row, chunk));
  }
  static SharedAddress next(SharedAddress first, int round) {
    return (first ^ static_cast<std::uint32_t>(round * step % 8 * 16)) +
           static_cast<std::uint32_t>(round * step * Tile::bytes);
  }
};

}  // namespace rocflash::kernel
