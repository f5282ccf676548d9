// Mask bounds: the keys that a query attends to under causal, window and chunk masks. They always
// form one interval.
//
// Positions are bottom-right aligned, as chunked prefill and decode need them: query i of sq is at
// position i + (sk - sq). Both bounds are monotonic in i, so the visible keys of a block of queries
// form an interval too, as do the queries that attend to a block of keys.
#pragma once

#include <cstdint>

#include "core/division.hpp"
#include "core/inline.hpp"
#include "core/names.hpp"

namespace rocflash::core {

struct Range {
  std::int64_t begin = 0, end = 0;  // half-open; empty if end <= begin
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

// The start of the chunk of a position, which may be negative. Validation bounds chunks by the
// lengths.
ROCFLASH_INLINE constexpr std::int64_t chunk_begin(std::int64_t position, std::int64_t chunk) {
  const auto size = static_cast<Divided>(position < 0 ? ~position : position);
  const auto begin = static_cast<std::int64_t>(size - size % static_cast<Divided>(chunk));
  return position < 0 ? -begin - chunk : begin;
}

ROCFLASH_INLINE constexpr std::int64_t larger(std::int64_t a, std::int64_t b) {
  return a > b ? a : b;
}
ROCFLASH_INLINE constexpr std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

// The keys that query i attends to.
ROCFLASH_INLINE constexpr Range visible_keys(const Visibility& v, std::int64_t i, std::int64_t sq,
                                             std::int64_t sk) {
  const std::int64_t position = i + sk - sq;
  Range keys{0, sk};
  if (v.left >= 0) keys.begin = larger(keys.begin, position - v.left);
  if (v.right >= 0) keys.end = smaller(keys.end, position + v.right + 1);
  if (v.chunk > 0) {
    const std::int64_t chunk = chunk_begin(position, v.chunk);
    keys.begin = larger(keys.begin, chunk);
    keys.end = smaller(keys.end, chunk + v.chunk);
  }
  return keys;
}

// The union of the visible keys of a non-empty block of queries.
ROCFLASH_INLINE constexpr Range visible_keys(const Visibility& v, Range queries, std::int64_t sq,
                                             std::int64_t sk) {
  return {visible_keys(v, queries.begin, sq, sk).begin,
          visible_keys(v, queries.end - 1, sq, sk).end};
}

// Keys visible to every query of a non-empty block: tiles inside need no mask.
ROCFLASH_INLINE constexpr Range common_keys(const Visibility& v, Range queries, std::int64_t sq,
                                            std::int64_t sk) {
  return {visible_keys(v, queries.end - 1, sq, sk).begin,
          visible_keys(v, queries.begin, sq, sk).end};
}

// All queries that attend to some key of a non-empty block.
ROCFLASH_INLINE constexpr Range attending_queries(const Visibility& v, Range keys, std::int64_t sq,
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
