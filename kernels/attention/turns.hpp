// Which blocks of queries a workgroup takes that stays on its multiprocessor.
#pragma once

#include <cstdint>

#include "attention/arguments.hpp"

namespace rocflash::kernel {

// Workgroup `worker` of `groups` takes one block after the other; a block's number is that of the
// workgroup that would have it in a launch with one each (WorkItem).
//
// In pairs, the longest block of some planes comes with their shortest, and so on: under a causal mask
// all pairs have about the same work, and those that run together share their planes' keys. Where the
// last pairs are half as many as workgroups or fewer, each of their blocks has a workgroup of its own:
// those are the middle ones, and about equal.
class BlockTurns {
 public:
  BlockTurns(const Work& work, bool pairs, std::int32_t worker, std::int32_t groups)
      : work_(work), pairs_(pairs), worker_(worker), groups_(groups) {
    find();
  }
  // False after the last one.
  bool more() const { return number_ >= 0; }
  std::int32_t number() const { return number_; }
  void next() {
    if (other_ >= 0) {
      number_ = other_;
      other_ = -1;
      return;
    }
    first_ += groups_;
    find();
  }

 private:
  void find() {
    number_ = other_ = -1;
    if (!pairs_) {
      if (first_ + worker_ < work_.groups) number_ = first_ + worker_;
      return;
    }
    const std::int32_t together = work_.blocks * work_.planes_together, half = (together + 1) / 2;
    const std::int32_t left =
        work_.groups / together * half + (work_.groups % together + 1) / 2 - first_;
    const bool apart = 2 * left <= groups_;
    if (worker_ >= (apart ? 2 * left : left)) return;
    const bool second = apart && worker_ >= left;
    const std::int32_t pair = first_ + worker_ - (second ? left : 0);
    const std::int32_t begin = pair / half * together, rest = work_.groups - begin;
    const std::int32_t count = rest < together ? rest : together;
    const std::int32_t longer = begin + pair % half, shorter = begin + count - 1 - pair % half;
    if (second) {
      if (shorter != longer) number_ = shorter;
      return;
    }
    number_ = longer;
    if (!apart && shorter != longer) other_ = shorter;
  }

  const Work& work_;
  bool pairs_;
  std::int32_t worker_, groups_, first_ = 0, number_ = -1, other_ = -1;
};

}  // namespace rocflash::kernel
