// Invariants between calls, independent of the reference implementation.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>

#include "support/call.hpp"
#include "support/non_finite_propagation.hpp"

namespace rocflash::test {
namespace {

constexpr DType dtypes[] = {DType::f32, DType::f16, DType::bf16};
constexpr double infinity = std::numeric_limits<double>::infinity();

double unit(DType t) { return t == DType::f32 ? 0x1p-24 : t == DType::f16 ? 0x1p-11 : 0x1p-8; }

// The relative difference that summation order may cause: sums are f32, and 16-bit dtypes add a
// final rounding.
double order_error(DType t) { return t == DType::f32 ? 64 * unit(t) : 4 * unit(t); }

void copy(const HostTensor& from, HostTensor& to) {
  ASSERT_EQ(from.size(), to.size());
  for (std::int64_t n = 0; n < from.size(); ++n) to.set_flat(n, from.flat(n));
}

double largest(const std::vector<double>& values) {
  double most = 0;
  for (const double x : values) most = std::max(most, std::abs(x));
  return most;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& wanted,
                 double tolerance) {
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t n = 0; n < got.size(); ++n) EXPECT_NEAR(got[n], wanted[n], tolerance) << n;
}

TEST(Properties, GroupedHeadsEqualRepeatedHeads) {
  for (const DType dtype : dtypes) {
    const Size grouped{.b = 2, .sq = 70, .sk = 90, .h = 6, .hk = 2, .d = 20, .dv = 12};
    Size repeated = grouped;
    repeated.hk = grouped.h;
    Call a(grouped, dtype), b(repeated, dtype);
    a.problem.causal = b.problem.causal = 1;
    copy(a.q, b.q);
    copy(a.dout, b.dout);
    for (std::int64_t s = 0; s < 2; ++s)
      for (std::int64_t j = 0; j < 90; ++j)
        for (std::int64_t h = 0; h < 6; ++h) {
          for (std::int64_t x = 0; x < 20; ++x) b.k.set({s, j, h, x}, a.k.get({s, j, h / 3, x}));
          for (std::int64_t x = 0; x < 12; ++x) b.v.set({s, j, h, x}, a.v.get({s, j, h / 3, x}));
        }
    for (Call* c : {&a, &b}) {
      c->backend(ROCFLASH_BACKEND_CPU, 2).expect_forward();
      c->expect_backward();
    }
    EXPECT_TRUE(a.out.bytes() == b.out.bytes());
    EXPECT_TRUE(a.lse.bytes() == b.lse.bytes());
    expect_near(a.dq.values(), b.dq.values(), order_error(dtype) * largest(b.dq.values()));
    // The sum over a group is rounded once; repeated heads are rounded individually.
    const double k_step = order_error(dtype) * largest(a.dk.values());
    const double v_step = order_error(dtype) * largest(a.dv.values());
    for (std::int64_t s = 0; s < 2; ++s)
      for (std::int64_t j = 0; j < 90; ++j)
        for (std::int64_t g = 0; g < 2; ++g) {
          const auto sum = [&](const HostTensor& t, std::int64_t x) {
            return t.get({s, j, 3 * g, x}) + t.get({s, j, 3 * g + 1, x}) +
                   t.get({s, j, 3 * g + 2, x});
          };
          for (std::int64_t x = 0; x < 20; ++x)
            EXPECT_NEAR(a.dk.get({s, j, g, x}), sum(b.dk, x), k_step);
          for (std::int64_t x = 0; x < 12; ++x)
            EXPECT_NEAR(a.dv.get({s, j, g, x}), sum(b.dv, x), v_step);
        }
  }
}

TEST(Properties, PackedEqualsSeparateSequences) {
  for (const DType dtype : dtypes) {
    const std::vector<std::int64_t> q_lengths = {65, 0, 7, 130}, k_lengths = {40, 9, 0, 200};
    Call packed(Size{.h = 4, .hk = 2, .d = 24, .dv = 17}, q_lengths, k_lengths, dtype);
    packed.with_sinks().with_alibi();
    packed.problem.causal = 1;
    packed.problem.softcap = 3;
    packed.backend(ROCFLASH_BACKEND_CPU, 3).expect_forward();
    packed.expect_backward();
    std::vector<double> dsinks(4, 0.0);
    std::int64_t q_row = 0, k_row = 0;
    for (std::size_t n = 0; n < q_lengths.size();
         q_row += q_lengths[n], k_row += k_lengths[n], ++n) {
      const std::int64_t sq = q_lengths[n], sk = k_lengths[n];
      Call one(Size{.b = 1, .sq = sq, .sk = sk, .h = 4, .hk = 2, .d = 24, .dv = 17}, dtype);
      one.with_sinks().with_alibi();
      one.problem.causal = 1;
      one.problem.softcap = 3;
      copy(packed.sinks, one.sinks);
      const auto take = [](const HostTensor& all, HostTensor& part, std::int64_t row) {
        const std::int64_t first = row * all.shape()[1] * all.shape()[2];
        for (std::int64_t i = 0; i < part.size(); ++i) part.set_flat(i, all.flat(first + i));
      };
      take(packed.q, one.q, q_row);
      take(packed.k, one.k, k_row);
      take(packed.v, one.v, k_row);
      take(packed.dout, one.dout, q_row);
      one.backend(ROCFLASH_BACKEND_CPU, 2).expect_forward();
      one.expect_backward();
      const auto expect_same = [&](const HostTensor& all, HostTensor& part, std::int64_t row,
                                   bool exact) {
        HostTensor wanted(dtype, part.shape());
        take(all, wanted, row);
        expect_near(part.values(), wanted.values(),
                    exact ? 0 : order_error(dtype) * largest(wanted.values()));
      };
      expect_same(packed.out, one.out, q_row, true);
      expect_same(packed.dq, one.dq, q_row, false);  // the splits of the sum may differ
      expect_same(packed.dk, one.dk, k_row, false);
      expect_same(packed.dv, one.dv, k_row, false);
      for (std::int64_t h = 0; h < 4; ++h) {
        dsinks[static_cast<std::size_t>(h)] += one.dsinks.flat(h);
        for (std::int64_t i = 0; i < sq; ++i)
          EXPECT_EQ(one.lse.get({0, h, i}), packed.lse.get({h, q_row + i}));
      }
    }
    expect_near(packed.dsinks.values(), dsinks, 1e-5 * (1 + largest(dsinks)));
  }
}

// Attention over two splits of the keys, weighted with exp(lse), is attention over all keys.
TEST(Properties, SplitKeysMergeByLse) {
  for (const DType dtype : dtypes) {
    const Size size{.b = 2, .sq = 5, .sk = 150, .h = 2, .hk = 1, .d = 16, .dv = 9};
    const std::int64_t cut = 67;
    Call whole(size, dtype);
    whole.backend(ROCFLASH_BACKEND_CPU, 2).expect_forward();
    Size first_size = size, second_size = size;
    first_size.sk = cut;
    second_size.sk = size.sk - cut;
    Call first(first_size, dtype), second(second_size, dtype);
    const auto compute_split = [&](Call& part, std::int64_t begin) {
      copy(whole.q, part.q);
      for (std::int64_t b = 0; b < 2; ++b)
        for (std::int64_t j = 0; j < part.size.sk; ++j) {
          for (std::int64_t x = 0; x < 16; ++x)
            part.k.set({b, j, 0, x}, whole.k.get({b, begin + j, 0, x}));
          for (std::int64_t x = 0; x < 9; ++x)
            part.v.set({b, j, 0, x}, whole.v.get({b, begin + j, 0, x}));
        }
      part.backend(ROCFLASH_BACKEND_CPU, 1).expect_forward();
    };
    compute_split(first, 0);
    compute_split(second, cut);
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t i = 0; i < 5; ++i)
        for (std::int64_t h = 0; h < 2; ++h) {
          const double l1 = first.lse.get({b, h, i}), l2 = second.lse.get({b, h, i});
          const double l = std::log(std::exp(l1) + std::exp(l2));
          EXPECT_NEAR(whole.lse.get({b, h, i}), l, 1e-5);
          for (std::int64_t x = 0; x < 9; ++x)
            EXPECT_NEAR(whole.out.get({b, i, h, x}),
                        first.out.get({b, i, h, x}) * std::exp(l1 - l) +
                            second.out.get({b, i, h, x}) * std::exp(l2 - l),
                        order_error(dtype) * largest(whole.out.values()));
        }
  }
}

// Ring attention: backward over each block of the keys, with the out and lse of all keys, adds up
// to the gradients of the whole, also where f32 rounds the lse by more than f16 rounds a weight.
TEST(Properties, GradientsOfKeyBlocksSumToTheWhole) {
  const rocflash_backend backends[] = {ROCFLASH_BACKEND_CPU, ROCFLASH_BACKEND_STANDARD,
                                       ROCFLASH_BACKEND_NAIVE};
  for (const rocflash_backend backend : backends)
    for (const DType dtype : dtypes)
      for (const double level : {0.0, -1e4, 1e5}) {
        const std::int64_t sq = 35, sk = 90, cut = 40;
        const Size size{.b = 1, .sq = sq, .sk = sk, .h = 1, .hk = 1, .d = 16, .dv = 16};
        const auto bias_of = [&](Call& c) {
          c.with_bias();
          c.bias = HostTensor(DType::f32, {1, 1, sq, c.size.sk});
          for (std::int64_t n = 0; n < c.bias.size(); ++n) c.bias.set_flat(n, level);
          c.set_pointers();
          c.backend(backend, 1);
        };
        Call whole(size, dtype);
        bias_of(whole);
        whole.expect_forward();
        whole.expect_backward();
        std::vector<double> dq(static_cast<std::size_t>(whole.dq.size())), dk, dv;
        for (const std::int64_t begin : {std::int64_t{0}, cut}) {
          Size block_size = size;
          block_size.sk = begin == 0 ? cut : sk - cut;
          Call block(block_size, dtype);
          bias_of(block);
          for (auto of : {&Call::q, &Call::out, &Call::lse, &Call::dout})
            copy(whole.*of, block.*of);
          for (std::int64_t j = 0; j < block_size.sk; ++j)
            for (std::int64_t x = 0; x < 16; ++x) {
              block.k.set({0, j, 0, x}, whole.k.get({0, begin + j, 0, x}));
              block.v.set({0, j, 0, x}, whole.v.get({0, begin + j, 0, x}));
            }
          block.expect_backward();
          for (std::size_t n = 0; n < dq.size(); ++n)
            dq[n] += block.dq.flat(static_cast<std::int64_t>(n));
          for (const double x : block.dk.values()) dk.push_back(x);
          for (const double x : block.dv.values()) dv.push_back(x);
        }
        SCOPED_TRACE("backend " + std::to_string(backend) + " bias " + std::to_string(level));
        const double tolerance = 2 * order_error(dtype) + std::abs(level) * 0x1p-23;
        expect_near(dq, whole.dq.values(), tolerance * largest(whole.dq.values()));
        expect_near(dk, whole.dk.values(), tolerance * largest(whole.dk.values()));
        expect_near(dv, whole.dv.values(), tolerance * largest(whole.dv.values()));
      }
}

TEST(Properties, CausalIsAWindowWithRightBoundZero) {
  for (const DType dtype : dtypes) {
    const Size size{.b = 1, .sq = 130, .sk = 100, .h = 2, .hk = 2, .d = 32, .dv = 32};
    Call causal(size, dtype), window(size, dtype), both(size, dtype);
    causal.problem.causal = 1;
    window.with_window(-1, 0);
    both.with_window(-1, 55).problem.causal = 1;
    for (Call* c : {&causal, &window, &both}) {
      c->backend(ROCFLASH_BACKEND_CPU, 2).expect_forward();
      c->expect_backward();
      EXPECT_TRUE(c->out.bytes() == causal.out.bytes());
      EXPECT_TRUE(c->lse.bytes() == causal.lse.bytes());
      EXPECT_TRUE(c->dq.bytes() == causal.dq.bytes());
      EXPECT_TRUE(c->dk.bytes() == causal.dk.bytes());
      EXPECT_TRUE(c->dv.bytes() == causal.dv.bytes());
    }
  }
}

TEST(Properties, ResultsDoNotDependOnThreads) {
  for (const DType dtype : dtypes) {
    enum Options { few, many, window };
    for (const Options options : {few, many, window}) {
      std::vector<std::vector<std::byte>> first;
      for (const int threads : {1, 2, 3, 8}) {
        // Query blocks shrink with the number of threads; these lengths have several blocks.
        const std::int64_t queries = options == window ? 1100 : 200, keys = queries + 133;
        Call c({.b = 2, .sq = queries, .sk = keys, .h = 4, .hk = 2, .d = 40, .dv = 24}, dtype);
        c.problem.causal = 1;
        if (options == window) c.with_window(150, 0);
        if (options == many) {
          c.with_sinks().with_bias().with_dropout(0.2f).with_s_dmask().with_mask().with_alibi();
          c.problem.softcap = 5;
        }
        c.backend(ROCFLASH_BACKEND_CPU, threads).expect_forward();
        c.expect_backward();
        std::vector<std::vector<std::byte>> all;
        for (const HostTensor* t : c.outputs()) all.push_back(t->bytes());
        if (first.empty()) first = all;
        EXPECT_TRUE(all == first) << name_of(dtype) << " with " << threads << " threads";
      }
    }
  }
}

// With a window or chunks, backward lets distant splits of the keys share dq accumulators. Neither
// the sums of another split nor the initial contents of the workspace may leak into a result.
TEST(Properties, SharedDqAccumulatorsDoNotMix) {
  const std::vector<std::int64_t> q_lengths = {1500, 0, 130, 700}, k_lengths = {1600, 9, 0, 650};
  for (const DType dtype : dtypes) {
    for (const bool chunked : {false, true}) {
      const auto run = [&](rocflash_backend backend, int threads) {
        auto c = std::make_unique<Call>(Size{.h = 2, .hk = 1, .d = 24, .dv = 17}, q_lengths,
                                        k_lengths, dtype);
        c->with_sinks();
        if (chunked) {
          c->problem.attention_chunk = 150;
        } else {
          c->with_window(90, 20);
        }
        c->backend(backend, threads).expect_forward();
        c->workspace.assign(std::size_t{1} << 25, std::byte{0xff});  // NaN
        c->expect_backward();
        return c;
      };
      const auto wanted = run(ROCFLASH_BACKEND_REFERENCE, 2), one = run(ROCFLASH_BACKEND_CPU, 1);
      const auto tensors = [](const Call& c) {
        return std::vector<const HostTensor*>{&c.dq, &c.dk, &c.dv, &c.dsinks};
      };
      for (std::size_t n = 0; n < 4; ++n) {
        const std::vector<double> values = tensors(*wanted)[n]->values();
        expect_near(tensors(*one)[n]->values(), values, order_error(dtype) * largest(values));
      }
      for (const int threads : {2, 5}) {
        const auto several = run(ROCFLASH_BACKEND_CPU, threads);
        for (std::size_t n = 0; n < 4; ++n)
          EXPECT_TRUE(tensors(*several)[n]->bytes() == tensors(*one)[n]->bytes())
              << name_of(dtype) << " with " << threads << " threads";
      }
    }
  }
}

// The only visible key has all the weight for every score. This holds exactly, even with other keys
// in the tile and with a rounded dropout scale.
TEST(Properties, AQueryWithOneVisibleKeyHasNoGradient) {
  for (const DType dtype : dtypes) {
    Call c({.b = 1, .sq = 100, .sk = 100, .h = 2, .hk = 2, .d = 16, .dv = 5}, dtype);
    c.with_window(0, 0).with_dropout(0.4f).backend(ROCFLASH_BACKEND_CPU, 2).expect_forward();
    c.expect_backward();
    for (const HostTensor* t : {&c.dq, &c.dk})
      for (const double x : t->values()) ASSERT_EQ(x, 0) << name_of(dtype);
  }
}

// The dropout mask depends only on positions: it is the same for packed and dense tensors and for
// all sizes.
TEST(Properties, DropoutDependsOnPositions) {
  const auto pattern = [](Call& c) {
    c.with_dropout(0.5f, 99, 3).with_s_dmask().backend(ROCFLASH_BACKEND_CPU, 2).expect_forward();
    std::vector<bool> dropped;
    for (std::int64_t h = 0; h < 2; ++h)
      for (std::int64_t i = 0; i < 30; ++i)
        for (std::int64_t j = 0; j < 40; ++j)
          dropped.push_back(std::signbit(c.s_dmask.get({0, h, i, j})));
    return dropped;
  };
  Call small({.sq = 30, .sk = 40, .h = 2, .hk = 2}),
      large({.sq = 99, .sk = 170, .h = 2, .hk = 1, .d = 64}),
      half({.sq = 30, .sk = 40, .h = 2, .hk = 2}, DType::f16),
      packed(Size{.h = 2}, {30, 5}, {40, 8}), reference({.sq = 30, .sk = 40, .h = 2, .hk = 2});
  const auto wanted = pattern(small);
  EXPECT_EQ(std::count(wanted.begin(), wanted.end(), true) > 1000, true);
  EXPECT_EQ(pattern(large), wanted);
  EXPECT_EQ(pattern(half), wanted);
  EXPECT_EQ(pattern(packed), wanted);
  reference.with_dropout(0.5f, 99, 3)
      .with_s_dmask()
      .backend(ROCFLASH_BACKEND_REFERENCE)
      .expect_forward();
  std::size_t n = 0;
  for (std::int64_t h = 0; h < 2; ++h)
    for (std::int64_t i = 0; i < 30; ++i)
      for (std::int64_t j = 0; j < 40; ++j)
        EXPECT_EQ(std::signbit(reference.s_dmask.get({0, h, i, j})), wanted[n++]);
}

// A fully masked row (by position, mask or bias) has out 0, lse +inf and no gradient.
TEST(Properties, FullyMaskedRowsAreZero) {
  for (const DType dtype : dtypes) {
    enum Mask { positional, mask, bias };
    for (const Mask kind : {positional, mask, bias}) {
      Call c({.b = 1, .sq = 100, .sk = 70, .h = 2, .hk = 2, .d = 8, .dv = 8}, dtype);
      std::vector<bool> masked(100, false);
      if (kind == positional) {
        c.problem.causal = 1;
        for (std::size_t i = 0; i < 30; ++i) masked[i] = true;
      } else {
        kind == mask ? c.with_mask() : c.with_bias();
        for (const std::size_t i : {0u, 5u, 63u, 64u, 99u}) {
          masked[i] = true;
          for (std::int64_t h = 0; h < 2; ++h)
            for (std::int64_t j = 0; j < 70; ++j) {
              const auto row = static_cast<std::int64_t>(i);
              kind == mask ? c.mask.set({0, h, row, j}, 0) : c.bias.set({0, h, row, j}, -infinity);
            }
        }
      }
      c.backend(ROCFLASH_BACKEND_CPU, 2).expect_forward();
      c.expect_backward();
      for (std::int64_t i = 0; i < 100; ++i)
        for (std::int64_t h = 0; h < 2; ++h) {
          if (!masked[static_cast<std::size_t>(i)]) {
            EXPECT_TRUE(std::isfinite(c.lse.get({0, h, i})));
            continue;
          }
          EXPECT_EQ(c.lse.get({0, h, i}), infinity);
          for (std::int64_t x = 0; x < 8; ++x) {
            EXPECT_EQ(c.out.get({0, i, h, x}), 0);
            EXPECT_EQ(c.dq.get({0, i, h, x}), 0);
          }
        }
      for (const double x : c.dk.values()) EXPECT_TRUE(std::isfinite(x));
    }
  }
}

// Scores of both signs far beyond the range of exp: softmax degenerates to argmax, never to NaN.
TEST(Properties, ExtremeScores) {
  for (const double magnitude : {1e2, 1e4, 1e8, 1e11}) {
    Call c({.b = 1, .sq = 40, .sk = 80, .h = 2, .hk = 1, .d = 4, .dv = 4});
    for (HostTensor* t : {&c.q, &c.k})
      for (std::int64_t n = 0; n < t->size(); ++n)
        t->set_flat(n, t->flat(n) * std::sqrt(magnitude));
    c.backend(ROCFLASH_BACKEND_REFERENCE).expect_forward();
    const auto out = c.out.values(), lse = c.lse.values();
    c.backend(ROCFLASH_BACKEND_CPU, 2).expect_forward();
    c.expect_backward();
    // Scores have rounding errors in their last digits. The weights of keys whose scores differ by
    // less are not determined.
    const double score_error = 64 * magnitude * unit(DType::f32);
    expect_near(c.lse.values(), lse, score_error + 1e-5);
    for (const HostTensor* t : c.outputs())
      for (const double x : t->values()) ASSERT_TRUE(std::isfinite(x)) << magnitude;
    const double bound = largest(c.v.values());
    for (const double x : c.out.values()) EXPECT_LE(std::abs(x), bound * 1.0001);
    if (score_error < 1e-2) expect_near(c.out.values(), out, 4 * score_error * bound);
  }
}

// Inputs near the limit of each dtype, with a scale that restores scores of the usual size.
TEST(Properties, LargeInputsWithSmallScale) {
  for (const DType dtype : dtypes) {
    const double factor = dtype == DType::f16 ? 8192 : 1e15;
    Call c({.b = 1, .sq = 33, .sk = 65, .h = 1, .hk = 1, .d = 8, .dv = 8}, dtype),
        unscaled(c.size, dtype);
    for (HostTensor* t : {&c.q, &c.k})
      for (std::int64_t n = 0; n < t->size(); ++n) t->set_flat(n, t->flat(n) * factor);
    c.with_scale(static_cast<float>(1 / (std::sqrt(8.0) * factor * factor)));
    c.backend(ROCFLASH_BACKEND_CPU, 1).expect_forward();
    unscaled.backend(ROCFLASH_BACKEND_CPU, 1).expect_forward();
    const double tolerance =
        (dtype == DType::f32 ? 32 : 4) * unit(dtype) * largest(unscaled.out.values());
    expect_near(c.out.values(), unscaled.out.values(),
                dtype == DType::bf16 ? 4 * tolerance : tolerance);
  }
}

// Sizes with remainders in every loop: rows, keys and columns around tiles of 64.
TEST(Confinement, Cpu) {
  for (const DType dtype : dtypes) {
    expect_non_finite_propagation(ROCFLASH_BACKEND_CPU, dtype, 2,
                                  {.b = 1, .sq = 6, .sk = 9, .h = 4, .hk = 2, .d = 3, .dv = 5});
    expect_non_finite_propagation(ROCFLASH_BACKEND_CPU, dtype, 2,
                                  {.b = 1, .sq = 70, .sk = 131, .h = 2, .hk = 1, .d = 17, .dv = 9});
  }
}

// The library uses the path named by the environment, or rejects every call that needs it.
TEST(InstructionSet, IsSelectedByTheEnvironment) {
  const char* named = std::getenv("ROCFLASH_CPU_ISA");
  rocflash_device device{};
  device.struct_size = sizeof device;
  Call c;
  if (named && std::string(named) == "mmx") {
    const std::string message = "ROCFLASH_CPU_ISA is 'mmx'; this CPU supports ";
    EXPECT_EQ(rocflash_query_device(0, &device), ROCFLASH_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(rocflash_last_error()).substr(0, message.size()), message);
    EXPECT_EQ(c.forward(), ROCFLASH_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(rocflash_last_error()).substr(0, message.size()), message);
    EXPECT_EQ(c.backend(ROCFLASH_BACKEND_REFERENCE).forward(), ROCFLASH_OK);
    return;
  }
  ASSERT_EQ(rocflash_query_device(0, &device), ROCFLASH_OK) << rocflash_last_error();
  if (named) {
    EXPECT_STREQ(device.arch, named);
  }
  EXPECT_EQ(c.forward(), ROCFLASH_OK) << rocflash_last_error();
}

}  // namespace
}  // namespace rocflash::test
