// Loops unrolled at compile time, whatever the size of their bodies.
#pragma once

namespace rocflash::kernel {

// Calls it(0), it(1) ... it(count - 1).
template <int count, class Do>
void for_each(Do it) {
  if constexpr (count > 1) for_each<count - 1>(it);
  it(count - 1);
}

// The same with compile-time constants: it(Int<0>{}), it(Int<1>{}) ...
template <int value_>
struct Int {
  static constexpr int value = value_;
};
template <int count, class Do>
void static_for(Do it) {
  if constexpr (count > 1) static_for<count - 1>(it);
  it(Int<count - 1>{});
}

}  // namespace rocflash::kernel
