// The tiles of queries that a block of keys meets, of one head after the other.
#pragma once

#include <cstdint>

#include "attention/sequence.hpp"
#include "attention/sight.hpp"
#include "backward/dq_sums.hpp"
#include "backward/gradient.hpp"

namespace rocflash::kernel {

// Of blocks of `owned` keys and tiles of `streamed` queries: where tiles are, the same for each head.
template <int owned, int streamed>
struct QueryTiles {
  std::int32_t first, end;  // queries that see some of the keys, from a block of the sums on
  // Queries that see all keys: their tiles need no mask. Keys that are not in use are hidden as others are.
  std::int32_t common_begin = 0, common_end = 0;
  std::int32_t count;  // tiles of a head
  // Blocks start with different tiles, so that workgroups do not all add to the same sums at a time.
  std::int32_t start;

  // `in_order`: blocks of keys add to the sums of a tile one after the other, the last ones first. Tiles are the
  // same for all of them. They walk up: under a mask each finds the blocks before it ahead of itself.
  QueryTiles(const Visibility& visibility, const SequenceView& sequence, std::int32_t block_begin,
             bool in_order = false) {
    const std::int32_t grain = in_order ? streamed : DqSums::rows;
    const SeeingQueries seeing(visibility, sequence, block_begin, owned);
    first = static_cast<std::int32_t>(seeing.any.begin / grain * grain);
    end = static_cast<std::int32_t>(seeing.any.end);
    if (block_begin + owned <= sequence.sk) {
      common_begin = static_cast<std::int32_t>(seeing.all.begin);
      common_end = static_cast<std::int32_t>(seeing.all.end);
    }
    count = seeing.any.empty() ? 0 : (end - first + streamed - 1) / streamed;
    start = first;
    if (count > 0) start += (in_order ? 0 : block_begin / owned % count) * streamed;
  }
};

// Of blocks of `owned` keys: how many come before this one at the tile of `streamed` queries from `query` on, which
// it meets itself. Later blocks come first: all whose keys some of these queries see.
template <int owned, int streamed>
constexpr std::int32_t blocks_before(const Sight& sight, std::int32_t block, std::int32_t query) {
  const std::int32_t last = (query + streamed < sight.sq ? query + streamed : sight.sq) - 1;
  return (sight.end(last) - 1) / owned - block;
}

}  // namespace rocflash::kernel
