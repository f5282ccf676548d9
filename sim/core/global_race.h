// Two workgroups that write the same bytes without atomics. It is no race where one has handed them over to the other:
// by an atomic, behind its writes, on a word that the other has read, or changed by an atomic, before its own. Whether
// the writes had been waited for by then is not known here.
//
// Not for several threads: launches with this check have one.
#pragma once

#include <optional>
#include <unordered_map>

#include "core/types.h"

namespace rocflash::sim {

class GlobalWrites {
 public:
  // The workgroup that wrote some of these bytes before, if `group` has not been told of it.
  std::optional<u64> write(u64 group, u64 address, u32 bytes);
  void read(u64 group, u64 address);
  void atomic(u64 group, u64 address);

 private:
  // Of other workgroups, up to which hand-over of theirs everything is known.
  using Known = std::unordered_map<u64, u64>;
  struct Group {
    Known known;
    u64 handovers = 0;
    std::unordered_map<u64, u64> versions;  // of words, as it has read them
  };
  struct Word {
    Known known;
    u64 version = 0;
  };
  struct Writer {
    u64 group = 0, handovers = 0;
    u8 bytes = 0;
  };
  static void learn(Known& to, const Known& from);

  std::unordered_map<u64, Writer> writers_;  // of each dword, the last one
  std::unordered_map<u64, Word> words_;      // that atomics have changed
  std::unordered_map<u64, Group> groups_;
};

}  // namespace rocflash::sim
