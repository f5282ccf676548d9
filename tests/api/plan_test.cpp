// Plans through the C ABI, on the CPU: equal to calls, bitwise; what a run rejects; threads, fork.
#include <gtest/gtest.h>
#include <rocflash/rocflash.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/call.hpp"

namespace rocflash::test {
namespace {

struct Destroy {
  void operator()(rocflash_plan* plan) const { rocflash_plan_destroy(plan); }
};
using PlanHandle = std::unique_ptr<rocflash_plan, Destroy>;

PlanHandle forward_plan(const Call& c) {
  rocflash_plan* plan = nullptr;
  EXPECT_EQ(rocflash_plan_create_forward(&c.problem, &c.forward_outputs, &c.execution, &plan),
            ROCFLASH_OK)
      << rocflash_last_error();
  return PlanHandle(plan);
}

PlanHandle backward_plan(const Call& c) {
  rocflash_plan* plan = nullptr;
  EXPECT_EQ(rocflash_plan_create_backward(&c.problem, &c.backward_tensors, &c.execution, &plan),
            ROCFLASH_OK)
      << rocflash_last_error();
  return PlanHandle(plan);
}

void* address(const DLTensor* t) { return t ? t->data : nullptr; }

rocflash_plan_arguments arguments_of(const Call& c) {
  rocflash_plan_arguments a{};
  a.struct_size = sizeof a;
  a.q = address(c.problem.q);
  a.k = address(c.problem.k);
  a.v = address(c.problem.v);
  a.cu_seqlens_q = address(c.problem.cu_seqlens_q);
  a.cu_seqlens_k = address(c.problem.cu_seqlens_k);
  a.seqused_q = address(c.problem.seqused_q);
  a.seqused_k = address(c.problem.seqused_k);
  a.leftpad_k = address(c.problem.leftpad_k);
  a.mask = address(c.problem.mask);
  a.alibi_slopes = address(c.problem.alibi_slopes);
  a.bias = address(c.problem.bias);
  a.sinks = address(c.problem.sinks);
  a.out = c.out.dl.data;
  a.lse = c.lse.dl.data;
  a.dropout_seed = c.problem.dropout_seed;
  a.dropout_offset = c.problem.dropout_offset;
  return a;
}

rocflash_plan_arguments forward_arguments(const Call& c) {
  rocflash_plan_arguments a = arguments_of(c);
  a.s_dmask = address(c.forward_outputs.s_dmask);
  return a;
}

rocflash_plan_arguments backward_arguments(const Call& c) {
  rocflash_plan_arguments a = arguments_of(c);
  a.dout = c.dout.dl.data;
  a.dq = c.dq.dl.data;
  a.dk = c.dk.dl.data;
  a.dv = c.dv.dl.data;
  a.dsinks = address(c.backward_tensors.dsinks);
  a.dbias = address(c.backward_tensors.dbias);
  a.dalibi_slopes = address(c.backward_tensors.dalibi_slopes);
  a.delta = address(c.backward_tensors.delta);
  a.dlse = address(c.backward_tensors.dlse);
  return a;
}

// Runs a plan with a workspace of exactly its size.
rocflash_status run(const PlanHandle& plan, rocflash_plan_arguments a) {
  std::size_t bytes = 0;
  EXPECT_EQ(rocflash_plan_workspace(plan.get(), &bytes), ROCFLASH_OK);
  const Memory workspace(bytes + 1);
  a.workspace = workspace.data;
  a.workspace_size = bytes;
  return rocflash_plan_run(plan.get(), &a);
}

void expect_equal(const Call& one, const Call& other) {
  const auto a = one.outputs(), b = other.outputs();
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t n = 0; n < a.size(); ++n) {
    ASSERT_EQ(a[n]->memory().size, b[n]->memory().size);
    EXPECT_EQ(std::memcmp(a[n]->memory().data, b[n]->memory().data, a[n]->memory().size), 0) << n;
  }
}

using Make = std::function<std::unique_ptr<Call>(std::uint64_t seed)>;

std::vector<Make> calls() {
  return {
      [](std::uint64_t seed) {
        auto c = std::make_unique<Call>(Size{2, 70, 90, 4, 2, 32, 32}, DType::bf16, seed);
        c->problem.causal = 1;
        return c;
      },
      [](std::uint64_t seed) {
        auto c = std::make_unique<Call>(Size{2, 9, 11, 2, 1, 8, 6}, DType::f32, seed);
        c->with_mask().with_bias().with_alibi().with_sinks().with_option_gradients();
        return c;
      },
      [](std::uint64_t seed) {
        auto c = std::make_unique<Call>(Size{.h = 2, .hk = 1, .d = 16, .dv = 16},
                                        std::vector<std::int64_t>{5, 0, 30},
                                        std::vector<std::int64_t>{7, 4, 30}, DType::f32, seed);
        c->with_dropout(0.3f, seed, 5).with_window(6, 2).with_delta().with_dlse();
        return c;
      },
      [](std::uint64_t seed) {
        auto c = std::make_unique<Call>(Size{2, 6, 20, 2, 2, 8, 8}, DType::f16, seed);
        c->with_used_q({3, 6}).with_used_k({20, 11}).with_leftpad({2, 0}).with_s_dmask();
        return c;
      },
  };
}

// A plan that was created from one call's tensors runs on those of another.
TEST(Plan, EqualsTheCall) {
  for (const Make& make : calls()) {
    const auto other = make(1), called = make(2), planned = make(2);
    const PlanHandle forward = forward_plan(*other), backward = backward_plan(*other);
    called->expect_forward();
    called->expect_backward();
    ASSERT_EQ(run(forward, forward_arguments(*planned)), ROCFLASH_OK) << rocflash_last_error();
    ASSERT_EQ(run(backward, backward_arguments(*planned)), ROCFLASH_OK) << rocflash_last_error();
    expect_equal(*called, *planned);
    EXPECT_NE(
        std::memcmp(other->out.memory().data, called->out.memory().data, called->out.memory().size),
        0);
  }
}

TEST(Plan, NeedsNoDataAtItsCreation) {
  Call c({1, 40, 50, 2, 2, 16, 16}), planned({1, 40, 50, 2, 2, 16, 16});
  c.expect_forward();
  DLTensor* const tensors[] = {&c.q.dl, &c.k.dl, &c.v.dl, &c.out.dl, &c.lse.dl};
  std::vector<void*> data;
  for (DLTensor* t : tensors) data.push_back(std::exchange(t->data, nullptr));
  const PlanHandle plan = forward_plan(c);
  for (std::size_t n = 0; n < data.size(); ++n) tensors[n]->data = data[n];
  ASSERT_EQ(run(plan, forward_arguments(planned)), ROCFLASH_OK) << rocflash_last_error();
  expect_equal(c, planned);
}

TEST(Plan, TakesLengthsUpToThoseOfItsCreation) {
  const auto packed = [](std::vector<std::int64_t> q, std::vector<std::int64_t> k) {
    return std::make_unique<Call>(Size{.h = 2, .hk = 2, .d = 8, .dv = 8}, std::move(q),
                                  std::move(k));
  };
  const auto created = packed({6, 4}, {8, 5}), shorter = packed({5, 5}, {6, 7}),
             same = packed({5, 5}, {6, 7}), longer = packed({7, 3}, {8, 5});
  const PlanHandle plan = forward_plan(*created);
  ASSERT_EQ(run(plan, forward_arguments(*shorter)), ROCFLASH_OK) << rocflash_last_error();
  same->expect_forward();
  expect_equal(*shorter, *same);
  EXPECT_EQ(run(plan, forward_arguments(*longer)), ROCFLASH_INVALID_ARGUMENT);
  EXPECT_STREQ(rocflash_last_error(),
               "cu_seqlens_q has a sequence of 7 rows; this plan was created for at most 6");
}

// The int tensors that a run reads on the host are checked in each run.
TEST(Plan, ChecksValuesInHostMemory) {
  Call c({2, 3, 8, 2, 2, 8, 8});
  c.with_used_k({8, 4});
  HostTensor table(DType::i32, {2, 2}), cache(DType::f32, {4, 4, 2, 8});
  table.assign({0, 1, 2, 3});
  cache.fill_normal(c.random);
  HostTensor other(DType::f32, {4, 4, 2, 8}), used(DType::i32, {2});
  other.fill_normal(c.random);
  c.problem.k = &cache.dl;
  c.problem.v = &other.dl;
  c.problem.block_table = &table.dl;
  rocflash_plan* made = nullptr;
  ASSERT_EQ(
      rocflash_plan_create_decode(&c.problem, nullptr, &c.forward_outputs, &c.execution, &made),
      ROCFLASH_OK)
      << rocflash_last_error();
  const PlanHandle plan(made);
  rocflash_plan_arguments a = forward_arguments(c);
  a.block_table = table.dl.data;
  ASSERT_EQ(run(plan, a), ROCFLASH_OK) << rocflash_last_error();
  const auto why = [&](std::initializer_list<double> pages, std::initializer_list<double> lengths) {
    table.assign(pages);
    c.used_k.assign(lengths);
    EXPECT_EQ(run(plan, a), ROCFLASH_INVALID_ARGUMENT);
    return std::string(rocflash_last_error());
  };
  EXPECT_EQ(why({0, 1, 2, 3}, {9, 4}),
            "block_table has a capacity of 8 keys per sequence; sequence 0 has 9");
  EXPECT_EQ(why({0, 1, 4, 3}, {8, 4}),
            "block_table is 4 at entry 0 of sequence 1; it must be 0 to 3");
  EXPECT_EQ(why({0, 1, 2, 3}, {8, -1}),
            "seqused_k is -1 for sequence 1; it must be 0 to its length, 8");
}

TEST(Plan, AppendsAndChecksTheCapacity) {
  constexpr Size size{1, 1, 8, 2, 2, 8, 8};
  Call called(size), planned(size);
  for (Call* c : {&called, &planned}) c->with_used_k({5});
  HostTensor k_new(DType::f32, {1, 2, 2, 8}), v_new(DType::f32, {1, 2, 2, 8}),
      cos(DType::f32, {8, 4}), sin(DType::f32, {8, 4});
  for (HostTensor* t : {&k_new, &v_new, &cos, &sin}) t->fill_normal(called.random);
  rocflash_append append{};
  append.struct_size = sizeof append;
  append.k_new = &k_new.dl;
  append.v_new = &v_new.dl;
  append.rotary_cos = &cos.dl;
  append.rotary_sin = &sin.dl;
  rocflash_plan* made = nullptr;
  ASSERT_EQ(rocflash_plan_create_decode(&called.problem, &append, &called.forward_outputs,
                                        &called.execution, &made),
            ROCFLASH_OK)
      << rocflash_last_error();
  const PlanHandle plan(made);
  std::size_t bytes = 0;
  ASSERT_EQ(rocflash_plan_workspace(plan.get(), &bytes), ROCFLASH_OK);
  const Memory workspace(bytes + 1);
  called.execution.workspace = workspace.data;
  called.execution.workspace_size = bytes;
  ASSERT_EQ(rocflash_decode(&called.problem, &append, &called.forward_outputs, &called.execution),
            ROCFLASH_OK)
      << rocflash_last_error();
  rocflash_plan_arguments a = forward_arguments(planned);
  a.k_new = k_new.dl.data;
  a.v_new = v_new.dl.data;
  a.rotary_cos = cos.dl.data;
  a.rotary_sin = sin.dl.data;
  ASSERT_EQ(run(plan, a), ROCFLASH_OK) << rocflash_last_error();
  expect_equal(called, planned);
  for (auto of : {&Call::k, &Call::v})
    EXPECT_EQ(std::memcmp((called.*of).memory().data, (planned.*of).memory().data,
                          (called.*of).memory().size),
              0);
  planned.used_k.assign({7});
  EXPECT_EQ(run(plan, a), ROCFLASH_INVALID_ARGUMENT);
  EXPECT_STREQ(
      rocflash_last_error(),
      "k_new exceeds the KV cache: sequence 0 has 7 keys and 2 new ones; its capacity is 8");
}

// Rows of a quantized MLA cache are keys and values, so both have one scale.
TEST(Plan, AQuantizedMlaCacheKeepsOneScale) {
  Call c({.b = 1, .sq = 1, .sk = 8, .h = 2, .hk = 1, .d = 16, .dv = 16});
  c.with_used_k({3}).backend(ROCFLASH_BACKEND_REFERENCE);
  c.k = HostTensor(DType::e4m3fn, c.k.shape());
  c.k.fill(1);
  HostTensor k_new(DType::f32, {1, 1, 1, 16}), scales(DType::f32, {32});
  k_new.fill(1);
  scales.fill(0.5);
  std::int64_t one = 1;
  DLTensor scale = scales.dl;
  scale.shape = &one;
  c.problem.v = c.problem.k;
  c.problem.k_descale = c.problem.v_descale = &scale;
  rocflash_append append{};
  append.struct_size = sizeof append;
  append.k_new = append.v_new = &k_new.dl;
  rocflash_plan* made = nullptr;
  ASSERT_EQ(
      rocflash_plan_create_decode(&c.problem, &append, &c.forward_outputs, &c.execution, &made),
      ROCFLASH_OK)
      << rocflash_last_error();
  const PlanHandle plan(made);
  rocflash_plan_arguments a = arguments_of(c);
  a.k = a.v = c.k.dl.data;
  a.seqused_k = c.used_k.dl.data;
  a.k_new = a.v_new = k_new.dl.data;
  a.k_descale = a.v_descale = scales.dl.data;
  EXPECT_EQ(run(plan, a), ROCFLASH_OK) << rocflash_last_error();
  a.v_descale = static_cast<float*>(scales.dl.data) + 16;  // as aligned
  EXPECT_EQ(run(plan, a), ROCFLASH_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(rocflash_last_error()).find("v_descale is not k_descale; in this plan"), 0u)
      << rocflash_last_error();
}

TEST(Plan, RejectsWrongArguments) {
  Call c({1, 40, 50, 2, 2, 16, 16});
  const PlanHandle plan = forward_plan(c);
  const rocflash_plan_arguments right = forward_arguments(c);
  const auto why = [&](const std::function<void(rocflash_plan_arguments&)>& change) {
    rocflash_plan_arguments a = right;
    change(a);
    EXPECT_EQ(run(plan, a), ROCFLASH_INVALID_ARGUMENT);
    return std::string(rocflash_last_error());
  };
  using Arguments = rocflash_plan_arguments;
  EXPECT_EQ(why([](Arguments& a) { a.out = nullptr; }),
            "out is null; this plan was created with it, so it is required");
  EXPECT_EQ(why([](Arguments& a) { a.dalibi_slopes = a.out; }),
            "dalibi_slopes is given; this plan was created without it, so it must be null");
  EXPECT_EQ(why([](Arguments& a) { a.v = static_cast<std::byte*>(a.v) + 4; }),
            "v is 4 bytes past a multiple of 16; this plan was created for addresses aligned to 16 "
            "bytes");
  EXPECT_EQ(why([](Arguments& a) { a.out = static_cast<std::byte*>(a.k) + 64; }),
            "out overlaps k in memory; an output must not overlap another tensor");
  EXPECT_EQ(why([](Arguments& a) { a.stream = &a; }),
            "stream is given; for CPU tensors it must be null");
  EXPECT_EQ(why([](Arguments& a) { a.struct_size = 8; }).substr(0, 29),
            "arguments.struct_size is 8; i");
  rocflash_plan_arguments without = right;
  EXPECT_EQ(rocflash_plan_run(plan.get(), &without), ROCFLASH_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(rocflash_last_error()).substr(0, 20), "workspace_size is 0;");
  EXPECT_EQ(rocflash_plan_run(plan.get(), nullptr), ROCFLASH_INVALID_ARGUMENT);
  EXPECT_STREQ(rocflash_last_error(), "arguments is null; it is required");
  EXPECT_EQ(rocflash_plan_run(nullptr, &right), ROCFLASH_INVALID_ARGUMENT);
  EXPECT_STREQ(rocflash_last_error(), "plan is null; it is required");
  std::size_t bytes = 0;
  EXPECT_EQ(rocflash_plan_workspace(nullptr, &bytes), ROCFLASH_INVALID_ARGUMENT);
  EXPECT_EQ(rocflash_plan_workspace(plan.get(), nullptr), ROCFLASH_INVALID_ARGUMENT);
  rocflash_plan_destroy(nullptr);
}

TEST(Plan, RejectsCallsThatTheLibraryRejects) {
  Call c;
  rocflash_plan* plan = reinterpret_cast<rocflash_plan*>(&c);
  c.problem.softcap = -1;
  EXPECT_EQ(rocflash_plan_create_forward(&c.problem, &c.forward_outputs, &c.execution, &plan),
            ROCFLASH_INVALID_ARGUMENT);
  EXPECT_STREQ(rocflash_last_error(), "softcap is -1; it must be 0 (none) or positive and finite");
  EXPECT_EQ(plan, nullptr);
  EXPECT_EQ(rocflash_plan_create_forward(&c.problem, &c.forward_outputs, &c.execution, nullptr),
            ROCFLASH_INVALID_ARGUMENT);
  EXPECT_STREQ(rocflash_last_error(), "plan is null; it receives the plan");
}

// A plan that was created with less aligned addresses takes them.
TEST(Plan, TakesTheAlignmentOfItsCreation) {
  Call c({1, 4, 5, 1, 1, 4, 4}), expected({1, 4, 5, 1, 1, 4, 4});
  expected.expect_forward();
  HostTensor large(DType::f32, {1, 5, 1, 4});
  auto* const elements = reinterpret_cast<float*>(large.memory().data) + 1;
  std::memcpy(elements, c.q.memory().data, 64);
  c.q.dl.data = elements;
  const PlanHandle plan = forward_plan(c);
  ASSERT_EQ(run(plan, forward_arguments(c)), ROCFLASH_OK) << rocflash_last_error();
  expect_equal(c, expected);
}

TEST(Plan, ThreadsRunOnePlanConcurrently) {
  constexpr Size size{2, 33, 47, 2, 1, 16, 16};
  Call expected(size, DType::bf16);
  expected.expect_forward();
  const PlanHandle plan = forward_plan(expected);
  std::vector<std::unique_ptr<Call>> planned;
  for (int n = 0; n < 4; ++n) planned.push_back(std::make_unique<Call>(size, DType::bf16));
  {
    std::vector<std::jthread> threads;
    for (const auto& call : planned)
      threads.emplace_back([&plan, &call] {
        for (int n = 0; n < 50; ++n) EXPECT_EQ(run(plan, forward_arguments(*call)), ROCFLASH_OK);
      });
  }
  for (const auto& call : planned) expect_equal(*call, expected);
}

TEST(Plan, AChildRunsThePlanOfItsParent) {
  constexpr Size size{2, 33, 47, 2, 1, 16, 16};
  Call expected(size), planned(size);
  expected.expect_forward();
  const PlanHandle plan = forward_plan(expected);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    const bool good = run(plan, forward_arguments(planned)) == ROCFLASH_OK &&
                      std::memcmp(planned.out.memory().data, expected.out.memory().data,
                                  expected.out.memory().size) == 0;
    _exit(good ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace rocflash::test
