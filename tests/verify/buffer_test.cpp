// Elements of outputs never share an address, and buffers detect out-of-bounds and missing writes.
#include "verify/buffer.hpp"

#include <gtest/gtest.h>

#include <set>

namespace rocflash::verify {
namespace {

constexpr Layout layouts[] = {Layout::compact, Layout::swapped, Layout::gapped, Layout::reversed,
                              Layout::broadcast};
const Dims shape{2, 5, 3, 4};
constexpr Axes axes{1, 2, 0};

TEST(Buffer, elements_of_outputs_have_distinct_addresses) {
  for (const Layout layout : layouts) {
    const Placement p = lay_out(shape, layout, axes, Role::output);
    std::set<std::int64_t> addresses;
    for (std::int64_t a = 0; a < shape[0]; ++a)
      for (std::int64_t b = 0; b < shape[1]; ++b)
        for (std::int64_t c = 0; c < shape[2]; ++c)
          for (std::int64_t d = 0; d < shape[3]; ++d)
            addresses.insert(a * p.strides[0] + b * p.strides[1] + c * p.strides[2] +
                             d * p.strides[3]);
    EXPECT_EQ(addresses.size(), 120u);
    EXPECT_EQ(*addresses.begin(), p.lowest);
    EXPECT_EQ(*addresses.rbegin() + 1, p.highest);
    EXPECT_EQ(p.strides[3], 1);
  }
}

TEST(Buffer, layouts_have_the_documented_strides) {
  EXPECT_GT(lay_out(shape, Layout::swapped, axes, Role::input).strides[2],
            lay_out(shape, Layout::swapped, axes, Role::input).strides[1]);
  EXPECT_LT(lay_out(shape, Layout::reversed, axes, Role::input).strides[1], 0);
  EXPECT_EQ(lay_out(shape, Layout::broadcast, axes, Role::input).strides[0], 0);
  EXPECT_GT(lay_out(shape, Layout::gapped, axes, Role::input).strides[2], shape[3]);
}

TEST(Buffer, values_are_in_index_order_for_all_strides) {
  for (const Layout layout : {Layout::compact, Layout::swapped, Layout::gapped, Layout::reversed}) {
    Buffer b(DType::f32, lay_out(shape, layout, axes, Role::output));
    EXPECT_FALSE(b.unwritten().empty());
    double next = 0;
    b.fill([&](const Dims&) { return next++; });
    EXPECT_EQ(b.unwritten(), "");
    EXPECT_EQ(b.out_of_bounds_write(), "");
    const std::vector<double> values = b.values();
    ASSERT_EQ(values.size(), 120u);
    for (std::size_t n = 0; n < values.size(); ++n) EXPECT_EQ(values[n], static_cast<double>(n));
  }
}

TEST(Buffer, detects_writes_around_and_between_elements) {
  const auto make_buffer = [] {
    Buffer b(DType::f32, lay_out({2, 3, 1, 4}, Layout::gapped, axes, Role::output));
    b.fill([](const Dims&) { return 1.0; });
    return b;
  };
  const Dims strides = make_buffer().tensor().strides();
  const std::int64_t last = strides[0] + 2 * strides[1] + 3;
  for (const std::int64_t at : {std::int64_t{-1}, strides[1] - 1, last + 1}) {
    const Buffer b = make_buffer();
    static_cast<float*>(b.tensor().data())[at] = 0.0f;
    EXPECT_FALSE(b.out_of_bounds_write().empty()) << at;
  }
}

TEST(Buffer, is_empty_if_a_dimension_is_0) {
  const Buffer b(DType::f16, lay_out({2, 0, 3, 4}, Layout::gapped, axes, Role::output));
  EXPECT_EQ(b.size(), 0);
  EXPECT_TRUE(b.values().empty());
  EXPECT_EQ(b.unwritten() + b.out_of_bounds_write(), "");
}

}  // namespace
}  // namespace rocflash::verify
