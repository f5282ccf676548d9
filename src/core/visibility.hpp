// Which keys a query may see by position: causal, window and chunk together are always one
// interval.
//
// Query i of sq stands at key i + (sk - sq): the ends of both sequences line up. The interval's two
// ends never move left as i grows, so a block of queries sees an interval too, and so does a block
// of keys.
#pragma once

#include <cstdint>

#include "core/division.hpp"
#include "core/inline.hpp"
#include "core/names.hpp"

namespace rocflash::core {

struct Range {
  std::int64_t begin = 0, end = 0;  // half open; empty when end <= begin
  ROCFLASH_INLINE constexpr bool empty() const { return end <= begin; }
  ROCFLASH_INLINE constexpr std::int64_t size() const { return empty() ? 0 : end - begin; }
  ROCFLASH_INLINE constexpr bool contains(std::int64_t x) const { return begin <= x && x < end; }
  constexpr bool operator==(const Range&) const = default;
};

struct Visibility {
  std::int64_t left = -1, right = -1;  // -1: no bound
  std::int64_t chunk = 0;              // 0: no chunks

  ROCFLASH_INLINE constexpr bool bounded() const { return left >= 0 || right >= 0 || chunk > 0; }
};

ROCFLASH_INLINE constexpr std::int64_t floor_to(std::int64_t x, std::int64_t step) {
  const std::int64_t r = x % step;
  return x - (r < 0 ? r + step : r);
}

// Where the chunk of a position starts, which may be negative. The door bounds chunks by the lengths.
ROCFLASH_INLINE constexpr std::int64_t chunk_begin(std::int64_t place, std::int64_t chunk) {
  const auto size = static_cast<Divided>(place < 0 ? ~place : place);
  const auto begin = static_cast<std::int64_t>(size - size % static_cast<Divided>(chunk));
  return place < 0 ? -begin - chunk : begin;
}

ROCFLASH_INLINE constexpr std::int64_t larger(std::int64_t a, std::int64_t b) {
  return a > b ? a : b;
}
ROCFLASH_INLINE constexpr std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

// The keys that query i sees.
ROCFLASH_INLINE constexpr Range visible_keys(const Visibility& v, std::int64_t i, std::int64_t sq,
                                             std::int64_t sk) {
  const std::int64_t place = i + sk - sq;
  Range keys{0, sk};
  if (v.left >= 0) keys.begin = larger(keys.begin, place - v.left);
  if (v.right >= 0) keys.end = smaller(keys.end, place + v.right + 1);
  if (v.chunk > 0) {
    const std::int64_t chunk = chunk_begin(place, v.chunk);
    keys.begin = larger(keys.begin, chunk);
    keys.end = smaller(keys.end, chunk + v.chunk);
  }
  return keys;
}

// All keys that some query of a non-empty block sees.
ROCFLASH_INLINE constexpr Range visible_keys(const Visibility& v, Range queries, std::int64_t sq,
                                             std::int64_t sk) {
  return {visible_keys(v, queries.begin, sq, sk).begin,
          visible_keys(v, queries.end - 1, sq, sk).end};
}

// Keys that every query of a non-empty block sees: tiles inside need no mask.
ROCFLASH_INLINE constexpr Range common_keys(const Visibility& v, Range queries, std::int64_t sq,
                                            std::int64_t sk) {
  return {visible_keys(v, queries.end - 1, sq, sk).begin,
          visible_keys(v, queries.begin, sq, sk).end};
}

// All queries that see some key of a non-empty block.
ROCFLASH_INLINE constexpr Range seeing_queries(const Visibility& v, Range keys, std::int64_t sq,
                                               std::int64_t sk) {
  const std::int64_t shift = sk - sq;
  Range queries{0, sq};
  if (v.right >= 0) queries.begin = larger(queries.begin, keys.begin - shift - v.right);
  if (v.left >= 0) queries.end = smaller(queries.end, keys.end - shift + v.left);
  if (v.chunk > 0) {
    queries.begin = larger(queries.begin, chunk_begin(keys.begin, v.chunk) - shift);
    queries.end = smaller(queries.end, chunk_begin(keys.end - 1, v.chunk) + v.chunk - shift);
  }
  return queries;
}

}  // namespace rocflash::core
