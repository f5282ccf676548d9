// Which problems Hopper's kernels take, forward and backward, and what the copy engine is told about their tensors.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "given.hpp"
#include "gpu/plan/backward.hpp"
#include "gpu/plan/forward.hpp"
#include "tile/panels.hpp"

namespace rocflash::gpu {
namespace {

using kernel::Family;
using kernel::Operation;

constexpr Chip hopper{Family::sm80, 132, 232448, true};

struct Given {
  explicit Given(DType dtype = DType::bf16, int d = 128, int dv = 128) {
    sizes.d = d;
    sizes.dv = dv;
    sizes.hk = 2;
    p = dense_problem(dtype, sizes);
    p.caches = sizes.b;
    o.out = output(dtype, sizes);
  }
  Names names(Chip chip = hopper) const {
    Plan plan;
    plan_forward(plan, p, o, chip);
    return names_of(plan);
  }
  // Pages of so many rows, and so many of them per sequence.
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

TEST(Warpgroups, TakePlainProblemsOfEveryHeadSizeOnHopper) {
  EXPECT_EQ(Given().names(), Names{"forward_warpgroups_bf16_128_plain"});
  EXPECT_EQ(Given(DType::f16, 64, 64).names(), Names{"forward_warpgroups_f16_64_plain"});
  EXPECT_EQ(Given(DType::f16, 80, 16).names(), Names{"forward_warpgroups_f16_96_plain"});
  EXPECT_EQ(Given(DType::bf16, 256, 8).names(), Names{"forward_warpgroups_bf16_256_plain"});
  EXPECT_EQ(Given().names({Family::sm80, 132, 232448, false}), Names{"forward_bf16_128_plain"});
  EXPECT_EQ(Given(DType::bf16, 72, 60).names(), Names{"forward_bf16_96_full"});
}

// Each of these alone leaves a problem to the kernels of sm_80.
TEST(Warpgroups, LeaveTheRestToOthers) {
  const std::function<void(Given&)> others[] = {
      [](Given& g) { g.p.scale = -1; },
      [](Given& g) { g.p.softcap = 1; },
      [](Given& g) { g.p.mask.data = at(0x100); },
      [](Given& g) { g.p.k.data = at(0x20008); },
      [](Given& g) { g.p.q.row_stride += 4; },
      [](Given& g) { g.p.v.batch_stride = 0; },  // repeated: no map has that
      [](Given& g) { g.p.k.head_stride = 0; },
      [](Given& g) { g.p.q.batch_stride = std::int64_t{1} << 40; },
      [](Given& g) { g.p.lengths.rows_k = g.p.max_k = 0; },
  };
  for (std::size_t n = 0; n < std::size(others); ++n) {
    Given g;
    others[n](g);
    const Names names = g.names();
    ASSERT_EQ(names.size(), 1u) << n;
    EXPECT_EQ(names[0].find("warpgroups"), std::string::npos) << n;
  }
}

TEST(Warpgroups, MapsAreThoseOfTheTensorsAndBoxesAreTiles) {
  Given g;
  g.p.v.head_stride = 256;
  g.p.v.row_stride = 1024;
  Plan plan;
  plan_forward(plan, g.p, g.o, hopper);
  ASSERT_EQ(plan.launches().size(), 1u);
  const Launch& launch = plan.launches()[0];
  const auto& a = plan.arguments<Operation::forward_warpgroups>();
  const auto tile = kernel::forward_groups(kernel::warpgroups_spec(DType::bf16, 128));
  ASSERT_EQ(launch.boxes.size(), 3u);
  const TensorBox &q = launch.boxes[0], &v = launch.boxes[2];
  EXPECT_EQ(q.map, &a.q);
  EXPECT_EQ(v.map, &a.v);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(&a) % 64, 0u);
  EXPECT_EQ(q.data, g.p.q.data);
  EXPECT_TRUE(std::ranges::equal(q.sizes, std::initializer_list<std::uint64_t>{128, 1000, 8, 2}));
  EXPECT_TRUE(std::ranges::equal(v.sizes, std::initializer_list<std::uint64_t>{128, 900, 2, 2}));
  EXPECT_TRUE(std::ranges::equal(
      v.strides, std::initializer_list<std::uint64_t>{
                     2048, 512, 2 * static_cast<std::uint64_t>(g.p.v.batch_stride)}));
  EXPECT_EQ(q.columns, 64u);
  EXPECT_EQ(q.rows, static_cast<std::uint32_t>(tile.queries()));
  EXPECT_EQ(v.rows, static_cast<std::uint32_t>(tile.keys));
  EXPECT_EQ(a.forward.work.groups, 2 * 8 * divide_up(1000, tile.queries()));
  EXPECT_EQ(launch.shape.groups, std::min(132, a.forward.work.groups));
}

TEST(Warpgroups, BoxesAreAsWideAsPanels) {
  for (const int bucket : {64, 96, 128, 192, 256}) {
    Plan plan;
    const Given g(DType::f16, bucket, bucket);
    plan_forward(plan, g.p, g.o, hopper);
    const int width = bucket == 96 ? kernel::Panels<64, 96>::width : kernel::Panels<64, 128>::width;
    for (const TensorBox& box : plan.launches()[0].boxes) {
      EXPECT_EQ(box.columns, static_cast<std::uint32_t>(width));
      EXPECT_LE(box.rows, 256u);
    }
  }
}

// A dimension of one element has any stride; the door says 0.
TEST(Warpgroups, SingleElementsAndPackedRowsHaveMaps) {
  Given single;
  single.p.lengths.batch = 1;
  single.p.q.batch_stride = single.p.k.batch_stride = single.p.v.batch_stride = 0;
  EXPECT_EQ(single.names(), Names{"forward_warpgroups_bf16_128_plain"});
  Given packed;
  const std::int32_t starts[3] = {};
  packed.p.lengths.cu_q = packed.p.lengths.cu_k = starts;
  for (Rows* rows : {&packed.p.q, &packed.p.k, &packed.p.v, &packed.o.out}) rows->batch_stride = 0;
  EXPECT_EQ(packed.names(), Names{"forward_warpgroups_bf16_128_plain"});
}

// In pages a copy has as many rows as divide a page and a tile, and tiles end where copies do.
TEST(Warpgroups, PagesAreCopiedInBoxesThatDivideThem) {
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
    plan_forward(plan, g.p, g.o, hopper);
    EXPECT_EQ(names_of(plan), Names{"forward_pages_f16_" + std::to_string(d) + "_plain"});
    const auto& a = plan.arguments<Operation::forward_pages>();
    EXPECT_EQ(a.box_rows, rows) << d << " columns, pages of " << page_rows;
    EXPECT_EQ(a.tile_grain, rows);
    const auto tile = kernel::forward_groups(kernel::kernel_spec(plan.launches()[0].kernel));
    EXPECT_EQ(tile.keys % rows, 0);
    // One thread of the copying warpgroup per box and panel.
    EXPECT_LE(tile.keys / rows * (d / (d == 96 ? 32 : 64)), 128);
    const TensorBox &q = plan.launches()[0].boxes[0], &k = plan.launches()[0].boxes[1];
    EXPECT_EQ(q.rows, static_cast<std::uint32_t>(tile.queries()));
    EXPECT_EQ(k.rows, static_cast<std::uint32_t>(rows));
    EXPECT_EQ(k.sizes[1], static_cast<std::uint64_t>(page_rows));  // beyond them reads 0
    EXPECT_EQ(k.sizes[3], 77u);
  }
}

TEST(Warpgroups, OnePagePerSequenceIsCopiedByTheTile) {
  for (const std::int64_t page_rows : {37, 900, 1000}) {
    const Given g = Given().paged(page_rows, 1);
    Plan plan;
    plan_forward(plan, g.p, g.o, hopper);
    const auto& a = plan.arguments<Operation::forward_pages>();
    EXPECT_EQ(a.box_rows, 128);
    EXPECT_EQ(a.tile_grain, 1);
  }
}

TEST(Warpgroups, LeaveOddPagesAndOptionsToOthers) {
  for (const std::int64_t page_rows : {1, 4, 7, 12, 37, 100})
    EXPECT_EQ(Given().paged(page_rows, 50).names(), Names{"forward_bf16_128_full"}) << page_rows;
  Given capped = Given().paged(16, 50);
  capped.p.softcap = 1;
  EXPECT_EQ(capped.names(), Names{"forward_bf16_128_full"});
  EXPECT_EQ(Given().paged(16, 50).names({Family::sm80, 132, 232448, false}),
            Names{"forward_bf16_128_full"});
}

struct Gradients {
  explicit Gradients(DType dtype = DType::bf16, int d = 128, int dv = 128) {
    sizes.d = d;
    sizes.dv = dv;
    sizes.hk = 2;
    p = dense_problem(dtype, sizes);
    t = gradients(dtype, sizes);
  }
  void fill(Plan& plan, Chip chip = hopper) const { plan_backward(plan, p, t, at(0x100000), chip); }
  Names names(Chip chip = hopper) const {
    Plan plan;
    fill(plan, chip);
    return names_of(plan);
  }
  Sizes sizes;
  Problem p;
  BackwardTensors t;
};

TEST(BackwardWarpgroups, TakePlainProblemsOfEveryHeadSize) {
  EXPECT_EQ(Gradients().names(), (Names{"backward_delta_bf16", "backward_warpgroups_bf16_128_plain",
                                        "backward_round_early_bf16"}));
  EXPECT_EQ(Gradients(DType::f16, 64, 40).names()[1], "backward_warpgroups_f16_64_plain");
  EXPECT_EQ(Gradients(DType::f16, 64, 96).names()[1], "backward_warpgroups_f16_128_plain");
  EXPECT_EQ(Gradients(DType::bf16, 192, 128).names()[1],
            "backward_warpgroups_large_bf16_192_plain");
  EXPECT_EQ(Gradients(DType::f16, 136, 136).names()[1], "backward_warpgroups_large_f16_192_plain");
  EXPECT_EQ(Gradients(DType::bf16, 200, 256).names()[1],
            "backward_warpgroups_large_bf16_256_plain");
  EXPECT_EQ(Gradients().names({Family::sm80, 132, 232448, false})[1],
            "backward_fused_large_bf16_128_plain");
}

// Each of these alone leaves a problem to the kernels of sm_80.
TEST(BackwardWarpgroups, LeaveTheRestToOthers) {
  const std::function<void(Gradients&)> others[] = {
      [](Gradients& g) { g.p.softcap = 1; },
      [](Gradients& g) { g.p.dropout.p = 0.1f; },
      [](Gradients& g) { g.t.dq = {}; },
      [](Gradients& g) { g.t.dk = g.t.dv = {}; },
      [](Gradients& g) { g.t.dout.data = at(0x50008); },
      [](Gradients& g) { g.t.dout.head_stride = 0; },  // repeated: no map has that
      [](Gradients& g) { g.p.k.batch_stride = 0; },
      [](Gradients& g) { g.t.lse = {g.t.lse.data, 8000, 1, 8}; },  // not query by query
  };
  for (std::size_t n = 0; n < std::size(others); ++n) {
    Gradients g;
    others[n](g);
    for (const std::string& name : g.names())
      EXPECT_EQ(name.find("warpgroups"), std::string::npos) << n;
  }
}

TEST(BackwardWarpgroups, SumsAreInTheKernelsOrderAndOnlyThere) {
  Plan plan, other;
  Gradients().fill(plan);
  Gradients().fill(other, {Family::sm80, 132, 232448, false});
  const auto& a = plan.arguments<Operation::backward_warpgroups>().backward;
  const auto& round = plan.arguments<Operation::backward_round_early>();
  EXPECT_EQ(a.sums_by_lane, 1);
  EXPECT_EQ(round.sums_by_lane, 1);
  EXPECT_EQ(round.dq_sums.data, a.dq_sums.data);
  EXPECT_EQ(round.dq_sums.columns, 128);
  EXPECT_EQ(other.arguments<Operation::backward_round>().sums_by_lane, 0);
  // Rows of a head are whole blocks of the sums, which copies add to 16 bytes at a time.
  EXPECT_EQ(a.dq_sums.head_stride, 128 * 1008);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.dq_sums.data) % 16, 0u);
}

// With `deterministic` they take turns at the sums, by counters behind them.
TEST(BackwardWarpgroups, TakeTurnsWhereBitsMustNotChange) {
  for (const int d : {64, 128, 192, 256}) {
    Gradients g(DType::bf16, d, d);
    Plan any, ordered;
    g.fill(any);
    g.p.deterministic = true;
    g.fill(ordered);
    EXPECT_EQ(names_of(ordered), names_of(any));
    const auto& warpgroups = d > 128 ? ordered.arguments<Operation::backward_warpgroups_large>()
                                     : ordered.arguments<Operation::backward_warpgroups>();
    for (const auto* a : {&ordered.arguments<Operation::backward_delta>(), &warpgroups.backward,
                          &ordered.arguments<Operation::backward_round_early>()})
      EXPECT_EQ(a->sums_by_lane, kernel::sums_in_turn);
    // 1000 queries of 2 x 8 heads are 63 blocks of 16 each.
    const std::int64_t counters = 2 * 8 * 63 * 4;
    EXPECT_EQ(ordered.workspace.value() - any.workspace.value(), (counters + 63) / 64 * 64);
    // Other options keep the kernels without additions.
    g.p.softcap = 1;
    EXPECT_TRUE(g.names()[1].starts_with("backward_queries")) << g.names()[1];
  }
}

TEST(BackwardWarpgroups, MapsAreThoseOfTheTensorsAndBoxesAreTiles) {
  const Gradients g;
  Plan plan;
  g.fill(plan);
  const Launch& launch = *plan.find(Operation::backward_warpgroups);
  const auto& a = plan.arguments<Operation::backward_warpgroups>();
  const auto tile = kernel::backward_block(kernel::kernel_spec(launch.kernel));
  const struct {
    const kernel::TensorMap* map;
    const void* data;
    int rows;
    std::uint64_t length, heads;
  } expected[] = {{&a.q, g.p.q.data, tile.queries, 1000, 8},
                  {&a.dout, g.t.dout.data, tile.queries, 1000, 8},
                  {&a.k, g.p.k.data, tile.keys, 900, 2},
                  {&a.v, g.p.v.data, tile.keys, 900, 2}};
  ASSERT_EQ(launch.boxes.size(), std::size(expected));
  for (std::size_t n = 0; n < std::size(expected); ++n) {
    const TensorBox& box = launch.boxes[n];
    EXPECT_EQ(box.map, expected[n].map);
    EXPECT_EQ(box.data, expected[n].data);
    EXPECT_EQ(box.columns, 64u);
    EXPECT_EQ(box.rows, static_cast<std::uint32_t>(expected[n].rows));
    EXPECT_EQ(box.sizes[1], expected[n].length);
    EXPECT_EQ(box.sizes[2], expected[n].heads);
  }
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(&a) % 64, 0u);
  EXPECT_EQ(launch.shape.groups, 2 * 2 * divide_up(900, tile.keys));
  EXPECT_LE(launch.shape.dynamic_shared, 232448u);
}

TEST(BackwardWarpgroups, LargeHeadsHaveFewerKeysPerWorkgroup) {
  for (const int d : {192, 256}) {
    const Gradients g(DType::bf16, d, d);
    Plan plan;
    g.fill(plan);
    const Launch& launch = *plan.find(Operation::backward_warpgroups_large);
    EXPECT_EQ(launch.shape.groups, static_cast<std::uint32_t>(2 * 2 * divide_up(900, 64)));
    ASSERT_EQ(launch.boxes.size(), 4u);
    for (const TensorBox& box : launch.boxes) EXPECT_EQ(box.rows, 64u);
    const auto& round = plan.arguments<Operation::backward_round_early>();
    EXPECT_EQ(round.sums_by_lane, 1);
    EXPECT_EQ(round.dq_sums.columns, d);
  }
}

// Launches behind delta's start early: delta clears the counters by which they know how far they are.
TEST(BackwardWarpgroups, RoundPlanesAsSoonAsAllHaveAddedToThem) {
  for (const auto [d, reports] : {std::pair{64, 4}, {128, 1}, {192, 4}, {256, 4}}) {
    const Gradients g(DType::bf16, d, d);
    Plan plan;
    g.fill(plan);
    const auto launches = plan.launches();
    ASSERT_EQ(launches.size(), 3u);
    EXPECT_FALSE(launches[0].shape.early);
    EXPECT_TRUE(launches[1].shape.early);
    EXPECT_TRUE(launches[2].shape.early);
    const auto& delta = plan.arguments<Operation::backward_delta>();
    const auto& round = plan.arguments<Operation::backward_round_early>();
    const auto& keys = d > 128 ? plan.arguments<Operation::backward_warpgroups_large>()
                               : plan.arguments<Operation::backward_warpgroups>();
    for (const auto* a : {&delta, &keys.backward, &round}) {
      EXPECT_NE(a->planes, nullptr);
      EXPECT_EQ(a->planes, delta.planes);
      EXPECT_EQ(a->reports, reports * keys.backward.work.blocks);
    }
    EXPECT_EQ(round.work.planes_together, 4 * keys.backward.work.planes_together);
  }
  Gradients g;
  g.p.max_q = 0;
  g.p.lengths.rows_q = 0;
  Plan none;
  g.fill(none);
  for (const Launch& launch : none.launches()) EXPECT_FALSE(launch.shape.early);
}

// About as many planes take turns as fill the device once, but for equal blocks of several heads.
TEST(BackwardWarpgroups, PlanesThatFillTheDeviceTakeTurns) {
  const auto together = [](std::int64_t keys, std::int64_t batch, bool causal = true, int d = 128) {
    Gradients g(DType::bf16, d, d);
    g.sizes.sk = keys;
    g.sizes.b = batch;
    g.p = dense_problem(DType::bf16, g.sizes);
    g.t = gradients(DType::bf16, g.sizes);
    if (causal) g.p.visibility.right = 0;
    Plan plan;
    g.fill(plan);
    return plan.arguments<Operation::backward_warpgroups>().backward.work.planes_together;
  };
  EXPECT_EQ(together(8192, 4), 2);
  EXPECT_EQ(together(2048, 8), 8);
  EXPECT_EQ(together(100000, 4), 1);
  EXPECT_EQ(together(128, 3), 6);  // there are no more
  EXPECT_EQ(together(2048, 8, false), 1);
  EXPECT_EQ(together(2048, 8, false, 64), 8);
}

}  // namespace
}  // namespace rocflash::gpu
