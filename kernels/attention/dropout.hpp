// Dropout of weights: the keep mask of a (batch, head) slice, from Philox.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/arguments.hpp"

namespace rocflash::kernel {

// Keys that share one Philox draw. Key tiles start at multiples of it.
inline constexpr int dropout_keys = 8;

template <class Pass>
class DropoutMask {
 public:
  DropoutMask(const Problem& p, std::int64_t bh) : problem_(p), bh_(bh) {}

  // Zeroes the dropped weights of `count` scores. `run` consecutive keys share one draw.
  template <int count, int run, class Key, class Weight>
  void drop(std::int32_t query, Key key, Weight weight) const {
    ROCFLASH_UNROLL
    for (int first = 0; first < count; first += run) {
      const PhiloxCounter words = dropout().bits(bh_, query, key(first));
      ROCFLASH_UNROLL
      for (int n = first; n < first + run; ++n) {
        if (!keeps(words, key(n))) weight(n) = 0;
      }
    }
  }
  // The eight keys of a query from `first` on, a multiple of eight: bit n is set if the weight of
  // key first + n is kept.
  std::uint32_t kept(std::int32_t query, std::int32_t first) const {
    const Dropout& own = dropout();
    const PhiloxCounter words = own.bits(bh_, query, first);
    const std::uint32_t threshold = own.threshold;
    std::uint32_t bits = 0;
    ROCFLASH_UNROLL
    for (int n = 0; n < 4; ++n) {
      bits |= std::uint32_t{(words.word[n] & 0xffffu) < threshold} << 2 * n;
      bits |= std::uint32_t{words.word[n] >> 16 < threshold} << (2 * n + 1);
    }
    return bits;
  }
  bool keeps(std::int32_t query, std::int32_t key) const {
    return keeps(dropout().bits(bh_, query, key), key);
  }

 private:
  const Dropout& dropout() const { return Pass::arguments(problem_).dropout; }
  bool keeps(const PhiloxCounter& words, std::int32_t key) const {
    const std::uint32_t low = key & 2 ? words.word[1] : words.word[0],
                        high = key & 2 ? words.word[3] : words.word[2];
    const std::uint32_t pair = key & 4 ? high : low;
    return (key & 1 ? pair >> 16 : pair & 0xffffu) < dropout().threshold;
  }

  const Problem& problem_;
  std::int64_t bh_;
};

}  // namespace rocflash::kernel
