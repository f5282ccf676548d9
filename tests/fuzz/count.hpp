// What a fuzzing run has done, for its report.
#pragma once

#include <cstdint>

namespace rocflash::fuzz {

struct Counts {
  std::uint64_t calls = 0;                  // of the C ABI, the reference's included
  std::uint64_t valid = 0;                  // problems that had to be accepted
  std::uint64_t compared = 0;               // and were compared with the reference
  std::uint64_t decoded = 0;                // valid ones that were decode calls
  std::uint64_t combined = 0;               // or merges
  std::uint64_t refused = 0, accepted = 0;  // of the spoiled ones
};
extern Counts counts;

}  // namespace rocflash::fuzz
