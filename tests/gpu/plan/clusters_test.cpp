// What is planned for few queries without options on Hopper, without any device.
#include "gpu/plan/clusters.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "given.hpp"
#include "gpu/plan/decode.hpp"

namespace rocflash::gpu {
namespace {

using kernel::Family;
using kernel::Operation;

constexpr Chip hopper{Family::sm80, 132, 0, true}, older{Family::sm80, 108};

// 32 heads on 8 of size 128.
struct Given {
  explicit Given(std::int64_t b, std::int64_t keys, std::int64_t queries = 1, int d = 128) {
    const Sizes sizes{.d = d, .dv = d, .b = b, .sq = queries, .sk = keys, .h = 32, .hk = 8};
    p = dense_problem(DType::bf16, sizes);
    p.caches = b;
    o.out = output(DType::bf16, sizes);
  }
  Given& with(const std::function<void(Given&)>& change) {
    change(*this);
    return *this;
  }
  std::int32_t size(Chip chip = hopper) const { return cluster_size(p, chip); }

  Problem p;
  ForwardOutputs o;
};

TEST(Clusters, GrowWithTheKeys) {
  EXPECT_EQ(Given(1, 1).size(), 1);
  EXPECT_EQ(Given(1, 127).size(), 1);
  EXPECT_EQ(Given(1, 128).size(), 2);
  EXPECT_EQ(Given(1, 256).size(), 4);
  EXPECT_EQ(Given(1, 1024).size(), 8);
  EXPECT_EQ(Given(1, 8192).size(), 8);
  EXPECT_EQ(Given(1, 8193).size(), 0);  // sixteen tiles for each warp
  EXPECT_EQ(Given(1, 1024, 1, 64).size(), 8);
  EXPECT_EQ(Given(1, 1024, 1, 192).size(), 0);
  EXPECT_EQ(Given(1, 1024).size(older), 0);
}

TEST(Clusters, RunAtOnce) {
  for (const std::int64_t b : {1, 2, 4, 8, 16, 33, 64, 300}) {
    const std::int32_t size = Given(b, 1024).size();
    ASSERT_GE(size, 1) << b;
    if (size > 1) EXPECT_LE(8 * b * size, 264 * 9 / 10) << b;
  }
  EXPECT_EQ(Given(8, 1024).size(), 2);
  EXPECT_EQ(Given(64, 1024).size(), 1);
  EXPECT_EQ(Given(64, 4096).size(), 0);
}

TEST(Clusters, HonourTheNumberOfSplits) {
  const auto with = [](int splits, std::int64_t keys = 1024) {
    return Given(1, keys).with([&](Given& g) { g.p.splits = splits; }).size();
  };
  for (const int splits : {1, 2, 4, 8}) EXPECT_EQ(with(splits), splits);
  for (const int splits : {3, 5, 16}) EXPECT_EQ(with(splits), 0);
  EXPECT_EQ(with(2, 8192), 0);
}

TEST(Clusters, TakeNoOptions) {
  const std::int32_t some = 0;
  const std::function<void(Given&)> options[] = {
      [](Given& g) { g.p.softcap = 1; },
      [](Given& g) { g.p.scale = -1; },
      [](Given& g) { g.p.scale = 0; },
      [](Given& g) { g.p.scale = 0x1p-100f; },
      [](Given& g) { g.p.alibi.data = at(0x1000); },
      [](Given& g) { g.p.bias.data = at(0x1000); },
      [](Given& g) { g.p.mask.data = at(0x1000); },
      [](Given& g) { g.p.visibility.left = 5; },
      [](Given& g) { g.p.visibility.chunk = 64; },
      [&](Given& g) { g.p.lengths.cu_q = &some; },
      [&](Given& g) { g.p.lengths.cu_k = &some; },
      [&](Given& g) { g.p.lengths.used_q = &some; },
      [&](Given& g) { g.p.lengths.leftpad_k = &some; },
      [](Given& g) { g.p.k.dtype = g.p.v.dtype = DType::f16; },
      [](Given& g) { g.p.k.data = at(0x20002); },
  };
  for (std::size_t n = 0; n < std::size(options); ++n)
    EXPECT_EQ(Given(1, 1024).with(options[n]).size(), 0) << n;
  // Many rows over few keys are forward's.
  EXPECT_EQ(Given(1, 200, 8).size(), 0);
  EXPECT_GT(Given(1, 300, 8).size(), 0);
}

TEST(Clusters, AreOneLaunchWithoutWorkspace) {
  Given g = Given(2, 1000, 3).with([](Given& x) {
    x.p.visibility.right = 0;
    x.p.sinks.data = at(0x60000);
  });
  ASSERT_TRUE(is_split(g.p, g.o, hopper));
  Plan plan;
  plan_decode(plan, g.p, g.o, nullptr, hopper);
  EXPECT_EQ(names_of(plan), Names{"decode_clusters_bf16_128"});
  EXPECT_EQ(plan.workspace.value(), 0);
  const LaunchShape& shape = plan.launches()[0].shape;
  const auto& a = plan.arguments<Operation::decode_clusters>();
  EXPECT_EQ(a.cluster, 8);
  EXPECT_EQ(shape.groups, 8u);
  EXPECT_EQ(shape.groups_y, 8u);
  EXPECT_EQ(shape.groups_z, 2u);
  EXPECT_EQ(shape.cluster, 8u);
  EXPECT_TRUE(shape.early);
  EXPECT_EQ(a.hidden, 2);  // the first of three queries does not see the last two keys
  EXPECT_EQ(a.k.row_stride, 8 * 128 * 2);
  EXPECT_TRUE(a.sinks);
  EXPECT_FALSE(a.problem.sinks);
  EXPECT_EQ(a.in_runs, 1);
}

// Over many keys.
TEST(LongCaches, FillTheDeviceAtOnce) {
  const auto splits = [](const Given& g) {
    return long_splits(g.p, decode_splits(g.p, hopper), hopper);
  };
  EXPECT_EQ(splits(Given(1, 131072)), 33);
  EXPECT_EQ(splits(Given(8, 32768)), 4);
  EXPECT_EQ(splits(Given(64, 4096)), 1);
  // What does not fill it in one round is left to what fills it in several.
  const Given odd(20, 32768);
  EXPECT_EQ(splits(odd), decode_splits(odd.p, hopper));
  for (const int asked : {1, 5, 128})
    EXPECT_EQ(splits(Given(1, 131072).with([&](Given& g) { g.p.splits = asked; })), asked);
}

TEST(LongCaches, ArePartsThatAreMerged) {
  Given g = Given(2, 65536, 3).with([](Given& x) { x.p.sinks.data = at(0x60000); });
  ASSERT_TRUE(is_split(g.p, g.o, hopper));
  ASSERT_EQ(g.size(), 0);
  Plan plan;
  std::byte* memory = at(0x100000);
  plan_decode(plan, g.p, g.o, memory, hopper);
  EXPECT_EQ(names_of(plan), (Names{"decode_long_bf16_128", "combine_early_f32"}));
  const auto& a = plan.arguments<Operation::decode_long>();
  EXPECT_EQ(a.common.cluster, 16);
  EXPECT_EQ(plan.launches()[0].shape.groups, 2u * 8 * 16);
  for (const Launch& launch : plan.launches()) EXPECT_TRUE(launch.shape.early);
  EXPECT_EQ(a.out_part, 2 * 3 * 32 * 128);
  EXPECT_EQ(a.lse_part, 2 * 3 * 32);
  EXPECT_EQ(plan.workspace.value(), 16 * (a.out_part + a.lse_part) * 4);
  // Sinks count once, where parts are merged.
  EXPECT_FALSE(a.common.sinks);
  EXPECT_TRUE(plan.arguments<Operation::combine_early>().problem.sinks);

  // One part goes straight to the outputs, with the sinks.
  Plan direct;
  g.p.splits = 1;
  plan_decode(direct, g.p, g.o, nullptr, hopper);
  EXPECT_EQ(names_of(direct), Names{"decode_long_bf16_128"});
  EXPECT_EQ(direct.workspace.value(), 0);
  EXPECT_TRUE(direct.arguments<Operation::decode_long>().common.sinks);
  EXPECT_EQ(direct.arguments<Operation::decode_long>().direct, 1);

  // Options are for decode's other kernel.
  Plan shaped;
  g.p.softcap = 3;
  plan_decode(shaped, g.p, g.o, nullptr, hopper);
  EXPECT_EQ(names_of(shaped), Names{"decode_bf16_128"});
}

TEST(Clusters, FindRowsInPages) {
  const std::int32_t table[64] = {};
  const auto planned = [&](std::int64_t page_rows) {
    Given g = Given(1, 1024).with([&](Given& x) {
      x.p.lengths.paged = true;
      for (Rows* rows : {&x.p.k, &x.p.v}) {
        rows->blocks = table;
        rows->block_rows = page_rows;
      }
    });
    Plan plan;
    plan_decode(plan, g.p, g.o, nullptr, hopper);
    const auto& a = plan.arguments<Operation::decode_clusters>();
    return std::pair(a.page_shift, a.in_runs);
  };
  EXPECT_EQ(planned(16), std::pair(4, 1));
  EXPECT_EQ(planned(48), std::pair(-1, 1));
  EXPECT_EQ(planned(8), std::pair(3, 0));
  EXPECT_EQ(planned(7), std::pair(-1, 0));
  EXPECT_EQ(planned(2000), std::pair(-1, 1));  // one page has all keys
}

}  // namespace
}  // namespace rocflash::gpu
