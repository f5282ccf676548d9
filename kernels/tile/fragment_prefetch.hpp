// GEMMs with software-pipelined DS reads of the A fragments. At one wave per SIMD no other wave
// hides the LDS latency.
#pragma once

#include "tile/amd.hpp"

namespace rocflash::kernel {

// std::integer_sequence, which the freestanding device library lacks.
template <int... n>
struct IntegerSequence {};
template <class, int... n>
using IntegerSequenceOf = IntegerSequence<n...>;
template <int count>
using MakeIntegerSequence = __make_integer_seq<IntegerSequenceOf, int, count>;

// Calls use(n, fragment) for each n of `count`, in order, with up to four fragments prefetched.
template <class Mma, int count, class Fragment, class Use>
void prefetch_fragments(Fragment fragment, Use use) {
  constexpr int prefetched = count < 4 ? count : 4;
  typename Mma::Operand next[prefetched];
  ROCFLASH_UNROLL
  for (int n = 0; n < prefetched; ++n) next[n] = fragment(n);
  ROCFLASH_UNROLL
  for (int n = 0; n < count; ++n) {
    arch::sched_barrier_lds_mma();
    const typename Mma::Operand now = next[n % prefetched];
    if (n + prefetched < count) next[n % prefetched] = fragment(n + prefetched);
    use(n, now);
  }
}

// The same for ping-pong waves, whose MFMAs must not stall on LDS: DS reads are issued after the
// MFMAs of a step. The prologue reads two fragments; every `period` steps one more is read, up to
// `most` in flight. A `use` with two arguments gets a function that issues the additional read
// between its MFMAs, because LDS accepts one wave's reads only some cycles apart. `n` is a template
// argument, so that the fragment array is never indexed dynamically.
template <class Mma, int count, int most, int period = 3, class Fragment, class Use>
void prefetch_fragments_paced(Fragment fragment, Use use) {
  constexpr int prefetched = count < most ? count : most;
  typename Mma::Operand next[prefetched];
  // Fragments read after step n.
  constexpr auto read = [](int n) {
    const int slowly = 3 + n + (n + period - 1) / period, enough = n + 1 + prefetched;
    const int wanted = slowly < enough ? slowly : enough;
    return wanted < count ? wanted : count;
  };
  const auto read_some = [&]<int from, int to>() {
    if constexpr (from < to) next[from % prefetched] = fragment(from);
    if constexpr (from + 1 < to) next[(from + 1) % prefetched] = fragment(from + 1);
    arch::sched_barrier();
  };
  const auto step = [&]<int n>() {
    constexpr int from = read(n - 1), to = read(n);
    if constexpr (requires { use.template operator()<n>(next[0]); }) {
      use.template operator()<n>(next[n % prefetched]);
      arch::sched_barrier();
      read_some.template operator()<from, to>();
    } else {
      constexpr int between = from < to - 1 ? from + 1 : from;
      const typename Mma::Operand now = next[n % prefetched];
      use.template operator()<n>(now, [&] { read_some.template operator()<from, between>(); });
      arch::sched_barrier();
      read_some.template operator()<between, to>();
    }
  };
  read_some.template operator()<0, read(-1)>();
  [&]<int... n>(IntegerSequence<n...>) {
    (step.template operator()<n>(), ...);
  }(MakeIntegerSequence<count>{});
}

// `product` and `add_product` with prefetched fragments of A.
template <class Result, int depth, class A, class B>
Result multiply_prefetched(const A& a, const B& b) {
  using Mma = typename Result::Mma;
  constexpr int steps = depth / Mma::depth, count = Result::row_parts * steps;
  static_assert(Result::column_parts == 1);
  Result result;
  typename Mma::Result sum;
  prefetch_fragments<Mma, count>([&](int n) { return a.fragment(n / steps, n % steps); },
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
void multiply_add_prefetched(Accumulators<Mma, rows, columns>& c, const A& a, const B& b) {
  constexpr int parts = rows / Mma::rows;
  static_assert(columns == Mma::columns);
  prefetch_fragments<Mma, parts*(depth / Mma::depth)>(
      [&](int n) { return a.fragment(n % parts, n / parts); },
      [&](int n, const typename Mma::Operand& left) {
        typename Mma::Result& sum = c.part[n % parts][0];
        sum = Mma::multiply(left, b.fragment(0, n / parts), sum);
      });
}

}  // namespace rocflash::kernel
