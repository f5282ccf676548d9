// Launch plans of split-KV decode, append and combine, without a device.
#include "gpu/plan/decode.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "gpu/dispatch/splits.hpp"
#include "gpu/plan/append.hpp"
#include "gpu/plan/combine.hpp"
#include "problems.hpp"

namespace rocflash::gpu {
namespace {

using kernel::Family;
using kernel::Op;
using kernel::Schedule;

constexpr Chip h200{Family::sm80, 132}, mi300x{Family::cdna3, 304}, rx7900{Family::rdna3, 96};

// GQA: 32 query heads, 8 KV heads, head dimension 128, one query per sequence.
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
  bool split(Chip chip = h200, Gradients gradients = Gradients::possible) const {
    return select(p, o, chip, gradients).decodes;
  }
  // The same queries in another dtype, over the same cache.
  Given& of(DType queries) {
    p.dtype = p.q.dtype = o.out.dtype = queries;
    return *this;
  }

  Problem p;
  ForwardOutputs o;
};

TEST(Decode, SplitsTheKeysOfFewQueries) {
  EXPECT_TRUE(Given(1, 131072).split());
  EXPECT_TRUE(Given(1, 4096, 64).split());
  EXPECT_FALSE(Given(1, 4096, 65).split());
  EXPECT_FALSE(Given(1, 128).split());
  EXPECT_TRUE(Given(1, 128).with([](Given& g) { g.p.splits = 2; }).split());
  // Many rows of many sequences: forward reads K and V less often.
  EXPECT_FALSE(Given(64, 4096, 64).split());
  EXPECT_TRUE(Given(64, 4096, 4).split());
}

TEST(Decode, UnsupportedProblemsSelectForward) {
  EXPECT_FALSE(Given(1, 4096).with([](Given& g) { g.o.s_dmask.data = at(0x50000); }).split());
  EXPECT_FALSE(Given(1, 4096).with([](Given& g) { g.p.k.data = at(0x20002); }).split());
  EXPECT_FALSE(Given(1, 4096).with([](Given& g) { g.p.v.row_stride += 1; }).split());
  EXPECT_FALSE(Given(1, 4096).with([](Given& g) { g.p.q.columns = g.p.head_dim = 33; }).split());
  EXPECT_FALSE(Given(1, 4096).with([](Given& g) { g.p.k.dtype = DType::f16; }).split());
  EXPECT_FALSE(Given(1, 4096).with([](Given& g) { g.p.head_dim = 264; }).split());
  // Only the strides of rows that exist matter.
  EXPECT_TRUE(Given(1, 4096).with([](Given& g) { g.p.q.row_stride = 0; }).split());
}

TEST(Decode, SplitsQuantizedCaches) {
  for (const Chip chip : {h200, mi300x, rx7900, Chip{Family::sm80, 132, 232448, true}}) {
    for (const DType queries : {DType::f32, DType::f16, DType::bf16}) {
      Given g = Given(2, 4096, 3).of(queries);
      g.p.k.dtype = g.p.v.dtype = DType::e4m3fnuz;
      EXPECT_TRUE(g.split(chip));
      EXPECT_TRUE(Given(g).with([](Given& of) { of.p.v.columns = 256; }).split(chip));
      Plan plan;
      plan_decode(plan, g.p, g.o, at(0x100000), chip);
      EXPECT_EQ(names_of(plan),
                (Names{"decode_fp32_i8_128", chip.has_sm90 ? "combine_pdl_f32" : "combine_f32"}));
      // Rows that are not aligned to 16 bytes do not allow vector loads.
      EXPECT_FALSE(g.with([](Given& of) { of.p.k.row_stride += 8; }).split(chip));
    }
  }
}

TEST(Decode, HeuristicFillsTheDevice) {
  EXPECT_EQ(num_splits(Given(1, 131072).p, h200), 32);
  EXPECT_EQ(num_splits(Given(8, 32768).p, h200), 4);
  EXPECT_EQ(num_splits(Given(64, 4096).p, h200), 1);
  // At least one workgroup per compute unit of a large GPU.
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
      EXPECT_GE(8 * num_splits(Given(1, 32768).of(queries).p, chip), chip.units)
          << name_of(chip.family);
  // At least two tiles per wave.
  EXPECT_EQ(num_splits(Given(1, 1024).p, h200), 8);
  EXPECT_EQ(num_splits(Given(1, 1024).p, mi300x), 4);
}

TEST(Decode, SplitsCachesOfF32Queries) {
  for (const Chip chip : {h200, mi300x, rx7900, Chip{Family::sm80, 132, 232448, true}}) {
    Given mixed = Given(2, 4096, 3).of(DType::f32);
    EXPECT_TRUE(mixed.split(chip));
    EXPECT_TRUE(Given(64, 4096, 64).of(DType::f32).split(chip));
    EXPECT_FALSE(Given(1, 4096, 65).of(DType::f32).split(chip));
    Plan plan;
    plan_decode(plan, mixed.p, mixed.o, at(0x100000), chip);
    EXPECT_EQ(names_of(plan),
              (std::vector<std::string>{"decode_fp32_bf16_128",
                                        chip.has_sm90 ? "combine_pdl_f32" : "combine_f32"}));
    const auto& a = plan.arguments<Op::decode, Schedule::fp32>();
    EXPECT_EQ(a.blocks, 3);  // of four rows: the GQA group of a query
    const auto& combined = chip.has_sm90 ? plan.arguments<Op::combine, Schedule::pdl>()
                                         : plan.arguments<Op::combine>();
    EXPECT_EQ(combined.partials.splits, 4 * a.splits);  // one per wave
    mixed.p.splits = 5;
    EXPECT_EQ(num_splits(mixed.p, chip), 5);
    // An f32 cache only without backward, which would recompute P.
    Given floats = Given(2, 4096).of(DType::f32).with([](Given& g) {
      g.p.k.dtype = g.p.v.dtype = DType::f32;
    });
    EXPECT_TRUE(floats.split(chip, Gradients::never));
    EXPECT_FALSE(floats.split(chip));
    EXPECT_FALSE(mixed.with([](Given& g) { g.p.head_dim = g.p.q.columns = g.p.k.columns = 264; })
                     .split(chip));
  }
}

TEST(Decode, HonorsNumSplits) {
  EXPECT_EQ(num_splits(Given(1, 131072).with([](Given& g) { g.p.splits = 5; }).p, h200), 5);
  EXPECT_EQ(num_splits(Given(1, 131072).with([](Given& g) { g.p.splits = 1; }).p, h200), 1);
}

TEST(Decode, CombinesPartialResultsFromTheWorkspace) {
  const Given g(2, 4096, 3);
  Plan plan;
  std::byte* memory = at(0x100000);
  plan_decode(plan, g.p, g.o, memory, h200);
  EXPECT_EQ(names_of(plan), (std::vector<std::string>{"decode_bf16_128", "combine_f32"}));
  const auto& a = plan.arguments<Op::decode>();
  const auto& c = plan.arguments<Op::combine>();
  EXPECT_EQ(a.blocks, 1);  // three queries of four heads: twelve of sixteen rows
  EXPECT_EQ(plan.find(Op::decode)->shape.grid_x, 2u * 8 * static_cast<unsigned>(a.splits));
  EXPECT_EQ(c.partials.splits, a.splits);
  EXPECT_EQ(a.out_split_stride, 2 * 3 * 32 * 128);
  EXPECT_EQ(plan.workspace.value(),
            c.partials.splits * (a.out_split_stride + a.lse_split_stride) * 4);
  EXPECT_EQ(reinterpret_cast<const std::byte*>(c.partials.out_partial), memory);
  EXPECT_EQ(c.partials.out, g.o.out.data);
  EXPECT_EQ(c.from_decode, 1);

  // A size query gives the same answer.
  Plan size_query;
  plan_decode(size_query, g.p, g.o, nullptr, h200);
  EXPECT_EQ(size_query.workspace.value(), plan.workspace.value());
}

TEST(Decode, OneSplitWritesDirectlyToTheOutputs) {
  const auto planned = [](const Given& g, Chip chip) {
    Plan plan;
    plan_decode(plan, g.p, g.o, nullptr, chip);
    return names_of(plan);
  };
  Given g(64, 4096);
  EXPECT_EQ(planned(g, h200), std::vector<std::string>{"decode_bf16_128"});
  EXPECT_EQ(planned(g, mi300x).size(), 2u);  // each wave writes a partial result
  const std::int32_t used = 0;
  EXPECT_EQ(planned(g.with([&](Given& x) { x.p.lengths.used_q = &used; }), h200).size(), 2u);
}

TEST(Decode, OnlyTheCombineKernelAddsSinks) {
  const Given g = Given(1, 4096).with([](Given& x) { x.p.sinks.data = at(0x60000); });
  Plan plan;
  plan_decode(plan, g.p, g.o, at(0x100000), mi300x);
  EXPECT_FALSE(plan.arguments<Op::decode>().problem.sinks);
  EXPECT_TRUE(plan.arguments<Op::combine>().problem.sinks);
}

// MLA: 16 query heads, one latent KV head of 576 columns whose first 512 are the values.
Given mla(std::int64_t b, std::int64_t keys, std::int64_t queries = 1) {
  return Given(b, keys, queries).with([&](Given& g) {
    const Sizes sizes{.d = 576, .dv = 512, .b = b, .sq = queries, .sk = keys, .h = 16, .hk = 1};
    g.p = dense_problem(DType::bf16, sizes);
    g.p.caches = b;
    g.p.v = g.p.k;
    g.p.v.columns = 512;
    g.o.out = output(DType::bf16, sizes);
  });
}

TEST(Decode, SelectsMlaForLatentKvCaches) {
  const auto planned = [](const Given& g, Chip chip) {
    Plan plan;
    plan_decode(plan, g.p, g.o, nullptr, chip);
    return names_of(plan);
  };
  for (const Chip chip : {h200, mi300x, rx7900}) {
    EXPECT_TRUE(mla(1, 1).split(chip));
    EXPECT_TRUE(mla(1, 4096, 300).split(chip));  // forward would take the FP32 path
    EXPECT_EQ(planned(mla(1, 32768), chip),
              (std::vector<std::string>{"decode_mla_bf16_576", "combine_f32"}));
    EXPECT_GE(num_splits(mla(1, 32768).p, chip), chip.units / 2);
    // Separate values or unaligned rows select the FP32 path.
    EXPECT_FALSE(mla(1, 4096).with([](Given& g) { g.p.v.data = at(0x90000); }).split(chip));
    EXPECT_FALSE(
        mla(1, 4096).with([](Given& g) { g.p.k.data = g.p.v.data = at(0x20002); }).split(chip));
    EXPECT_FALSE(mla(1, 4096)
                     .with([](Given& g) {
                       g.p.dtype = g.p.q.dtype = g.p.k.dtype = g.p.v.dtype = DType::f32;
                     })
                     .split(chip));
  }
  // One split writes directly to the outputs, unless there are sinks.
  EXPECT_EQ(planned(mla(264, 4096), h200), std::vector<std::string>{"decode_mla_bf16_576"});
  EXPECT_EQ(
      planned(mla(264, 4096).with([](Given& g) { g.p.sinks.data = at(0x60000); }), h200).size(),
      2u);
  Plan plan;
  const Given g = mla(2, 4096);
  plan_decode(plan, g.p, g.o, nullptr, mi300x);
  EXPECT_EQ(plan.arguments<Op::combine>().partials.columns, 512);
}

TEST(Append, WritesLengthsAndRotatedQueriesToTheWorkspace) {
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
  const auto& a = plan.arguments<Op::append>();
  EXPECT_EQ(a.problem.q.data, g.p.q.data);
  EXPECT_EQ(a.q.data, after.q.data);

  // Attention reads them; its own workspace follows.
  plan_decode(plan, after, g.o, memory, mi300x);
  EXPECT_EQ(names_of(plan),
            (std::vector<std::string>{"append_f32", "decode_bf16_128", "combine_f32"}));
  EXPECT_EQ(plan.arguments<Op::decode>().out.data, memory + 64 + 3 * 2 * 32 * 128 * 2);
}

TEST(Append, NoLaunchWithoutNewKeysAndRotary) {
  const Given g(3, 4096);
  Plan plan;
  EXPECT_EQ(plan_append(plan, g.p, {}, nullptr, h200).q.data, g.p.q.data);
  EXPECT_TRUE(plan.launches().empty());
  EXPECT_EQ(plan.workspace.value(), 0);
}

TEST(Combine, SplitsFewRowsAcrossWaves) {
  EXPECT_EQ(combine_slices(132, 32, h200), 8);
  EXPECT_EQ(combine_slices(132, 32, mi300x), 4);  // waves of 64 lanes
  EXPECT_EQ(combine_slices(3, 32, h200), 2);
  EXPECT_EQ(combine_slices(132, 1 << 20, h200), 1);
  Plan plan;
  plan_combine(plan, {.splits = 3, .batch = 2, .queries = 0, .heads = 4, .columns = 8}, h200);
  EXPECT_TRUE(plan.launches().empty());
}

}  // namespace
}  // namespace rocflash::gpu
