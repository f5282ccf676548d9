// Launch plans of warp-specialized MLA decode (sm_90a), without a device.
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

// One latent KV head of 576 columns whose first 512 are the values.
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
  int rows(Chip chip = h100) const {
    const DecodeSelection s = decode_of(p, chip);
    return s.mla_warp_specialized() ? s.kernel.bucket : 0;
  }
  Names names(Chip chip = h100) const {
    Plan plan;
    plan_decode(plan, p, o, nullptr, chip);
    return names_of(plan);
  }

  Problem p;
  ForwardOutputs o;
};

TEST(Mla, RowBlockFitsTheQueryHeads) {
  EXPECT_EQ(Given(1, 4096, 1).rows(), 16);
  EXPECT_EQ(Given(1, 4096, 16).rows(), 16);
  EXPECT_EQ(Given(1, 4096, 24).rows(), 32);
  EXPECT_EQ(Given(1, 4096, 64).rows(), 64);
  EXPECT_EQ(Given(1, 4096, 128).rows(), 64);
  EXPECT_EQ(Given(1, 4096, 16, 2).rows(), 32);  // (query, head) pairs
  EXPECT_EQ(Given(1, 4096).rows(ampere), 0);
  EXPECT_EQ(Given(1, 32768, 16).names(),
            (Names{"decode_mla_warp_specialized_bf16_16", "combine_pdl_f32_512"}));
  EXPECT_EQ(Given(1, 32768, 16).names(ampere), (Names{"decode_mla_bf16_576", "combine_f32"}));
  EXPECT_EQ(Given(200, 4096, 16).with([](Given& g) { g.p.splits = 1; }).names(),
            Names{"decode_mla_warp_specialized_bf16_16"});
}

TEST(Mla, SplitsFillTheDeviceInFewWaves) {
  const auto splits = [](const Given& g) { return gpu::num_splits(g.p, h100); };
  EXPECT_EQ(splits(Given(1, 131072)), 132);  // 15 or 16 tiles each
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

// Clusters of two workgroups combine adjacent splits: half as many partial results remain.
TEST(Mla, ClustersCombinePairs) {
  const auto check = [](const Given& g, std::uint32_t workgroups, std::uint32_t cluster,
                        std::int64_t partials) {
    Plan plan;
    plan_decode(plan, g.p, g.o, nullptr, h100);
    const Launch* launch = plan.find(Op::decode_mla, Schedule::warp_specialized);
    ASSERT_NE(launch, nullptr);
    EXPECT_EQ(launch->shape.grid_x, workgroups);
    EXPECT_EQ(launch->shape.cluster, cluster);
    const Launch* combine = plan.find(Op::combine, Schedule::pdl);
    ASSERT_EQ(combine != nullptr, partials > 1);
    EXPECT_EQ((plan.arguments<Op::decode_mla, Schedule::warp_specialized>().decode.direct),
              partials == 1);
    if (combine)
      EXPECT_EQ((plan.arguments<Op::combine, Schedule::pdl>().partials.splits), partials);
  };
  check(Given(1, 131072, 64), 132, 2, 66);
  check(Given(1, 131072, 128), 132, 2, 33);
  check(Given(64, 8192, 64), 128, 2, 1);  // directly to the outputs
  check(Given(132, 4096, 64), 132, 1, 1);
  const auto split = [](std::int64_t heads, std::int32_t splits) {
    return Given(1, 131072, heads).with([&](Given& g) { g.p.splits = splits; });
  };
  check(split(16, 7), 7, 1, 7);
  check(split(16, 6), 6, 2, 3);
  check(split(128, 6), 12, 2, 3);  // two row blocks
}

TEST(Mla, OptionsSelectTheGenericKernel) {
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
      [](Given& g) { g.p.k.batch_stride = g.p.v.batch_stride = 0; },  // broadcast: no tensor map
  };
  for (std::size_t n = 0; n < std::size(options); ++n) {
    Given g = Given(2, 4096).with(options[n]);
    EXPECT_EQ(g.rows(), 0) << n;
    EXPECT_EQ(g.names().front(), "decode_mla_bf16_576") << n;
  }
}

TEST(Mla, TmaBoxesAreTilesOrDivideAPage) {
  const auto check_box = [](const Given& g, auto check) {
    Plan plan;
    plan_decode(plan, g.p, g.o, nullptr, h100);
    const Launch* launch = plan.find(Op::decode_mla, Schedule::warp_specialized);
    ASSERT_NE(launch, nullptr);
    ASSERT_EQ(launch->tensor_maps.size(), 1u);
    const auto& a = plan.arguments<Op::decode_mla, Schedule::warp_specialized>();
    EXPECT_EQ(launch->tensor_maps[0].map, &a.k);
    EXPECT_EQ(launch->tensor_maps[0].box_columns, 64u);
    EXPECT_EQ(launch->tensor_maps[0].box_rows, static_cast<std::uint32_t>(a.box_rows));
    EXPECT_EQ(launch->shape.threads, 512u);
    check(launch->tensor_maps[0]);
  };
  check_box(Given(2, 4096), [](const TensorMapDesc& desc) {
    EXPECT_EQ(desc.box_rows, 64u);
    EXPECT_EQ(desc.sizes[0], 576u);
    EXPECT_EQ(desc.sizes[1], 4096u);
    EXPECT_EQ(desc.sizes[3], 2u);
  });
  check_box(Given(2, 4096).paged(64), [](const TensorMapDesc& desc) {
    EXPECT_EQ(desc.box_rows, 64u);
    EXPECT_EQ(desc.sizes[1], 64u);
    EXPECT_EQ(desc.sizes[3], 1000u);
  });
  check_box(Given(2, 4096).paged(256),
            [](const TensorMapDesc& desc) { EXPECT_EQ(desc.box_rows, 64u); });
  check_box(Given(2, 4096).paged(16),
            [](const TensorMapDesc& desc) { EXPECT_EQ(desc.box_rows, 16u); });
  check_box(Given(2, 4096).paged(48),
            [](const TensorMapDesc& desc) { EXPECT_EQ(desc.box_rows, 16u); });
  // One page per sequence: TMA fills rows beyond it with 0.
  check_box(Given(2, 4001).paged(4001),
            [](const TensorMapDesc& desc) { EXPECT_EQ(desc.box_rows, 64u); });
}

}  // namespace
}  // namespace rocflash::gpu
