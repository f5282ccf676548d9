// Kernel selection of the warp-specialized kernels (sm_90a), forward and backward, and their tensor
// maps.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "gpu/plan/backward.hpp"
#include "gpu/plan/forward.hpp"
#include "problems.hpp"
#include "tile/tma_tile.hpp"

namespace rocflash::gpu {
namespace {

using kernel::Family;
using kernel::Op;
using kernel::Schedule;

constexpr Chip h100{Family::sm80, 132, 232448, true};

struct Given {
  explicit Given(DType dtype = DType::bf16, int d = 128, int dv = 128) {
    sizes.d = d;
    sizes.dv = dv;
    sizes.hk = 2;
    p = dense_problem(dtype, sizes);
    p.caches = sizes.b;
    o.out = output(dtype, sizes);
  }
  Names names(Chip chip = h100) const {
    Plan plan;
    plan_forward(plan, p, o, chip);
    return names_of(plan);
  }
  // `pages` pages of `page_rows` rows per sequence.
  Given& paged(std::int64_t page_rows, std::int64_t pages) {
    static const std::int32_t table = 0;
    p.caches = 77;
    p.lengths.paged = true;
    p.lengths.rows_k = p.max_k = page_rows * pages;
    for (Rows* r : {&p.k, &p.v}) {
      r->blocks = &table;
      r->blocks_stride = pages;
      r->block_rows = page_rows;
      r->batch_stride = page_rows * r->row_stride;
    }
    return *this;
  }
  Sizes sizes;
  Problem p;
  ForwardOutputs o;
};

TEST(WarpSpecializedForward, SupportsEveryHeadDim) {
  EXPECT_EQ(Given().names(), Names{"forward_warp_specialized_bf16_128_specialized"});
  EXPECT_EQ(Given(DType::f16, 64, 64).names(),
            Names{"forward_warp_specialized_f16_64_specialized"});
  EXPECT_EQ(Given(DType::f16, 80, 16).names(),
            Names{"forward_warp_specialized_f16_96_specialized"});
  EXPECT_EQ(Given(DType::bf16, 256, 8).names(),
            Names{"forward_warp_specialized_bf16_256_specialized"});
  EXPECT_EQ(Given().names({Family::sm80, 132, 232448, false}),
            Names{"forward_bf16_128_specialized"});
  EXPECT_EQ(Given(DType::bf16, 72, 60).names(), Names{"forward_bf16_96_generic"});
}

// Each of these alone selects the sm_80 kernels.
TEST(WarpSpecializedForward, UnsupportedProblemsSelectSm80Kernels) {
  const std::function<void(Given&)> others[] = {
      [](Given& g) { g.p.scale = -1; },
      [](Given& g) { g.p.softcap = 1; },
      [](Given& g) { g.p.mask.data = at(0x100); },
      [](Given& g) { g.p.k.data = at(0x20008); },
      [](Given& g) { g.p.q.row_stride += 4; },
      [](Given& g) { g.p.v.batch_stride = 0; },  // broadcast: no tensor map
      [](Given& g) { g.p.k.head_stride = 0; },
      [](Given& g) { g.p.q.batch_stride = std::int64_t{1} << 40; },
      [](Given& g) { g.p.lengths.rows_k = g.p.max_k = 0; },
  };
  for (std::size_t n = 0; n < std::size(others); ++n) {
    Given g;
    others[n](g);
    const Names names = g.names();
    ASSERT_EQ(names.size(), 1u) << n;
    EXPECT_EQ(names[0].find("warp_specialized"), std::string::npos) << n;
  }
}

TEST(WarpSpecializedForward, TensorMapsDescribeTensorsAndBoxesAreTiles) {
  Given g;
  g.p.v.head_stride = 256;
  g.p.v.row_stride = 1024;
  Plan plan;
  plan_forward(plan, g.p, g.o, h100);
  ASSERT_EQ(plan.launches().size(), 1u);
  const Launch& launch = plan.launches()[0];
  const auto& a = plan.arguments<Op::forward, Schedule::warp_specialized>();
  const auto tile = kernel::warp_specialized_tile(kernel::warp_specialized_spec(DType::bf16, 128));
  ASSERT_EQ(launch.tensor_maps.size(), 3u);
  const TensorMapDesc &q = launch.tensor_maps[0], &v = launch.tensor_maps[2];
  EXPECT_EQ(q.map, &a.q);
  EXPECT_EQ(v.map, &a.v);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(&a) % 64, 0u);
  EXPECT_EQ(q.data, g.p.q.data);
  EXPECT_TRUE(std::ranges::equal(q.sizes, std::initializer_list<std::uint64_t>{128, 1000, 8, 2}));
  EXPECT_TRUE(std::ranges::equal(v.sizes, std::initializer_list<std::uint64_t>{128, 900, 2, 2}));
  EXPECT_TRUE(std::ranges::equal(
      v.strides, std::initializer_list<std::uint64_t>{
                     2048, 512, 2 * static_cast<std::uint64_t>(g.p.v.batch_stride)}));
  EXPECT_EQ(q.box_columns, 64u);
  EXPECT_EQ(q.box_rows, static_cast<std::uint32_t>(tile.queries()));
  EXPECT_EQ(v.box_rows, static_cast<std::uint32_t>(tile.keys));
  EXPECT_EQ(a.forward.work.workgroups, 2 * 8 * ceil_div(1000, tile.queries()));
  EXPECT_EQ(launch.shape.grid_x, std::min(132, a.forward.work.workgroups));
}

TEST(WarpSpecializedForward, BoxesAreAsWideAsTheSwizzle) {
  for (const int bucket : {64, 96, 128, 192, 256}) {
    Plan plan;
    const Given g(DType::f16, bucket, bucket);
    plan_forward(plan, g.p, g.o, h100);
    const int width =
        bucket == 96 ? kernel::TmaTile<64, 96>::width : kernel::TmaTile<64, 128>::width;
    for (const TensorMapDesc& desc : plan.launches()[0].tensor_maps) {
      EXPECT_EQ(desc.box_columns, static_cast<std::uint32_t>(width));
      EXPECT_LE(desc.box_rows, 256u);
    }
  }
}

// The stride of a dimension of one element is arbitrary; validation normalizes it to 0.
TEST(WarpSpecializedForward, SingleElementDimensionsAndPackedRowsHaveTensorMaps) {
  Given single;
  single.p.lengths.batch = 1;
  single.p.q.batch_stride = single.p.k.batch_stride = single.p.v.batch_stride = 0;
  EXPECT_EQ(single.names(), Names{"forward_warp_specialized_bf16_128_specialized"});
  Given packed;
  const std::int32_t cu_seqlens[3] = {};
  packed.p.lengths.cu_q = packed.p.lengths.cu_k = cu_seqlens;
  for (Rows* rows : {&packed.p.q, &packed.p.k, &packed.p.v, &packed.o.out}) rows->batch_stride = 0;
  EXPECT_EQ(packed.names(), Names{"forward_warp_specialized_bf16_128_specialized"});
}

// The rows of a TMA box divide the page and the tile, and tiles end at box boundaries.
TEST(WarpSpecializedForward, BoxesDividePages) {
  const struct {
    int d;
    std::int64_t page_rows;
    std::int32_t rows;
  } expected[] = {{64, 16, 16},  {64, 256, 128},  {128, 8, 8},    {128, 24, 8},  {128, 32, 32},
                  {128, 64, 64}, {128, 384, 128}, {96, 256, 64},  {96, 96, 96},  {192, 16, 16},
                  {192, 64, 16}, {192, 112, 112}, {256, 256, 16}, {256, 80, 80}, {256, 40, 40}};
  for (const auto& [d, page_rows, rows] : expected) {
    const Given g = Given(DType::f16, d, d).paged(page_rows, 50);
    Plan plan;
    plan_forward(plan, g.p, g.o, h100);
    EXPECT_EQ(names_of(plan),
              Names{"forward_warp_specialized_paged_f16_" + std::to_string(d) + "_specialized"});
    const auto& a = plan.arguments<Op::forward, Schedule::warp_specialized_paged>();
    EXPECT_EQ(a.box_rows, rows) << d << " columns, pages of " << page_rows;
    EXPECT_EQ(a.tile_grain, rows);
    const auto tile = kernel::warp_specialized_tile(kernel::kernel_spec(plan.launches()[0].kernel));
    EXPECT_EQ(tile.keys % rows, 0);
    // One thread of the producer warpgroup issues each TMA load.
    EXPECT_LE(tile.keys / rows * (d / (d == 96 ? 32 : 64)), 128);
    const TensorMapDesc &q = plan.launches()[0].tensor_maps[0],
                        &k = plan.launches()[0].tensor_maps[1];
    EXPECT_EQ(q.box_rows, static_cast<std::uint32_t>(tile.queries()));
    EXPECT_EQ(k.box_rows, static_cast<std::uint32_t>(rows));
    EXPECT_EQ(k.sizes[1], static_cast<std::uint64_t>(page_rows));  // TMA fills rows beyond with 0
    EXPECT_EQ(k.sizes[3], 77u);
  }
}

TEST(WarpSpecializedForward, OnePagePerSequenceIsLoadedByTiles) {
  for (const std::int64_t page_rows : {37, 900, 1000}) {
    const Given g = Given().paged(page_rows, 1);
    Plan plan;
    plan_forward(plan, g.p, g.o, h100);
    const auto& a = plan.arguments<Op::forward, Schedule::warp_specialized_paged>();
    EXPECT_EQ(a.box_rows, 128);
    EXPECT_EQ(a.tile_grain, 1);
  }
}

TEST(WarpSpecializedForward, UnsupportedPageSizesAndOptionsSelectSm80Kernels) {
  for (const std::int64_t page_rows : {1, 4, 7, 12, 37, 100})
    EXPECT_EQ(Given().paged(page_rows, 50).names(), Names{"forward_bf16_128_generic"}) << page_rows;
  Given capped = Given().paged(16, 50);
  capped.p.softcap = 1;
  EXPECT_EQ(capped.names(), Names{"forward_bf16_128_generic"});
  EXPECT_EQ(Given().paged(16, 50).names({Family::sm80, 132, 232448, false}),
            Names{"forward_bf16_128_generic"});
}

struct Gradients {
  explicit Gradients(DType dtype = DType::bf16, int d = 128, int dv = 128) {
    sizes.d = d;
    sizes.dv = dv;
    sizes.hk = 2;
    p = dense_problem(dtype, sizes);
    t = gradients(dtype, sizes);
  }
  void fill(Plan& plan, Chip chip = h100) const { plan_backward(plan, p, t, at(0x100000), chip); }
  Names names(Chip chip = h100) const {
    Plan plan;
    fill(plan, chip);
    return names_of(plan);
  }
  Sizes sizes;
  Problem p;
  BackwardTensors t;
};

TEST(WarpSpecializedBackward, SupportsEveryHeadDim) {
  EXPECT_EQ(Gradients().names(),
            (Names{"backward_preprocess_bf16", "backward_warp_specialized_bf16_128_specialized",
                   "backward_postprocess_pdl_bf16"}));
  EXPECT_EQ(Gradients(DType::f16, 64, 40).names()[1],
            "backward_warp_specialized_f16_64_specialized");
  EXPECT_EQ(Gradients(DType::f16, 64, 96).names()[1],
            "backward_warp_specialized_f16_128_specialized");
  EXPECT_EQ(Gradients(DType::bf16, 192, 128).names()[1],
            "backward_warp_specialized_large_bf16_192_specialized");
  EXPECT_EQ(Gradients(DType::f16, 136, 136).names()[1],
            "backward_warp_specialized_large_f16_192_specialized");
  EXPECT_EQ(Gradients(DType::bf16, 200, 256).names()[1],
            "backward_warp_specialized_large_bf16_256_specialized");
  EXPECT_EQ(Gradients().names({Family::sm80, 132, 232448, false})[1],
            "backward_fused_large_smem_bf16_128_specialized");
}

// Each of these alone selects the sm_80 kernels.
TEST(WarpSpecializedBackward, UnsupportedProblemsSelectSm80Kernels) {
  const std::function<void(Gradients&)> others[] = {
      [](Gradients& g) { g.p.softcap = 1; },
      [](Gradients& g) { g.p.dropout.p = 0.1f; },
      [](Gradients& g) { g.t.dq = {}; },
      [](Gradients& g) { g.t.dk = g.t.dv = {}; },
      [](Gradients& g) { g.t.dout.data = at(0x50008); },
      [](Gradients& g) { g.t.dout.head_stride = 0; },  // broadcast: no tensor map
      [](Gradients& g) { g.p.k.batch_stride = 0; },
      [](Gradients& g) { g.t.lse = {g.t.lse.data, 8000, 1, 8}; },  // not contiguous in queries
  };
  for (std::size_t n = 0; n < std::size(others); ++n) {
    Gradients g;
    others[n](g);
    for (const std::string& name : g.names())
      EXPECT_EQ(name.find("warp_specialized"), std::string::npos) << n;
  }
}

TEST(WarpSpecializedBackward, DqAccumulatorHasTheLayoutOfTheKernel) {
  Plan plan, other;
  Gradients().fill(plan);
  Gradients().fill(other, {Family::sm80, 132, 232448, false});
  const auto& a = plan.arguments<Op::backward, Schedule::warp_specialized>().backward;
  const auto& postprocess = plan.arguments<Op::backward_postprocess, Schedule::pdl>();
  EXPECT_EQ(a.dq_accum_layout, 1);
  EXPECT_EQ(postprocess.dq_accum_layout, 1);
  EXPECT_EQ(postprocess.dq_accum.data, a.dq_accum.data);
  EXPECT_EQ(postprocess.dq_accum.columns, 128);
  EXPECT_EQ(other.arguments<Op::backward_postprocess>().dq_accum_layout, 0);
  // Heads are padded to whole blocks; TMA reduce-add needs 16-byte alignment.
  EXPECT_EQ(a.dq_accum.head_stride, 128 * 1008);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.dq_accum.data) % 16, 0u);
}

// `deterministic` selects ordered dQ accumulation, with counters after the accumulator.
TEST(WarpSpecializedBackward, DeterministicAccumulatesInOrder) {
  for (const int d : {64, 128, 192, 256}) {
    Gradients g(DType::bf16, d, d);
    Plan any, ordered;
    g.fill(any);
    g.p.deterministic = true;
    g.fill(ordered);
    EXPECT_EQ(names_of(ordered), names_of(any));
    const auto& main = d > 128 ? ordered.arguments<Op::backward, Schedule::warp_specialized_large>()
                               : ordered.arguments<Op::backward, Schedule::warp_specialized>();
    for (const auto* a : {&ordered.arguments<Op::backward_preprocess>(), &main.backward,
                          &ordered.arguments<Op::backward_postprocess, Schedule::pdl>()})
      EXPECT_EQ(a->dq_accum_layout, kernel::dq_accum_ordered);
    // 1000 queries of 2 x 8 heads are 63 blocks of 16 each.
    const std::int64_t counters = 2 * 8 * 63 * 4;
    EXPECT_EQ(ordered.workspace.value() - any.workspace.value(), (counters + 63) / 64 * 64);
    // Score modifiers select the kernels without dQ accumulation.
    g.p.softcap = 1;
    EXPECT_TRUE(g.names()[1].starts_with("backward_dq")) << g.names()[1];
  }
}

TEST(WarpSpecializedBackward, TensorMapsDescribeTensorsAndBoxesAreTiles) {
  const Gradients g;
  Plan plan;
  g.fill(plan);
  const Launch& launch = *plan.find(Op::backward, Schedule::warp_specialized);
  const auto& a = plan.arguments<Op::backward, Schedule::warp_specialized>();
  const auto tile = kernel::backward_work_tile(kernel::kernel_spec(launch.kernel));
  const struct {
    const kernel::TensorMap* map;
    const void* data;
    int rows;
    std::uint64_t length, heads;
  } expected[] = {{&a.q, g.p.q.data, tile.queries, 1000, 8},
                  {&a.dout, g.t.dout.data, tile.queries, 1000, 8},
                  {&a.k, g.p.k.data, tile.keys, 900, 2},
                  {&a.v, g.p.v.data, tile.keys, 900, 2}};
  ASSERT_EQ(launch.tensor_maps.size(), std::size(expected));
  for (std::size_t n = 0; n < std::size(expected); ++n) {
    const TensorMapDesc& desc = launch.tensor_maps[n];
    EXPECT_EQ(desc.map, expected[n].map);
    EXPECT_EQ(desc.data, expected[n].data);
    EXPECT_EQ(desc.box_columns, 64u);
    EXPECT_EQ(desc.box_rows, static_cast<std::uint32_t>(expected[n].rows));
    EXPECT_EQ(desc.sizes[1], expected[n].length);
    EXPECT_EQ(desc.sizes[2], expected[n].heads);
  }
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(&a) % 64, 0u);
  EXPECT_EQ(launch.shape.grid_x, 2 * 2 * ceil_div(900, tile.keys));
  EXPECT_LE(launch.shape.dynamic_shared, 232448u);
}

TEST(WarpSpecializedBackward, LargeHeadsHaveFewerKeysPerWorkgroup) {
  for (const int d : {192, 256}) {
    const Gradients g(DType::bf16, d, d);
    Plan plan;
    g.fill(plan);
    const Launch& launch = *plan.find(Op::backward, Schedule::warp_specialized_large);
    EXPECT_EQ(launch.shape.grid_x, static_cast<std::uint32_t>(2 * 2 * ceil_div(900, 64)));
    ASSERT_EQ(launch.tensor_maps.size(), 4u);
    for (const TensorMapDesc& desc : launch.tensor_maps) EXPECT_EQ(desc.box_rows, 64u);
    const auto& postprocess = plan.arguments<Op::backward_postprocess, Schedule::pdl>();
    EXPECT_EQ(postprocess.dq_accum_layout, 1);
    EXPECT_EQ(postprocess.dq_accum.columns, d);
  }
}

// PDL after preprocess, which zeroes the counters of completed key blocks.
TEST(WarpSpecializedBackward, PostprocessConvertsCompletedSlices) {
  for (const auto& [d, reports] : {std::pair{64, 4}, {128, 1}, {192, 4}, {256, 4}}) {
    const Gradients g(DType::bf16, d, d);
    Plan plan;
    g.fill(plan);
    const auto launches = plan.launches();
    ASSERT_EQ(launches.size(), 3u);
    EXPECT_FALSE(launches[0].shape.pdl);
    EXPECT_TRUE(launches[1].shape.pdl);
    EXPECT_TRUE(launches[2].shape.pdl);
    const auto& preprocess = plan.arguments<Op::backward_preprocess>();
    const auto& postprocess = plan.arguments<Op::backward_postprocess, Schedule::pdl>();
    const auto& keys = d > 128 ? plan.arguments<Op::backward, Schedule::warp_specialized_large>()
                               : plan.arguments<Op::backward, Schedule::warp_specialized>();
    for (const auto* a : {&preprocess, &keys.backward, &postprocess}) {
      EXPECT_NE(a->bh_counters, nullptr);
      EXPECT_EQ(a->bh_counters, preprocess.bh_counters);
      EXPECT_EQ(a->reports, reports * keys.backward.work.blocks);
    }
    EXPECT_EQ(postprocess.work.bh_interleave, 4 * keys.backward.work.bh_interleave);
  }
  Gradients g;
  g.p.max_q = 0;
  g.p.lengths.rows_q = 0;
  Plan none;
  g.fill(none);
  for (const Launch& launch : none.launches()) EXPECT_FALSE(launch.shape.pdl);
}

// As many slices are interleaved as fill the device once, except uniform blocks with GQA.
TEST(WarpSpecializedBackward, InterleavesSlicesThatFillTheDevice) {
  const auto interleave = [](std::int64_t keys, std::int64_t batch, bool causal = true,
                             int d = 128) {
    Gradients g(DType::bf16, d, d);
    g.sizes.sk = keys;
    g.sizes.b = batch;
    g.p = dense_problem(DType::bf16, g.sizes);
    g.t = gradients(DType::bf16, g.sizes);
    if (causal) g.p.visibility.right = 0;
    Plan plan;
    g.fill(plan);
    return plan.arguments<Op::backward, Schedule::warp_specialized>().backward.work.bh_interleave;
  };
  EXPECT_EQ(interleave(8192, 4), 2);
  EXPECT_EQ(interleave(2048, 8), 8);
  EXPECT_EQ(interleave(100000, 4), 1);
  EXPECT_EQ(interleave(128, 3), 6);  // all slices
  EXPECT_EQ(interleave(2048, 8, false), 1);
  EXPECT_EQ(interleave(2048, 8, false, 64), 8);
}

}  // namespace
}  // namespace rocflash::gpu
