// Work partitioning: splits and blocks cover everything exactly once and suffice for many threads.
// Tiny problems are not divided.
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

// One key more than 16 multiples of decode_keys: splits have nearly the same size.
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
  Problem explicit_splits = decode_problem(1, 131072);
  explicit_splits.splits = 3;
  EXPECT_EQ(decode_splits(explicit_splits), 3);
  explicit_splits.splits = 1000;
  explicit_splits.max_k = 100;
  EXPECT_EQ(decode_splits(explicit_splits), 2);  // at most the number of tiles
}

// With a window only the visible keys are split.
TEST(DecodePlan, SplitsDependOnVisibleKeys) {
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

// A tile of keys and values of all heads of a work item fits in L2.
TEST(DecodePlan, HeadsPerWorkItem) {
  EXPECT_EQ(decode_heads(decode_problem(1, 4096)), 8);
  EXPECT_EQ(decode_heads(decode_problem(1, 4096, DType::f32)), 4);
  EXPECT_EQ(decode_head_blocks(decode_problem(1, 4096, DType::f32)), 2);
  Problem large_heads = decode_problem(1, 4096, DType::f32);
  large_heads.head_dim = large_heads.value_dim = 512;
  EXPECT_EQ(decode_heads(large_heads), 1);
  large_heads.kv_heads = 3;
  EXPECT_EQ(decode_head_blocks(large_heads), 3);
}

TEST(Plan, TinyProblemsUseOneThread) {
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
  // Lengths whose product overflows 64 bits.
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

// One KV head: each of its rows is read once for all query heads.
TEST(DecodePlan, ManyHeadsOfFewQueries) {
  Problem p = decode_problem(1, 4096);
  p.heads = 128;
  p.kv_heads = 1;
  EXPECT_TRUE(is_decode(p));
  p.max_k = 256;
  EXPECT_FALSE(is_decode(p));
}

// Sixteen rows and sixteen keys are a tile for the tiled kernels.
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

// The product of the factors is exactly the scale. Two factors are powers of two, and that of the
// streamed rows is 1 except for extreme scales. Both together are at most 2^63.
TEST(SplitScale, ProductIsExact) {
  for (const float scale :
       {1e-45f, 1e-40f, 1e-38f, 3e-20f, 0.001f, 0.125f, 0.7f, 1.0f, 3.0f, 1e6f, 2e20f, 3e38f}) {
    for (const float sign : {1.0f, -1.0f}) {
      const SplitScale parts = split_scale(sign * scale);
      EXPECT_EQ(static_cast<double>(parts.lanes) * static_cast<double>(parts.rows) *
                    static_cast<double>(parts.rest),
                static_cast<double>(sign * scale));
      EXPECT_GE(parts.rest * sign, 1);
      EXPECT_LT(parts.rest * sign, scale < 0x1p64f ? 2.0f : 0x1p65f);
      EXPECT_LE(parts.lanes * parts.rows, 0x1p63f);
      int power = 0;
      EXPECT_EQ(std::frexp(parts.lanes, &power), 0.5f);
      EXPECT_EQ(std::frexp(parts.rows, &power), 0.5f);
      EXPECT_EQ(parts.rows == 1, scale > 1e-5f && scale < 1e5f) << scale;
    }
  }
  EXPECT_EQ(split_scale(0).lanes, 0);
}

TEST(Blocks, OfQueriesSufficeForAllThreads) {
  EXPECT_EQ(forward_block(square_problem(4096, 128), 2), 1024);
  EXPECT_EQ(forward_block(square_problem(4096, 128), 8), 512);
  EXPECT_EQ(forward_block(square_problem(1024, 128), 2), 512);
  EXPECT_EQ(forward_block(square_problem(1024, 128), 16), 64);
  EXPECT_EQ(forward_block(square_problem(512, 128), 2), 256);
  EXPECT_EQ(forward_block(square_problem(64, 128), 2), 64);
}

TEST(Blocks, FitInL2) {
  EXPECT_EQ(forward_block(square_problem(8192, 128, DType::f32), 2), 512);
  EXPECT_EQ(forward_block(square_problem(8192, 256), 2), 512);
  EXPECT_EQ(forward_block(square_problem(8192, 512), 2), 256);
  EXPECT_EQ(gradient_block(square_problem(4096, 128)), 256);
  EXPECT_EQ(gradient_block(square_problem(4096, 128, DType::f32)), 128);
  EXPECT_EQ(gradient_block(square_problem(4096, 256)), 128);
  EXPECT_EQ(gradient_block(square_problem(4096, 256, DType::f32)), 64);
}

// Calls body for all combinations of lengths, heads and mask bounds.
template <class Body>
void for_each_gradient_problem(Body body) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t keys : {0, 1, 100, 256, 257, 1000, 5000, 20000})
      for (const std::int64_t heads : {1, 2, 8, 40})
        for (const std::int64_t left : {-1, 0, 100, 512, 4096})
          for (const std::int64_t right : {-1, 0, 300})
            for (const std::int64_t chunk : {0, 1, 700}) {
              Problem p = square_problem(keys, 64, dtype);
              p.heads = p.kv_heads = heads;
              p.visibility = {.left = left, .right = right, .chunk = chunk};
              body(p, key_partition(p, p.batch() * p.kv_heads));
            }
}

TEST(KeyPartition, UnitsWithACommonCopyShareASplitOrNoQuery) {
  for_each_gradient_problem([](const Problem& p, const KeyPartition& g) {
    const std::int64_t units = blocks_of(p.max_k, g.unit);
    EXPECT_EQ(g.unit % gradient_block(p), 0);
    const auto attending = [&](std::int64_t unit) {
      const Range keys{unit * g.unit, smaller(p.max_k, (unit + 1) * g.unit)};
      return attending_queries(p.visibility, keys, p.max_q, p.max_k);
    };
    for (std::int64_t a = 0; a < units; ++a)
      for (std::int64_t b = a + g.copies; b < units; b += g.copies)
        EXPECT_TRUE(a % g.parts == b % g.parts || attending(a).end <= attending(b).begin)
            << "units " << a << " and " << b << " of " << p.max_k << " keys";
  });
}

TEST(KeyPartition, CopiesOfAQueryAreThoseOfItsVisibleUnits) {
  for_each_gradient_problem([](const Problem& p, const KeyPartition& g) {
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

TEST(KeyPartition, SufficesForManyThreadsWithFewCopies) {
  const auto parts = [](std::int64_t rows, std::int64_t heads, Visibility v) {
    Problem p = square_problem(rows, 64);
    p.heads = p.kv_heads = heads;
    p.visibility = v;
    return key_partition(p, p.batch() * p.kv_heads);
  };
  // Unmasked and causal: one copy per split, at most eight.
  for (const Visibility v : {Visibility{}, Visibility{.right = 0}}) {
    EXPECT_EQ(parts(16384, 8, v).copies, 4);
    EXPECT_EQ(parts(16384, 1, v).copies, 8);
    EXPECT_EQ(parts(16384, 1, v).parts, 8);
    EXPECT_EQ(parts(200, 1, v).parts, 1);
  }
  // A window or chunk much shorter than the sequence: two copies.
  for (const Visibility v : {Visibility{.left = 512, .right = 0}, Visibility{.chunk = 512}}) {
    EXPECT_EQ(parts(16384, 2, v).copies, 2);
    EXPECT_EQ(parts(16384, 2, v).parts, 16);
    EXPECT_EQ(parts(65536, 1, v).copies, 2);
    EXPECT_EQ(parts(65536, 1, v).parts, 32);
  }
  // One split needs one copy for every mask.
  EXPECT_EQ(parts(16384, 32, {.left = 512, .right = 0}).copies, 1);
  // Bounds beyond the sequence have no effect.
  constexpr std::int64_t far = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(parts(16384, 1, {.left = far, .right = far}).copies, 8);
  for_each_gradient_problem([](Problem p, const KeyPartition& g) {
    p.visibility = {};
    EXPECT_LE(g.copies, key_partition(p, p.batch() * p.kv_heads).copies);
    EXPECT_GE(g.parts, key_partition(p, p.batch() * p.kv_heads).parts / 2);
  });
}

// Calls body for all broadcasts of a bias over batch and heads: strides are 0 in broadcast
// dimensions.
template <class Body>
void for_each_bias_problem(Body body) {
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

TEST(BiasSharing, EachSliceIsAMemberOfOneSet) {
  for_each_bias_problem([](const Problem& p, const BackwardTensors& t) {
    const BiasSharing s = bias_sharing(p, t);
    std::vector<int> visits(static_cast<std::size_t>(p.batch() * p.kv_heads), 0);
    for (std::int64_t set = 0; set < s.sets; ++set) {
      const auto first = s.bh(set, 0);
      for (std::int64_t n = 0; n < s.members; ++n) {
        const auto bh = s.bh(set, n);
        ++visits[static_cast<std::size_t>(bh.batch * p.kv_heads + bh.kv_head)];
        // Exactly the members of a set accumulate to the same elements.
        if (t.dbias.batch_stride) EXPECT_EQ(bh.batch, first.batch);
        if (t.dbias.head_stride) EXPECT_EQ(bh.kv_head, first.kv_head);
      }
    }
    for (const int times : visits) EXPECT_EQ(times, 1);
  });
}

TEST(BiasSharing, FewAccumulatorsForManyThreads) {
  for_each_bias_problem([](const Problem& p, const BackwardTensors& t) {
    const BiasSharing s = bias_sharing(p, t);
    EXPECT_LE(s.slots, 8);
    EXPECT_LE(s.slots, larger(1, s.members));
    if (p.batch() > 0) EXPECT_GE(s.sets * s.slots, smaller(8, p.batch() * p.kv_heads));
    if (s.sets >= target_backward_items) EXPECT_EQ(s.slots, 1);
  });
  const Problem p = square_problem(100, 64);
  EXPECT_EQ(bias_sharing(p, {}).slots, 1);
  EXPECT_EQ(bias_sharing(p, {}).members, 1);
}

}  // namespace
}  // namespace rocflash::cpu
