// Ordered dQ accumulation on gfx10, which has no f32 atomic add: blocks of keys add one after the
// other with loads and stores. The order is fixed, so dQ is deterministic.
//
//   ticket   Blocks add in ascending order of their keys. A workgroup takes its block number from
//            an atomic counter when it starts, so it waits only for workgroups that have started.
//   counter  Each query tile has a counter of the blocks that have added to it (dq_ordered.hpp). A
//            block waits for its predecessor if the tile attends to that block: the blocks that a
//            tile attends to are adjacent (core/visibility.hpp).
//   tiles    A block visits its query tiles in descending order. Under a causal or sliding-window
//            mask the predecessor has visited a tile several iterations earlier.
//
// Latency hiding: a workgroup loads the counter while it computes dV and dK, loads the accumulator
// while it computes dQ, and advances the counter during the next tile, when its stores have
// completed.
#pragma once

#include "arch/arch.hpp"
#include "attention/work_tile.hpp"
#include "backward/amd_dkdv.hpp"
#include "backward/dq_ordered.hpp"

namespace rocflash::kernel {

// The number of this workgroup: with ordered accumulation in the order in which workgroups start.
// All threads call take_ticket(); stored_ticket() reads the number again from LDS.
inline ROCFLASH_SHARED std::int32_t* ticket_storage() {
  ROCFLASH_SHARED_ARRAY std::int32_t ticket[1];
  return ticket;
}
inline std::int32_t take_ticket(const BackwardArguments& a) {
  if (arch::thread() == 0)
    *ticket_storage() = a.bh_counters ? static_cast<std::int32_t>(arch::atomic_add(a.bh_counters))
                                      : arch::workgroup_id();
  arch::barrier();
  return arch::uniform(*ticket_storage());
}
inline std::int32_t stored_ticket() { return arch::uniform(*ticket_storage()); }

// Ordered accumulation of a block of `owned` keys to tiles of `streamed` queries, which start at
// multiples of `streamed`.
template <int owned, int streamed>
class OrderedDqAccumulation {
 public:
  OrderedDqAccumulation(const Visibility& v, const SequenceView& sequence, std::int32_t block)
      : block_(static_cast<std::uint32_t>(block)) {
    if (block == 0) return;
    const Range before = AttendingQueries(v, sequence, (block - 1) * owned, owned).any;
    if (before.empty()) return;
    begin_ = arch::uniform(static_cast<std::int32_t>(before.begin));
    end_ = arch::uniform(static_cast<std::int32_t>(before.end));
  }
  // How many blocks have added to a tile; this block's own number if the tile does not attend to
  // its predecessor.
  std::uint32_t load_progress(const std::uint32_t* counter, std::int32_t query) const {
    return query < end_ && query + streamed > begin_ ? arch::load_counter(counter) : block_;
  }
  // Waits until the preceding blocks have added. Their stores are visible to later loads.
  void wait(const std::uint32_t* counter, std::uint32_t done) const {
    while (static_cast<std::uint32_t>(arch::uniform(static_cast<int>(done))) < block_) {
      arch::sleep();
      done = arch::load_counter(counter);
    }
    arch::compiler_fence();
  }
  // The stores of all waves must have completed.
  void arrive(std::uint32_t* counter) const {
    if (arch::thread() == 0) arch::atomic_max(counter, block_ + 1);
  }

 private:
  std::uint32_t block_;
  std::int32_t begin_ = 0, end_ = 0;  // queries that attend to the preceding block
};

}  // namespace rocflash::kernel
