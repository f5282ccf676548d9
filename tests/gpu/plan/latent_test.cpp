// What is planned on Hopper for rows that are keys and values, without any device.
#include "gpu/plan/latent.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "given.hpp"
#include "gpu/plan/decode.hpp"

namespace rocflash::gpu {
namespace {

using kernel::Family;
using kernel::Operation;

constexpr Chip hopper{Family::sm80, 132, 0, true}, older{Family::sm80, 108};

// One key head, rows of 576 columns whose first 512 are the values.
struct Given {
  explicit Given(std::int64_t b, std::int64_t keys, std::int64_t heads = 16,
                 std::int64_t queries = 1) {
    const Sizes sizes{.d = 576, .dv = 512, .b = b, .sq = queries, .sk = keys, .h = heads, .hk = 1};
    p = dense_problem(DType::bf16, sizes);
    p.caches = b;
    p.v = p.k;
    p.v.columns = 512;
    o.out = output(DType::bf16, sizes);
  }
  Given& with(const std::function<void(Given&)>& change) {
    change(*this);
    return *this;
  }
  Given& paged(std::int64_t rows) {
    static const std::int32_t table = 0;
    p.caches = 1000;
    for (Rows* r : {&p.k, &p.v}) {
      r->blocks = &table;
      r->blocks_stride = 100;
      r->block_rows = rows;
      r->batch_stride = rows * r->row_stride;
    }
    return *this;
  }
  int rows(Chip chip = hopper) const { return latent_group_rows(p, chip); }
  Names names(Chip chip = hopper) const {
    Plan plan;
    plan_decode(plan, p, o, nullptr, chip);
    return names_of(plan);
  }

  Problem p;
  ForwardOutputs o;
};

TEST(Latent, TakesAsManyRowsAsThereAre) {
  EXPECT_EQ(Given(1, 4096, 1).rows(), 16);
  EXPECT_EQ(Given(1, 4096, 16).rows(), 16);
  EXPECT_EQ(Given(1, 4096, 24).rows(), 32);
  EXPECT_EQ(Given(1, 4096, 64).rows(), 64);
  EXPECT_EQ(Given(1, 4096, 128).rows(), 64);
  EXPECT_EQ(Given(1, 4096, 16, 2).rows(), 32);  // pairs of query and head
  EXPECT_EQ(Given(1, 4096).rows(older), 0);
  EXPECT_EQ(Given(1, 32768, 16).names(),
            (Names{"latent_warpgroups_bf16_16", "combine_early_f32_512"}));
  EXPECT_EQ(Given(1, 32768, 16).names(older), (Names{"decode_latent_bf16_576", "combine_f32"}));
  EXPECT_EQ(Given(200, 4096, 16).with([](Given& g) { g.p.splits = 1; }).names(),
            Names{"latent_warpgroups_bf16_16"});
}

TEST(Latent, FillsTheDeviceInFewRounds) {
  const auto splits = [](const Given& g) { return decode_splits(g.p, hopper); };
  EXPECT_EQ(splits(Given(1, 131072)), 132);  // fifteen or sixteen tiles each
  EXPECT_EQ(splits(Given(1, 131072, 128)), 66);
  EXPECT_EQ(splits(Given(33, 65536)), 4);
  EXPECT_EQ(splits(Given(8, 32768)), 16);
  EXPECT_EQ(splits(Given(64, 8192)), 2);
  EXPECT_EQ(splits(Given(64, 8192, 128)), 1);
  EXPECT_EQ(splits(Given(1, 64)), 1);
  EXPECT_EQ(splits(Given(1, 131072).with([](Given& g) { g.p.splits = 7; })), 7);
  for (const std::int64_t b : {1, 3, 8, 50, 132, 140, 1000})
    EXPECT_GE(b * splits(Given(b, 65536)), 120) << b;
}

// Two workgroups with neighbouring parts of the keys merge their results: half as many parts are left.
TEST(Latent, MergesInPairs) {
  const auto check = [](const Given& g, std::uint32_t groups, std::uint32_t cluster,
                        std::int64_t parts) {
    Plan plan;
    plan_decode(plan, g.p, g.o, nullptr, hopper);
    const Launch* launch = plan.find(Operation::latent_warpgroups);
    ASSERT_NE(launch, nullptr);
    EXPECT_EQ(launch->shape.groups, groups);
    EXPECT_EQ(launch->shape.cluster, cluster);
    const Launch* merge = plan.find(Operation::combine_early);
    ASSERT_EQ(merge != nullptr, parts > 1);
    EXPECT_EQ(plan.arguments<Operation::latent_warpgroups>().decode.direct, parts == 1);
    if (merge) EXPECT_EQ(plan.arguments<Operation::combine_early>().parts.parts, parts);
  };
  check(Given(1, 131072, 64), 132, 2, 66);
  check(Given(1, 131072, 128), 132, 2, 33);
  check(Given(64, 8192, 64), 128, 2, 1);  // straight to the outputs
  check(Given(132, 4096, 64), 132, 1, 1);
  const auto split = [](std::int64_t heads, std::int32_t splits) {
    return Given(1, 131072, heads).with([&](Given& g) { g.p.splits = splits; });
  };
  check(split(16, 7), 7, 1, 7);
  check(split(16, 6), 6, 2, 3);
  check(split(128, 6), 12, 2, 3);  // each of two blocks of rows
}

TEST(Latent, LeavesOptionsToTheOtherKernel) {
  const std::int32_t some = 0;
  const std::function<void(Given&)> options[] = {
      [](Given& g) { g.p.softcap = 1; },
      [](Given& g) { g.p.scale = -1; },
      [](Given& g) { g.p.scale = 0; },
      [](Given& g) { g.p.scale = 0x1p-100f; },
      [](Given& g) { g.p.alibi.data = at(0x1000); },
      [](Given& g) { g.p.bias.data = at(0x1000); },
      [](Given& g) { g.p.mask.data = at(0x1000); },
      [&](Given& g) { g.p.lengths.cu_k = &some; },
      [&](Given& g) { g.p.lengths.leftpad_k = &some; },
      [](Given& g) { g.paged(4); },
      [](Given& g) { g.paged(100); },
      [](Given& g) { g.p.k.batch_stride = g.p.v.batch_stride = 0; },  // no map for repeated rows
  };
  for (std::size_t n = 0; n < std::size(options); ++n) {
    Given g = Given(2, 4096).with(options[n]);
    EXPECT_EQ(g.rows(), 0) << n;
    EXPECT_EQ(g.names().front(), "decode_latent_bf16_576") << n;
  }
}

TEST(Latent, CopiesTilesOrPartsOfPages) {
  const auto box = [](const Given& g, auto check) {
    Plan plan;
    plan_decode(plan, g.p, g.o, nullptr, hopper);
    const Launch* launch = plan.find(Operation::latent_warpgroups);
    ASSERT_NE(launch, nullptr);
    ASSERT_EQ(launch->boxes.size(), 1u);
    const auto& a = plan.arguments<Operation::latent_warpgroups>();
    EXPECT_EQ(launch->boxes[0].map, &a.k);
    EXPECT_EQ(launch->boxes[0].columns, 64u);
    EXPECT_EQ(launch->boxes[0].rows, static_cast<std::uint32_t>(a.box_rows));
    EXPECT_EQ(launch->shape.threads, 512u);
    check(launch->boxes[0]);
  };
  box(Given(2, 4096), [](const TensorBox& b) {
    EXPECT_EQ(b.rows, 64u);
    EXPECT_EQ(b.sizes[0], 576u);
    EXPECT_EQ(b.sizes[1], 4096u);
    EXPECT_EQ(b.sizes[3], 2u);
  });
  box(Given(2, 4096).paged(64), [](const TensorBox& b) {
    EXPECT_EQ(b.rows, 64u);
    EXPECT_EQ(b.sizes[1], 64u);
    EXPECT_EQ(b.sizes[3], 1000u);
  });
  box(Given(2, 4096).paged(256), [](const TensorBox& b) { EXPECT_EQ(b.rows, 64u); });
  box(Given(2, 4096).paged(16), [](const TensorBox& b) { EXPECT_EQ(b.rows, 16u); });
  box(Given(2, 4096).paged(48), [](const TensorBox& b) { EXPECT_EQ(b.rows, 16u); });
  // One page per sequence: what lies behind it is not there for copies.
  box(Given(2, 4001).paged(4001), [](const TensorBox& b) { EXPECT_EQ(b.rows, 64u); });
}

}  // namespace
}  // namespace rocflash::gpu
