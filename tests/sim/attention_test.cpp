// An attention forward on matrix cores against a double-precision reference; also the benchmark of
// the simulator's speed.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <random>

#include "harness.h"
#include "isa/lane_math.h"

namespace rocflash::sim::test {
namespace {

constexpr u32 kDim = 128;

std::vector<u16> random_bf16(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<u16> v(n);
  for (u16& x : v) x = to_bf16(normal(random));
  return v;
}

double at(const std::vector<u16>& m, u32 row, u32 col) {
  return double(float(bf16{m[row * kDim + col]}));
}

double run_forward(const char* target, u32 length, const Checks& checks, bool verify) {
  const auto code = compile_hip(ROCFLASH_SIM_TEST_SOURCE "/kernels/attention.hip", target, "-O3");
  const auto module = load(code, target);
  const auto q = random_bf16(length * kDim, 1);
  const auto k = random_bf16(length * kDim, 2);
  const auto v = random_bf16(length * kDim, 3);
  Buffer<u16> qb(q), kb(k), vb(v);
  Buffer<float> out(length * kDim);
  Shape shape;
  shape.grid[0] = length / 32;
  const float scale = 1.0f / std::sqrt(float(kDim));
  (void)module->program(64);  // decoding is not measured
  const auto start = std::chrono::steady_clock::now();
  const auto result = launch(
      *module, "attention_forward", shape,
      Arguments(qb.data(), kb.data(), vb.data(), out.data(), i32(length), scale * 1.44269504f),
      checks);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_TRUE(result.ok()) << result.report->text();
  for (u32 i = 0; verify && i < length; i += 7) {
    std::vector<double> p(length);
    double largest = -1e30;
    double sum = 0;
    for (u32 j = 0; j < length; ++j) {
      for (u32 d = 0; d < kDim; ++d) p[j] += at(q, i, d) * at(k, j, d);
      p[j] *= double(scale);
      largest = std::max(largest, p[j]);
    }
    for (double& x : p) sum += x = std::exp(x - largest);
    for (u32 d = 0; d < kDim; d += 5) {
      double want = 0;
      for (u32 j = 0; j < length; ++j) want += p[j] / sum * at(v, j, d);
      EXPECT_NEAR(double(out[i * kDim + d]), want, 4e-3) << i << " " << d;
    }
  }
  return seconds;
}

TEST(Attention, ForwardMatchesTheHost) {
  for (const char* target : {"gfx90a", "gfx942", "gfx950"}) run_forward(target, 128, {}, true);
}

TEST(Attention, ForwardOf1024IsFast) {
  const Checks none = parse_checks("none");
  double unchecked = 1e9;
  double strict = 1e9;
  for (int i = 0; i < 3; ++i) {
    unchecked = std::min(unchecked, run_forward("gfx942", 1024, none, false));
    strict = std::min(strict, run_forward("gfx942", 1024, {}, false));
  }
  RecordProperty("unchecked_ms", int(unchecked * 1e3));
  RecordProperty("strict_ms", int(strict * 1e3));
  std::printf("forward b1 h1 s1024 d128 bf16 on gfx942: %.0f ms, with all checks %.0f ms\n",
              unchecked * 1e3, strict * 1e3);
  // Generous: other work may share the machine. The figures above are the measurement.
  EXPECT_LT(unchecked, 5.0);
}

}  // namespace
}  // namespace rocflash::sim::test
