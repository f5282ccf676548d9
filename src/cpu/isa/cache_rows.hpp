// Rows of a key-value cache for decode: where a tile's rows lie, and asking memory for those to
// come.
#pragma once

#include "cpu/isa/tile.hpp"

// Nameless, so that functions which are not inlined have no linkable copies (core/inline.hpp).
namespace rocflash::cpu::ROCFLASH_ISA {
namespace {

constexpr int tile_keys = decode_keys;

// Rows of the cache that a tile of keys names, found once for all heads and columns. What lies
// beyond the last key names it again: its scores are thrown away, its weights are 0.
template <class Stored>
struct KeyRows {
  const Stored* row[tile_keys];  // of the first head
  std::int64_t head_stride;
  int count, columns;

  ROCFLASH_INLINE void find(const RowBlock& block) {
    const Rows& rows = block.rows;
    head_stride = rows.head_stride;
    columns = rows.columns;
    count = block.count;
    for (int n = 0; n < count;) {
      const auto* first = reinterpret_cast<const Stored*>(block.row(n));
      const std::int64_t together = smaller(rows.rows_together(block.begin + n), count - n);
      for (std::int64_t i = 0; i < together; ++i) row[n++] = first + i * rows.row_stride;
    }
    for (int n = count; n > 0 && n < tile_keys; ++n) row[n] = row[count - 1];
  }
};

// Asks for lines into the second-level cache: a tile is too large for the first.
inline constexpr int line = 64;
template <int lines>
ROCFLASH_INLINE void ask(const char* from) {
  for (int n = 0; n < lines; ++n) __builtin_prefetch(from + n * line, 0, 2);
}

// Hands out rows that will be needed soon, a few cache lines at a time and in the order in which
// they lie in memory. Rows of one head lie far apart, which the hardware does not foresee. A few
// lines while others are at work keep just enough requests under way; asking for many at once would
// stall.
template <class Stored>
class Lookahead {
 public:
  // Keys [first, last) of the rows.
  ROCFLASH_INLINE Lookahead(const KeyRows<Stored>& rows, int heads, int first, int last)
      : rows_(rows), key_(first), last_(static_cast<int>(smaller(last, rows.count)) - 1) {
    // Heads side by side are one long row.
    const bool joined = rows.head_stride == rows.columns;
    pieces_ = joined ? 1 : heads;
    bytes_ = static_cast<std::int64_t>(sizeof(Stored)) * rows.columns * (joined ? heads : 1);
    head_bytes_ = static_cast<std::int64_t>(sizeof(Stored)) * rows.head_stride;
    begin();
  }

  // The next lines, for the caller to ask for. If they do not lie side by side they are asked for
  // here; what the caller is given then does not matter.
  ROCFLASH_INLINE const char* take(int lines) {
    const char* here = at_;
    if (end_ - here > lines * line) [[likely]]
      at_ += lines * line;
    else
      ask_here(lines);
    return here;
  }
  ROCFLASH_INLINE void ask_for_all() {
    for (;; go_on()) {
      for (; at_ < end_; at_ += line) ask<1>(at_);
      if (key_ >= last_ && piece_ == pieces_ - 1) return;
    }
  }

 private:
  [[gnu::noinline]] void ask_here(int lines) {
    for (int n = 0; n < lines; ++n) {
      ask<1>(at_);
      at_ += line;
      if (at_ >= end_) go_on();
    }
  }
  // Keys that follow each other without a gap are one piece.
  ROCFLASH_INLINE void begin() {
    const auto start = [&](int key) { return reinterpret_cast<const char*>(rows_.row[key]); };
    at_ = start(key_) + piece_ * head_bytes_;
    end_ = at_ + bytes_;
    for (; pieces_ == 1 && key_ < last_ && start(key_ + 1) == end_; ++key_) end_ += bytes_;
  }
  // To the next head, or to the next key; at the very end there is nothing left to ask for.
  ROCFLASH_INLINE void go_on() {
    if (++piece_ == pieces_) {
      piece_ = 0;
      if (key_ < last_) ++key_;
    }
    begin();
  }

  const KeyRows<Stored>& rows_;
  std::int64_t bytes_, head_bytes_;
  const char *at_, *end_;
  int pieces_, piece_ = 0, key_, last_;
};

}  // namespace
}  // namespace rocflash::cpu::ROCFLASH_ISA
