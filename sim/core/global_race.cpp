#include "core/global_race.h"

#include <algorithm>

namespace rocflash::sim {

std::optional<u64> GlobalWrites::write(u64 group, u64 address, u32 bytes) {
  Group& self = groups_[group];
  for (u64 at = address & ~3ull; at < address + bytes; at += 4) {
    u8 mask = 0;
    for (u64 b = 0; b < 4; ++b) {
      if (at + b >= address && at + b < address + bytes) mask |= u8(1u << b);
    }
    Writer& last = writers_[at];
    const bool same = last.group == group;
    if (!same && (last.bytes & mask) != 0) {
      const auto told = self.known.find(last.group);
      if (told == self.known.end() || told->second <= last.handovers) return last.group;
    }
    last = {group, self.handovers, same ? u8(last.bytes | mask) : mask};
  }
  return {};
}

void GlobalWrites::read(u64 group, u64 address) {
  const auto word = words_.find(address & ~3ull);
  if (word == words_.end()) return;
  Group& self = groups_[group];
  u64& version = self.versions[word->first];
  if (version == word->second.version) return;
  version = word->second.version;
  learn(self.known, word->second.known);
}

void GlobalWrites::atomic(u64 group, u64 address) {
  read(group, address);
  Group& self = groups_[group];
  Word& word = words_[address & ~3ull];
  learn(word.known, self.known);
  word.known[group] = ++self.handovers;
  ++word.version;
}

void GlobalWrites::learn(Known& to, const Known& from) {
  for (const auto& [group, handovers] : from) {
    u64& mine = to[group];
    mine = std::max(mine, handovers);
  }
}

}  // namespace rocflash::sim
