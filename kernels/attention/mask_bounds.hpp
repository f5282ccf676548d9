// Mask bounds of core/visibility.hpp in 32 bits, for register-limited kernels. The launch plan
// guarantees that sequences and chunks are shorter than 2^30.
#pragma once

#include <cstdint>

#include "core/visibility.hpp"

namespace rocflash::kernel {

inline constexpr std::int64_t max_mask_bound = (std::int64_t{1} << 30) - 1;

struct MaskBounds {
  std::int32_t left, right, chunk;  // as in Visibility
  std::int32_t sq, sk;

  constexpr MaskBounds(const Visibility& v, std::int32_t queries, std::int32_t keys)
      : left(shortened(v.left)),
        right(shortened(v.right)),
        chunk(static_cast<std::int32_t>(v.chunk)),
        sq(queries),
        sk(keys) {}

  constexpr std::int32_t begin(std::int32_t i) const {
    if (attends_to_all()) return 0;
    const std::int32_t position = i + sk - sq;
    const std::int32_t first = left >= 0 && position > left ? position - left : 0;
    const std::int32_t of_chunk = in_chunks() ? position - within_chunk(position) : 0;
    return first > of_chunk ? first : of_chunk;
  }
  constexpr std::int32_t end(std::int32_t i) const {
    if (attends_to_all()) return sk;
    const std::int32_t position = i + sk - sq;
    const std::int32_t last = right >= 0 && right < sq - 1 - i ? position + right + 1 : sk;
    const std::int32_t of_chunk = in_chunks() ? position - within_chunk(position) + chunk : sk;
    return last < of_chunk ? last : of_chunk;
  }

 private:
  // Negative if there is no mask: one scalar branch skips all of it.
  constexpr bool attends_to_all() const { return (left & right & (chunk - 1)) < 0; }
  // Chunked attention is rare and needs a division: moved out of the fall-through path.
  constexpr bool in_chunks() const { return __builtin_expect(chunk > 0, false); }
  // Clamps longer windows, which mask nothing. 32-bit compares run on the scalar unit.
  static constexpr std::int32_t shortened(std::int64_t x) {
    const auto high = static_cast<std::int32_t>(x >> 32);
    const auto low = static_cast<std::uint32_t>(x);
    constexpr auto longest = static_cast<std::uint32_t>(max_mask_bound);
    if (high < 0) return -1;
    return static_cast<std::int32_t>(high > 0 || low > longest ? longest : low);
  }
  constexpr std::int32_t within_chunk(std::int32_t position) const {
    const std::int32_t rest = position % chunk;
    return rest < 0 ? rest + chunk : rest;
  }
};

}  // namespace rocflash::kernel
