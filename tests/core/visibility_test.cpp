// Mask bounds against the definition of the masks, key by key, for every small problem.
#include "core/visibility.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace rocflash {
namespace {

struct Setting {
  Visibility v;
  std::int64_t sq, sk;
};

std::ostream& operator<<(std::ostream& os, const Setting& s) {
  return os << "left " << s.v.left << " right " << s.v.right << " chunk " << s.v.chunk << " sq "
            << s.sq << " sk " << s.sk;
}

std::int64_t chunk_number(std::int64_t position, std::int64_t chunk) {
  return static_cast<std::int64_t>(
      std::floor(static_cast<double>(position) / static_cast<double>(chunk)));
}

// The definition: bottom-right aligned, with bounded distances, and within one chunk.
bool attends_to(const Setting& s, std::int64_t i, std::int64_t j) {
  const std::int64_t position = i + s.sk - s.sq;
  if (s.v.left >= 0 && position - j > s.v.left) return false;
  if (s.v.right >= 0 && j - position > s.v.right) return false;
  return s.v.chunk == 0 || chunk_number(position, s.v.chunk) == chunk_number(j, s.v.chunk);
}

template <class Body>
void for_every_setting(Body body) {
  for (std::int64_t sq = 1; sq <= 7; ++sq)
    for (std::int64_t sk = 0; sk <= 7; ++sk)
      for (std::int64_t left = -1; left <= 4; ++left)
        for (std::int64_t right = -1; right <= 4; ++right)
          for (std::int64_t chunk = 0; chunk <= 5; ++chunk) {
            body(Setting{{left, right, chunk}, sq, sk});
            if (testing::Test::HasFailure()) return;
          }
}

template <class Body>
void for_every_block(std::int64_t size, Body body) {
  for (std::int64_t begin = 0; begin < size; ++begin)
    for (std::int64_t end = begin + 1; end <= size; ++end) body(Range{begin, end});
}

// The smallest range that contains every x of [0, size) for which `holds` is true.
template <class Holds>
Range hull(std::int64_t size, Holds holds) {
  Range r{size, 0};
  for (std::int64_t x = 0; x < size; ++x) {
    if (!holds(x)) continue;
    r.begin = std::min(r.begin, x);
    r.end = x + 1;
  }
  return r;
}

void expect_same(const Range& got, const Range& expected, const Setting& s, const char* what) {
  if (expected.empty()) {
    EXPECT_TRUE(got.empty()) << what << " of " << s << ": got " << got.begin << ", " << got.end;
  } else {
    EXPECT_EQ(got, expected) << what << " of " << s << ": got " << got.begin << ", " << got.end
                             << " not " << expected.begin << ", " << expected.end;
  }
}

TEST(Visibility, KeysOfOneQueryMatchTheDefinition) {
  for_every_setting([](const Setting& s) {
    for (std::int64_t i = 0; i < s.sq; ++i) {
      const Range got = visible_keys(s.v, i, s.sq, s.sk);
      for (std::int64_t j = 0; j < s.sk; ++j)
        EXPECT_EQ(got.contains(j), attends_to(s, i, j)) << s << " i " << i << " j " << j;
      if (!got.empty()) {
        EXPECT_GE(got.begin, 0) << s;
        EXPECT_LE(got.end, s.sk) << s;
      }
    }
  });
}

template <class Body>
void for_every_block_of_queries(Body body) {
  for_every_setting(
      [&](const Setting& s) { for_every_block(s.sq, [&](Range queries) { body(s, queries); }); });
}

// How many of these queries attend to the key.
std::int64_t attending(const Setting& s, Range queries, std::int64_t j) {
  std::int64_t count = 0;
  for (std::int64_t i = queries.begin; i < queries.end; ++i) count += attends_to(s, i, j) ? 1 : 0;
  return count;
}

TEST(Visibility, KeysOfABlockAreTheUnion) {
  for_every_block_of_queries([](const Setting& s, Range queries) {
    const Range expected = hull(s.sk, [&](std::int64_t j) { return attending(s, queries, j) > 0; });
    expect_same(visible_keys(s.v, queries, s.sq, s.sk), expected, s, "union");
  });
}

TEST(Visibility, CommonKeysAreTheIntersection) {
  for_every_block_of_queries([](const Setting& s, Range queries) {
    const Range expected = hull(s.sk, [&](std::int64_t j) {
      return attending(s, queries, j) == queries.end - queries.begin;
    });
    expect_same(common_keys(s.v, queries, s.sq, s.sk), expected, s, "intersection");
  });
}

TEST(Visibility, AttendingQueriesAreTheInverse) {
  for_every_setting([](const Setting& s) {
    for_every_block(s.sk, [&](Range keys) {
      const Range expected = hull(s.sq, [&](std::int64_t i) {
        bool any = false;
        for (std::int64_t j = keys.begin; j < keys.end; ++j) any = any || attends_to(s, i, j);
        return any;
      });
      expect_same(attending_queries(s.v, keys, s.sq, s.sk), expected, s, "inverse");
    });
  });
}

// The blocks of keys that a query tile attends to are consecutive. Ordered dQ accumulation relies
// on it: a workgroup waits only for its predecessor (kernels/backward/rdna2_dq_ordered.hpp).
TEST(Visibility, KeyBlocksOfAQueryTileAreConsecutive) {
  for_every_setting([](const Setting& s) {
    for (std::int64_t owned = 1; owned <= 3; ++owned) {
      for (std::int64_t streamed = 1; streamed <= 3; ++streamed) {
        for (std::int64_t query = 0; query < s.sq; query += streamed) {
          int runs = 0;
          bool before = false;
          for (std::int64_t key = 0; key < s.sk; key += owned) {
            const Range attending_range =
                attending_queries(s.v, {key, smaller(key + owned, s.sk)}, s.sq, s.sk);
            const bool attends = !attending_range.empty() && query < attending_range.end &&
                                 query + streamed > attending_range.begin;
            runs += attends && !before ? 1 : 0;
            before = attends;
          }
          EXPECT_LE(runs, 1) << s << " owned " << owned << " streamed " << streamed;
        }
      }
    }
  });
}

TEST(Visibility, UnboundedMasksNothing) {
  for_every_setting([](const Setting& s) {
    if (s.v.bounded()) return;
    for (std::int64_t i = 0; i < s.sq; ++i)
      EXPECT_EQ(visible_keys(s.v, i, s.sq, s.sk), (Range{0, s.sk})) << s;
  });
}

TEST(Visibility, ChunksStartAtMultiples) {
  constexpr std::int64_t most = 0xffffffff;
  for (const std::int64_t chunk : {std::int64_t{1}, std::int64_t{2}, std::int64_t{7},
                                   std::int64_t{1} << 31, most, most + 1, INT64_MAX / 4}) {
    for (const std::int64_t position :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{6}, std::int64_t{7}, std::int64_t{1} << 31,
          most, (std::int64_t{1} << 40) + 5}) {
      EXPECT_EQ(chunk_begin(position, chunk), floor_to(position, chunk))
          << position << " " << chunk;
      EXPECT_EQ(chunk_begin(-position, chunk), floor_to(-position, chunk))
          << -position << " " << chunk;
    }
  }
}

TEST(Visibility, LongSequencesDoNotOverflow) {
  const std::int64_t sk = std::int64_t{1} << 32, sq = sk - 1;
  const Visibility causal{-1, 0, 0};
  EXPECT_EQ(visible_keys(causal, sq - 1, sq, sk), (Range{0, sk}));
  EXPECT_EQ(visible_keys(causal, 0, sq, sk), (Range{0, 2}));
  const Visibility chunked{-1, -1, INT64_MAX / 4};
  EXPECT_EQ(visible_keys(chunked, 5, sq, sk), (Range{0, sk}));
  EXPECT_EQ(attending_queries(chunked, {0, sk}, sq, sk), (Range{0, sq}));
}

}  // namespace
}  // namespace rocflash
