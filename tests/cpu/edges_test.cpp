// Numbers at the edges of float: sums and products on the way overflow, results do not.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/call.hpp"

namespace rocflash::test {
namespace {

constexpr DType dtypes[] = {DType::f32, DType::f16, DType::bf16};
constexpr rocflash_backend backends[] = {ROCFLASH_BACKEND_CPU, ROCFLASH_BACKEND_STANDARD};
constexpr double infinity = std::numeric_limits<double>::infinity();

using Tensors = std::vector<std::vector<double>>;

Tensors results_of(Call& c, rocflash_backend backend, bool gradients) {
  c.backend(backend, 2).expect_forward();
  Tensors all{c.out.values(), c.forward_outputs.lse ? c.lse.values() : std::vector<double>{}};
  if (!gradients) return all;
  c.expect_backward();
  for (const HostTensor* t : {&c.dq, &c.dk, &c.dv}) all.push_back(t->values());
  if (c.dsinks) all.push_back(c.dsinks.values());
  return all;
}

// The largest difference; NaN where only one of both is.
double error_of(const std::vector<double>& got, const std::vector<double>& wanted) {
  double most = 0;
  for (std::size_t n = 0; n < got.size(); ++n) {
    if (got[n] == wanted[n] || (std::isnan(got[n]) && std::isnan(wanted[n]))) continue;
    const double error = std::abs(got[n] - wanted[n]);
    most = error <= most ? most : error;
  }
  return most;
}
double one_rounding(DType t, const std::vector<double>& wanted) {
  const double unit = t == DType::f32 ? 0x1p-24 : t == DType::f16 ? 0x1p-11 : 0x1p-8;
  double most = 0;
  for (const double x : wanted)
    if (std::isfinite(x)) most = std::max(most, std::abs(x));
  return most * unit;
}

// The bound of docs/semantics.md, by root mean squares over a few draws: prepare(call) is given
// calls with other numbers.
template <class Prepare>
void expect_as_good_as_plain(const Size& size, DType dtype, bool gradients, Prepare prepare) {
  constexpr int draws = 4;
  for (const rocflash_backend backend : backends) {
    std::vector<double> errors, bounds;
    for (int draw = 0; draw < draws; ++draw) {
      Call c(size, dtype, static_cast<std::uint64_t>(draw + 1));
      prepare(c);
      const Tensors wanted = results_of(c, ROCFLASH_BACKEND_REFERENCE, gradients),
                    plain = results_of(c, ROCFLASH_BACKEND_PLAIN, gradients),
                    got = results_of(c, backend, gradients);
      errors.resize(got.size());
      bounds.resize(got.size());
      for (std::size_t n = 0; n < got.size(); ++n) {
        errors[n] = std::hypot(errors[n], error_of(got[n], wanted[n]));
        bounds[n] =
            std::hypot(bounds[n], (n < 2 ? 2 : 3) * std::max(error_of(plain[n], wanted[n]),
                                                             one_rounding(dtype, wanted[n])));
      }
    }
    for (std::size_t n = 0; n < errors.size(); ++n)
      EXPECT_LE(errors[n], bounds[n])
          << "backend " << backend << " result " << n << " dtype " << static_cast<int>(dtype);
  }
}

// Weights are divided by their sum last, so sums of values may overflow first.
TEST(Edges, SumsOfLargeValues) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t sq : {1, 3, 70})         // few are decoded
      for (const std::int64_t sk : {4, 100, 600}) {  // and split
        for (const bool lse : {true, false}) {
          const Size size{.b = 1, .sq = sq, .sk = sk, .h = 2, .hk = 1, .d = 8, .dv = 20};
          expect_as_good_as_plain(size, dtype, false, [&](Call& c) {
            c.k.fill(0);
            for (std::int64_t j = 0; j < sk; ++j)
              for (std::int64_t x = 0; x < 20; ++x)
                if (x % 3 == 0) c.v.set({0, j, 0, x}, x == 3 ? -3e38 : 1e38);
            if (c.random() % 2 == 0) c.with_sinks();
            if (!lse) c.forward_outputs.lse = nullptr;
            c.problem.num_splits = sq == 1 ? 3 : 0;
          });
        }
      }
}

// The scale acts before products overflow, or are lost.
TEST(Edges, ExtremeScales) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const float scale :
         {1e-40f, 1e-38f, 1e-30f, 1e-20f, 1e-10f, 1.0f, 1e10f, 1e20f, 1e38f, -1e-40f, -1e38f, 0.0f})
      for (const std::int64_t sq : {1, 40})
        for (const float softcap : {0.0f, 3.0f}) {
          SCOPED_TRACE(scale);
          const Size size{.b = 1, .sq = sq, .sk = 70, .h = 2, .hk = 1, .d = 8, .dv = 8};
          expect_as_good_as_plain(size, dtype, sq != 1, [&](Call& c) {
            const double factor =
                scale == 0 ? 1e25 : std::sqrt(0.3 / std::abs(static_cast<double>(scale)));
            for (HostTensor* t : {&c.q, &c.k})
              for (std::int64_t n = 0; n < t->size(); ++n) t->set_flat(n, t->flat(n) * factor);
            c.with_scale(scale);
            c.problem.softcap = softcap;
            if (sq == 1) c.forward_outputs.lse = nullptr;
          });
        }
}

// The reported case: the product is 1e40, its scale 1e-40.
TEST(Edges, ProductsBeyondFloat) {
  for (const rocflash_backend backend : backends) {
    Call c({.b = 1, .sq = 2, .sk = 2, .h = 1, .hk = 1, .d = 1, .dv = 1});
    c.q.fill(1e20);
    c.k.fill(1e20);
    c.v.set_flat(0, 1);
    c.v.set_flat(1, 3);
    c.with_scale(1e-40f);
    c.backend(backend).expect_forward();
    for (const double x : c.out.values()) EXPECT_EQ(x, 2);
    c.expect_backward();
    for (const double x : c.dv.values()) EXPECT_TRUE(std::isfinite(x));
  }
}

// A sink of +infinity or NaN is a score that every query sees: no weight is defined any more.
TEST(Edges, InfiniteSinks) {
  for (const DType dtype : dtypes)
    for (const double sink : {infinity, std::nan("")})
      for (const bool blind : {false, true})
        for (const std::int64_t sq : {1, 9})
          for (const rocflash_backend backend : {ROCFLASH_BACKEND_REFERENCE, ROCFLASH_BACKEND_PLAIN,
                                                 ROCFLASH_BACKEND_CPU, ROCFLASH_BACKEND_STANDARD}) {
            Call c({.b = 1, .sq = sq, .sk = 70, .h = 2, .hk = 1, .d = 8, .dv = 8}, dtype);
            c.with_sinks();
            c.sinks.set_flat(1, sink);
            if (blind) c.with_used_k({0});
            if (backend == ROCFLASH_BACKEND_CPU && dtype == DType::f32 && sq == 1)
              c.forward_outputs.lse = nullptr;
            c.backend(backend).expect_forward();
            for (std::int64_t i = 0; i < sq; ++i) {
              for (std::int64_t x = 0; x < 8; ++x) {
                EXPECT_TRUE(std::isfinite(c.out.get({0, i, 0, x})));
                EXPECT_TRUE(std::isnan(c.out.get({0, i, 1, x})))
                    << backend << " " << sink << " " << blind << " " << sq;
              }
              if (c.forward_outputs.lse) {
                EXPECT_TRUE(std::isnan(c.lse.get({0, 1, i})));
              }
            }
          }
}

// Behind a softcap an infinite key has an ordinary score, whose slope is 0.
TEST(Edges, SoftcapIsFlatFarOut) {
  for (const rocflash_backend backend : {ROCFLASH_BACKEND_REFERENCE, ROCFLASH_BACKEND_PLAIN,
                                         ROCFLASH_BACKEND_CPU, ROCFLASH_BACKEND_STANDARD}) {
    Call c({.b = 1, .sq = 2, .sk = 2, .h = 1, .hk = 1, .d = 1, .dv = 1});
    c.q.fill(1);
    c.k.set_flat(0, 1);
    c.k.set_flat(1, infinity);
    c.problem.softcap = 1;
    c.backend(backend).expect_forward();
    c.expect_backward();
    for (const HostTensor* t : {&c.out, &c.lse, &c.dq, &c.dk, &c.dv})
      for (const double x : t->values()) EXPECT_TRUE(std::isfinite(x)) << backend;
  }
}

}  // namespace
}  // namespace rocflash::test
