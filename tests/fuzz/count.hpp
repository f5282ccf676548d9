// The statistics of a fuzzing run.
#pragma once

#include <cstdint>

namespace rocflash::fuzz {

struct Counts {
  std::uint64_t calls = 0;                   // of the C ABI, including those of the reference
  std::uint64_t valid = 0;                   // valid calls
  std::uint64_t compared = 0;                // valid calls that were compared with the reference
  std::uint64_t decoded = 0;                 // valid calls of decode
  std::uint64_t combined = 0;                // valid calls of combine
  std::uint64_t rejected = 0, accepted = 0;  // corrupted calls
};
extern Counts counts;

}  // namespace rocflash::fuzz
