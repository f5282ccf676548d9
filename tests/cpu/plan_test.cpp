// How work is divided. Decode's keys and heads: everything once, nothing twice, enough for many
// threads; and what is too little to be divided.
#include "cpu/plan.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include <limits>
#include <vector>

namespace rocflash::cpu {
namespace {

Problem decode_problem(std::int64_t batch, std::int64_t keys, DType cache = DType::bf16) {
  Problem p;
  p.heads = 32;
  p.kv_heads = 8;
  p.head_dim = p.value_dim = 128;
  p.k.dtype = p.v.dtype = cache;
  p.lengths.batch = batch;
  p.max_q = 1;
  p.max_k = keys;
  return p;
}

TEST(DecodePlan, SplitsCoverAllKeysOnce) {
  for (const Range keys : {Range{0, 1}, {0, 64}, {8, 1000}, {0, 131072}, {5, 5}}) {
    for (const int splits : {1, 2, 3, 16, 64, 1000}) {
      std::int64_t at = keys.begin;
      for (int n = 0; n < splits; ++n) {
        const Range part = split_of(keys, n, splits);
        if (part.empty()) continue;
        EXPECT_EQ(part.begin, at);
        EXPECT_EQ((part.begin - keys.begin) % decode_keys, 0);
        at = part.end;
      }
      EXPECT_EQ(at, keys.end);
    }
  }
}

// One key more than 16 pieces: no thread gets a share that is much smaller or larger.
TEST(DecodePlan, SplitsAreEven) {
  const Range keys{0, 16 * decode_keys + 1};
  for (int n = 0; n < 4; ++n) {
    EXPECT_GE(split_of(keys, n, 4).size(), 4 * decode_keys);
    EXPECT_LE(split_of(keys, n, 4).size(), 4 * decode_keys + 1);
  }
}

TEST(DecodePlan, LongCachesAreSplitAndShortOnesAreNot) {
  EXPECT_EQ(decode_splits(decode_problem(1, 0)), 1);
  EXPECT_EQ(decode_splits(decode_problem(1, 200)), 1);
  EXPECT_EQ(decode_splits(decode_problem(1, 4096)), 16);
  EXPECT_EQ(decode_splits(decode_problem(1, 131072)), 64);
  EXPECT_EQ(decode_splits(decode_problem(64, 131072)), 1);
  Problem told = decode_problem(1, 131072);
  told.splits = 3;
  EXPECT_EQ(decode_splits(told), 3);
  told.splits = 1000;
  told.max_k = 100;
  EXPECT_EQ(decode_splits(told), 2);  // no more than there are tiles
}

// A window makes a long cache a short one.
TEST(DecodePlan, SplitsFollowWhatIsVisible) {
  Problem p = decode_problem(1, 131072);
  p.visibility = {.left = 0, .right = 0};
  EXPECT_EQ(decode_splits(p), 1);
  p.visibility = {.left = 4096, .right = 0};
  EXPECT_EQ(decode_splits(p), 16);
  p.visibility = {.left = -1, .right = 0};
  EXPECT_EQ(decode_splits(p), 64);
  p.visibility = {.chunk = 100};
  EXPECT_EQ(decode_splits(p), 1);
  for (const std::int64_t chunk : {1, 7, 64}) {
    for (const std::int64_t left : {-1, 0, 5}) {
      p.visibility = {.left = left, .right = 3, .chunk = chunk};
      p.max_q = 4;
      for (std::int64_t keys = 4; keys < 300; ++keys)
        EXPECT_LE(visible_keys(p.visibility, Range{0, 4}, 4, keys).size(), decode_reach(p));
    }
  }
}

// A tile of keys and values of the heads that take turns fits into the second-level cache.
TEST(DecodePlan, HeadsThatTakeTurns) {
  EXPECT_EQ(decode_heads(decode_problem(1, 4096)), 8);
  EXPECT_EQ(decode_heads(decode_problem(1, 4096, DType::f32)), 4);
  EXPECT_EQ(decode_head_groups(decode_problem(1, 4096, DType::f32)), 2);
  Problem wide = decode_problem(1, 4096, DType::f32);
  wide.head_dim = wide.value_dim = 512;
  EXPECT_EQ(decode_heads(wide), 1);
  wide.kv_heads = 3;
  EXPECT_EQ(decode_head_groups(wide), 3);
}

TEST(Plan, TinyProblemsAreLeftToOneThread) {
  Problem p;
  p.lengths.batch = 1;
  p.heads = p.kv_heads = 8;
  p.head_dim = p.value_dim = 64;
  const auto tiny = [&](std::int64_t q, std::int64_t k) {
    p.max_q = q;
    p.max_k = k;
    return is_tiny(p);
  };
  EXPECT_TRUE(tiny(0, 0));
  EXPECT_TRUE(tiny(1, 1));
  EXPECT_TRUE(tiny(16, 16));
  EXPECT_FALSE(tiny(32, 32));
  EXPECT_FALSE(tiny(1, 4096));
  // Lengths whose product has no room in 64 bits.
  EXPECT_FALSE(tiny(std::int64_t{1} << 40, std::int64_t{1} << 40));
  EXPECT_FALSE(tiny(1, std::int64_t{1} << 62));
}

TEST(DecodePlan, FewRowsOnly) {
  const auto decodes = [](std::int64_t rows) {
    Problem p = decode_problem(1, 4096);
    p.max_q = rows;
    return is_decode(p);
  };
  for (const std::int64_t rows : {1, 4}) EXPECT_TRUE(decodes(rows)) << rows;
  for (const std::int64_t rows : {5, 0}) EXPECT_FALSE(decodes(rows)) << rows;
}

// One key head for all: each of its rows is read once, for however many heads there are.
TEST(DecodePlan, ManyHeadsOfFewQueries) {
  Problem p = decode_problem(1, 4096);
  p.heads = 128;
  p.kv_heads = 1;
  EXPECT_TRUE(is_decode(p));
  p.max_k = 256;
  EXPECT_FALSE(is_decode(p));
}

// Sixteen rows of as many keys are a tile.
TEST(DecodePlan, FewRowsAmongMoreKeys) {
  Problem p = decode_problem(1, 16);
  EXPECT_TRUE(is_decode(p));
  p.max_q = 4;
  EXPECT_FALSE(is_decode(p));
  p.max_k = 64;
  EXPECT_TRUE(is_decode(p));
}

Problem square_problem(std::int64_t rows, int columns, DType dtype = DType::bf16) {
  Problem p;
  p.dtype = dtype;
  p.heads = p.kv_heads = 8;
  p.head_dim = p.value_dim = columns;
  p.lengths.batch = 1;
  p.lengths.rows_q = p.lengths.rows_k = p.max_q = p.max_k = rows;
  return p;
}

// The factors are the scale, to the last bit; powers of two but for the rest; and only extreme
// scales touch the rows that stream past.
TEST(ScaleParts, AreTheScale) {
  for (const float scale :
       {1e-45f, 1e-40f, 1e-38f, 3e-20f, 0.001f, 0.125f, 0.7f, 1.0f, 3.0f, 1e6f, 2e20f, 3e38f}) {
    for (const float sign : {1.0f, -1.0f}) {
      const ScaleParts parts = scale_parts(sign * scale);
      EXPECT_EQ(static_cast<double>(parts.lanes) * static_cast<double>(parts.rows) *
                    static_cast<double>(parts.rest),
                static_cast<double>(sign * scale));
      EXPECT_GE(parts.rest * sign, 1);
      EXPECT_LT(parts.rest * sign, 2);
      int power = 0;
      EXPECT_EQ(std::frexp(parts.lanes, &power), 0.5f);
      EXPECT_EQ(std::frexp(parts.rows, &power), 0.5f);
      EXPECT_EQ(parts.rows == 1, scale > 1e-5f && scale < 1e5f) << scale;
    }
  }
  EXPECT_EQ(scale_parts(0).lanes, 0);
}

TEST(Blocks, OfQueriesLeaveWorkForAllThreads) {
  EXPECT_EQ(forward_block(square_problem(4096, 128), 2), 1024);
  EXPECT_EQ(forward_block(square_problem(4096, 128), 8), 512);
  EXPECT_EQ(forward_block(square_problem(1024, 128), 2), 512);
  EXPECT_EQ(forward_block(square_problem(1024, 128), 16), 64);
  EXPECT_EQ(forward_block(square_problem(512, 128), 2), 256);
  EXPECT_EQ(forward_block(square_problem(64, 128), 2), 64);
}

TEST(Blocks, FitTheSecondLevelCache) {
  EXPECT_EQ(forward_block(square_problem(8192, 128, DType::f32), 2), 512);
  EXPECT_EQ(forward_block(square_problem(8192, 256), 2), 512);
  EXPECT_EQ(forward_block(square_problem(8192, 512), 2), 256);
  EXPECT_EQ(gradient_block(square_problem(4096, 128)), 256);
  EXPECT_EQ(gradient_block(square_problem(4096, 128, DType::f32)), 128);
  EXPECT_EQ(gradient_block(square_problem(4096, 256)), 128);
  EXPECT_EQ(gradient_block(square_problem(4096, 256, DType::f32)), 64);
}

// Every combination of bounds that may matter, on one or more sequences.
template <class Body>
void over_gradient_problems(Body body) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t keys : {0, 1, 100, 256, 257, 1000, 5000, 20000})
      for (const std::int64_t heads : {1, 2, 8, 40})
        for (const std::int64_t left : {-1, 0, 100, 512, 4096})
          for (const std::int64_t right : {-1, 0, 300})
            for (const std::int64_t chunk : {0, 1, 700}) {
              Problem p = square_problem(keys, 64, dtype);
              p.heads = p.kv_heads = heads;
              p.visibility = {.left = left, .right = right, .chunk = chunk};
              body(p, gradient_parts(p, p.batch() * p.kv_heads));
            }
}

TEST(GradientParts, UnitsWithACommonCopyHaveAPartOrNoQueryInCommon) {
  over_gradient_problems([](const Problem& p, const GradientParts& g) {
    const std::int64_t units = blocks_of(p.max_k, g.unit);
    EXPECT_EQ(g.unit % gradient_block(p), 0);
    const auto seeing = [&](std::int64_t unit) {
      const Range keys{unit * g.unit, smaller(p.max_k, (unit + 1) * g.unit)};
      return seeing_queries(p.visibility, keys, p.max_q, p.max_k);
    };
    for (std::int64_t a = 0; a < units; ++a)
      for (std::int64_t b = a + g.copies; b < units; b += g.copies)
        EXPECT_TRUE(a % g.parts == b % g.parts || seeing(a).end <= seeing(b).begin)
            << "units " << a << " and " << b << " of " << p.max_k << " keys";
  });
}

TEST(GradientParts, AQueryFindsTheCopiesOfTheUnitsThatItSees) {
  over_gradient_problems([](const Problem& p, const GradientParts& g) {
    for (std::int64_t i = 0; i < p.max_q; i += 37) {
      const Range keys = visible_keys(p.visibility, i, p.max_q, p.max_k);
      std::uint64_t wanted = 0, got = 0;
      for (std::int64_t j = keys.begin; j < keys.end; j += gradient_block(p))
        wanted |= 1u << j / g.unit % g.copies;
      if (!keys.empty()) wanted |= 1u << (keys.end - 1) / g.unit % g.copies;
      const Copies c = copies_of(g, keys);
      for (std::int64_t n = 0; n < c.count; ++n) got |= 1u << (c.first + n) % g.copies;
      EXPECT_EQ(got, wanted) << "query " << i << " of " << p.max_q;
    }
  });
}

TEST(GradientParts, KeepManyThreadsBusyWithFewCopies) {
  const auto parts = [](std::int64_t rows, std::int64_t heads, Visibility v) {
    Problem p = square_problem(rows, 64);
    p.heads = p.kv_heads = heads;
    p.visibility = v;
    return gradient_parts(p, p.batch() * p.kv_heads);
  };
  // Whole and causal: a copy for each part, and no more than eight.
  for (const Visibility v : {Visibility{}, Visibility{.right = 0}}) {
    EXPECT_EQ(parts(16384, 8, v).copies, 4);
    EXPECT_EQ(parts(16384, 1, v).copies, 8);
    EXPECT_EQ(parts(16384, 1, v).parts, 8);
    EXPECT_EQ(parts(200, 1, v).parts, 1);
  }
  // A window or a chunk that is short beside the sequence: two.
  for (const Visibility v : {Visibility{.left = 512, .right = 0}, Visibility{.chunk = 512}}) {
    EXPECT_EQ(parts(16384, 2, v).copies, 2);
    EXPECT_EQ(parts(16384, 2, v).parts, 16);
    EXPECT_EQ(parts(65536, 1, v).copies, 2);
    EXPECT_EQ(parts(65536, 1, v).parts, 32);
  }
  // One part needs one copy, whatever it sees.
  EXPECT_EQ(parts(16384, 32, {.left = 512, .right = 0}).copies, 1);
  // Bounds beyond the sequence are none, however large.
  constexpr std::int64_t far = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(parts(16384, 1, {.left = far, .right = far}).copies, 8);
  over_gradient_problems([](Problem p, const GradientParts& g) {
    p.visibility = {};
    EXPECT_LE(g.copies, gradient_parts(p, p.batch() * p.kv_heads).copies);
    EXPECT_GE(g.parts, gradient_parts(p, p.batch() * p.kv_heads).parts / 2);
  });
}

// Any bias: its gradient's strides are 0 where it has one element.
template <class Body>
void over_bias_problems(Body body) {
  for (const std::int64_t batch : {0, 1, 3, 100})
    for (const std::int64_t kv_heads : {1, 5, 64})
      for (const int spans : {0, 1, 2, 3}) {
        Problem p = square_problem(100, 64);
        p.lengths.batch = batch;
        p.heads = 2 * kv_heads;
        p.kv_heads = kv_heads;
        BackwardTensors t;
        static std::byte some;
        t.dbias = {&some, DType::f32, spans & 1 ? 7 : 0, spans & 2 ? 7 : 0, 7, 1};
        body(p, t);
      }
}

TEST(BiasSharing, EachPlaneIsAMemberOnce) {
  over_bias_problems([](const Problem& p, const BackwardTensors& t) {
    const BiasSharing s = bias_sharing(p, t);
    std::vector<int> seen(static_cast<std::size_t>(p.batch() * p.kv_heads), 0);
    for (std::int64_t set = 0; set < s.sets; ++set) {
      const auto first = s.plane(set, 0);
      for (std::int64_t n = 0; n < s.members; ++n) {
        const auto plane = s.plane(set, n);
        ++seen[static_cast<std::size_t>(plane.batch * p.kv_heads + plane.kv_head)];
        // All of a set, and no others, add to the same elements.
        if (t.dbias.batch_stride) EXPECT_EQ(plane.batch, first.batch);
        if (t.dbias.head_stride) EXPECT_EQ(plane.kv_head, first.kv_head);
      }
    }
    for (const int times : seen) EXPECT_EQ(times, 1);
  });
}

TEST(BiasSharing, FewSumsForManyThreads) {
  over_bias_problems([](const Problem& p, const BackwardTensors& t) {
    const BiasSharing s = bias_sharing(p, t);
    EXPECT_LE(s.slots, 8);
    EXPECT_LE(s.slots, larger(1, s.members));
    if (p.batch() > 0) EXPECT_GE(s.sets * s.slots, smaller(8, p.batch() * p.kv_heads));
    if (s.sets >= wanted_gradient_items) EXPECT_EQ(s.slots, 1);
  });
  const Problem p = square_problem(100, 64);
  EXPECT_EQ(bias_sharing(p, {}).slots, 1);
  EXPECT_EQ(bias_sharing(p, {}).members, 1);
}

}  // namespace
}  // namespace rocflash::cpu
