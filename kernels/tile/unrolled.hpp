// Loops that are unrolled whatever the size of their bodies.
#pragma once

namespace rocflash::kernel {

// Calls it(0), it(1) ... it(count - 1).
template <int count, class Do>
void for_each(Do it) {
  if constexpr (count > 1) for_each<count - 1>(it);
  it(count - 1);
}

// The same with numbers that are constants: it(Number<0>{}), it(Number<1>{}) ...
template <int value_>
struct Number {
  static constexpr int value = value_;
};
template <int count, class Do>
void static_for(Do it) {
  if constexpr (count > 1) static_for<count - 1>(it);
  it(Number<count - 1>{});
}

}  // namespace rocflash::kernel
