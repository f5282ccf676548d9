// The C++ wrapper: calls, its own checks and exceptions.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numeric>
#include <rocflash/rocflash.hpp>
#include <vector>

namespace {

using namespace rocflash;

struct SmallProblem {
  Dims shape{1, 4, 2, 8};
  std::vector<float> q = std::vector<float>(64), k = q, v = q, out = q;
  SmallProblem() {
    std::iota(v.begin(), v.end(), 1.0f);
    for (std::size_t n = 0; n < q.size(); ++n) q[n] = k[n] = std::sin(static_cast<float>(n));
  }
  Problem problem() const {
    return {.q = {q, shape}, .k = {k, shape}, .v = {v, shape}, .causal = true};
  }
};

TEST(Wrapper, computes) {
  SmallProblem s;
  forward(s.problem(), {.out = {s.out, s.shape}});
  // The first query attends only to the first key.
  for (std::size_t n = 0; n < 16; ++n) EXPECT_FLOAT_EQ(s.out[n], s.v[n]);
}

TEST(Wrapper, reuses_a_workspace) {
  SmallProblem s;
  std::vector<float> lse(8), again = s.out, dq = s.q;
  Workspace workspace;
  const ForwardOutputs outputs{.out = {s.out, s.shape}, .lse = Tensor(lse, {1, 2, 4})};
  forward(s.problem(), outputs, {}, workspace);
  EXPECT_GE(workspace.size(), workspace_size(s.problem(), outputs));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(workspace.data()) % 64, 0u);
  const void* before = workspace.data();
  forward(s.problem(), {.out = {again, s.shape}, .lse = outputs.lse}, {}, workspace);
  EXPECT_EQ(workspace.data(), before);
  EXPECT_EQ(s.out, again);
  backward(s.problem(), {.dout = {s.v, s.shape},
                         .out = {s.out, s.shape},
                         .lse = {lse, {1, 2, 4}},
                         .dq = Tensor(dq, s.shape)});
  EXPECT_TRUE(std::isfinite(dq[20]));
}

TEST(Wrapper, appends_and_decodes) {
  SmallProblem s;
  std::vector<float> q(16), out(16), expected(16);
  std::copy(s.q.end() - 16, s.q.end(), q.begin());
  const Dims one{1, 1, 2, 8};
  forward({.q = {q, one}, .k = {s.k, s.shape}, .v = {s.v, s.shape}}, {.out = {expected, one}});
  // The same cache without its last row, which is appended.
  std::vector<float> k_new(s.k.end() - 16, s.k.end()), v_new(s.v.end() - 16, s.v.end());
  std::fill(s.k.end() - 16, s.k.end(), 0.0f);
  std::fill(s.v.end() - 16, s.v.end(), 0.0f);
  const std::vector<std::int32_t> before{3};
  decode(
      {.q = {q, one}, .k = {s.k, s.shape}, .v = {s.v, s.shape}, .seqused_k = Tensor(before, {1})},
      {.k_new = Tensor(k_new, one), .v_new = Tensor(v_new, one)}, {.out = {out, one}});
  EXPECT_EQ(s.k[63], k_new[15]);
  for (std::size_t n = 0; n < out.size(); ++n) EXPECT_FLOAT_EQ(out[n], expected[n]);
}

TEST(Wrapper, combines_splits) {
  const std::vector<float> splits{1, 3}, lse{0, 0};
  std::vector<float> out(1), sum(1);
  combine({splits, {2, 1, 1, 1, 1}}, {lse, {2, 1, 1, 1}}, {out, {1, 1, 1, 1}},
          Tensor(sum, {1, 1, 1}));
  EXPECT_FLOAT_EQ(out[0], 2);
  EXPECT_FLOAT_EQ(sum[0], std::log(2.0f));
}

TEST(Wrapper, moves_workspaces) {
  Workspace a(100);
  const void* memory = a.data();
  Workspace b(std::move(a));
  EXPECT_EQ(b.data(), memory);
  a = std::move(b);
  EXPECT_EQ(a.data(), memory);
}

TEST(Wrapper, throws_the_message_of_the_library) {
  SmallProblem s;
  Problem p = s.problem();
  p.softcap = -1;
  try {
    forward(p, {.out = {s.out, s.shape}});
    FAIL() << "was not refused";
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), Status::invalid_argument);
    EXPECT_NE(std::string(e.what()).find("softcap"), std::string::npos) << e.what();
  }
}

TEST(Wrapper, rejects_tensors_larger_than_their_memory) {
  std::vector<float> memory(24);
  EXPECT_NO_THROW(Tensor(memory, {2, 3, 4}));
  EXPECT_THROW(Tensor(memory, {2, 3, 5}), Error);
  EXPECT_NO_THROW(Tensor(memory, {100, 4}, {0, 1}));
  EXPECT_THROW(Tensor(memory, {2, 4}, {-4, 1}), Error);
  EXPECT_THROW(Tensor(memory, {2, 4}, {4}), Error);
  EXPECT_THROW(Tensor(memory, DType::f16, {2, 4}), Error);
  EXPECT_THROW(Dims({1, 1, 1, 1, 1, 1, 1, 1, 1}), Error);
  EXPECT_NO_THROW(Tensor(memory, {0, 99}));
}

TEST(Wrapper, deduces_dtypes_from_element_types) {
  std::vector<std::int32_t> ints(3);
  std::array<double, 3> doubles{};
  const std::array<bool, 3> flags{};
  std::vector<std::uint16_t> halves(3);
  EXPECT_EQ(Tensor(ints, {3}).dtype(), DType::i32);
  EXPECT_EQ(Tensor(doubles, {3}).dtype(), DType::f64);
  EXPECT_EQ(Tensor(flags, {3}).dtype(), DType::boolean);
  EXPECT_EQ(Tensor(halves, DType::bf16, {3}).dlpack().dtype.code, kDLBfloat);
  EXPECT_EQ(Tensor(std::span(ints), {3}).dlpack().strides, nullptr);
}

TEST(Wrapper, computes_contiguous_strides) {
  std::vector<float> memory(24);
  const Dims strides = Tensor(memory, {2, 3, 4}).strides();
  EXPECT_EQ(std::vector<std::int64_t>(strides.begin(), strides.end()),
            (std::vector<std::int64_t>{12, 4, 1}));
}

TEST(Wrapper, lists_devices_and_drivers) {
  ASSERT_FALSE(devices().empty());
  EXPECT_EQ(devices()[0].device.device_type, kDLCPU);
  EXPECT_EQ(drivers().size(), 2u);
  EXPECT_GE(limits().default_threads, 1);
  EXPECT_EQ(version(), rocflash_version());
}

}  // namespace
