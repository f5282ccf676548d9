// rocflash_rotate: backends are bitwise equal, also in place; invalid arguments are rejected by
// name.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "support/call.hpp"

namespace rocflash::test {
namespace {

struct Rotation {
  explicit Rotation(DType dtype = DType::f32)
      : x(dtype, {2, 7, 3, 40}),
        out(dtype, {2, 7, 3, 40}),
        cos(DType::f32, {12, 18}),
        sin(DType::f32, {12, 18}),
        first(DType::i32, {2}) {
    for (std::int64_t n = 0; n < x.size(); ++n)
      x.set_flat(n, std::sin(static_cast<double>(n) * 0.7));
    for (std::int64_t n = 0; n < cos.size(); ++n) {
      cos.set_flat(n, std::cos(static_cast<double>(n)));
      sin.set_flat(n, std::sin(static_cast<double>(n)));
    }
    first.set_flat(0, 5);
    first.set_flat(1, 2);
  }
  rocflash_status run(HostTensor& to, rocflash_backend backend = ROCFLASH_BACKEND_CPU) {
    rocflash_execution execution{};
    execution.struct_size = sizeof execution;
    execution.backend = backend;
    return rocflash_rotate(&x.dl, &cos.dl, &sin.dl, cu ? &cu->dl : nullptr, &first.dl, interleaved,
                           &to.dl, &execution);
  }

  HostTensor x, out, cos, sin, first;
  HostTensor* cu = nullptr;
  std::int32_t interleaved = 0;
};

TEST(Rotate, BackendsAndInPlaceAreBitwiseEqual) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const std::int32_t interleaved : {0, 1}) {
      Rotation r(dtype);
      r.interleaved = interleaved;
      ASSERT_EQ(r.run(r.out, ROCFLASH_BACKEND_REFERENCE), ROCFLASH_OK) << rocflash_last_error();
      const auto expected = r.out.bytes();
      r.out.fill(9);
      ASSERT_EQ(r.run(r.out), ROCFLASH_OK) << rocflash_last_error();
      EXPECT_TRUE(r.out.bytes() == expected);
      ASSERT_EQ(r.run(r.x), ROCFLASH_OK) << rocflash_last_error();
      EXPECT_TRUE(r.x.bytes() == expected);
    }
  }
}

TEST(Rotate, RotatesByThePosition) {
  Rotation r;
  ASSERT_EQ(r.run(r.out), ROCFLASH_OK);
  const double c = r.cos.get({5 + 3, 4}), s = r.sin.get({5 + 3, 4}), a = r.x.get({0, 3, 1, 4}),
               b = r.x.get({0, 3, 1, 4 + 18});
  EXPECT_NEAR(r.out.get({0, 3, 1, 4}), a * c - b * s, 1e-6);
  EXPECT_NEAR(r.out.get({0, 3, 1, 4 + 18}), a * s + b * c, 1e-6);
  EXPECT_EQ(r.out.get({1, 6, 2, 38}), r.x.get({1, 6, 2, 38}));
}

TEST(Rotate, RejectsByName) {
  const auto expect_rejection = [](auto corrupt, const std::string& message) {
    Rotation r;
    HostTensor other;
    HostTensor* to = &r.out;
    corrupt(r, other, to);
    EXPECT_EQ(r.run(*to), ROCFLASH_INVALID_ARGUMENT) << message;
    EXPECT_EQ(std::string(rocflash_last_error()).substr(0, message.size()), message);
  };
  expect_rejection([](Rotation& r, HostTensor&, HostTensor*&) { r.first.set_flat(0, 6); },
                   "cos has 12 positions; sequence 0 requires 13");
  expect_rejection([](Rotation& r, HostTensor&, HostTensor*&) { r.first.set_flat(1, -1); },
                   "first is -1 for sequence 1");
  expect_rejection([](Rotation& r, HostTensor&, HostTensor*&) { r.interleaved = 2; },
                   "interleaved is 2; it must be 0 or 1");
  expect_rejection(
      [](Rotation& r, HostTensor& other, HostTensor*& to) {
        other = HostTensor(DType::f32, {2, 7, 3, 39});
        to = &other;
        (void)r;
      },
      "out has shape (2, 7, 3, 39); it must be the shape of x");
  expect_rejection(
      [](Rotation& r, HostTensor& other, HostTensor*& to) {
        other = HostTensor(DType::f16, {2, 7, 3, 40});
        to = &other;
        (void)r;
      },
      "out has dtype f16; it must be f32");
  expect_rejection(
      [](Rotation& r, HostTensor&, HostTensor*&) { r.sin = HostTensor(DType::f32, {12, 17}); },
      "sin has shape (12, 17); it must be the shape of cos = (12, 18)");
  expect_rejection(
      [](Rotation& r, HostTensor&, HostTensor*&) {
        r.cos = HostTensor(DType::f32, {12, 21});
        r.sin = HostTensor(DType::f32, {12, 21});
      },
      "cos has shape (12, 21), which rotates 42 columns; it must rotate 2 to 40");
  expect_rejection([](Rotation& r, HostTensor&, HostTensor*& to) { to = &r.cos; }, "out has shape");
}

}  // namespace
}  // namespace rocflash::test
