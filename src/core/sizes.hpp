// Overflow-checked sizes: rows, elements and bytes computed from the caller's shapes. A tensor with
// strides of 0 can have 2^62 elements in a few bytes of memory, so any product of sizes may exceed
// 64 bits. A Size that overflows stays "too large" and cannot be used as an integer by mistake.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "core/names.hpp"

namespace rocflash::core {

class Size {
 public:
  constexpr Size(std::int64_t n) : n_(n < 0 ? too_large : n) {}
  static constexpr Size of_bytes(std::size_t n) {
    return n > static_cast<std::size_t>(too_large) ? Size(too_large)
                                                   : Size(static_cast<std::int64_t>(n));
  }

  constexpr bool fits() const { return n_ != too_large; }
  // Valid only if fits().
  constexpr std::int64_t value() const { return n_; }
  constexpr std::size_t bytes() const { return static_cast<std::size_t>(n_); }
  // The size clamped to `limit`, for heuristics.
  constexpr std::int64_t at_most(std::int64_t limit) const { return n_ < limit ? n_ : limit; }

  friend constexpr Size operator+(Size a, Size b) {
    std::int64_t sum = 0;
    return __builtin_add_overflow(a.n_, b.n_, &sum) ? Size(too_large) : Size(sum);
  }
  // 0 times a size that is too large is 0.
  friend constexpr Size operator*(Size a, Size b) {
    std::int64_t product = 0;
    return __builtin_mul_overflow(a.n_, b.n_, &product) ? Size(too_large) : Size(product);
  }
  constexpr Size& operator+=(Size other) { return *this = *this + other; }

  // Rounds up to a multiple of `step`.
  constexpr Size rounded_up(std::int64_t step) const {
    const Size more = *this + (step - 1);
    return more.fits() ? Size(more.n_ / step * step) : Size(too_large);
  }

 private:
  // Larger than any size in bytes: pointer differences are signed.
  static constexpr std::int64_t too_large = std::numeric_limits<std::int64_t>::max();
  std::int64_t n_;
};

}  // namespace rocflash::core
