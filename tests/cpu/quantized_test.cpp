// Quantized keys and values: each code of each dtype reaches the output exactly, in every backend
// and kernel, and append stores the codes of the definition.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/call.hpp"

namespace rocflash::test {
namespace {

constexpr DType dtypes[] = {DType::e4m3fn, DType::e4m3fnuz, DType::e5m2, DType::e5m2fnuz,
                            DType::i8};
constexpr rocflash_backend backends[] = {ROCFLASH_BACKEND_CPU, ROCFLASH_BACKEND_REFERENCE,
                                         ROCFLASH_BACKEND_NAIVE, ROCFLASH_BACKEND_STANDARD};
constexpr float scale = 0.4f;  // its products are rounded

std::uint8_t& code(HostTensor& t, int n) {
  return reinterpret_cast<std::uint8_t*>(t.memory().data)[n];
}

// With a single key the output is its value.
TEST(Quantized, EveryValueIsExact) {
  for (const DType t : dtypes) {
    for (const rocflash_backend backend : backends) {
      for (const std::int64_t queries : {1, 40}) {  // decode, and tiled forward
        Call c(Size{1, queries, 1, 1, 1, 8, 256});
        c.backend(backend);
        c.k = HostTensor(t, c.k.shape());
        c.v = HostTensor(t, c.v.shape());
        c.k.fill(0);
        for (int n = 0; n < 256; ++n) code(c.v, n) = static_cast<std::uint8_t>(n);
        HostTensor descale(DType::f32, {1});
        descale.fill(scale);
        c.problem.v_descale = &descale.dl;
        c.expect_forward();
        for (int n = 0; n < 256; ++n) {
          const float expected = decode(t, static_cast<std::uint8_t>(n)) * scale;
          const auto got = static_cast<float>(c.out.get({0, queries - 1, 0, n}));
          if (std::isnan(expected)) {
            EXPECT_TRUE(std::isnan(got)) << name_of(t) << " " << n << " backend " << backend;
          } else {
            EXPECT_EQ(got, expected) << name_of(t) << " " << n << " backend " << backend;
          }
        }
      }
    }
  }
}

// With a single key lse is its score, here one of its columns.
TEST(Quantized, EveryKeyIsExact) {
  for (const DType t : dtypes) {
    for (const rocflash_backend backend : backends) {
      Call c(Size{1, 256, 1, 1, 1, 256, 8});
      c.backend(backend).with_scale(1);
      c.k = HostTensor(t, c.k.shape());
      c.v = HostTensor(t, c.v.shape());
      c.v.fill(0);
      c.q.fill(0);
      const auto value = [&](int n) { return decode(t, static_cast<std::uint8_t>(n)); };
      for (int n = 0; n < 256; ++n) {
        code(c.k, n) = static_cast<std::uint8_t>(std::isfinite(value(n)) ? n : 0);
        c.q.set({0, n, 0, n}, 1);
      }
      HostTensor descale(DType::f32, {1, 1, 1});
      descale.fill(scale);
      c.problem.k_descale = &descale.dl;
      c.expect_forward();
      for (int n = 0; n < 256; ++n) {
        const float expected = std::isfinite(value(n)) ? value(n) * scale : 0;
        EXPECT_EQ(c.lse.get({0, 0, n}), static_cast<double>(expected)) << name_of(t) << " " << n;
      }
    }
  }
}

// A scale of zero dimensions is one of one element.
TEST(Quantized, AScaleMayHaveNoDimensions) {
  Call c(Size{1, 2, 3, 1, 1, 8, 8});
  c.backend(ROCFLASH_BACKEND_CPU);
  c.k = HostTensor(DType::i8, c.k.shape());
  c.v = HostTensor(DType::i8, c.v.shape());
  c.k.fill(0);
  c.v.fill(3);
  HostTensor descale(DType::f32, {1});
  descale.fill(0.25);
  descale.dl.ndim = 0;
  descale.dl.shape = descale.dl.strides = nullptr;
  c.problem.v_descale = &descale.dl;
  c.expect_forward();
  EXPECT_FLOAT_EQ(static_cast<float>(c.out.get({0, 1, 0, 5})), 0.75f);
}

TEST(Quantized, AppendRoundsAndSaturates) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> numbers{0.0f,  -0.0f,     1.0f,     1.0625f,   -3.1f, 1e-3f, -1e-9f,
                                   500.f, -70000.0f, infinity, -infinity, NAN,   0.21f, 63.7f};
  const auto columns = static_cast<std::int64_t>(numbers.size());
  for (const DType t : dtypes) {
    for (const rocflash_backend backend : {ROCFLASH_BACKEND_CPU, ROCFLASH_BACKEND_REFERENCE}) {
      Call c(Size{1, 1, 3, 1, 1, columns, columns});
      c.backend(backend).with_used_k({2});
      c.k = HostTensor(t, c.k.shape());
      c.v = HostTensor(t, c.v.shape());
      c.k.fill(0);
      c.v.fill(0);
      HostTensor k_new(DType::f32, {1, 1, 1, columns}), v_new(DType::f32, {1, 1, 1, columns});
      for (std::int64_t n = 0; n < columns; ++n) {
        k_new.set_flat(n, static_cast<double>(numbers[static_cast<std::size_t>(n)]));
        v_new.set_flat(n, static_cast<double>(numbers[static_cast<std::size_t>(n)]));
      }
      HostTensor descale(DType::f32, {1, 3, 1});  // only that of the new row is used
      descale.assign({9, 9, 0.4});
      c.problem.k_descale = &descale.dl;
      rocflash_append append{};
      append.struct_size = sizeof append;
      append.k_new = &k_new.dl;
      append.v_new = &v_new.dl;
      alignas(64) static std::byte workspace[1 << 16];
      c.execution.workspace = workspace;
      c.execution.workspace_size = sizeof workspace;
      ASSERT_EQ(rocflash_decode(&c.problem, &append, &c.forward_outputs, &c.execution), ROCFLASH_OK)
          << rocflash_last_error();
      for (int n = 0; n < columns; ++n) {
        const float x = numbers[static_cast<std::size_t>(n)];
        const int at = static_cast<int>(2 * columns) + n;
        EXPECT_EQ(code(c.k, at), encode(t, x / 0.4f)) << name_of(t) << " " << x;
        EXPECT_EQ(code(c.v, at), encode(t, x)) << name_of(t) << " " << x;
      }
    }
  }
}

}  // namespace
}  // namespace rocflash::test
