// Static persistent tile scheduler: the work tiles of one CTA.
#pragma once

#include <cstdint>

#include "attention/arguments.hpp"

namespace rocflash::kernel {

// CTA `worker` of `workgroups`. A work tile's index is that of the workgroup that would compute it
// in a non-persistent launch (WorkTile).
//
// With `pairs`, the longest work tile of some slices is paired with their shortest, and so on.
// Under a causal mask all pairs have about the same work, and concurrent pairs share K and V. Where
// the last wave has at most half as many pairs as CTAs, each of their work tiles goes to a CTA of
// its own; those are the middle ones, of about equal length.
class TileScheduler {
 public:
  TileScheduler(const TileSchedulerParams& work, bool pairs, std::int32_t worker,
                std::int32_t workgroups)
      : work_(work), pairs_(pairs), worker_(worker), workgroups_(workgroups) {
    find();
  }
  // False after the last work tile.
  bool more() const { return number_ >= 0; }
  std::int32_t number() const { return number_; }
  void next() {
    if (other_ >= 0) {
      number_ = other_;
      other_ = -1;
      return;
    }
    first_ += workgroups_;
    find();
  }

 private:
  void find() {
    number_ = other_ = -1;
    if (!pairs_) {
      if (first_ + worker_ < work_.workgroups) number_ = first_ + worker_;
      return;
    }
    const std::int32_t together = work_.blocks * work_.bh_interleave, half = (together + 1) / 2;
    const std::int32_t left =
        work_.workgroups / together * half + (work_.workgroups % together + 1) / 2 - first_;
    const bool apart = 2 * left <= workgroups_;
    if (worker_ >= (apart ? 2 * left : left)) return;
    const bool second = apart && worker_ >= left;
    const std::int32_t pair = first_ + worker_ - (second ? left : 0);
    const std::int32_t begin = pair / half * together, rest = work_.workgroups - begin;
    const std::int32_t count = rest < together ? rest : together;
    const std::int32_t longer = begin + pair % half, shorter = begin + count - 1 - pair % half;
    if (second) {
      if (shorter != longer) number_ = shorter;
      return;
    }
    number_ = longer;
    if (!apart && shorter != longer) other_ = shorter;
  }

  const TileSchedulerParams& work_;
  bool pairs_;
  std::int32_t worker_, workgroups_, first_ = 0, number_ = -1, other_ = -1;
};

}  // namespace rocflash::kernel
