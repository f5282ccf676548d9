// Loads that transpose on the way: which lane and element supplies each element of the result.
#pragma once

#include "core/types.h"

namespace rocflash::sim {

struct TransposeSource {
  int lane;
  int element;
};

// gfx950's ds_read_*_tr_*: sixteen lanes together hold `elements` rows of 16; lane l gets column
// l % 16. A row spans 16 / elements adjacent lanes.
constexpr TransposeSource lds_transpose_source(int lane, int n, int elements) {
  const int column = lane % 16;
  return {(lane & ~15) + n * (16 / elements) + column / elements, column % elements};
}

// gfx12's global_load_tr_b128 (16-bit elements): eight lanes hold an 8x8 block.
constexpr TransposeSource global_transpose16_source(int lane, int n) {
  return {(lane & ~7) + n, lane & 7};
}

// gfx12's global_load_tr_b64 (8-bit elements): sixteen lanes hold 8 rows of 16, rows in runs of
// four: lanes 0-3 the left halves of rows 0-3, lanes 4-7 their right halves, lanes 8-15 rows 4-7.
constexpr TransposeSource global_transpose8_source(int lane, int n) {
  return {(lane & ~15) + 8 * (n / 4) + 4 * (lane >> 3 & 1) + n % 4, lane & 7};
}

// What a lane holds, four dwords at most.
using LaneWords = u32[4];

constexpr u32 element_of(const LaneWords& words, int index, int bits) {
  const int bit = index * bits;
  const u64 two = u64{words[bit / 32]} | (bit / 32 < 3 ? u64{words[bit / 32 + 1]} << 32 : 0);
  return u32(two >> (bit % 32)) & ((1u << bits) - 1);
}

constexpr void put_element(LaneWords& words, int index, int bits, u32 value) {
  const int bit = index * bits;
  words[bit / 32] |= value << (bit % 32);
  if (bit % 32 + bits > 32) words[bit / 32 + 1] |= value >> (32 - bit % 32);
}

}  // namespace rocflash::sim
