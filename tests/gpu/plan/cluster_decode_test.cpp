// Launch plans of the sm_90a decode kernels: cluster size, split-KV heuristic and arguments.
#include "gpu/plan/cluster_decode.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "gpu/plan/decode.hpp"
#include "problems.hpp"

namespace rocflash::gpu {
namespace {

using kernel::Family;
using kernel::Op;
using kernel::Schedule;

constexpr Chip h100{Family::sm80, 132, 0, true}, ampere{Family::sm80, 108};

// GQA: 32 query heads, 8 KV heads.
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
  std::int32_t size(Chip chip = h100) const {
    const DecodeSelection s = decode_of(p, chip);
    return s.uses(Schedule::cluster) ? s.cluster : 0;
  }

  Problem p;
  ForwardOutputs o;
};

TEST(ClusterDecode, ClustersGrowWithTheKeys) {
  EXPECT_EQ(Given(1, 1).size(), 1);
  EXPECT_EQ(Given(1, 127).size(), 1);
  EXPECT_EQ(Given(1, 128).size(), 2);
  EXPECT_EQ(Given(1, 256).size(), 4);
  EXPECT_EQ(Given(1, 1024).size(), 8);
  EXPECT_EQ(Given(1, 8192).size(), 8);
  EXPECT_EQ(Given(1, 8193).size(), 0);  // more than sixteen tiles per warp
  EXPECT_EQ(Given(1, 1024, 1, 64).size(), 8);
  EXPECT_EQ(Given(1, 1024, 1, 192).size(), 0);
  EXPECT_EQ(Given(1, 1024).size(ampere), 0);
}

TEST(ClusterDecode, ClustersFitInOneWave) {
  for (const std::int64_t b : {1, 2, 4, 8, 16, 33, 64, 300}) {
    const std::int32_t size = Given(b, 1024).size();
    ASSERT_GE(size, 1) << b;
    if (size > 1) EXPECT_LE(8 * b * size, 264 * 9 / 10) << b;
  }
  EXPECT_EQ(Given(8, 1024).size(), 2);
  EXPECT_EQ(Given(64, 1024).size(), 1);
  EXPECT_EQ(Given(64, 4096).size(), 0);
}

TEST(ClusterDecode, HonorsNumSplits) {
  const auto with = [](int splits, std::int64_t keys = 1024) {
    return Given(1, keys).with([&](Given& g) { g.p.splits = splits; }).size();
  };
  for (const int splits : {1, 2, 4, 8}) EXPECT_EQ(with(splits), splits);
  for (const int splits : {3, 5, 16}) EXPECT_EQ(with(splits), 0);
  EXPECT_EQ(with(2, 8192), 0);
}

TEST(ClusterDecode, SupportsNoOptions) {
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
  // Many rows over few keys select forward.
  EXPECT_EQ(Given(1, 200, 8).size(), 0);
  EXPECT_GT(Given(1, 300, 8).size(), 0);
}

TEST(ClusterDecode, IsOneLaunchWithoutWorkspace) {
  Given g = Given(2, 1000, 3).with([](Given& x) {
    x.p.visibility.right = 0;
    x.p.sinks.data = at(0x60000);
  });
  ASSERT_TRUE(select(g.p, g.o, h100).decodes);
  Plan plan;
  plan_decode(plan, g.p, g.o, nullptr, h100);
  EXPECT_EQ(names_of(plan), Names{"decode_cluster_bf16_128"});
  EXPECT_EQ(plan.workspace.value(), 0);
  const LaunchShape& shape = plan.launches()[0].shape;
  const auto& a = plan.arguments<Op::decode, Schedule::cluster>();
  EXPECT_EQ(a.cluster, 8);
  EXPECT_EQ(shape.grid_x, 8u);
  EXPECT_EQ(shape.grid_y, 8u);
  EXPECT_EQ(shape.grid_z, 2u);
  EXPECT_EQ(shape.cluster, 8u);
  EXPECT_TRUE(shape.pdl);
  EXPECT_EQ(a.masked_tail, 2);  // the last two keys are masked for the first of three queries
  EXPECT_EQ(a.k.row_stride, 8 * 128 * 2);
  EXPECT_TRUE(a.sinks);
  EXPECT_FALSE(a.problem.sinks);
  EXPECT_EQ(a.contiguous_tiles, 1);
}

TEST(Sm90SplitKv, FillsTheDeviceInOneWave) {
  const auto splits = [](const Given& g) {
    const DecodeSelection s = decode_of(g.p, h100);
    EXPECT_TRUE(s.uses(Schedule::splitkv));
    return s.splits;
  };
  EXPECT_EQ(splits(Given(1, 131072)), 33);
  EXPECT_EQ(splits(Given(8, 32768)), 4);
  EXPECT_EQ(splits(Given(64, 4096)), 1);
  // Otherwise the general heuristic, which allows several waves.
  const Given odd(20, 32768);
  EXPECT_EQ(splits(odd), num_splits(odd.p, {Family::sm80, 132}));
  for (const int requested : {1, 5, 128})
    EXPECT_EQ(splits(Given(1, 131072).with([&](Given& g) { g.p.splits = requested; })), requested);
}

TEST(Sm90SplitKv, PartialResultsAreCombined) {
  Given g = Given(2, 65536, 3).with([](Given& x) { x.p.sinks.data = at(0x60000); });
  ASSERT_TRUE(select(g.p, g.o, h100).decodes);
  ASSERT_EQ(g.size(), 0);
  Plan plan;
  std::byte* memory = at(0x100000);
  plan_decode(plan, g.p, g.o, memory, h100);
  EXPECT_EQ(names_of(plan), (Names{"decode_splitkv_bf16_128", "combine_pdl_f32"}));
  const auto& a = plan.arguments<Op::decode, Schedule::splitkv>();
  EXPECT_EQ(a.common.cluster, 16);
  EXPECT_EQ(plan.launches()[0].shape.grid_x, 2u * 8 * 16);
  for (const Launch& launch : plan.launches()) EXPECT_TRUE(launch.shape.pdl);
  EXPECT_EQ(a.out_split_stride, 2 * 3 * 32 * 128);
  EXPECT_EQ(a.lse_split_stride, 2 * 3 * 32);
  EXPECT_EQ(plan.workspace.value(), 16 * (a.out_split_stride + a.lse_split_stride) * 4);
  // The combine kernel adds the sinks, once.
  EXPECT_FALSE(a.common.sinks);
  EXPECT_TRUE((plan.arguments<Op::combine, Schedule::pdl>().problem.sinks));

  // One split writes directly to the outputs, including the sinks.
  Plan direct;
  g.p.splits = 1;
  plan_decode(direct, g.p, g.o, nullptr, h100);
  EXPECT_EQ(names_of(direct), Names{"decode_splitkv_bf16_128"});
  EXPECT_EQ(direct.workspace.value(), 0);
  EXPECT_TRUE((direct.arguments<Op::decode, Schedule::splitkv>().common.sinks));
  EXPECT_EQ((direct.arguments<Op::decode, Schedule::splitkv>().direct), 1);

  // Score modifiers select the general decode kernel.
  Plan with_softcap;
  g.p.softcap = 3;
  plan_decode(with_softcap, g.p, g.o, nullptr, h100);
  EXPECT_EQ(names_of(with_softcap), Names{"decode_bf16_128"});
}

TEST(ClusterDecode, SupportsPagedKv) {
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
    plan_decode(plan, g.p, g.o, nullptr, h100);
    const auto& a = plan.arguments<Op::decode, Schedule::cluster>();
    return std::pair(a.page_shift, a.contiguous_tiles);
  };
  EXPECT_EQ(planned(16), std::pair(4, 1));
  EXPECT_EQ(planned(48), std::pair(-1, 1));
  EXPECT_EQ(planned(8), std::pair(3, 0));
  EXPECT_EQ(planned(7), std::pair(-1, 0));
  EXPECT_EQ(planned(2000), std::pair(-1, 1));  // one page holds all keys
}

}  // namespace
}  // namespace rocflash::gpu
