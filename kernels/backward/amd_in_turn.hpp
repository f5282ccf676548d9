// How workgroups that own keys add to the sums of dq on GPUs that cannot add f32 to memory (gfx10): one after the
// other, by plain loads and stores. The order is fixed, so dq has the same bits on every run.
//
//   order    Blocks of keys follow each other, the first keys first. A block's number is given out when its workgroup
//            starts, so a workgroup only waits for others that have started, in whatever order the hardware starts them.
//   turn     A tile of queries has a counter, how many blocks are done with it (turns.hpp). A block waits for the one
//            before it, if that one meets the tile: blocks that meet a tile are neighbours (core/visibility.hpp).
//   tiles    A block walks down its tiles, from the last queries on. Under a causal mask or a window the block before was
//            there some tiles earlier.
//
// A workgroup asks for its turn while dV and dK are computed, loads the sums while dQ is, and passes the turn during the
// next tile, when its stores have long arrived.
#pragma once

#include "arch/arch.hpp"
#include "attention/work.hpp"
#include "backward/amd_keys.hpp"
#include "backward/turns.hpp"

namespace rocflash::kernel {

// The number of this workgroup, in the order of their starts where blocks take turns. By all threads; then again at
// any time from LDS.
inline ROCFLASH_SHARED std::int32_t* start_number_room() {
  ROCFLASH_SHARED_ARRAY std::int32_t room[1];
  return room;
}
inline std::int32_t start_number(const BackwardArguments& a) {
  if (arch::thread() == 0)
    *start_number_room() =
        a.planes ? static_cast<std::int32_t>(arch::count(a.planes)) : arch::group();
  arch::barrier();
  return arch::uniform(*start_number_room());
}
inline std::int32_t start_number_again() { return arch::uniform(*start_number_room()); }

// The turns of a block of `owned` keys at tiles of `streamed` queries, which start at multiples of it.
template <int owned, int streamed>
class KeyTurns {
 public:
  KeyTurns(const Visibility& v, const SequenceView& sequence, std::int32_t block)
      : block_(static_cast<std::uint32_t>(block)) {
    if (block == 0) return;
    const Range before = SeeingQueries(v, sequence, (block - 1) * owned, owned).any;
    if (before.empty()) return;
    begin_ = arch::uniform(static_cast<std::int32_t>(before.begin));
    end_ = arch::uniform(static_cast<std::int32_t>(before.end));
  }
  // How many blocks are done with a tile, as far as this one has to know.
  std::uint32_t ask(const std::uint32_t* counter, std::int32_t query) const {
    return query < end_ && query + streamed > begin_ ? arch::load_counter(counter) : block_;
  }
  // Until it is this block's turn. Loads behind it find what the others have stored.
  void wait(const std::uint32_t* counter, std::uint32_t done) const {
    while (static_cast<std::uint32_t>(arch::uniform(static_cast<int>(done))) < block_) {
      arch::pause();
      done = arch::load_counter(counter);
    }
    arch::keep_accesses();
  }
  // All waves' stores have arrived.
  void pass(std::uint32_t* counter) const {
    if (arch::thread() == 0) arch::raise_counter(counter, block_ + 1);
  }

 private:
  std::uint32_t block_;
  std::int32_t begin_ = 0, end_ = 0;  // queries that the block before meets
};

}  // namespace rocflash::kernel
