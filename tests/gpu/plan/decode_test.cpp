// What is planned for few queries, appending and merging, without any device.
#include "gpu/plan/decode.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "given.hpp"
#include "gpu/plan/append.hpp"
#include "gpu/plan/combine.hpp"

namespace rocflash::gpu {
namespace {

using kernel::Family;
using kernel::Operation;

constexpr Chip h200{Family::sm80, 132}, mi300x{Family::cdna3, 304}, rx7900{Family::rdna3, 96};

// 32 heads on 8 of size 128, one query per sequence.
struct Given {
  explicit Given(std::int64_t b, std::int64_t keys, std::int64_t queries = 1) {
    const Sizes sizes{.b = b, .sq = queries, .sk = keys, .h = 32, .hk = 8};
    p = dense_problem(DType::bf16, sizes);
    p.caches = b;
    o.out = output(DType::bf16, sizes);
  }
  Given& with(const std::function<void(Given&)>& change) {
    change(*this);
    return *this;
  }
  bool split(Chip chip = h200, Gradients gradients = Gradients::may_follow) const {
    return is_split(p, o, chip, gradients);
  }
  // The same queries in another dtype, over the same cache.
  Given& of(DType queries) {
    p.dtype = p.q.dtype = o.out.dtype = queries;
    return *this;
  }

  Problem p;
  ForwardOutputs o;
};

TEST(Decode, DividesTheKeysOfFewQueries) {
  EXPECT_TRUE(Given(1, 131072).split());
  EXPECT_TRUE(Given(1, 4096, 64).split());
  EXPECT_FALSE(Given(1, 4096, 65).split());
  EXPECT_FALSE(Given(1, 128).split());
  EXPECT_TRUE(Given(1, 128).with([](Given& g) { g.p.splits = 2; }).split());
  // Many rows for many sequences: forward reads the keys less often.
  EXPECT_FALSE(Given(64, 4096, 64).split());
  EXPECT_TRUE(Given(64, 4096, 4).split());
}

TEST(Decode, LeavesToForwardWhatItsKernelsDoNotTake) {
  EXPECT_FALSE(Given(1, 4096).with([](Given& g) { g.o.s_dmask.data = at(0x50000); }).split());
  EXPECT_FALSE(Given(1, 4096).with([](Given& g) { g.p.k.data = at(0x20002); }).split());
  EXPECT_FALSE(Given(1, 4096).with([](Given& g) { g.p.v.row_stride += 1; }).split());
  EXPECT_FALSE(Given(1, 4096).with([](Given& g) { g.p.q.columns = g.p.head_dim = 33; }).split());
  EXPECT_FALSE(Given(1, 4096).with([](Given& g) { g.p.k.dtype = DType::f16; }).split());
  EXPECT_FALSE(Given(1, 4096).with([](Given& g) { g.p.head_dim = 264; }).split());
  // Only the strides of rows that exist matter.
  EXPECT_TRUE(Given(1, 4096).with([](Given& g) { g.p.q.row_stride = 0; }).split());
}

TEST(Decode, KeepsTheDeviceBusy) {
  EXPECT_EQ(decode_splits(Given(1, 131072).p, h200), 32);
  EXPECT_EQ(decode_splits(Given(8, 32768).p, h200), 4);
  EXPECT_EQ(decode_splits(Given(64, 4096).p, h200), 1);
  // One workgroup at least for each compute unit of a large card.
  constexpr Chip large[] = {mi300x,
                            rx7900,
                            {Family::gcn5, 60},
                            {Family::cdna1, 120},
                            {Family::cdna2, 110},
                            {Family::cdna4, 256},
                            {Family::rdna2, 80},
                            {Family::rdna4, 64}};
  for (const Chip chip : large)
    for (const DType queries : {DType::bf16, DType::f32})
      EXPECT_GE(8 * decode_splits(Given(1, 32768).of(queries).p, chip), chip.units)
          << name_of(chip.family);
  // Every wave has work.
  EXPECT_EQ(decode_splits(Given(1, 1024).p, h200), 8);
  EXPECT_EQ(decode_splits(Given(1, 1024).p, mi300x), 4);
}

TEST(Decode, DividesCachesUnderFloatQueries) {
  for (const Chip chip : {h200, mi300x, rx7900, Chip{Family::sm80, 132, 232448, true}}) {
    Given mixed = Given(2, 4096, 3).of(DType::f32);
    EXPECT_TRUE(mixed.split(chip));
    EXPECT_TRUE(Given(64, 4096, 64).of(DType::f32).split(chip));
    EXPECT_FALSE(Given(1, 4096, 65).of(DType::f32).split(chip));
    Plan plan;
    plan_decode(plan, mixed.p, mixed.o, at(0x100000), chip);
    EXPECT_EQ(names_of(plan),
              (std::vector<std::string>{"decode_wide_bf16_128",
                                        chip.warpgroups ? "combine_early_f32" : "combine_f32"}));
    const auto& a = plan.arguments<Operation::decode_wide>();
    EXPECT_EQ(a.blocks, 3);  // of four rows: the heads of a query
    const auto& merged = chip.warpgroups ? plan.arguments<Operation::combine_early>()
                                         : plan.arguments<Operation::combine>();
    EXPECT_EQ(merged.parts.parts, 4 * a.splits);  // of waves
    mixed.p.splits = 5;
    EXPECT_EQ(decode_splits(mixed.p, chip), 5);
    // A cache of f32, but not where backward would compute its weights again.
    Given floats = Given(2, 4096).of(DType::f32).with([](Given& g) {
      g.p.k.dtype = g.p.v.dtype = DType::f32;
    });
    EXPECT_TRUE(floats.split(chip, Gradients::never));
    EXPECT_FALSE(floats.split(chip));
    EXPECT_FALSE(mixed.with([](Given& g) { g.p.head_dim = g.p.q.columns = g.p.k.columns = 264; })
                     .split(chip));
  }
}

TEST(Decode, HonoursTheNumberOfSplits) {
  EXPECT_EQ(decode_splits(Given(1, 131072).with([](Given& g) { g.p.splits = 5; }).p, h200), 5);
  EXPECT_EQ(decode_splits(Given(1, 131072).with([](Given& g) { g.p.splits = 1; }).p, h200), 1);
}

TEST(Decode, MergesPartsFromTheWorkspace) {
  const Given g(2, 4096, 3);
  Plan plan;
  std::byte* memory = at(0x100000);
  plan_decode(plan, g.p, g.o, memory, h200);
  EXPECT_EQ(names_of(plan), (std::vector<std::string>{"decode_bf16_128", "combine_f32"}));
  const auto& a = plan.arguments<Operation::decode>();
  const auto& c = plan.arguments<Operation::combine>();
  EXPECT_EQ(a.blocks, 1);  // three queries of four heads: twelve of sixteen rows
  EXPECT_EQ(plan.find(Operation::decode)->shape.groups, 2u * 8 * static_cast<unsigned>(a.splits));
  EXPECT_EQ(c.parts.parts, a.splits);
  EXPECT_EQ(a.out_part, 2 * 3 * 32 * 128);
  EXPECT_EQ(plan.workspace.value(), c.parts.parts * (a.out_part + a.lse_part) * 4);
  EXPECT_EQ(reinterpret_cast<const std::byte*>(c.parts.out_partial), memory);
  EXPECT_EQ(c.parts.out, g.o.out.data);
  EXPECT_EQ(c.of_problem, 1);

  // Only the size is asked for: the same answer.
  Plan asked;
  plan_decode(asked, g.p, g.o, nullptr, h200);
  EXPECT_EQ(asked.workspace.value(), plan.workspace.value());
}

TEST(Decode, WritesOnePartStraightToTheOutputs) {
  const auto planned = [](const Given& g, Chip chip) {
    Plan plan;
    plan_decode(plan, g.p, g.o, nullptr, chip);
    return names_of(plan);
  };
  Given g(64, 4096);
  EXPECT_EQ(planned(g, h200), std::vector<std::string>{"decode_bf16_128"});
  EXPECT_EQ(planned(g, mi300x).size(), 2u);  // each wave writes a part
  const std::int32_t used = 0;
  EXPECT_EQ(planned(g.with([&](Given& x) { x.p.lengths.used_q = &used; }), h200).size(), 2u);
}

TEST(Decode, GivesSinksToTheMergingKernelOnly) {
  const Given g = Given(1, 4096).with([](Given& x) { x.p.sinks.data = at(0x60000); });
  Plan plan;
  plan_decode(plan, g.p, g.o, at(0x100000), mi300x);
  EXPECT_FALSE(plan.arguments<Operation::decode>().problem.sinks);
  EXPECT_TRUE(plan.arguments<Operation::combine>().problem.sinks);
}

// One key head for 16 query heads, rows of 576 columns whose first 512 are the values.
Given latent(std::int64_t b, std::int64_t keys, std::int64_t queries = 1) {
  return Given(b, keys, queries).with([&](Given& g) {
    const Sizes sizes{.d = 576, .dv = 512, .b = b, .sq = queries, .sk = keys, .h = 16, .hk = 1};
    g.p = dense_problem(DType::bf16, sizes);
    g.p.caches = b;
    g.p.v = g.p.k;
    g.p.v.columns = 512;
    g.o.out = output(DType::bf16, sizes);
  });
}

TEST(Decode, ReadsRowsThatAreKeysAndValuesOnce) {
  const auto planned = [](const Given& g, Chip chip) {
    Plan plan;
    plan_decode(plan, g.p, g.o, nullptr, chip);
    return names_of(plan);
  };
  for (const Chip chip : {h200, mi300x, rx7900}) {
    EXPECT_TRUE(latent(1, 1).split(chip));
    EXPECT_TRUE(latent(1, 4096, 300).split(chip));  // others would compute without matrix products
    EXPECT_EQ(planned(latent(1, 32768), chip),
              (std::vector<std::string>{"decode_latent_bf16_576", "combine_f32"}));
    EXPECT_GE(decode_splits(latent(1, 32768).p, chip), chip.units / 2);
    // Values with memory of their own, or rows off 16 bytes, are for the kernels that take anything.
    EXPECT_FALSE(latent(1, 4096).with([](Given& g) { g.p.v.data = at(0x90000); }).split(chip));
    EXPECT_FALSE(
        latent(1, 4096).with([](Given& g) { g.p.k.data = g.p.v.data = at(0x20002); }).split(chip));
    EXPECT_FALSE(latent(1, 4096)
                     .with([](Given& g) {
                       g.p.dtype = g.p.q.dtype = g.p.k.dtype = g.p.v.dtype = DType::f32;
                     })
                     .split(chip));
  }
  // A single part goes straight to the outputs, but for sinks.
  EXPECT_EQ(planned(latent(264, 4096), h200), std::vector<std::string>{"decode_latent_bf16_576"});
  EXPECT_EQ(
      planned(latent(264, 4096).with([](Given& g) { g.p.sinks.data = at(0x60000); }), h200).size(),
      2u);
  Plan plan;
  const Given g = latent(2, 4096);
  plan_decode(plan, g.p, g.o, nullptr, mi300x);
  EXPECT_EQ(plan.arguments<Operation::combine>().parts.columns, 512);
}

TEST(Append, PutsLengthsAndRotatedQueriesIntoTheWorkspace) {
  const Given g(3, 4096, 2);
  Append append;
  append.k = rows(0x70000, 2, 8, 128, DType::bf16);
  append.v = rows(0x80000, 2, 8, 128, DType::bf16);
  append.rows = 2;
  append.rotary.dim = 64;
  Plan plan;
  std::byte* memory = at(0x100000);
  const Problem after = plan_append(plan, g.p, append, memory, mi300x);
  EXPECT_EQ(names_of(plan), (std::vector<std::string>{"append_f32"}));
  EXPECT_EQ(reinterpret_cast<const std::byte*>(after.lengths.used_k), memory);
  EXPECT_EQ(after.q.data, memory + 64);
  EXPECT_EQ(plan.workspace.value(), 64 + 3 * 2 * 32 * 128 * 2);
  const auto& a = plan.arguments<Operation::append>();
  EXPECT_EQ(a.problem.q.data, g.p.q.data);
  EXPECT_EQ(a.q.data, after.q.data);

  // Attention reads what was written, and its own scratch memory follows.
  plan_decode(plan, after, g.o, memory, mi300x);
  EXPECT_EQ(names_of(plan),
            (std::vector<std::string>{"append_f32", "decode_bf16_128", "combine_f32"}));
  EXPECT_EQ(plan.arguments<Operation::decode>().out.data, memory + 64 + 3 * 2 * 32 * 128 * 2);
}

TEST(Append, HasNothingToDoWithoutKeysAndRotation) {
  const Given g(3, 4096);
  Plan plan;
  EXPECT_EQ(plan_append(plan, g.p, {}, nullptr, h200).q.data, g.p.q.data);
  EXPECT_TRUE(plan.launches().empty());
  EXPECT_EQ(plan.workspace.value(), 0);
}

TEST(Combine, SharesFewRowsAmongWaves) {
  EXPECT_EQ(combine_slices(132, 32, h200), 8);
  EXPECT_EQ(combine_slices(132, 32, mi300x), 4);  // waves of 64 lanes
  EXPECT_EQ(combine_slices(3, 32, h200), 2);
  EXPECT_EQ(combine_slices(132, 1 << 20, h200), 1);
  Plan plan;
  plan_combine(plan, {.parts = 3, .batch = 2, .queries = 0, .heads = 4, .columns = 8}, nullptr,
               h200);
  EXPECT_TRUE(plan.launches().empty());
}

}  // namespace
}  // namespace rocflash::gpu
