// The query tiles of a key block: each query that attends to a key is in one of them, and tiles
// without a mask need none.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "arch/host.hpp"

// Device functions that the included headers name; none of them is called here.
#define ROCFLASH_SHARED_ARRAY static
namespace rocflash::kernel::arch {
inline float readlane(float x, int) { return x; }
inline int thread() { return 0; }
inline void barrier() {}
}  // namespace rocflash::kernel::arch

#include "backward/query_tiles.hpp"

namespace rocflash::kernel {
namespace {

constexpr int owned = 128, streamed = 64;
using Tiles = QueryTiles<owned, streamed>;

void expect_tiles(const Visibility& visibility, std::int32_t sq, std::int32_t sk) {
  Problem p;
  p.visibility = visibility;
  p.lengths = {.batch = 1, .rows_q = sq, .rows_k = sk};
  p.max_q = sq;
  p.max_k = sk;
  const SequenceView sequence(p, 0);
  for (std::int32_t begin = 0; begin < sk; begin += owned) {
    const Tiles tiles(visibility, sequence, begin);
    std::set<std::int32_t> firsts;
    std::int32_t query = tiles.start;
    for (std::int32_t n = 0; n < tiles.count; ++n) {
      EXPECT_EQ(query % DqAccumulator::rows, 0);
      EXPECT_TRUE(firsts.insert(query).second) << query;
      const bool edge = query < tiles.common_begin || query + streamed > tiles.common_end;
      for (std::int32_t i = query; !edge && i < query + streamed; ++i) {
        ASSERT_LT(i, sq);
        const Range keys = visible_keys(visibility, i, sq, sk);
        EXPECT_LE(keys.begin, begin);
        EXPECT_GE(keys.end, begin + owned);
      }
      query += streamed;
      if (query >= tiles.end) query = tiles.first;
    }
    if (tiles.count > 0) EXPECT_EQ(query, tiles.start);  // wrapped around once
    for (std::int32_t i = 0; i < sq; ++i) {
      const Range keys = visible_keys(visibility, i, sq, sk);
      const bool attends_to = keys.begin < begin + owned && keys.end > begin && !keys.empty();
      bool included = false;
      for (const std::int32_t first : firsts) included |= i >= first && i < first + streamed;
      EXPECT_TRUE(included || !attends_to) << "query " << i << ", keys from " << begin;
    }
  }
}

TEST(QueryTiles, IncludeEveryQueryThatAttendsToAKey) {
  const Visibility visible[] = {{}, {-1, 0}, {100, 20}, {0, 0}, {-1, -1, 70}, {40, 0, 90}};
  for (const Visibility& visibility : visible)
    for (const auto& [sq, sk] : {std::pair{1, 1}, {64, 128}, {500, 300}, {77, 700}, {300, 129}})
      expect_tiles(visibility, sq, sk);
}

TEST(QueryTiles, AdjacentBlocksStartWithDifferentTiles) {
  Problem p;
  p.lengths = {.batch = 1, .rows_q = 1024, .rows_k = 1024};
  p.max_q = p.max_k = 1024;
  const SequenceView sequence(p, 0);
  std::set<std::int32_t> starts;
  for (std::int32_t begin = 0; begin < 1024; begin += owned)
    EXPECT_TRUE(starts.insert(Tiles({}, sequence, begin).start).second);
}

// Ordered dQ accumulation: all blocks have the same query tiles, in ascending order, and
// blocks_before counts the blocks that precede a block at a tile, in descending order of blocks.
template <int keys>
void expect_ordered(const Visibility& visibility, std::int32_t sq, std::int32_t sk) {
  Problem p;
  p.visibility = visibility;
  p.lengths = {.batch = 1, .rows_q = sq, .rows_k = sk};
  p.max_q = sq;
  p.max_k = sk;
  const SequenceView sequence(p, 0);
  const MaskBounds bounds(visibility, sq, sk);
  std::map<std::int32_t, std::int32_t> preceding;  // blocks so far, by the tile's first query
  for (std::int32_t block = (sk - 1) / keys; block >= 0; --block) {
    const QueryTiles<keys, streamed> tiles(visibility, sequence, keys * block, true);
    EXPECT_EQ(tiles.start, tiles.first);
    for (std::int32_t n = 0; n < tiles.count; ++n) {
      const std::int32_t query = tiles.start + n * streamed;
      EXPECT_EQ(query % streamed, 0);
      EXPECT_EQ((blocks_before<keys, streamed>(bounds, block, query)), preceding[query]++)
          << "query " << query << ", block " << block;
    }
  }
}

TEST(QueryTiles, BlocksBeforeIsTheAccumulationOrder) {
  const Visibility visible[] = {{},           {-1, 0},     {100, 20}, {0, 0},
                                {-1, -1, 70}, {40, 0, 90}, {300, -1}};
  for (const Visibility& visibility : visible)
    for (const auto& [sq, sk] : {std::pair{1, 1}, {64, 128}, {900, 300}, {77, 700}, {1000, 1000}}) {
      expect_ordered<128>(visibility, sq, sk);
      expect_ordered<64>(visibility, sq, sk);  // more than 128 columns
    }
}

}  // namespace
}  // namespace rocflash::kernel
