// The limits of the float range: intermediate sums and products overflow, results do not.
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

// The largest difference; NaN if only one of the values is NaN.
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

// The error bound of docs/reference/semantics.md, for root mean squares over a few draws.
// prepare(call) sets the options of each draw.
template <class Prepare>
void expect_error_bound(const Size& size, DType dtype, bool gradients, Prepare prepare) {
  constexpr int draws = 4;
  for (const rocflash_backend backend : backends) {
    std::vector<double> errors, bounds;
    for (int draw = 0; draw < draws; ++draw) {
      Call c(size, dtype, static_cast<std::uint64_t>(draw + 1));
      prepare(c);
      const Tensors wanted = results_of(c, ROCFLASH_BACKEND_REFERENCE, gradients),
                    naive = results_of(c, ROCFLASH_BACKEND_NAIVE, gradients),
                    got = results_of(c, backend, gradients);
      errors.resize(got.size());
      bounds.resize(got.size());
      for (std::size_t n = 0; n < got.size(); ++n) {
        errors[n] = std::hypot(errors[n], error_of(got[n], wanted[n]));
        bounds[n] =
            std::hypot(bounds[n], (n < 2 ? 2 : 3) * std::max(error_of(naive[n], wanted[n]),
                                                             one_rounding(dtype, wanted[n])));
      }
    }
    for (std::size_t n = 0; n < errors.size(); ++n)
      EXPECT_LE(errors[n], bounds[n])
          << "backend " << backend << " result " << n << " dtype " << static_cast<int>(dtype);
  }
}

// Division by the sum of weights comes last, so unnormalized sums of values may overflow.
TEST(Edges, SumsOfLargeValues) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t sq : {1, 3, 70})         // decode and tiled kernels
      for (const std::int64_t sk : {4, 100, 600}) {  // with and without splits
        for (const bool lse : {true, false}) {
          const Size size{.b = 1, .sq = sq, .sk = sk, .h = 2, .hk = 1, .d = 8, .dv = 20};
          expect_error_bound(size, dtype, false, [&](Call& c) {
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

// The scale is applied before products overflow or underflow.
TEST(Edges, ExtremeScales) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const float scale :
         {1e-40f, 1e-38f, 1e-30f, 1e-20f, 1e-10f, 1.0f, 1e10f, 1e20f, 1e38f, -1e-40f, -1e38f, 0.0f})
      for (const std::int64_t sq : {1, 40})
        for (const float softcap : {0.0f, 3.0f}) {
          SCOPED_TRACE(scale);
          const Size size{.b = 1, .sq = sq, .sk = 70, .h = 2, .hk = 1, .d = 8, .dv = 8};
          expect_error_bound(size, dtype, sq != 1, [&](Call& c) {
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

// A product of 1e40 with a scale of 1e-40.
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

// A sink of +infinity or NaN is part of every query's softmax: no weight is defined.
TEST(Edges, InfiniteSinks) {
  for (const DType dtype : dtypes)
    for (const double sink : {infinity, std::nan("")})
      for (const bool fully_masked : {false, true})
        for (const std::int64_t sq : {1, 9})
          for (const rocflash_backend backend : {ROCFLASH_BACKEND_REFERENCE, ROCFLASH_BACKEND_NAIVE,
                                                 ROCFLASH_BACKEND_CPU, ROCFLASH_BACKEND_STANDARD}) {
            Call c({.b = 1, .sq = sq, .sk = 70, .h = 2, .hk = 1, .d = 8, .dv = 8}, dtype);
            c.with_sinks();
            c.sinks.set_flat(1, sink);
            if (fully_masked) c.with_used_k({0});
            if (backend == ROCFLASH_BACKEND_CPU && dtype == DType::f32 && sq == 1)
              c.forward_outputs.lse = nullptr;
            c.backend(backend).expect_forward();
            for (std::int64_t i = 0; i < sq; ++i) {
              for (std::int64_t x = 0; x < 8; ++x) {
                EXPECT_TRUE(std::isfinite(c.out.get({0, i, 0, x})));
                EXPECT_TRUE(std::isnan(c.out.get({0, i, 1, x})))
                    << backend << " " << sink << " " << fully_masked << " " << sq;
              }
              if (c.forward_outputs.lse) {
                EXPECT_TRUE(std::isnan(c.lse.get({0, 1, i})));
              }
            }
          }
}

// An additive mask of finfo.min for all keys of a query is a softmax of equal scores. A key with a
// large positive bias has all the weight. From 1e18 on, adding a score to the bias is a no-op in
// f64 as in f32.
TEST(Edges, LargeFiniteBias) {
  for (const DType dtype : dtypes)
    for (const std::int64_t sq : {1, 3, 70})
      for (const std::int64_t sk : {5, 300})
        for (const double value : {-3.38e38, -1e18, 1e30, 3.38e38}) {
          Call c({.b = 1, .sq = sq, .sk = sk, .h = 2, .hk = 1, .d = 16, .dv = 8}, dtype);
          c.with_bias({1, 1, sq, sk});
          c.bias = HostTensor(DType::f32, {1, 1, sq, sk});
          for (std::int64_t i = 0; i < sq; ++i)
            for (std::int64_t j = 0; j < sk; ++j)
              c.bias.set({0, 0, i, j}, i % 2 == 0 || j == 3 ? value : 0.25);
          c.set_pointers();
          const Tensors wanted = results_of(c, ROCFLASH_BACKEND_REFERENCE, true);
          for (const rocflash_backend backend : backends) {
            const Tensors got = results_of(c, backend, true);
            const double unit = dtype == DType::f32 ? 1e-5 : dtype == DType::f16 ? 4e-3 : 4e-2;
            for (std::size_t n = 0; n < got.size(); ++n) {
              double most = 1;
              for (const double x : wanted[n]) most = std::max(most, std::abs(x));
              EXPECT_LE(error_of(got[n], wanted[n]), unit * most)
                  << "backend " << backend << " result " << n << " bias " << value << " sq " << sq
                  << " sk " << sk << " dtype " << static_cast<int>(dtype);
            }
          }
        }
}

// A NaN score makes its query's output NaN even if dropout drops all of the weights.
TEST(Edges, DropoutPropagatesNan) {
  for (const DType dtype : dtypes)
    for (const std::int64_t sq : {2, 40})
      for (const std::int64_t sk : {1, 2}) {
        Call c({.b = 1, .sq = sq, .sk = sk, .h = 1, .hk = 1, .d = 8, .dv = 8}, dtype);
        c.with_dropout(0.9f);
        for (std::int64_t x = 0; x < 8; ++x) c.q.set({0, 1, 0, x}, std::nan(""));
        for (const rocflash_backend backend :
             {ROCFLASH_BACKEND_REFERENCE, ROCFLASH_BACKEND_CPU, ROCFLASH_BACKEND_STANDARD}) {
          c.backend(backend).expect_forward();
          for (std::int64_t x = 0; x < 8; ++x) {
            EXPECT_TRUE(std::isnan(c.out.get({0, 1, 0, x}))) << backend << " " << sq << " " << sk;
            EXPECT_TRUE(std::isfinite(c.out.get({0, 0, 0, x}))) << backend;
          }
        }
      }
}

// With a softcap the score of an infinite key is finite, and its derivative is 0.
TEST(Edges, SoftcapOfInfiniteScores) {
  for (const rocflash_backend backend : {ROCFLASH_BACKEND_REFERENCE, ROCFLASH_BACKEND_NAIVE,
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
