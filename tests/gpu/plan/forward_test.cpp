// Launch plans of forward, without a device: kernel selection, grid, rejected problems.
#include "gpu/plan/forward.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "attention/work_tile.hpp"
#include "core/error.hpp"
#include "gpu/dispatch/matrix_path.hpp"
#include "gpu/dispatch/tile_schedule.hpp"
#include "gpu/plan/refusal.hpp"
#include "gpu/plan/weights.hpp"
#include "problems.hpp"

namespace rocflash::gpu {
namespace {

using kernel::Family;
using kernel::Op;
using kernel::Schedule;
using kernel::Variant;

// A plan copied out for the tests.
struct Planned {
  struct Step {
    std::string kernel;
    LaunchShape shape;
  };
  Planned(const Problem& p, const ForwardOutputs& o, Chip chip) {
    Plan plan;
    plan_forward(plan, p, o, chip);
    plan_weights(plan, p, o, chip);
    launches = plan.launches().size();
    EXPECT_EQ(plan.workspace.value(), 0);
    if (const Launch* l = plan.find(Op::forward)) {
      forward = Step{kernel::kernel_name(l->kernel), l->shape};
      forward_arguments = plan.arguments<Op::forward>();
    }
    if (const Launch* l = plan.find(Op::forward, Schedule::tail_split)) {
      tail = Step{kernel::kernel_name(l->kernel), l->shape};
      tail_arguments = plan.arguments<Op::forward, Schedule::tail_split>();
    }
    if (const Launch* l = plan.find(Op::weights)) {
      weights = Step{kernel::kernel_name(l->kernel), l->shape};
      weights_arguments = plan.arguments<Op::weights>();
    }
  }
  std::size_t launches = 0;
  std::optional<Step> forward, tail, weights;
  kernel::ForwardArguments forward_arguments, tail_arguments;
  kernel::WeightsArguments weights_arguments;
};

struct Given {
  explicit Given(DType dtype = DType::bf16, int d = 128, int dv = 128, std::int64_t b = 2,
                 std::int64_t sq = 1000, std::int64_t sk = 900, std::int64_t h = 8) {
    const Sizes sizes{d, dv, b, sq, sk, h, h};
    p = dense_problem(dtype, sizes);
    p.caches = b;
    o.out = output(dtype, sizes);
  }
  Planned plan(Family family = Family::cdna3, int units = 304) const {
    return Planned(p, o, {family, units});
  }
  Variant variant() const { return variant_for(Op::forward, p.dtype, features_of(p, o)); }

  Problem p;
  ForwardOutputs o;
};

TEST(ForwardPlan, SelectsDtypeBucketAndVariant) {
  EXPECT_EQ(Given().plan().forward->kernel, "forward_bf16_128_specialized");
  EXPECT_EQ(Given(DType::f16, 64, 64).plan().forward->kernel, "forward_f16_64_specialized");
  EXPECT_EQ(Given(DType::f16, 40, 40).plan().forward->kernel, "forward_f16_64_specialized");
  EXPECT_EQ(Given(DType::f16, 80, 16).plan().forward->kernel, "forward_f16_96_specialized");
  EXPECT_EQ(Given(DType::f16, 64, 256).plan().forward->kernel, "forward_f16_256_specialized");
  EXPECT_EQ(Given(DType::bf16, 17, 17).plan().forward->kernel, "forward_bf16_64_generic");
}

// Each of these alone selects the generic kernel.
TEST(ForwardPlan, OptionsSelectTheGenericKernel) {
  const std::function<void(Given&)> changes[] = {
      [](Given& g) { g.p.mask.data = at(0x100); },
      [](Given& g) { g.p.bias.data = at(0x100); },
      [](Given& g) { g.p.alibi.data = at(0x100); },
      [](Given& g) { g.p.sinks.data = at(0x100); },
      [](Given& g) { g.p.softcap = 3; },
      [](Given& g) { g.p.dropout.p = 0.1f; },
      [](Given& g) { g.p.k.blocks = g.p.v.blocks = reinterpret_cast<const std::int32_t*>(0x100); },
      [](Given& g) { g.p.q.data += 2; },
      [](Given& g) { g.p.k.data += 8; },
      [](Given& g) { g.p.v.row_stride += 4; },
      [](Given& g) { g.p.v.head_stride += 1; },
      [](Given& g) { g.p.k.batch_stride += 7; },
      [](Given& g) { g.o.out.row_stride += 3; },
      [](Given& g) { g.p.k.row_stride = -g.p.k.row_stride; },
      [](Given& g) { g.p.v.row_stride = 0; },  // broadcast over keys
      [](Given& g) { g.p.q.row_stride = 120; },
      [](Given& g) { g.p.k.row_stride = (std::int64_t{1} << 31) / 256 / 2; },
      [](Given& g) { g.p.q.columns = g.p.head_dim = 124; },
      [](Given& g) { g.p.v.columns = g.p.value_dim = g.o.out.columns = 100; },
  };
  const Given base;
  EXPECT_EQ(base.variant(), Variant::specialized);
  int n = 0;
  for (const auto& change : changes) {
    Given g;
    change(g);
    EXPECT_EQ(g.variant(), Variant::generic) << "change " << n;
    ++n;
  }
}

TEST(ForwardPlan, LengthsWindowsAndStridesStaySpecialized) {
  Given g;
  const auto* ints = reinterpret_cast<const std::int32_t*>(0x100);
  g.p.lengths.used_q = g.p.lengths.used_k = g.p.lengths.leftpad_k = ints;
  g.p.visibility = {.left = 5, .right = 0, .chunk = 64};
  g.p.scale = -2;
  g.p.q.batch_stride = -g.p.q.batch_stride;
  g.p.v.row_stride = (std::int64_t{1} << 31) / 256 / 2 - 8;
  EXPECT_EQ(g.variant(), Variant::specialized);
}

// Validation gives a dimension of one element stride 0, which specialized kernels do not support.
TEST(ForwardPlan, SingleRowsGetAStride) {
  Given g(DType::f16, 64, 64, 2, 1, 1);
  for (Rows* r : {&g.p.q, &g.p.k, &g.p.v, &g.o.out}) r->row_stride = 0;
  const Planned plan = g.plan();
  EXPECT_EQ(plan.forward->kernel, "forward_f16_64_specialized");
  EXPECT_EQ(plan.forward_arguments.problem.q.row_stride, 64);
  EXPECT_EQ(plan.forward_arguments.problem.k.row_stride, 64);
  EXPECT_EQ(plan.forward_arguments.outputs.out.row_stride, 64);
}

TEST(ForwardPlan, OneWorkgroupPerQueryBlock) {
  for (const Family family :
       {Family::gcn5, Family::cdna1, Family::cdna2, Family::cdna3, Family::cdna4, Family::rdna2,
        Family::rdna3, Family::rdna4, Family::sm80}) {
    for (const int d : {64, 128, 256}) {
      const Given g(DType::f16, d, d);
      const Planned plan = g.plan(family);
      const kernel::ForwardTile tile =
          kernel::forward_tile(family, kernel::forward_spec(DType::f16, d, Variant::specialized));
      const int blocks = (1000 + tile.queries - 1) / tile.queries;
      EXPECT_EQ(plan.forward_arguments.work.blocks, blocks);
      EXPECT_EQ(plan.forward_arguments.work.workgroups, blocks * 2 * 8);
      EXPECT_EQ(plan.forward->shape.grid_x, static_cast<std::uint32_t>(blocks * 2 * 8));
      EXPECT_EQ(plan.forward->shape.threads, static_cast<std::uint32_t>(tile.threads));
      EXPECT_EQ(plan.forward->shape.dynamic_shared,
                static_cast<std::uint32_t>(tile.dynamic_shared));
      EXPECT_EQ(plan.forward_arguments.caches, 2);
      EXPECT_FALSE(plan.weights);
    }
  }
}

TEST(ForwardPlan, PartitionsAreXcds) {
  EXPECT_EQ(partitions(Family::cdna3, 304), 8);  // MI300X
  EXPECT_EQ(partitions(Family::cdna3, 228), 6);  // MI300A
  EXPECT_EQ(partitions(Family::cdna3, 38), 1);   // one XCD (CPX mode)
  EXPECT_EQ(partitions(Family::cdna3, 20), 1);
  EXPECT_EQ(partitions(Family::cdna4, 256), 8);
  EXPECT_EQ(partitions(Family::cdna2, 104), 1);
  EXPECT_EQ(partitions(Family::rdna3, 96), 1);
  EXPECT_EQ(partitions(Family::sm80, 132), 1);
  EXPECT_EQ(Given().plan(Family::cdna4, 256).forward_arguments.work.xcds, 8);
}

// The K and V of interleaved (batch, head) slices fit in 32 MiB of L2.
TEST(ForwardPlan, InterleavesSlicesThatFitInL2) {
  const auto interleave = [](std::int64_t sk, std::int64_t h, std::int64_t kv_heads) {
    Given g(DType::bf16, 128, 128, 2, 1000, sk, h);
    g.p.kv_heads = kv_heads;
    return g.plan(Family::sm80, 132).forward_arguments.work.bh_interleave;
  };
  EXPECT_EQ(interleave(8192, 16, 16), 8);  // 4 MiB per slice
  EXPECT_EQ(interleave(8192, 16, 4), 32);  // GQA group of four: all slices
  EXPECT_EQ(interleave(900, 8, 8), 16);    // all slices
  EXPECT_EQ(interleave(1 << 20, 8, 8), 1);
  EXPECT_EQ(interleave(0, 8, 8), 16);
  EXPECT_EQ(Given().plan(Family::cdna3, 304).forward_arguments.work.bh_interleave, 1);
}

// The cycles of a launch whose work tiles take as long as their causal query blocks attend to keys,
// in units of a block: workgroups go to XCDs round-robin, and there to the first free slot.
double makespan(const kernel::TileSchedulerParams& work, int xcds, int slots) {
  constexpr double overhead = 0.4;  // of a workgroup
  std::vector<std::multiset<double>> free(static_cast<std::size_t>(xcds));
  for (auto& xcd : free)
    for (int n = 0; n < slots; ++n) xcd.insert(0);
  double end = 0;
  for (std::int32_t n = 0; n < work.workgroups; ++n) {
    auto& xcd = free[static_cast<std::size_t>(n % xcds)];
    const double done = *xcd.begin() + kernel::WorkTile(work, 1, n).block + 1 + overhead;
    xcd.erase(xcd.begin());
    xcd.insert(done);
    end = std::max(end, done);
  }
  return end;
}

// Interleaved slices balance the causal work of an XCD: within 5 % of the bound by work and by the
// longest tile in the mean over all numbers of slices per XCD that 2, 3 or 4 divide.
TEST(ForwardPlan, BalancesCausalWorkTiles) {
  constexpr int xcds = 8;
  for (const int slots : {38, 32}) {
    double sum = 0;
    int count = 0;
    for (const std::int32_t blocks : {8, 16, 32, 64}) {
      for (const std::int32_t per_xcd : {2, 3, 4, 6, 8, 12, 16, 32, 64}) {
        kernel::TileSchedulerParams work{blocks, blocks * per_xcd * xcds, xcds, 1};
        const double before = makespan(work, xcds, slots);
        work.bh_interleave = causal_interleave(work);
        const double bound =
            std::max((blocks + 1.8) * work.workgroups / 2 / (slots * xcds), blocks + 0.4);
        const double balanced = makespan(work, xcds, slots);
        EXPECT_LE(balanced, 1.01 * before) << blocks << " blocks, " << per_xcd << " slices";
        sum += balanced / bound;
        ++count;
      }
    }
    EXPECT_LE(sum / count, 1.05) << slots;
  }
  // Four slices of 16 blocks per XCD: longest first over all four, instead of one by one.
  kernel::TileSchedulerParams few{16, 16 * 32, xcds, 1};
  const double before = makespan(few, xcds, 32);
  few.bh_interleave = causal_interleave(few);
  EXPECT_GT(before, 1.4 * makespan(few, xcds, 32));
}

// Consecutive heads, such as those of a GQA group, stay on one XCD where the slices divide evenly.
TEST(ForwardPlan, InterleavesCausalSlicesOfAnXcd) {
  Given g(DType::bf16, 128, 128, 1, 4096, 4096, 32);
  g.p.visibility.right = 0;
  const auto work = g.plan(Family::cdna4, 256).forward_arguments.work;
  EXPECT_EQ(work.xcds, 8);
  EXPECT_EQ(work.bh_interleave, 4);
  for (std::int32_t n = 0; n < work.workgroups; ++n)
    EXPECT_EQ(kernel::WorkTile(work, 32, n).head / 4, n % 8);
  g.p.visibility.left = 512;  // blocks of a window have about equal work
  EXPECT_EQ(g.plan(Family::cdna4, 256).forward_arguments.work.bh_interleave, 1);
}

// Counts how often each query of each (batch, head) slice is computed, by both launches.
void expect_every_query_once(const Planned& plan, const Problem& p) {
  std::vector<int> times(static_cast<std::size_t>(p.batch() * p.heads * p.max_q));
  const auto count = [&](const kernel::ForwardArguments& a, std::uint32_t groups, int rows) {
    for (std::uint32_t g = 0; g < groups; ++g) {
      const kernel::WorkTile item(a.work, static_cast<std::int32_t>(p.heads),
                                  static_cast<std::int32_t>(g) + a.first_workgroup);
      const std::int64_t begin = std::int64_t{item.block} * rows;
      for (std::int64_t n = begin; n < std::min(begin + rows, p.max_q); ++n)
        ++times[static_cast<std::size_t>((item.batch * p.heads + item.head) * p.max_q + n)];
    }
  };
  if (plan.forward) count(plan.forward_arguments, plan.forward->shape.grid_x, 256);
  if (plan.tail) count(plan.tail_arguments, plan.tail->shape.grid_x, 128);
  EXPECT_TRUE(std::ranges::all_of(times, [](int n) { return n == 1; }));
}

// 304 CUs in eight XCDs of 38: 4096 blocks are 13 waves and 18 blocks per XCD.
TEST(ForwardPlan, TailSplitOfAHalfEmptyLastWave) {
  Given g(DType::bf16, 128, 128, 16, 4096, 4096, 16);
  const Planned plan = g.plan();
  EXPECT_EQ(plan.launches, 2u);
  EXPECT_EQ(plan.forward->shape.grid_x, 13u * 304);
  EXPECT_EQ(plan.tail->kernel, "forward_tail_split_bf16_128_specialized");
  EXPECT_EQ(plan.tail->shape.grid_x, 2u * 18 * 8);
  expect_every_query_once(plan, g.p);

  Given few(DType::f16, 64, 64, 1, 1100, 2000, 3);  // less than half a wave in all
  few.p.visibility.right = 0;
  EXPECT_FALSE(few.plan().forward);
  EXPECT_EQ(few.plan().tail->shape.grid_x, 3u * 10);
  expect_every_query_once(few.plan(), few.p);
}

TEST(ForwardPlan, NoTailSplitWithoutGain) {
  const auto unsplit = [](const Given& g, Family family = Family::cdna3, int units = 304) {
    const Planned plan = g.plan(family, units);
    return plan.forward && !plan.tail;
  };
  EXPECT_TRUE(unsplit(Given(DType::bf16, 128, 128, 16, 4096, 4096, 19)));  // 16 waves
  EXPECT_TRUE(unsplit(Given(DType::bf16, 128, 128, 16, 4096, 4096, 20)));  // 16.8
  EXPECT_TRUE(unsplit(Given(DType::bf16, 128, 128, 16, 4096, 1000, 16)));  // few keys
  EXPECT_TRUE(unsplit(Given(DType::bf16, 96, 96, 16, 4096, 4096, 16)));    // no such kernel
  EXPECT_TRUE(unsplit(Given(DType::bf16, 128, 128, 1, 4096, 4096, 1), Family::rdna3, 96));
  Given causal(DType::bf16, 128, 128, 16, 4096, 4096, 16);
  causal.p.visibility.right = 0;
  EXPECT_TRUE(unsplit(causal));
  Given packed(DType::bf16, 128, 128, 1, 4096, 4096, 1);
  packed.p.lengths.used_k = reinterpret_cast<const std::int32_t*>(0x100);
  EXPECT_TRUE(unsplit(packed));
  Given window(DType::bf16, 128, 128, 1, 4096, 4096, 1);
  window.p.visibility.left = 100;
  EXPECT_TRUE(unsplit(window));
}

TEST(ForwardPlan, MaxSeqlenIsBoundedByTheRowsOfTheTensor) {
  Given g(DType::bf16, 128, 128, 3, 50, 60);
  g.p.lengths.cu_q = g.p.lengths.cu_k = reinterpret_cast<const std::int32_t*>(0x100);
  g.p.max_q = 1 << 20;
  EXPECT_EQ(g.plan().forward_arguments.work.blocks, 1);
  EXPECT_EQ(g.plan().forward_arguments.problem.max_q, 1 << 20);  // bias and mask span it
}

TEST(ForwardPlan, EmptyOutputsNeedNoLaunch) {
  for (const auto& [b, sq] : {std::pair{0, 9}, std::pair{2, 0}}) {
    Given g(DType::f16, 64, 64, b, sq);
    g.o.s_dmask.data = at(0x5000);
    EXPECT_FALSE(g.plan().forward);
    EXPECT_FALSE(g.plan().weights);
  }
}

TEST(ForwardPlan, QueriesWithoutKeysAreStillWritten) {
  Given g(DType::f16, 64, 64, 2, 9, 0);
  g.o.s_dmask.data = at(0x5000);
  EXPECT_TRUE(g.plan().forward);
  EXPECT_FALSE(g.plan().weights);  // s_dmask is empty
}

// All rows are outside any sequence: they become one fully masked sequence, so that they are
// zeroed.
TEST(ForwardPlan, PackedRowsWithoutSequencesAreZeroed) {
  Given g(DType::f16, 64, 64, 0, 700, 30);
  g.p.lengths.cu_q = g.p.lengths.cu_k = reinterpret_cast<const std::int32_t*>(0x100);
  g.p.q.batch_stride = g.o.out.batch_stride = 0;
  g.p.max_q = g.p.max_k = 0;
  g.p.sinks.data = at(0x600);
  g.p.bias.data = at(0x700);
  const Planned plan = g.plan();
  ASSERT_TRUE(plan.forward);
  const Problem& p = plan.forward_arguments.problem;
  EXPECT_EQ(p.lengths.batch, 1);
  EXPECT_EQ(p.lengths.rows_q, 700);
  EXPECT_EQ(p.lengths.rows_k, 0);
  EXPECT_EQ(p.max_q, 700);
  EXPECT_FALSE(p.lengths.cu_q || p.lengths.cu_k || p.sinks || p.bias);
  EXPECT_GE(plan.forward_arguments.work.blocks * 256, 700);
}

TEST(ForwardPlan, SDmaskIsASeparateKernel) {
  Given g(DType::f16, 64, 64, 2, 100, 70, 4);
  g.o.s_dmask = {at(0x5000), DType::f32, 1, 2, 3, 4};
  const Planned plan = g.plan();
  EXPECT_FALSE(plan.forward_arguments.outputs.s_dmask);
  EXPECT_EQ(plan.weights_arguments.weights.data, at(0x5000));
  EXPECT_EQ(plan.weights->kernel, "weights_f16");
  EXPECT_EQ(plan.weights->shape.grid_x, 2u * 4 * 100 / 4);  // four waves and more

  EXPECT_EQ(plan.weights->shape.threads, 256u);
  EXPECT_EQ(plan.weights_arguments.workgroups, 2 * 4 * 100 / 4);
}

TEST(ForwardPlan, AScaleOfZeroSelectsTheGenericKernel) {
  Given g(DType::f16, 64, 64, 2, 100, 70, 4);
  EXPECT_EQ(g.variant(), Variant::specialized);
  g.p.scale = 0;
  EXPECT_EQ(g.variant(), Variant::generic);
}

TEST(ForwardPlan, LargeSDmaskHasABoundedGrid) {
  Given g(DType::f16, 64, 64, 4, 1 << 17, 1 << 17, 64);
  g.o.s_dmask.data = at(0x5000);
  EXPECT_EQ(g.plan().weights->shape.grid_x, 1u << 16);
}

TEST(ForwardPlan, TooManyWorkgroupsAreRejected) {
  Given g(DType::f16, 64, 64, 1 << 20, 4096, 64, 64);
  try {
    g.plan();
    FAIL() << "was planned";
  } catch (const Refusal& refusal) {
    EXPECT_EQ(refusal.status(), ROCFLASH_UNSUPPORTED);
    EXPECT_EQ(refusal.message().substr(0, 6), "q has ");
  }
}

TEST(ForwardPlan, RefusalsNameTheArgument) {
  const auto why = [](const Given& g) { return refusal(ForwardCall{g.p, g.o, {}}); };
  EXPECT_EQ(why(Given()), "");
  EXPECT_EQ(why(Given(DType::f16, 256, 1)), "");
  EXPECT_EQ(why(Given(DType::f32)), "");
  EXPECT_EQ(why(Given(DType::f16, 512, 257)), "");
  EXPECT_EQ(why(Given(DType::f64)), "q has dtype f64; GPU kernels take f32, f16 and bf16");
  Given cache(DType::f32);
  cache.p.k.dtype = cache.p.v.dtype = DType::f16;
  EXPECT_EQ(why(cache), "");
  Given long_keys(DType::f16, 64, 64, 1, 1, std::int64_t{1} << 31);
  EXPECT_EQ(why(long_keys),
            "k has a sequence of 2147483648 rows; GPU kernels take up to 2147483647");
}

// The limits of validation: sequences times heads below 2^32, lengths below 2^32, packed tensors of
// any number of rows. A plan has the exact number of workgroups, or is rejected.
TEST(ForwardPlan, ExtremeShapesFitOrAreRejected) {
  __extension__ typedef __int128 Int128;
  constexpr std::int64_t sizes[] = {
      0,         1,         2,         63,        1 << 10,         1 << 20,        1ll << 30,
      1ll << 31, 1ll << 32, 1ll << 40, 1ll << 62, (1ll << 31) - 1, (1ll << 32) - 1};
  constexpr std::int64_t counter = 1ll << 32;
  const std::int32_t cu[] = {0, 0, 0};
  int planned = 0;
  for (const std::int64_t batch : sizes) {
    for (const std::int64_t heads : sizes) {
      for (const std::int64_t rows_q : sizes) {
        for (const std::int64_t max_q : {rows_q, rows_q / 2 + 1, counter - 1}) {
          const bool packed = max_q != rows_q;
          if (heads < 1 || heads >= counter || batch >= counter / heads || max_q >= counter)
            continue;
          Given g(DType::f16, 64, 64, batch, 2, 77, 1);
          g.p.heads = heads;
          g.p.lengths.rows_q = rows_q;
          g.p.max_q = max_q;
          g.p.lengths.cu_q = packed ? cu : nullptr;
          g.o.s_dmask = {.data = at(0x50000)};
          if (!refusal(ForwardCall{g.p, g.o, {}}).empty()) continue;
          try {
            const Planned plan = g.plan();
            ++planned;
            if (!plan.forward) continue;
            const bool no_sequences = packed && batch == 0;
            const std::int64_t longest = no_sequences ? rows_q : std::min(max_q, rows_q);
            if (no_sequences) g.p.max_q = rows_q;  // one dense sequence without keys
            const kernel::ForwardTile tile = kernel::forward_tile(
                Family::cdna3, kernel::forward_spec(DType::f16, 64, g.variant()));
            const Int128 exact = Int128{(longest + tile.queries - 1) / tile.queries} *
                                 (no_sequences ? 1 : batch) * heads;
            ASSERT_EQ(Int128{plan.forward->shape.grid_x}, exact);
            ASSERT_EQ(Int128{plan.forward_arguments.work.workgroups}, exact);
            if (plan.weights) {
              ASSERT_GE(plan.weights->shape.grid_x, 1u);
              ASSERT_LE(plan.weights->shape.grid_x, 1u << 16);
            }
          } catch (const Refusal& refusal) {
            ASSERT_EQ(refusal.status(), ROCFLASH_UNSUPPORTED);
            ASSERT_EQ(refusal.message().substr(0, 6), "q has ");
          }
        }
      }
    }
  }
  EXPECT_GT(planned, 100);
}

}  // namespace
}  // namespace rocflash::gpu
