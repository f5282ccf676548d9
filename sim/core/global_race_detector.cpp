#include "core/global_race_detector.h"

#include <algorithm>

namespace rocflash::sim {

std::optional<u64> GlobalRaceDetector::write(u64 group, u64 address, u32 bytes) {
  WorkgroupClock& self = groups_[group];
  for (u64 at = address & ~3ull; at < address + bytes; at += 4) {
    u8 mask = 0;
    for (u64 b = 0; b < 4; ++b) {
      if (at + b >= address && at + b < address + bytes) mask |= u8(1u << b);
    }
    Writer& last = writers_[at];
    const bool same = last.group == group;
    if (!same && (last.bytes & mask) != 0) {
      const auto observed = self.clock.find(last.group);
      if (observed == self.clock.end() || observed->second <= last.release) return last.group;
    }
    last = {group, self.release, same ? u8(last.bytes | mask) : mask};
  }
  return {};
}

void GlobalRaceDetector::read(u64 group, u64 address) {
  const auto word = sync_words_.find(address & ~3ull);
  if (word == sync_words_.end()) return;
  WorkgroupClock& self = groups_[group];
  u64& version = self.versions[word->first];
  if (version == word->second.version) return;
  version = word->second.version;
  join(self.clock, word->second.clock);
}

void GlobalRaceDetector::atomic(u64 group, u64 address) {
  read(group, address);
  WorkgroupClock& self = groups_[group];
  SyncWord& word = sync_words_[address & ~3ull];
  join(word.clock, self.clock);
  word.clock[group] = ++self.release;
  ++word.version;
}

void GlobalRaceDetector::join(VectorClock& to, const VectorClock& from) {
  for (const auto& [group, release] : from) {
    u64& mine = to[group];
    mine = std::max(mine, release);
  }
}

}  // namespace rocflash::sim
