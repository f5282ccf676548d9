// Unused rows are written; rows in use are not changed.
#include "core/unused.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace rocflash {
namespace {

constexpr float untouched = 7;

// All outputs of a problem with one column, in memory that is filled with `untouched`.
struct Outputs {
  explicit Outputs(const Problem& problem) : p(problem) {
    const std::int64_t batches = p.lengths.packed_q() ? 1 : p.batch();
    const auto rows = [&](std::vector<float>& memory, std::int64_t count, std::int64_t heads) {
      memory.assign(static_cast<std::size_t>(batches * count * heads), untouched);
      return Rows{reinterpret_cast<std::byte*>(memory.data()),
                  DType::f32,
                  p.lengths.packed_q() ? 0 : count * heads,
                  heads,
                  1,
                  1};
    };
    forward.out = rows(out, p.lengths.rows_q, p.heads);
    backward.dq = rows(dq, p.lengths.rows_q, p.heads);
    backward.dk = rows(dk, p.lengths.rows_k, p.kv_heads);
    backward.dv = rows(dv, p.lengths.rows_k, p.kv_heads);
    lse.assign(out.size(), untouched);
    forward.lse = {lse.data(), p.lengths.packed_q() ? 0 : p.heads * p.lengths.rows_q,
                   p.lengths.rows_q, 1};
    s_dmask.assign(static_cast<std::size_t>(p.batch() * p.heads * p.max_q * p.max_k), untouched);
    forward.s_dmask = {reinterpret_cast<std::byte*>(s_dmask.data()),
                       DType::f32,
                       p.heads * p.max_q * p.max_k,
                       p.max_q * p.max_k,
                       p.max_k,
                       1};
    clear_unused(p, forward);
    delta.assign(out.size(), untouched);
    delta_rows = forward.lse;
    delta_rows.data = delta.data();
    clear_unused(p, backward, delta_rows);
  }

  void expect_row(std::int64_t b, std::int64_t r, bool used) const {
    const float expected = used ? untouched : 0;
    for (std::int64_t h = 0; h < p.heads; ++h) {
      EXPECT_EQ(*reinterpret_cast<const float*>(forward.out.row(b, r, h)), expected)
          << b << " " << r;
      EXPECT_EQ(*reinterpret_cast<const float*>(backward.dq.row(b, r, h)), expected)
          << b << " " << r;
      EXPECT_EQ(forward.lse.at(b, h, r), used ? untouched : INFINITY) << b << " " << r;
      EXPECT_EQ(delta_rows.at(b, h, r), expected) << b << " " << r;
    }
  }
  void expect_key(std::int64_t b, std::int64_t r, bool used) const {
    const float expected = used ? untouched : 0;
    for (std::int64_t h = 0; h < p.kv_heads; ++h) {
      EXPECT_EQ(*reinterpret_cast<const float*>(backward.dk.row(b, r, h)), expected)
          << b << " " << r;
      EXPECT_EQ(*reinterpret_cast<const float*>(backward.dv.row(b, r, h)), expected)
          << b << " " << r;
    }
  }
  void expect_weights(std::int64_t b, std::int64_t sq, std::int64_t sk) const {
    for (std::int64_t h = 0; h < p.heads; ++h)
      for (std::int64_t i = 0; i < p.max_q; ++i)
        for (std::int64_t j = 0; j < p.max_k; ++j)
          EXPECT_EQ(reinterpret_cast<const float*>(forward.s_dmask.row(b, h, i))[j],
                    i < sq && j < sk ? untouched : 0)
              << b << " " << i << " " << j;
  }

  const Problem& p;
  std::vector<float> out, lse, s_dmask, dq, dk, dv, delta;
  RowStatistic delta_rows;
  ForwardOutputs forward;
  BackwardTensors backward;
};

Problem problem_of(const Lengths& lengths, std::int64_t max_q, std::int64_t max_k) {
  Problem p;
  p.heads = 4;
  p.kv_heads = 2;
  p.head_dim = p.value_dim = 1;
  p.lengths = lengths;
  p.max_q = max_q;
  p.max_k = max_k;
  return p;
}

TEST(Unused, DenseUsedLengthsAndLeftPadding) {
  const std::int32_t used_q[] = {2, 0, 5}, used_k[] = {6, 4, 0}, leftpad[] = {1, 4, 0};
  const Problem p = problem_of({.batch = 3,
                                .rows_q = 5,
                                .rows_k = 7,
                                .used_q = used_q,
                                .used_k = used_k,
                                .leftpad_k = leftpad},
                               5, 7);
  const Outputs o(p);
  for (std::int64_t b = 0; b < 3; ++b) {
    for (std::int64_t r = 0; r < 5; ++r) o.expect_row(b, r, r < used_q[b]);
    for (std::int64_t r = 0; r < 7; ++r) o.expect_key(b, r, r >= leftpad[b] && r < used_k[b]);
    o.expect_weights(b, used_q[b], used_k[b] - leftpad[b]);
  }
}

TEST(Unused, DenseTensorsHaveNoUnusedRows) {
  const Problem p = problem_of({.batch = 2, .rows_q = 3, .rows_k = 4}, 3, 4);
  const Outputs o(p);
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t r = 0; r < 3; ++r) o.expect_row(b, r, true);
    for (std::int64_t r = 0; r < 4; ++r) o.expect_key(b, r, true);
    o.expect_weights(b, 3, 4);
  }
}

// Rows before the first and after the last sequence, rows past the used length of a sequence, and
// empty sequences.
TEST(Unused, PackedGaps) {
  const std::int32_t cu_q[] = {2, 5, 5, 9}, cu_k[] = {1, 4, 8, 8};
  const std::int32_t used_q[] = {2, 0, 4}, used_k[] = {3, 2, 0}, leftpad[] = {0, 1, 0};
  const Problem p = problem_of({.batch = 3,
                                .rows_q = 10,
                                .rows_k = 11,
                                .cu_q = cu_q,
                                .cu_k = cu_k,
                                .used_q = used_q,
                                .used_k = used_k,
                                .leftpad_k = leftpad},
                               4, 6);
  const Outputs o(p);
  const bool queries[] = {false, false, true, true, false, true, true, true, true, false};
  const bool keys[] = {false, true, true, true, false, true, false, false, false, false, false};
  for (std::int64_t r = 0; r < 10; ++r) o.expect_row(0, r, queries[r]);
  for (std::int64_t r = 0; r < 11; ++r) o.expect_key(0, r, keys[r]);
  o.expect_weights(0, 2, 3);
  o.expect_weights(1, 0, 1);
  o.expect_weights(2, 4, 0);
}

TEST(Unused, NullOutputsAreSkipped) {
  const std::int32_t used[] = {1};
  const Problem p =
      problem_of({.batch = 1, .rows_q = 3, .rows_k = 3, .used_q = used, .used_k = used}, 3, 3);
  clear_unused(p, ForwardOutputs{});
  clear_unused(p, BackwardTensors{}, {});
}

}  // namespace
}  // namespace rocflash
