// The query tiles that attend to a block of keys, one head of the GQA group after the other.
#pragma once

#include <cstdint>

#include "attention/mask_bounds.hpp"
#include "attention/score_mod.hpp"
#include "attention/sequence.hpp"
#include "backward/dq_accumulator.hpp"

namespace rocflash::kernel {

// Query tiles of `streamed` rows for a block of `owned` keys; the same for each head.
template <int owned, int streamed>
struct QueryTiles {
  std::int32_t first, end;  // queries that attend to any key, from a dQ accumulator block on
  // Queries that attend to all keys of the block: their tiles need no mask. Out-of-bounds keys are
  // masked.
  std::int32_t common_begin = 0, common_end = 0;
  std::int32_t count;  // tiles of a head
  // Blocks start with different tiles, so that concurrent workgroups do not add to the same dQ
  // rows.
  std::int32_t start;

  // `ordered`: deterministic dQ accumulation, where blocks of keys add to the dQ of a tile in
  // descending order. Tiles are aligned for all blocks and ascend: under a causal mask the
  // preceding blocks are several tiles further.
  QueryTiles(const Visibility& visibility, const SequenceView& sequence, std::int32_t block_begin,
             bool ordered = false) {
    const std::int32_t grain = ordered ? streamed : DqAccumulator::rows;
    const AttendingQueries attending(visibility, sequence, block_begin, owned);
    first = static_cast<std::int32_t>(attending.any.begin / grain * grain);
    end = static_cast<std::int32_t>(attending.any.end);
    if (block_begin + owned <= sequence.sk) {
      common_begin = static_cast<std::int32_t>(attending.all.begin);
      common_end = static_cast<std::int32_t>(attending.all.end);
    }
    count = attending.any.empty() ? 0 : (end - first + streamed - 1) / streamed;
    start = first;
    if (count > 0) start += (ordered ? 0 : block_begin / owned % count) * streamed;
  }
};

// How many blocks of keys add to the dQ of the tile of `streamed` queries from `query` on before
// this block does. Blocks add in descending order; only blocks to whose keys some of the queries
// attend count.
template <int owned, int streamed>
constexpr std::int32_t blocks_before(const MaskBounds& bounds, std::int32_t block,
                                     std::int32_t query) {
  const std::int32_t last = (query + streamed < bounds.sq ? query + streamed : bounds.sq) - 1;
  return (bounds.end(last) - 1) / owned - block;
}

}  // namespace rocflash::kernel
