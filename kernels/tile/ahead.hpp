// Products whose left operand is read from LDS some steps ahead of its use. For waves that have their SIMD to
// themselves: nobody else would fill the time of a read.
#pragma once

#include "tile/amd.hpp"

namespace rocflash::kernel {

// 0 to count − 1 as template arguments.
template <int... n>
struct Numbers {};
template <class, int... n>
using NumbersOf = Numbers<n...>;
template <int count>
using NumbersBelow = __make_integer_seq<NumbersOf, int, count>;

// Fragments of an operand, four of them read before their use: use(n, fragment) is called for each n of
// `count`, in order.
template <class Mma, int count, class Fragment, class Use>
void read_ahead(Fragment fragment, Use use) {
  constexpr int ahead = count < 4 ? count : 4;
  typename Mma::Operand next[ahead];
  ROCFLASH_UNROLL
  for (int n = 0; n < ahead; ++n) next[n] = fragment(n);
  ROCFLASH_UNROLL
  for (int n = 0; n < count; ++n) {
    arch::keep_order();
    const typename Mma::Operand now = next[n % ahead];
    if (n + ahead < count) next[n % ahead] = fragment(n + ahead);
    use(n, now);
  }
}

// The same for a wave that shares its SIMD, whose products must not wait for LDS: reads come after the
// products of a step. It starts with two fragments and reads another one every `period` steps, until
// `most` are there. A `use` that takes two arguments gets a function that reads that one: LDS takes a wave's reads some
// clocks apart, so it had better stand behind another instruction. Here `n` is a template argument: fragments
// are not left in an array that is indexed.
template <class Mma, int count, int most, int period = 3, class Fragment, class Use>
void read_ahead_slowly(Fragment fragment, Use use) {
  constexpr int ahead = count < most ? count : most;
  typename Mma::Operand next[ahead];
  // How many have been read after step n.
  constexpr auto read = [](int n) {
    const int slowly = 3 + n + (n + period - 1) / period, enough = n + 1 + ahead;
    const int wanted = slowly < enough ? slowly : enough;
    return wanted < count ? wanted : count;
  };
  const auto read_some = [&]<int from, int to>() {
    if constexpr (from < to) next[from % ahead] = fragment(from);
    if constexpr (from + 1 < to) next[(from + 1) % ahead] = fragment(from + 1);
    arch::in_order();
  };
  const auto step = [&]<int n>() {
    constexpr int from = read(n - 1), to = read(n);
    if constexpr (requires { use.template operator()<n>(next[0]); }) {
      use.template operator()<n>(next[n % ahead]);
      arch::in_order();
      read_some.template operator()<from, to>();
    } else {
      constexpr int between = from < to - 1 ? from + 1 : from;
      const typename Mma::Operand now = next[n % ahead];
      use.template operator()<n>(now, [&] { read_some.template operator()<from, between>(); });
      arch::in_order();
      read_some.template operator()<between, to>();
    }
  };
  read_some.template operator()<0, read(-1)>();
  [&]<int... n>(Numbers<n...>) { (step.template operator()<n>(), ...); }(NumbersBelow<count>{});
}

// `product` and `add_product` with the left operand read ahead.
template <class Result, int depth, class A, class B>
Result product_ahead(const A& a, const B& b) {
  using Mma = typename Result::Mma;
  constexpr int steps = depth / Mma::depth, count = Result::row_parts * steps;
  static_assert(Result::column_parts == 1);
  Result result;
  typename Mma::Result sum;
  read_ahead<Mma, count>([&](int n) { return a.fragment(n / steps, n % steps); },
                         [&](int n, const typename Mma::Operand& left) {
                           if (n % steps == 0) sum = {};
                           sum = Mma::multiply(left, b.fragment(0, n % steps), sum);
                           if (n % steps < steps - 1) return;
                           ROCFLASH_UNROLL
                           for (int r = 0; r < Mma::results; ++r)
                             result.at[0][n / steps * Mma::results + r] = sum[r];
                         });
  return result;
}
template <int depth, class Mma, int rows, int columns, class A, class B>
void add_product_ahead(Accumulators<Mma, rows, columns>& c, const A& a, const B& b) {
  constexpr int parts = rows / Mma::rows;
  static_assert(columns == Mma::columns);
  read_ahead<Mma, parts*(depth / Mma::depth)>(
      [&](int n) { return a.fragment(n % parts, n / parts); },
      [&](int n, const typename Mma::Operand& left) {
        typename Mma::Result& sum = c.part[n % parts][0];
        sum = Mma::multiply(left, b.fragment(0, n / parts), sum);
      });
}

}  // namespace rocflash::kernel
