// Dropout bits from Philox 4x32-10. The generator is counter-based: the bits of a weight depend on
// its position only, not on tiles, threads or the device.
//
// One call serves eight consecutive keys of one query, 16 bits each:
//   counter = {key / 8, query, sequence * heads + head, low half of the offset}
//   key     = {low half of the seed, high half of the seed ^ high half of the offset}
//   bits of key j = word (j % 8) / 2, lower half first.
// A weight is kept when its bits are below the threshold, round((1 - p) * 65536).
#pragma once

#include <cstdint>

#include "core/inline.hpp"
#include "core/names.hpp"

namespace rocflash::core {

inline constexpr std::uint32_t philox_multiplier_0 = 0xD2511F53u, philox_multiplier_1 = 0xCD9E8D57u;
inline constexpr std::uint32_t philox_weyl_0 = 0x9E3779B9u, philox_weyl_1 = 0xBB67AE85u;
inline constexpr int philox_rounds = 10;
inline constexpr int dropout_steps = 65536;
inline constexpr int dropout_keys_per_call = 8;

struct PhiloxCounter {
  std::uint32_t word[4];
};
struct PhiloxKey {
  std::uint32_t word[2];
};

ROCFLASH_INLINE constexpr PhiloxCounter philox(PhiloxCounter counter, PhiloxKey key) {
  auto& c = counter.word;
  for (int round = 0; round < philox_rounds; ++round) {
    const std::uint64_t a = std::uint64_t{philox_multiplier_0} * c[0];
    const std::uint64_t b = std::uint64_t{philox_multiplier_1} * c[2];
    const auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
    counter = {{high(b) ^ c[1] ^ key.word[0], static_cast<std::uint32_t>(b),
                high(a) ^ c[3] ^ key.word[1], static_cast<std::uint32_t>(a)}};
    key.word[0] += philox_weyl_0;
    key.word[1] += philox_weyl_1;
  }
  return counter;
}

struct Dropout {
  float p = 0;
  std::uint32_t threshold = dropout_steps;  // of 65536 bit patterns, how many keep the weight
  std::uint64_t seed = 0, offset = 0;

  ROCFLASH_INLINE constexpr bool on() const { return p > 0; }
  ROCFLASH_INLINE constexpr float scale() const { return 1.0f / (1.0f - p); }
  ROCFLASH_INLINE constexpr PhiloxKey key() const {
    return {{static_cast<std::uint32_t>(seed),
             static_cast<std::uint32_t>(seed >> 32) ^ static_cast<std::uint32_t>(offset >> 32)}};
  }
  // The bits of the eight keys of group key_index / 8; `bh` is sequence * heads + head.
  ROCFLASH_INLINE constexpr PhiloxCounter bits(std::int64_t bh, std::int64_t query,
                                               std::int64_t key_index) const {
    return philox({{static_cast<std::uint32_t>(key_index / dropout_keys_per_call),
                    static_cast<std::uint32_t>(query), static_cast<std::uint32_t>(bh),
                    static_cast<std::uint32_t>(offset)}},
                  key());
  }
  ROCFLASH_INLINE constexpr bool keeps(std::int64_t bh, std::int64_t query,
                                       std::int64_t key_index) const {
    const PhiloxCounter words = bits(bh, query, key_index);
    const auto slot = static_cast<unsigned>(key_index % dropout_keys_per_call);
    return ((words.word[slot / 2] >> (16 * (slot % 2))) & 0xffffu) < threshold;
  }
};

constexpr std::uint32_t dropout_threshold(float p) {
  return static_cast<std::uint32_t>((1.0 - static_cast<double>(p)) * dropout_steps + 0.5);
}

}  // namespace rocflash::core
