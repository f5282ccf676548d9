// Which keys queries see by position, as core/visibility.hpp says, in 32 bits: for kernels whose
// registers are few. Sequences and chunks are shorter than 2^30, which plans see to.
#pragma once

#include <cstdint>

#include "core/visibility.hpp"

namespace rocflash::kernel {

inline constexpr std::int64_t longest_sight = (std::int64_t{1} << 30) - 1;

struct Sight {
  std::int32_t left, right, chunk;  // as in Visibility
  std::int32_t sq, sk;

  constexpr Sight(const Visibility& v, std::int32_t queries, std::int32_t keys)
      : left(shortened(v.left)),
        right(shortened(v.right)),
        chunk(static_cast<std::int32_t>(v.chunk)),
        sq(queries),
        sk(keys) {}

  constexpr std::int32_t begin(std::int32_t i) const {
    if (sees_all()) return 0;
    const std::int32_t place = i + sk - sq;
    const std::int32_t first = left >= 0 && place > left ? place - left : 0;
    const std::int32_t of_chunk = in_chunks() ? place - within_chunk(place) : 0;
    return first > of_chunk ? first : of_chunk;
  }
  constexpr std::int32_t end(std::int32_t i) const {
    if (sees_all()) return sk;
    const std::int32_t place = i + sk - sq;
    const std::int32_t last = right >= 0 && right < sq - 1 - i ? place + right + 1 : sk;
    const std::int32_t of_chunk = in_chunks() ? place - within_chunk(place) + chunk : sk;
    return last < of_chunk ? last : of_chunk;
  }

 private:
  // Negative if none of them ends what is seen: one scalar branch around all of it.
  constexpr bool sees_all() const { return (left & right & (chunk - 1)) < 0; }
  // Rare, with a division: everybody else is not to jump over it.
  constexpr bool in_chunks() const { return __builtin_expect(chunk > 0, false); }
  // Longer windows see no more than this one. Compared in 32 bits, which a scalar unit can do.
  static constexpr std::int32_t shortened(std::int64_t x) {
    const auto high = static_cast<std::int32_t>(x >> 32);
    const auto low = static_cast<std::uint32_t>(x);
    constexpr auto longest = static_cast<std::uint32_t>(longest_sight);
    if (high < 0) return -1;
    return static_cast<std::int32_t>(high > 0 || low > longest ? longest : low);
  }
  constexpr std::int32_t within_chunk(std::int32_t place) const {
    const std::int32_t rest = place % chunk;
    return rest < 0 ? rest + chunk : rest;
  }
};

}  // namespace rocflash::kernel
