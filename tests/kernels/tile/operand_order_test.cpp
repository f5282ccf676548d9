// Back-to-back GEMM without a shuffle: with matrix instructions emulated by their layouts, V^T P^T
// is correct when V is stored in the order of operand_order.
#include "tile/operand_order.hpp"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace rocflash::kernel {
namespace {

TEST(OperandOrder, IsAPermutationOfSixteenRows) {
  const auto expect_permutation = [](int (*order)(int)) {
    std::set<int> rows;
    for (int position = 0; position < order_rows; ++position) rows.insert(order(position));
    EXPECT_EQ(rows.size(), 16u);
    EXPECT_EQ(*rows.begin(), 0);
    EXPECT_EQ(*rows.rbegin(), 15);
  };
  expect_permutation(operand_order<layout::Mfma32x32<8>>);
  expect_permutation(operand_order<layout::WmmaGfx11>);
  expect_permutation(operand_order<layout::WmmaGfx12>);
  expect_permutation(operand_order<layout::DotGfx9>);
  expect_permutation(operand_order<layout::DotGfx10>);
}

// D = A B of an instruction with this layout, from the operands a(lane, e) and b(lane, e) of the
// lanes.
template <class Layout, class A, class B>
std::vector<int> multiply(A a, B b) {
  std::vector<int> left(Layout::rows * Layout::depth), right(Layout::depth * Layout::columns);
  for (int lane = 0; lane < Layout::lanes; ++lane) {
    for (int e = 0; e < Layout::a_elements; ++e)
      left[static_cast<std::size_t>(Layout::a_row(lane, e) * Layout::depth +
                                    Layout::a_depth(lane, e))] = a(lane, e);
    for (int e = 0; e < Layout::b_elements; ++e)
      right[static_cast<std::size_t>(Layout::b_depth(lane, e) * Layout::columns +
                                     Layout::b_column(lane, e))] = b(lane, e);
  }
  std::vector<int> d(Layout::rows * Layout::columns);
  for (int row = 0; row < Layout::rows; ++row)
    for (int column = 0; column < Layout::columns; ++column)
      for (int k = 0; k < Layout::depth; ++k)
        d[static_cast<std::size_t>(row * Layout::columns + column)] +=
            left[static_cast<std::size_t>(row * Layout::depth + k)] *
            right[static_cast<std::size_t>(k * Layout::columns + column)];
  return d;
}

template <class Layout>
void expect_back_to_back_gemm() {
  // Small integers that distinguish rows and columns.
  const auto p = [](int key, int query) { return (key * 7 + query * 3) % 11 - 5; };
  const auto v = [](int key, int column) { return (key * 5 + column * 2) % 13 - 6; };
  constexpr int steps_per_product = 16 / Layout::depth;
  constexpr bool replicated = Layout::b_elements == 16;  // in both halves of the wave
  // The accumulators of P^T that a lane holds for the first 16 keys: registers 0 to 7. Where both
  // halves hold the whole operand, those of the lower half and then those of the upper half.
  const auto weight = [&](int lane, int position) {
    const int half = Layout::lanes / 2;
    const int from = replicated ? lane % half + position / 8 * half : lane;
    return p(layout::result_row<Layout>(from, position % 8),
             layout::result_column<Layout>(from, position % 8));
  };
  // The chunks of eight positions of V^T that a lane reads.
  const auto value = [&](int lane, int e) {
    const int position = replicated ? e : 8 * (lane / (Layout::lanes / 2)) + e;
    return v(operand_order<Layout>(position), Layout::a_row(lane, e));
  };
  std::vector<int> sum(Layout::rows * Layout::columns);
  for (int n = 0; n < steps_per_product; ++n) {
    const int first = n * Layout::a_elements;
    const auto d = multiply<Layout>([&](int lane, int e) { return value(lane, first + e); },
                                    [&](int lane, int e) { return weight(lane, first + e); });
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += d[i];
  }
  for (int column = 0; column < Layout::rows; ++column) {
    for (int query = 0; query < Layout::columns; ++query) {
      int expected = 0;
      for (int key = 0; key < 16; ++key) expected += v(key, column) * p(key, query);
      EXPECT_EQ(sum[static_cast<std::size_t>(column * Layout::columns + query)], expected);
    }
  }
}

TEST(OperandOrder, AccumulatorsAreTheNextOperand) {
  expect_back_to_back_gemm<layout::Mfma32x32<4>>();
  expect_back_to_back_gemm<layout::Mfma32x32<8>>();
  expect_back_to_back_gemm<layout::Mfma32x32<16>>();
  expect_back_to_back_gemm<layout::WmmaGfx11>();
  expect_back_to_back_gemm<layout::WmmaGfx12>();
  expect_back_to_back_gemm<layout::DotGfx9>();
  expect_back_to_back_gemm<layout::DotGfx10>();
}

}  // namespace
}  // namespace rocflash::kernel
