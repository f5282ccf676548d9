// Real C++ kernels at several optimization levels on every target, against results computed on the
// host.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <random>

#include "harness.h"

namespace rocflash::sim::test {
namespace {

using Words = std::vector<u32>;
using bf16 = __bf16;

#define ROCFLASH_FN inline
#include "kernels/elementwise_functions.h"

float tame(u32 x) { return std::bit_cast<float>((x & 0x807fffffu) | ((x >> 23 & 15) + 120) << 23); }

constexpr u32 kCount = 512;
constexpr u32 kBlock = 256;

struct Expectation {
  std::function<void(const Words& a, const Words& b, Words& out)> compute;
  double tolerance = 0;  // relative, for float results
};

void for_blocks(const std::function<void(u32 base)>& f) {
  for (u32 base = 0; base < kCount; base += kBlock) f(base);
}

u32 philox_of(u32 i, u32 a, u32 b) {
  u32 c[4] = {i, 0, a, 0};
  u32 k0 = b;
  u32 k1 = 0x12345678;
  for (int round = 0; round < 10; ++round) {
    const u64 p0 = u64{0xD2511F53u} * c[0];
    const u64 p1 = u64{0xCD9E8D57u} * c[2];
    const u32 n0 = u32(p1 >> 32) ^ c[1] ^ k0;
    const u32 n2 = u32(p0 >> 32) ^ c[3] ^ k1;
    c[1] = u32(p1);
    c[3] = u32(p0);
    c[0] = n0;
    c[2] = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c[0] ^ c[1] ^ c[2] ^ c[3];
}

using Expectations = std::map<std::string, Expectation>;

void lanewise(Expectations& e, const char* name,
              std::function<u32(const Words&, const Words&, u32)> f) {
  e[name].compute = [f](const Words& a, const Words& b, Words& out) {
    for (u32 i = 0; i < kCount; ++i) out[i] = f(a, b, i);
  };
}

void approximate(Expectations& e, const char* name, double tolerance,
                 std::function<double(double)> f) {
  e[name].tolerance = tolerance;
  e[name].compute = [f](const Words& a, const Words&, Words& out) {
    for (u32 i = 0; i < kCount; ++i) out[i] = bits(float(f(double(tame(a[i])))));
  };
}

void elementwise_expectations(Expectations& e) {
#define ROCFLASH_OP(name, expression)                                 \
  e[#name].compute = [](const Words& a, const Words& b, Words& out) { \
    for (u32 i = 0; i < kCount; ++i) {                                \
      [[maybe_unused]] const u32 x = a[i], y = b[i];                  \
      [[maybe_unused]] const i32 sx = i32(x), sy = i32(y);            \
      [[maybe_unused]] const float fx = tame(x), fy = tame(y);        \
      out[i] = expression;                                            \
    }                                                                 \
  };
#include "kernels/elementwise_ops.h"
#undef ROCFLASH_OP
}

void lds_expectations(Expectations& e) {
  e["block_sum"].compute = [](const Words& a, const Words&, Words& out) {
    for_blocks([&](u32 base) {
      u32 sum = 0;
      for (u32 i = 0; i < kBlock; ++i) sum += a[base + i];
      std::fill_n(out.begin() + base, kBlock, sum);
    });
  };
  e["block_scan"].compute = [](const Words& a, const Words&, Words& out) {
    for_blocks([&](u32 base) {
      u32 sum = 0;
      for (u32 i = 0; i < kBlock; ++i) out[base + i] = sum += a[base + i];
    });
  };
  lanewise(e, "transpose16", [](const Words& a, const Words&, u32 i) {
    const u32 t = i % 256;
    return a[i - t + (t % 16) * 16 + t / 16];
  });
  lanewise(e, "transpose_halves", [](const Words& a, const Words&, u32 i) {
    const u32 t = i % 256;
    return a[i - t + 255 - t];
  });
  lanewise(e, "wide_lds", [](const Words& a, const Words& b, u32 i) {
    const u32 t = i % 256;
    const u32 s = (t * 7 + 3) & 255;
    const u32 j = i - t + s;
    return a[j] + b[j] * 3 + s * 5 + (a[j] ^ b[j]) * 7;
  });
  lanewise(e, "byte_lds", [](const Words& a, const Words&, u32 i) {
    const u32 t = i % 256;
    u32 r = 0;
    for (u32 k = 0; k < 4; ++k) r |= (a[i - t + ((t + 64 * k) & 255)] & 0xff) << (8 * k);
    return r;
  });
  e["histogram"].compute = [](const Words& a, const Words&, Words& out) {
    std::fill(out.begin(), out.end(), 0u);
    for_blocks([&](u32 base) {
      for (u32 i = 0; i < kBlock; ++i) ++out[base + (a[base + i] & 255)];
    });
  };
}

void cross_lane_and_memory_expectations(Expectations& e) {
  lanewise(e, "reverse_in_32", [](const Words& a, const Words&, u32 i) { return a[i ^ 31]; });
  lanewise(e, "sum_of_32", [](const Words& a, const Words&, u32 i) {
    u32 sum = 0;
    for (u32 k = 0; k < 32; ++k) sum += a[(i & ~31u) + k];
    return sum;
  });
  lanewise(e, "row_rotate_dpp", [](const Words& a, const Words&, u32 i) {
    const u32 row = i & ~15u;
    const u32 r = i & 15;
    u32 s = a[row + ((r + 15) & 15)];
    s += r >= 1 ? a[i - 1] : 7;
    s += a[i ^ 1];
    s ^= a[row + 15 - r];
    s += a[(i & ~7u) + 7 - (i & 7)];
    return s;
  });
  lanewise(e, "swizzle_lds", [](const Words& a, const Words&, u32 i) {
    return a[i ^ 1] + 3 * a[(i & ~3u) + 3 - (i & 3)];
  });
  e["atomic_totals"].compute = [](const Words& a, const Words& b, Words& out) {
    u64 wide = u64{out[6]} | u64{out[7]} << 32;
    for (u32 i = 0; i < kCount; ++i) {
      out[0] += a[i];
      out[1] = std::max(out[1], a[i]);
      out[2] = std::min(out[2], b[i]);
      out[3] |= b[i];
      out[4] ^= a[i];
      wide += u64{a[i]} << 8;
    }
    out[6] = u32(wide);
    out[7] = u32(wide >> 32);
  };
  e["compare_and_swap_sum"].compute = [](const Words& a, const Words&, Words& out) {
    for (u32 i = 0; i < kCount; ++i) out[0] += a[i] & 0xff;
  };
  lanewise(e, "narrow_memory", [](const Words& a, const Words& b, u32 i) {
    const i32 sum = i8(a[i] >> 8) + i8(a[i] >> 16);
    return (u32(sum) & 0xffff) | (b[i] & 0xff) << 16 | (b[i] >> 24) << 24;
  });
  lanewise(e, "vector_memory", [](const Words& a, const Words& b, u32 i) {
    return a[i] * 3 + b[(i & ~3u) + 3 - (i & 3)];
  });
  e["buffer_bounds"].compute = [](const Words& a, const Words&, Words& out) {
    for (u32 i = 0; i < kCount / 2; ++i) out[i] = (i < kCount / 4 ? a[i] : 0) + 1;
  };
}

void scratch_and_compute_expectations(Expectations& e) {
  lanewise(e, "dynamic_array", [](const Words& a, const Words& b, u32 i) {
    u32 table[32];
    for (u32 k = 0; k < 32; ++k) table[k] = a[i] * (k + 1);
    for (u32 k = 0; k < 8; ++k) table[b[i] >> (4 * k) & 31] += k;
    u32 r = 0;
    for (u32 k = 0; k < 32; ++k) r = r * 31 + table[(k * 5) & 31];
    return r;
  });
  const auto twice = [](u32 x) { return x * 2 + 1; };
  lanewise(e, "calls", [twice](const Words& a, const Words& b, u32 i) {
    const auto combine = [&](u32 x, u32 y, u32 p) { return twice(x) ^ (twice(y) + p); };
    return combine(a[i], b[i], a[i]) + twice(combine(b[i], a[i], b[i]));
  });
  lanewise(e, "recursion", [](const Words& a, const Words&, u32 i) {
    u32 x = 0;
    u32 y = 1;
    for (u32 k = 0; k < a[i] % 10; ++k) x = std::exchange(y, x + y);
    return x;
  });
  lanewise(e, "spills", [](const Words& a, const Words& b, u32 i) {
    u32 v[48];
    for (u32 k = 0; k < 48; ++k) v[k] = a[(i + k) % kCount] * (b[(i + 3 * k) % kCount] | 1);
    for (u32 k = 0; k < 48; ++k) v[k] ^= v[(k * 7 + 5) % 48] >> 3;
    u32 r = 0;
    for (u32 k = 0; k < 48; ++k) r = r * 33 + v[47 - k];
    return r;
  });
  lanewise(e, "matrix_product", [](const Words& a, const Words& b, u32 i) {
    const u32 t = i % 256;
    i32 sum = 0;
    for (u32 k = 0; k < 16; ++k) {
      sum += (i32(a[i - t + t / 16 * 16 + k] & 0xff) - 128) *
             (i32(b[i - t + k * 16 + t % 16] & 0xff) - 128);
    }
    return u32(sum);
  });
  lanewise(e, "philox",
           [](const Words& a, const Words& b, u32 i) { return philox_of(i, a[i], b[i]); });
  e["sort_block"].compute = [](const Words& a, const Words&, Words& out) {
    out = a;
    for_blocks([&](u32 base) { std::sort(out.begin() + base, out.begin() + base + kBlock); });
  };
  lanewise(e, "votes", [](const Words& a, const Words&, u32 i) {
    u32 mask = 0;
    for (u32 k = 0; k < 32; ++k) mask |= (a[(i & ~31u) + k] & 1) << k;
    return mask;
  });
}

void float_expectations(Expectations& e) {
  approximate(e, "approx_exp2", 3e-7, [](double x) { return std::exp2(float(x) * 0.1f); });
  approximate(e, "approx_exp", 5e-7, [](double x) { return std::exp(float(x) * 0.1f); });
  approximate(e, "approx_log", 5e-7, [](double x) { return std::log(std::abs(float(x)) + 1.5f); });
  approximate(e, "approx_log2", 5e-7,
              [](double x) { return std::log2(std::abs(float(x)) + 1.5f); });
  approximate(e, "approx_rsqrt", 3e-7,
              [](double x) { return 1 / std::sqrt(double(std::abs(float(x)) + 0.5f)); });
  approximate(e, "approx_reciprocal", 3e-7, [](double x) { return 1 / x; });
  e["softmax_block"].tolerance = 1e-5;
  e["softmax_block"].compute = [](const Words& a, const Words&, Words& out) {
    for_blocks([&](u32 base) {
      double largest = -1e30;
      double sum = 0;
      const auto x = [&](u32 i) { return double(tame(a[base + i]) * 0.05f); };
      for (u32 i = 0; i < kBlock; ++i) largest = std::max(largest, x(i));
      for (u32 i = 0; i < kBlock; ++i) sum += std::exp(x(i) - largest);
      for (u32 i = 0; i < kBlock; ++i) out[base + i] = bits(float(std::exp(x(i) - largest) / sum));
    });
  };
  e["layer_norm_block"].tolerance = 1e-4;
  e["layer_norm_block"].compute = [](const Words& a, const Words&, Words& out) {
    for_blocks([&](u32 base) {
      double mean = 0;
      double variance = 0;
      for (u32 i = 0; i < kBlock; ++i) mean += double(tame(a[base + i])) / kBlock;
      for (u32 i = 0; i < kBlock; ++i) {
        const double d = double(tame(a[base + i])) - mean;
        variance += d * d / kBlock;
      }
      for (u32 i = 0; i < kBlock; ++i) {
        out[base + i] =
            bits(float((double(tame(a[base + i])) - mean) / std::sqrt(variance + 1e-5)));
      }
    });
  };
}

Expectations expectations() {
  Expectations e;
  elementwise_expectations(e);
  lds_expectations(e);
  cross_lane_and_memory_expectations(e);
  scratch_and_compute_expectations(e);
  float_expectations(e);
  return e;
}

struct Build {
  const char* target;
  const char* flags;
  int wave;
};

std::string build_name(const testing::TestParamInfo<Build>& info) {
  std::string flags = info.param.flags;
  const auto level = flags.find("-O");
  return std::string(info.param.target) + "_" + flags.substr(level + 1, 2) + "_w" +
         std::to_string(info.param.wave);
}

class KernelSuite : public testing::TestWithParam<Build> {};

constexpr const char* kSource = ROCFLASH_SIM_TEST_SOURCE "/kernels/suite.hip";

std::string flags_of(const Build& build) {
  std::string flags = std::string(build.flags) + " -ffp-contract=off";
  if (build.wave == 64 && build.target[3] == '1') flags += " -mwavefrontsize64 -DROCFLASH_WAVE64";
  return flags;
}

void run_suite(Module& module) {
  std::mt19937 random(7);
  Words a(kCount);
  Words b(kCount);
  for (u32 i = 0; i < kCount; ++i) {
    a[i] = u32(random());
    b[i] = u32(random());
  }
  a[0] = b[1] = 0;
  a[2] = b[2] = 0x80000000u;
  Words start(kCount, 0x11);
  Shape shape;
  shape.grid[0] = kCount / kBlock;
  shape.block[0] = kBlock;
  for (const auto& [name, expectation] : expectations()) {
    Buffer<u32> in_a(a);
    Buffer<u32> in_b(b);
    Buffer<u32> out(start);
    const auto result =
        launch(module, name, shape, Arguments(in_a.data(), in_b.data(), out.data(), kCount));
    ASSERT_TRUE(result.ok()) << name << "\n" << result.report->text();
    Words expected = start;
    expectation.compute(a, b, expected);
    for (u32 i = 0; i < kCount; ++i) {
      if (expectation.tolerance == 0) {
        ASSERT_EQ(out[i], expected[i]) << name << " at " << i << " of " << a[i] << ", " << b[i];
      } else {
        const double want = std::bit_cast<float>(expected[i]);
        ASSERT_NEAR(std::bit_cast<float>(out[i]), want,
                    expectation.tolerance * std::max(std::abs(want), 1e-3))
            << name << " at " << i;
      }
    }
  }
}

TEST_P(KernelSuite, MatchesTheHost) {
  const Build& build = GetParam();
  run_suite(*load(compile_hip(kSource, build.target, flags_of(build) + " -g"), build.target));
}

class FamilyMember : public testing::TestWithParam<const char*> {};

TEST_P(FamilyMember, MatchesTheHost) {
  for (const int wave : {32, 64}) {
    const Build build = {GetParam(), "-O3", wave};
    const auto module = load(compile_member(kSource, build.target, flags_of(build)), build.target);
    EXPECT_EQ(module->object().target(), GetParam());
    EXPECT_EQ(module->object().kernels().front().wave_size, wave);
    run_suite(*module);
  }
}

constexpr Build kBuilds[] = {
    {"gfx906", "-O0 -mcode-object-version=5", 64},  {"gfx906", "-O3 -mcode-object-version=5", 64},
    {"gfx908", "-O1 -mcode-object-version=6", 64},  {"gfx908", "-O3 -mcode-object-version=5", 64},
    {"gfx90a", "-O0 -mcode-object-version=5", 64},  {"gfx90a", "-O1 -mcode-object-version=6", 64},
    {"gfx90a", "-O3 -mcode-object-version=5", 64},  {"gfx942", "-O0 -mcode-object-version=5", 64},
    {"gfx942", "-O1 -mcode-object-version=5", 64},  {"gfx942", "-O3 -mcode-object-version=6", 64},
    {"gfx950", "-O0 -mcode-object-version=5", 64},  {"gfx950", "-O1 -mcode-object-version=6", 64},
    {"gfx950", "-O3 -mcode-object-version=5", 64},  {"gfx1030", "-O0 -mcode-object-version=5", 32},
    {"gfx1030", "-O1 -mcode-object-version=5", 32}, {"gfx1030", "-O3 -mcode-object-version=6", 32},
    {"gfx1030", "-O3 -mcode-object-version=5", 64}, {"gfx1100", "-O0 -mcode-object-version=5", 32},
    {"gfx1100", "-O1 -mcode-object-version=6", 32}, {"gfx1100", "-O3 -mcode-object-version=5", 32},
    {"gfx1100", "-O0 -mcode-object-version=5", 64}, {"gfx1100", "-O3 -mcode-object-version=5", 64},
    {"gfx1201", "-O0 -mcode-object-version=6", 32}, {"gfx1201", "-O1 -mcode-object-version=5", 32},
    {"gfx1201", "-O3 -mcode-object-version=5", 32}, {"gfx1201", "-O3 -mcode-object-version=5", 64},
};

INSTANTIATE_TEST_SUITE_P(Builds, KernelSuite, testing::ValuesIn(kBuilds), build_name);

INSTANTIATE_TEST_SUITE_P(Rdna, FamilyMember, testing::ValuesIn(kRdnaMembers),
                         [](const auto& info) { return std::string(info.param); });

TEST(FamilyMember, CoverAllRdnaTargets) {
  std::vector<std::string> listed(std::begin(kRdnaMembers), std::end(kRdnaMembers));
  std::vector<std::string> known;
  for (const Target& t : all_targets()) {
    if (!t.is_cdna()) known.emplace_back(t.name);
  }
  EXPECT_EQ(listed, known);
}

TEST(KernelSuite, HasAtLeastSixtyKernels) { EXPECT_GE(expectations().size(), 60u); }

}  // namespace
}  // namespace rocflash::sim::test
