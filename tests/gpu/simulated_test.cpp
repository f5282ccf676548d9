// Kernels on simulated GPUs, through the shipped library, with all checks of the simulator enabled.
// The environment selects the GPUs: see CMakeLists.txt.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <list>
#include <thread>

#include "verify/gpu.hpp"
#include "verify/run.hpp"
#include "verify/table.hpp"

namespace rocflash::verify {
namespace {

std::shared_ptr<Gpu> open(int index = 0) {
  DeviceName name("hip:" + std::to_string(index));
  return Gpu::open(name);
}

int count_devices() { return static_cast<int>(devices().size()) - 1; }

void expect_good(const Result& r, const std::string& where) {
  EXPECT_TRUE(r.good()) << where << ": " << r.what.name() << "\n"
                        << r.what.describe() << "\n"
                        << r.failure;
  for (const Comparison& f : r.comparisons) {
    EXPECT_TRUE(f.good()) << f.tensor << ": error " << f.error << " of " << f.bound() << " "
                          << f.defect;
  }
}

Case find_case(const std::string& feature, const std::string& shape, DType dtype) {
  for (const Feature& f : features()) {
    for (const Shape& s : shapes()) {
      if (f.name == feature && s.name == shape) return make_case(f, s, dtype, 0);
    }
  }
  ADD_FAILURE() << feature << "/" << shape;
  return {};
}

// Every ROCFLASH_TEST_EVERY-th case of the table, with a different offset per architecture.
TEST(Verify, SampleOfTheTable) {
  const auto gpu = open();
  const std::string arch = gpu->about().arch;
  const auto every = std::strtoull(std::getenv("ROCFLASH_TEST_EVERY"), nullptr, 10);
  const std::uint64_t offset = std::hash<std::string>{}(arch) % every;
  int ran = 0;
  for (const Case& c : cases(Level::quick)) {
    if (c.seed % every != offset) continue;
    const Result r = run(c, gpu);
    expect_good(r, arch);
    EXPECT_TRUE(r.refused.empty()) << c.name() << ": " << r.refused;
    ++ran;
  }
  EXPECT_GT(ran, 10);
}

// The comparison with the reference must detect an injected fault.
TEST(Verify, DetectsAFault) {
  Device device(open());
  device.fault = [](Problem& p) { p.causal = true; };
  const std::string no_options = features().front().name;
  const Result r = run(find_case(no_options, "64x64", DType::f16), device);
  EXPECT_FALSE(r.good());
}

TEST(Members, EachLoadsAndRuns) {
  ASSERT_GT(count_devices(), 0);
  for (int n = 0; n < count_devices(); ++n) {
    const auto gpu = open(n);
    const std::string arch = gpu->about().arch;
    expect_good(run(find_case("causal", "64x64", DType::f16), gpu), arch);
    expect_good(run(find_case("softcap", "33x1", DType::bf16), gpu), arch);
  }
}

// Several threads on two devices, concurrent from the first call on.
TEST(Threads, ShareLoadedModules) {
  ASSERT_EQ(count_devices(), 2);
  const Case c = find_case("causal", "64x64", DType::bf16);
  std::vector<Result> results(6);
  {
    std::vector<std::jthread> threads;
    for (std::size_t n = 0; n < results.size(); ++n)
      threads.emplace_back([&, n] { results[n] = run(c, open(static_cast<int>(n % 2))); });
  }
  for (const Result& r : results) expect_good(r, "thread");
}

TEST(Threads, CurrentDeviceIsRestored) {
  ASSERT_EQ(count_devices(), 2);
  void* library = dlopen(drivers()[0].library, RTLD_NOW | RTLD_LOCAL);
  const auto get = reinterpret_cast<int (*)(int*)>(dlsym(library, "hipGetDevice"));
  const auto set = reinterpret_cast<int (*)(int)>(dlsym(library, "hipSetDevice"));
  const auto gpu = open(1);
  const GpuMemory memory(gpu, 1 << 16);
  gpu->fill(memory.data(), 0, memory.size());
  const auto at = [&](std::size_t offset) {
    return Tensor(memory.data() + offset, DType::f16, {1, 8, 1, 64}, {}, gpu->dlpack());
  };
  ASSERT_EQ(set(0), 0);
  forward({.q = at(0), .k = at(1024), .v = at(2048)}, {.out = at(4096)});
  int current = -1;
  ASSERT_EQ(get(&current), 0);
  EXPECT_EQ(current, 0);
}

// Tensors of one call on a GPU, each in an allocation of exactly its size.
class Tensors {
 public:
  explicit Tensors(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}

  Tensor ints(const std::vector<std::int32_t>& values, Dims shape) {
    return put(values.data(), values.size() * sizeof values[0], DType::i32, shape);
  }
  Tensor floats(const std::vector<float>& values, Dims shape) {
    return put(values.data(), values.size() * sizeof values[0], DType::f32, shape);
  }
  Tensor filled(DType dtype, Dims shape, unsigned char byte) {
    std::size_t bytes = size_of(dtype);
    for (const std::int64_t n : shape) bytes *= static_cast<std::size_t>(n);
    const std::vector<unsigned char> values(bytes, byte);
    return put(values.data(), bytes, dtype, shape);
  }
  // f16 elements between 1/8 and 1/2 of either sign.
  Tensor halves(std::uint32_t seed, Dims shape) { return numbers(DType::f16, seed, shape); }
  // Elements around 0.2 of either sign. An f32 element is made of two 16-bit words.
  Tensor numbers(DType dtype, std::uint32_t seed, Dims shape) {
    const std::uint32_t first = dtype == DType::f16 ? 0x3000u : 0x3e00u,
                        different = dtype == DType::f16 ? 0x800u : 0x100u;
    std::size_t count = size_of(dtype) / 2;
    for (const std::int64_t n : shape) count *= static_cast<std::size_t>(n);
    std::vector<std::uint16_t> values(count);
    std::uint32_t state = seed;
    for (std::uint16_t& x : values) {
      state = state * 1664525u + 1013904223u;
      x = static_cast<std::uint16_t>(first + (state >> 16) % different + (state >> 31) * 0x8000u);
    }
    return put(values.data(), count * 2, dtype, shape);
  }
  template <class Element>
  std::vector<Element> values(const Tensor& t) const {
    std::size_t count = 1;
    for (const std::int64_t n : t.shape()) count *= static_cast<std::size_t>(n);
    std::vector<Element> host(count);
    gpu_->download(host.data(), t.data(), count * sizeof(Element));
    return host;
  }

 private:
  Tensor put(const void* from, std::size_t bytes, DType dtype, const Dims& shape) {
    memory_.emplace_back(gpu_, bytes);
    gpu_->upload(memory_.back().data(), from, bytes);
    return {memory_.back().data(), dtype, shape, {}, gpu_->dlpack()};
  }

  std::shared_ptr<Gpu> gpu_;
  std::list<GpuMemory> memory_;
};

// Deterministic: each gradient is bitwise the same alone and with the others, on every run, and
// tensors that are not requested are not written.
TEST(Gradients, DeterministicForAnySubset) {
  for (const std::int64_t d : {64, 256}) {
    Tensors t(open());
    const Dims queries{1, 70, 2, d}, keys{1, 40, 1, d};
    const Problem p{.q = t.halves(1, queries),
                    .k = t.halves(2, keys),
                    .v = t.halves(3, keys),
                    .causal = true,
                    .deterministic = true};
    const Tensor out = t.filled(DType::f16, queries, 0), dout = t.halves(4, queries),
                 lse = t.filled(DType::f32, {1, 2, 70}, 0);
    forward(p, {.out = out, .lse = lse});
    const auto run = [&](bool dq, bool dk, bool dv) {
      const Tensor to[] = {t.filled(DType::f16, queries, 0x5a), t.filled(DType::f16, keys, 0x5a),
                           t.filled(DType::f16, keys, 0x5a)};
      BackwardTensors b{.dout = dout, .out = out, .lse = lse};
      if (dq) b.dq = to[0];
      if (dk) b.dk = to[1];
      if (dv) b.dv = to[2];
      const Tensor workspace =
          t.filled(DType::f32, {static_cast<std::int64_t>(workspace_size(p, b)) / 4}, 0xff);
      backward(p, b, {.workspace = workspace.data(), .workspace_size = workspace_size(p, b)});
      std::vector<std::vector<std::uint16_t>> values;
      for (const Tensor& x : to) values.push_back(t.values<std::uint16_t>(x));
      return values;
    };
    const auto all = run(true, true, true);
    EXPECT_EQ(run(true, true, true), all) << d;
    for (int n = 0; n < 3; ++n) {
      const auto alone = run(n == 0, n == 1, n == 2);
      for (int m = 0; m < 3; ++m) {
        if (m == n) {
          EXPECT_EQ(alone[m], all[m]) << d << " " << m;
        } else {
          EXPECT_EQ(alone[m], std::vector<std::uint16_t>(all[m].size(), 0x5a5a)) << d << " " << m;
        }
      }
    }
  }
}

// Context parallelism: backward over one key at a time with the out and lse of all keys gives the
// gradients of the whole. A query that attends to one local key may have most of its weight
// elsewhere. With a large bias f32 rounds the lse, and the weights with it.
TEST(Gradients, OfKeySplitsSumToTheWhole) {
  constexpr std::int64_t d = 16, sq = 3, sk = 2;
  const Dims queries{1, sq, 1, d}, keys{1, sk, 1, d}, one{1, 1, 1, d};
  for (const float level : {0.0f, -1e4f}) {
    Tensors t(open());
    const Tensor q = t.numbers(DType::f32, 1, queries), k = t.numbers(DType::f32, 2, keys),
                 v = t.numbers(DType::f32, 3, keys), dout = t.numbers(DType::f32, 4, queries),
                 out = t.filled(DType::f32, queries, 0), lse = t.filled(DType::f32, {1, 1, sq}, 0),
                 bias = t.floats({level}, {1, 1, 1, 1});
    const auto problem = [&](const Tensor& some_k, const Tensor& some_v) {
      return Problem{.q = q,
                     .k = some_k,
                     .v = some_v,
                     .bias = level == 0 ? std::nullopt : std::optional(bias)};
    };
    const auto gradients = [&](const Tensor& some_k, const Tensor& some_v, const Dims& shape) {
      const Problem p = problem(some_k, some_v);
      const Tensor dq = t.filled(DType::f32, queries, 0xff), dk = t.filled(DType::f32, shape, 0xff),
                   dv = t.filled(DType::f32, shape, 0xff);
      const BackwardTensors b{.dout = dout, .out = out, .lse = lse, .dq = dq, .dk = dk, .dv = dv};
      const auto bytes = workspace_size(p, b);
      const Tensor workspace =
          t.filled(DType::f32, {static_cast<std::int64_t>(bytes + 3) / 4}, 0xff);
      backward(p, b, {.workspace = workspace.data(), .workspace_size = bytes});
      return std::array{t.values<float>(dq), t.values<float>(dk), t.values<float>(dv)};
    };
    forward(problem(k, v), {.out = out, .lse = lse});
    const auto whole = gradients(k, v, keys);
    const float tolerance = 1e-6f + 0x1p-22f * std::abs(level);
    std::vector<float> dq(sq * d);
    for (std::int64_t n = 0; n < sk; ++n) {
      const auto row = [&](const Tensor& x) {
        return Tensor(static_cast<float*>(x.data()) + n * d, DType::f32, one, {}, open()->dlpack());
      };
      const auto split = gradients(row(k), row(v), one);
      for (std::size_t i = 0; i < dq.size(); ++i) dq[i] += split[0][i];
      for (int of = 1; of < 3; ++of)
        for (std::size_t i = 0; i < d; ++i)
          EXPECT_NEAR(split[of][i], whole[of][n * d + i], tolerance)
              << level << " " << of << " " << n << " " << i;
    }
    for (std::size_t i = 0; i < dq.size(); ++i) EXPECT_NEAR(dq[i], whole[0][i], tolerance) << i;
    EXPECT_GT(std::abs(*std::max_element(dq.begin(), dq.end())), 1e-4) << level;
  }
}

// delta is rowsum(dO·O) − dlse without the dropout scale, and 0 in rows outside all sequences. With
// a bias gradient the FP32 preprocess writes it first.
TEST(Gradients, Delta) {
  constexpr std::int64_t d = 64, total = 20, heads = 2;
  const Dims queries{total, heads, d}, keys{total, 1, d};
  for (const DType dtype : {DType::f16, DType::f32}) {
    for (const bool bias_gradient : {false, true}) {
      Tensors t(open());
      Problem p{.q = t.numbers(dtype, 1, queries),
                .k = t.numbers(dtype, 2, keys),
                .v = t.numbers(dtype, 3, keys),
                .cu_seqlens_q = t.ints({1, 6, 17}, {3}),
                .cu_seqlens_k = t.ints({0, 12, 20}, {3}),
                .max_seqlen_q = 11,
                .max_seqlen_k = 12,
                .dropout_p = 0.25f};
      if (bias_gradient) p.bias = t.floats(std::vector<float>(12, 0.5f), {1, 1, 1, 12});
      const Tensor out = t.filled(dtype, queries, 0xff), dout = t.numbers(dtype, 4, queries),
                   lse = t.filled(DType::f32, {heads, total}, 0xff),
                   dq = t.filled(dtype, queries, 0xff),
                   delta = t.filled(DType::f32, {heads, total}, 0xff);
      forward(p, {.out = out, .lse = lse});
      const auto in_use = [](std::size_t n) { return n % total >= 1 && n % total < 17; };
      std::vector<float> of_lse(heads * total);
      for (std::size_t n = 0; n < of_lse.size(); ++n)
        of_lse[n] = in_use(n) ? static_cast<float>(n % 7) - 3 : std::nanf("");
      BackwardTensors b{.dout = dout, .out = out, .lse = lse, .dq = dq};
      b.delta = delta;
      b.dlse = t.floats(of_lse, {heads, total});
      if (bias_gradient) b.dbias = t.filled(DType::f32, {1, 1, 1, 12}, 0xff);
      const auto bytes = workspace_size(p, b);
      const Tensor workspace =
          t.filled(DType::f32, {static_cast<std::int64_t>(bytes + 3) / 4}, 0xff);
      backward(p, b, {.workspace = workspace.data(), .workspace_size = bytes});
      const auto sums = [&](auto element) {
        using Element = decltype(element);
        const auto x = t.values<Element>(out), y = t.values<Element>(dout);
        std::vector<double> rows(heads * total);
        for (std::size_t n = 0; n < x.size(); ++n)
          rows[n / d % heads * total + n / d / heads] +=
              0.75 * static_cast<double>(x[n]) * static_cast<double>(y[n]);
        return rows;
      };
      const auto expected = dtype == DType::f16 ? sums(_Float16{}) : sums(float{});
      const auto found = t.values<float>(delta);
      for (std::size_t n = 0; n < found.size(); ++n)
        EXPECT_NEAR(static_cast<double>(found[n]),
                    in_use(n) ? expected[n] - 0.75 * static_cast<double>(of_lse[n]) : 0, 1e-4)
            << n;
      EXPECT_EQ(found[0], 0);
      EXPECT_NE(found[1], 0);
    }
  }
}

// Batch 0: every packed row is outside any sequence, and is still written.
TEST(Lengths, PackedRowsWithoutSequencesAreZeroed) {
  Tensors t(open());
  Problem p;
  p.q = t.filled(DType::f16, {300, 2, 64}, 0x3c);
  p.k = t.filled(DType::f16, {5, 2, 64}, 0x3c);
  p.v = t.filled(DType::f16, {5, 2, 64}, 0x3c);
  p.cu_seqlens_q = t.ints({0}, {1});
  p.cu_seqlens_k = t.ints({0}, {1});
  p.sinks = t.filled(DType::f32, {2}, 0);
  const ForwardOutputs o{t.filled(DType::f16, {300, 2, 64}, 0xff),
                         t.filled(DType::f32, {2, 300}, 0xff), std::nullopt};
  forward(p, o);
  for (const std::uint16_t x : t.values<std::uint16_t>(o.out)) ASSERT_EQ(x & 0x7fff, 0);
  for (const float x : t.values<float>(*o.lse)) ASSERT_EQ(x, INFINITY);
}

// Invalid lengths: results are unspecified, but no access may leave the tensors. The simulator
// checks it.
TEST(Lengths, InvalidOnesStayInBounds) {
  constexpr std::int32_t huge = 0x7fffffff, low = -huge - 1;
  const std::vector<std::int32_t> wrong[] = {{0, huge, 3},  {5, 2, -7},         {low, low, huge},
                                             {-4, 20, 500}, {huge, huge, huge}, {40, 0, 40}};
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const auto& cu : wrong) {
      for (const auto& used : wrong) {
        Tensors t(open());
        const std::vector<std::int32_t> two{used[0], used[1]}, other{used[2], used[0]};
        Problem p;
        p.q = t.filled(dtype, {40, 2, 64}, 0x3c);
        p.k = t.filled(dtype, {30, 1, 64}, 0x3c);
        p.v = t.filled(dtype, {30, 1, 64}, 0x3c);
        p.cu_seqlens_q = t.ints(cu, {3});
        p.cu_seqlens_k = t.ints({cu[2], cu[0], cu[1]}, {3});
        p.seqused_q = t.ints(two, {2});
        p.seqused_k = t.ints(other, {2});
        p.leftpad_k = t.ints({used[1], used[2]}, {2});
        p.max_seqlen_q = 25;
        p.max_seqlen_k = 28;
        p.causal = used[0] % 2 == 0;
        const ForwardOutputs o{t.filled(dtype, {40, 2, 64}, 0xff),
                               t.filled(DType::f32, {2, 40}, 0xff), std::nullopt};
        EXPECT_NO_THROW(forward(p, o));

        Problem paged;
        paged.q = t.filled(dtype, {2, 9, 2, 64}, 0x3c);
        paged.k = t.filled(dtype, {3, 16, 1, 64}, 0x3c);
        paged.v = t.filled(dtype, {3, 16, 1, 64}, 0x3c);
        paged.block_table = t.ints({cu[0], cu[1], cu[2], used[2]}, {2, 2});
        paged.seqused_k = t.ints(two, {2});
        const ForwardOutputs q{t.filled(dtype, {2, 9, 2, 64}, 0xff), std::nullopt,
                               t.filled(dtype, {2, 2, 9, 32}, 0xff)};
        const Tensor scratch = t.filled(DType::f32, {2 * 2 * 9}, 0);
        EXPECT_NO_THROW(
            forward(paged, q, {.workspace = scratch.data(), .workspace_size = 2 * 2 * 9 * 4}));
        Problem chosen = paged;
        chosen.block_table.reset();
        chosen.cache_batch_idx = t.ints({cu[1], used[0]}, {2});
        EXPECT_NO_THROW(forward(chosen, {.out = q.out}));
      }
    }
  }
}

// The same for append and split-KV.
TEST(Lengths, InvalidOnesAppendInBounds) {
  constexpr std::int32_t huge = 0x7fffffff, low = -huge - 1;
  const std::vector<std::int32_t> wrong[] = {{0, huge, 3}, {5, 2, -7}, {low, 30, huge}, {1, 4, 5}};
  for (const auto& cu : wrong) {
    for (const auto& used : wrong) {
      Tensors t(open());
      Problem p;
      p.q = t.filled(DType::bf16, {2, 3, 2, 64}, 0x3c);
      p.k = t.filled(DType::bf16, {3, 16, 1, 64}, 0x3c);
      p.v = t.filled(DType::bf16, {3, 16, 1, 64}, 0x3c);
      p.block_table = t.ints({cu[0], cu[1], cu[2], used[2]}, {2, 2});
      p.seqused_k = t.ints({used[0], used[1]}, {2});
      p.causal = true;
      p.num_splits = 2;
      Append a;
      a.k_new = t.filled(DType::bf16, {5, 1, 64}, 0x3c);
      a.v_new = t.filled(DType::bf16, {5, 1, 64}, 0x3c);
      a.cu_seqlens_k_new = t.ints(cu, {3});
      a.rotary_cos = t.filled(DType::f32, {7, 16}, 0);
      a.rotary_sin = t.filled(DType::f32, {7, 16}, 0);
      a.rotary_seqlens = t.ints({used[2], cu[1]}, {2});
      const ForwardOutputs o{t.filled(DType::bf16, {2, 3, 2, 64}, 0xff), std::nullopt,
                             std::nullopt};
      const std::size_t size = workspace_size(p, a, o, {});
      const Tensor scratch =
          t.filled(DType::f32, {static_cast<std::int64_t>(size / sizeof(float))}, 0xff);
      EXPECT_NO_THROW(decode(p, a, o, {.workspace = scratch.data(), .workspace_size = size}));
    }
  }
}

// The kinds of KV cache that decode has kernels for: MLA, a cache of another dtype than q, f32.
struct Cache {
  const char* name;
  DType queries, keys;
  std::int64_t d, dv;
  bool is_mla() const { return d != dv; }
};
constexpr Cache caches[] = {{"mla", DType::bf16, DType::bf16, 576, 512},
                            {"dense", DType::f16, DType::f16, 64, 64},
                            {"mixed", DType::f32, DType::bf16, 64, 64},
                            {"f32", DType::f32, DType::f32, 128, 128}};

// The same for each of them.
TEST(Lengths, InvalidOnesStayInBoundsOfEveryCache) {
  constexpr std::int32_t huge = 0x7fffffff, low = -huge - 1;
  const std::vector<std::int32_t> wrong[] = {{-1, huge, 3, low}, {low, 30, huge, -7}};
  for (const auto& w : wrong) {
    for (const Cache& c : caches) {
      Tensors t(open());
      const std::int64_t d = c.d, dv = c.dv;
      Problem p;
      p.q = t.filled(c.queries, {2, 1, 4, d}, 0x3c);
      p.k = t.filled(c.keys, {3, 16, 1, d}, 0x3c);
      p.v = c.is_mla()
                ? Tensor(p.k.data(), c.keys, {3, 16, 1, dv}, {16 * d, d, d, 1}, open()->dlpack())
                : t.filled(c.keys, {3, 16, 1, dv}, 0x3c);
      p.num_splits = 2;
      p.block_table = t.ints(w, {2, 2});
      p.seqused_k = t.ints({w[3], w[1]}, {2});
      const ForwardOutputs o{t.filled(c.queries, {2, 1, 4, dv}, 0xff), std::nullopt, std::nullopt};
      const std::size_t size = workspace_size(p, Append{}, o, {});
      EXPECT_GT(size, 0u) << c.name;  // of partial results
      const Tensor scratch =
          t.filled(DType::f32, {static_cast<std::int64_t>(size / sizeof(float))}, 0xff);
      EXPECT_NO_THROW(decode(p, Append{}, o, {.workspace = scratch.data(), .workspace_size = size}))
          << c.name;
    }
  }
}

// Rows of the KV cache beyond seqused_k have no influence, even if they are NaN.
TEST(Lengths, RowsBeyondSequsedHaveNoInfluence) {
  constexpr std::int64_t rows = 16, used = 5;
  for (const Cache& c : caches) {
    const std::int64_t d = c.d, dv = c.dv;
    std::vector<std::uint16_t> found[2];
    for (const bool dirty : {false, true}) {
      Tensors t(open());
      Problem p;
      p.q = t.numbers(c.queries, 1, {1, 1, 4, d});
      p.k = t.numbers(c.keys, 2, {1, rows, 1, d});
      p.v = c.is_mla() ? Tensor(p.k.data(), c.keys, {1, rows, 1, dv}, {rows * d, d, d, 1},
                                open()->dlpack())
                       : t.numbers(c.keys, 3, {1, rows, 1, dv});
      p.seqused_k = t.ints({used}, {1});
      p.num_splits = 2;
      if (dirty) {
        const auto spoil = [&](const Tensor& x, std::int64_t columns) {
          const auto row = static_cast<std::size_t>(columns) * size_of(c.keys);
          open()->fill(static_cast<std::byte*>(x.data()) + used * row, 0xff, (rows - used) * row);
        };
        spoil(p.k, d);
        if (!c.is_mla()) spoil(p.v, dv);
      }
      const ForwardOutputs o{t.filled(c.queries, {1, 1, 4, dv}, 0xff), std::nullopt, std::nullopt};
      const std::size_t size = workspace_size(p, Append{}, o, {});
      const Tensor scratch =
          t.filled(DType::f32, {static_cast<std::int64_t>(size / sizeof(float))}, 0xff);
      decode(p, Append{}, o, {.workspace = scratch.data(), .workspace_size = size});
      found[dirty] = t.values<std::uint16_t>(o.out);
    }
    EXPECT_EQ(found[0], found[1]) << c.name;
  }
}

// The combine kernel agrees with the CPU. The values of empty splits must be ignored.
TEST(Verify, CombinesSplitsAsTheCpuDoes) {
  constexpr std::int64_t splits = 70, batch = 2, queries = 3, heads = 2, columns = 37;
  std::vector<float> out(splits * batch * queries * heads * columns),
      lse(splits * batch * heads * queries);
  for (std::size_t n = 0; n < out.size(); ++n) out[n] = std::sin(static_cast<float>(n));
  for (std::size_t n = 0; n < lse.size(); ++n)
    lse[n] = n % 5 == 0 ? -INFINITY : n % 7 == 0 ? INFINITY : 3 * std::cos(static_cast<float>(n));
  const std::size_t row = queries * columns * heads;
  for (std::size_t n = 0; n < row; ++n) out[n] = NAN;  // split 0 of batch 0, which is empty
  for (std::size_t n = 0; n < heads * queries; ++n) lse[n] = INFINITY;

  Tensors t(open());
  const Dims shape{batch, queries, heads, columns};
  const Tensor combined = t.filled(DType::f32, shape, 0xff),
               combined_lse = t.filled(DType::f32, {batch, heads, queries}, 0xff);
  combine(t.floats(out, {splits, batch, queries, heads, columns}),
          t.floats(lse, {splits, batch, heads, queries}), combined, combined_lse);

  std::vector<float> expected(batch * queries * heads * columns),
      expected_lse(batch * heads * queries);
  combine(Tensor(out.data(), DType::f32, {splits, batch, queries, heads, columns}),
          Tensor(lse.data(), DType::f32, {splits, batch, heads, queries}),
          Tensor(expected.data(), DType::f32, shape),
          Tensor(expected_lse.data(), DType::f32, {batch, heads, queries}));
  const auto found = t.values<float>(combined), found_lse = t.values<float>(combined_lse);
  for (std::size_t n = 0; n < expected.size(); ++n) ASSERT_NEAR(found[n], expected[n], 2e-6) << n;
  for (std::size_t n = 0; n < expected_lse.size(); ++n)
    ASSERT_NEAR(found_lse[n], expected_lse[n], 2e-6) << n;
}

// Every query of a head attends to its sink, also a fully masked one: +infinity makes them NaN.
TEST(Sinks, InfiniteSinkReachesFullyMaskedRows) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  constexpr std::int64_t sq = 4, d = 16;
  for (const DType dtype : {DType::f32, DType::f16}) {
    Tensors t(open());
    const Dims queries{1, sq, 2, d}, keys{1, 1, 2, d};  // three of four queries are fully masked
    const Tensor out = t.filled(dtype, queries, 0x3c);
    forward({.q = t.numbers(dtype, 1, queries),
             .k = t.numbers(dtype, 2, keys),
             .v = t.numbers(dtype, 3, keys),
             .causal = true,
             .sinks = t.floats({1, infinity}, {2})},
            {.out = out});
    for (std::int64_t n = 0; n < sq * 2 * d; ++n) {
      const auto at = static_cast<std::size_t>(n);
      const bool is_nan = dtype == DType::f32
                              ? std::isnan(t.values<float>(out)[at])
                              : (t.values<std::uint16_t>(out)[at] & 0x7fff) > 0x7c00;
      EXPECT_EQ(is_nan, n / d % 2 == 1) << n;
    }
  }
}

// The gradient of a sink that makes its head NaN is NaN; other heads are not affected.
TEST(Sinks, GradientsOfNonFiniteSinks) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const DType dtype : {DType::f32, DType::f16}) {
    Tensors t(open());
    const Dims shape{1, 4, 4, 16};
    const Tensor out = t.filled(dtype, shape, 0), lse = t.filled(DType::f32, {1, 4, 4}, 0),
                 dsinks = t.filled(DType::f32, {4}, 0x5a);
    const Problem p{.q = t.numbers(dtype, 1, shape),
                    .k = t.numbers(dtype, 2, shape),
                    .v = t.numbers(dtype, 3, shape),
                    .sinks = t.floats(
                        {0.5f, std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}, {4})};
    forward(p, {.out = out, .lse = lse});
    const BackwardTensors b{
        .dout = t.numbers(dtype, 4, shape), .out = out, .lse = lse, .dsinks = dsinks};
    const auto bytes = workspace_size(p, b);
    const Tensor workspace = t.filled(DType::f32, {static_cast<std::int64_t>(bytes + 3) / 4}, 0xff);
    backward(p, b, {.workspace = workspace.data(), .workspace_size = bytes});
    const auto found = t.values<float>(dsinks);
    EXPECT_TRUE(std::isfinite(found[0]) && found[0] != 0) << found[0];
    EXPECT_TRUE(std::isnan(found[1])) << found[1];
    EXPECT_TRUE(std::isnan(found[2])) << found[2];
    EXPECT_EQ(found[3], 0);
  }
}

// A fully masked query has no gradient, so a NaN in its dout reaches no result.
TEST(Sinks, NonFiniteDoutOfFullyMaskedRows) {
  constexpr std::int64_t sq = 4, heads = 2, d = 16;
  Tensors t(open());
  const Dims queries{1, sq, heads, d}, keys{1, 1, heads, d};  // the last query attends to the key
  const Tensor out = t.filled(DType::f32, queries, 0),
               lse = t.filled(DType::f32, {1, heads, sq}, 0),
               dsinks = t.filled(DType::f32, {heads}, 0x5a);
  const Problem p{.q = t.numbers(DType::f32, 1, queries),
                  .k = t.numbers(DType::f32, 2, keys),
                  .v = t.numbers(DType::f32, 3, keys),
                  .causal = true,
                  .sinks = t.floats({0.5f, 0.25f}, {heads})};
  forward(p, {.out = out, .lse = lse});
  std::vector<float> dout(static_cast<std::size_t>(sq * heads * d), 1.0f);
  dout[0] = dout[heads * d + 1] = std::numeric_limits<float>::quiet_NaN();  // head 0
  dout.back() = std::numeric_limits<float>::quiet_NaN();                    // last query of head 1
  const BackwardTensors b{
      .dout = t.floats(dout, queries), .out = out, .lse = lse, .dsinks = dsinks};
  const auto bytes = workspace_size(p, b);
  const Tensor workspace = t.filled(DType::f32, {static_cast<std::int64_t>(bytes + 3) / 4}, 0xff);
  backward(p, b, {.workspace = workspace.data(), .workspace_size = bytes});
  const auto found = t.values<float>(dsinks);
  EXPECT_TRUE(std::isfinite(found[0]) && found[0] != 0) << found[0];
  EXPECT_TRUE(std::isnan(found[1])) << found[1];
}

// An illegal access of a kernel is reported as the driver's error.
TEST(Errors, OutOfBoundsAccessIsReported) {
  const auto gpu = open();
  const GpuMemory memory(gpu, 4096);
  gpu->fill(memory.data(), 0, memory.size());
  const auto at = [&](std::size_t offset, std::int64_t rows) {
    return Tensor(memory.data() + offset, DType::f16, {1, rows, 1, 64}, {}, gpu->dlpack());
  };
  try {
    forward({.q = at(0, 8), .k = at(2048, 200), .v = at(2048, 200)}, {.out = at(1024, 8)});
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), Status::device_error);
    EXPECT_NE(std::string(e.what()).find("illegal memory access"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace rocflash::verify
