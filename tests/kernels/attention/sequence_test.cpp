// The rows of a sequence: those of the host's Lengths if the lengths are valid, and within the
// tensors otherwise.
#include "attention/sequence.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace rocflash::kernel {
namespace {

TEST(Sequence, AgreesWithTheHost) {
  const std::vector<std::int32_t> cu_q{2, 5, 5, 17}, cu_k{0, 9, 20, 21}, used_q{1, 0, 12},
      used_k{9, 4, 0}, leftpad{3, 4, 0};
  for (int options = 0; options < 32; ++options) {
    Problem p;
    p.lengths.batch = 3;
    p.lengths.rows_q = options & 1 ? 20 : 12;
    p.lengths.rows_k = options & 2 ? 21 : 11;
    p.max_q = 12;
    p.max_k = 11;
    if (options & 1) p.lengths.cu_q = cu_q.data();
    if (options & 2) p.lengths.cu_k = cu_k.data();
    if (options & 4 && options & 1) p.lengths.used_q = used_q.data();
    if (options & 8 && options & 2) p.lengths.used_k = used_k.data();
    if (options & 16 && options & 8 && options & 2) p.lengths.leftpad_k = leftpad.data();
    for (std::int64_t b = 0; b < 3; ++b) {
      const Sequence host = p.lengths.sequence(b);
      const SequenceView device(p, b);
      EXPECT_EQ(device.q_row, host.q_row);
      EXPECT_EQ(device.q_rows, host.q_rows);
      EXPECT_EQ(device.sq, host.sq);
      EXPECT_EQ(device.k_row, host.k_row);
      EXPECT_EQ(device.sk, host.sk);
    }
  }
}

TEST(Sequence, InvalidLengthsStayWithinTheTensors) {
  std::mt19937 random(1);
  const auto any_length = [&] {
    const std::int32_t choices[] = {std::numeric_limits<std::int32_t>::min(),
                                    -1,
                                    0,
                                    3,
                                    100,
                                    std::numeric_limits<std::int32_t>::max(),
                                    static_cast<std::int32_t>(random())};
    return choices[random() % 7];
  };
  for (int n = 0; n < 20000; ++n) {
    const std::int32_t cu_q[] = {any_length(), any_length()}, cu_k[] = {any_length(), any_length()};
    const std::int32_t used_q = any_length(), used_k = any_length(), leftpad = any_length();
    Problem p;
    p.lengths.batch = 1;
    p.lengths.rows_q = 10;
    p.lengths.rows_k = 20;
    p.max_q = 7;
    p.max_k = 15;
    p.lengths.paged = n % 2;
    p.lengths.cu_q = cu_q;
    p.lengths.cu_k = cu_k;
    p.lengths.used_q = &used_q;
    p.lengths.used_k = &used_k;
    p.lengths.leftpad_k = &leftpad;
    const SequenceView s(p, 0);
    EXPECT_TRUE(s.sq >= 0 && s.sq <= s.q_rows && s.q_rows <= p.max_q);
    EXPECT_TRUE(s.q_row >= 0 && s.q_row + s.q_rows <= p.lengths.rows_q);
    EXPECT_TRUE(s.sk >= 0 && s.sk <= p.max_k);
    EXPECT_TRUE(s.k_row >= 0 && s.k_row + s.sk <= p.lengths.rows_k);
  }
}

TEST(Sequence, InvalidPageNumbersAreClamped) {
  std::vector<std::uint16_t> memory(4 * 3);
  const std::int32_t blocks[] = {1, -5, 99};
  Rows rows;
  rows.data = reinterpret_cast<std::byte*>(memory.data());
  rows.batch_stride = 3;
  rows.row_stride = 1;
  rows.blocks = blocks;
  rows.blocks_stride = 3;
  rows.block_rows = 3;
  const auto index = [&](std::int64_t row) {
    return (key_row<DType::f16>(rows, 4, 0, row, 0) - rows.data) / 2;
  };
  EXPECT_EQ(index(0), 3);
  EXPECT_EQ(index(2), 5);
  EXPECT_EQ(index(4), 1);   // page -5 is clamped to page 0
  EXPECT_EQ(index(8), 11);  // page 99 to page 3
}

}  // namespace
}  // namespace rocflash::kernel
