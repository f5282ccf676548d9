// Which kernels backward launches: the fast ones, which add to dq in any order, or those whose bits are the
// same every time.
#include "gpu/plan/backward.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace rocflash::gpu {
namespace {

using kernel::Family;
using kernel::Operation;

// Addresses only: nothing here is read.
Rows rows(std::uintptr_t address, std::int64_t length, std::int64_t heads, int columns) {
  return {reinterpret_cast<std::byte*>(address),
          DType::bf16,
          length * heads * columns,
          heads * columns,
          columns,
          columns};
}

struct Given {
  explicit Given(int d = 128, std::int64_t b = 2, std::int64_t sq = 1000, std::int64_t sk = 900,
                 std::int64_t h = 8, std::int64_t hk = 2) {
    p.dtype = DType::bf16;
    p.heads = h;
    p.kv_heads = hk;
    p.head_dim = p.value_dim = d;
    p.q = rows(0x10000, sq, h, d);
    p.k = rows(0x20000, sk, hk, d);
    p.v = rows(0x30000, sk, hk, d);
    p.lengths = {.batch = b, .rows_q = sq, .rows_k = sk};
    p.max_q = sq;
    p.max_k = sk;
    t.dout = rows(0x40000, sq, h, d);
    t.out = rows(0x50000, sq, h, d);
    t.lse = {reinterpret_cast<float*>(0x60000), h * sq, sq, 1};
    t.dq = rows(0x70000, sq, h, d);
    t.dk = rows(0x80000, sk, hk, d);
    t.dv = rows(0x90000, sk, hk, d);
  }
  std::vector<std::string> kernels(Family family = Family::cdna3) {
    Plan plan;
    plan_backward(plan, p, t, reinterpret_cast<std::byte*>(0x100000), {family, 304});
    bytes = plan.workspace.value();
    std::vector<std::string> names;
    for (const Launch& l : plan.launches()) names.emplace_back(kernel::kernel_name(l.kernel));
    return names;
  }

  Problem p;
  BackwardTensors t;
  std::int64_t bytes = 0;
};

using Names = std::vector<std::string>;
const Names fast{"backward_delta_bf16", "backward_fused_bf16_128_plain", "backward_round_bf16"};
const Names same_bits{"backward_delta_bf16", "backward_queries_bf16_128_plain",
                      "backward_keys_bf16_128_plain"};

TEST(FusedPlan, OneKernelForAllGradientsUnlessBitsMustBeTheSame) {
  Given g;
  EXPECT_EQ(g.kernels(), fast);
  g.p.deterministic = true;
  EXPECT_EQ(g.kernels(), same_bits);
}

TEST(FusedPlan, DeterministicNeverAddsInAnyOrder) {
  for (const Family family : {Family::cdna2, Family::cdna3, Family::cdna4}) {
    for (const int d : {8, 40, 64, 96, 128, 192, 256}) {
      for (const float softcap : {0.0f, 3.0f}) {
        Given g(d);
        g.p.softcap = softcap;
        g.p.deterministic = true;
        for (const std::string& name : g.kernels(family))
          EXPECT_TRUE(name.find("fused") == name.npos && name.find("round") == name.npos) << name;
      }
    }
  }
}

// Without dq there is nothing to share, and without dk and dv nothing to share it with.
TEST(FusedPlan, AllGradientsAreWantedForTheFusedKernel) {
  Given keys;
  keys.t.dq = {};
  EXPECT_EQ(keys.kernels(), Names({"backward_delta_bf16", "backward_keys_bf16_128_plain"}));
  Given queries;
  queries.t.dk = queries.t.dv = {};
  EXPECT_EQ(queries.kernels(), Names({"backward_delta_bf16", "backward_queries_bf16_128_plain"}));
  Given one;
  one.t.dv = {};
  EXPECT_EQ(one.kernels(), fast);
}

TEST(FusedPlan, HeadsThatTheFusedKernelDoesNotHoldHaveOneKernelPerResult) {
  EXPECT_EQ(Given(192).kernels(),
            Names({"backward_delta_bf16", "backward_queries_bf16_256_plain",
                   "backward_dk_bf16_256_plain", "backward_dv_bf16_256_plain"}));
}

// delta, a float per query and head; and sums of dq, floats for all columns of the bucket.
TEST(FusedPlan, SumsOfDqTakeWorkspace) {
  Given g;
  g.kernels();
  const std::int64_t queries = 2 * 8 * 1000;
  EXPECT_EQ(g.bytes, 4 * queries + 4 * 128 * queries);
  g.p.deterministic = true;
  g.kernels();
  EXPECT_EQ(g.bytes, 4 * queries);
  Given narrow(40);
  narrow.kernels();
  EXPECT_EQ(narrow.bytes, 4 * queries + 4 * 64 * queries);
}

}  // namespace
}  // namespace rocflash::gpu
