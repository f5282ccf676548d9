// The CPU as a device: which instruction set it runs, and the two backends that use it.
#pragma once

#include <string>

#include "core/backend.hpp"

namespace rocflash {

// Tiled attention with online softmax: the scores never exist as a whole.
const Backend& cpu_backend();
// The same vector kernels and threads, but with all scores in memory at once: what the first is
// compared with.
const Backend& standard_backend();

struct CpuDescription {
  std::string name;      // the processor's own name
  std::string features;  // instruction sets found
  const char* path;      // the one chosen: "avx512", "avx2", "baseline"
};
const CpuDescription& describe_cpu();

}  // namespace rocflash
