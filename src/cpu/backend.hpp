// The CPU device: its selected ISA, and the two backends that run on it.
#pragma once

#include <string>

#include "core/backend.hpp"

namespace rocflash {

// Tiled attention with online softmax: the score matrix is never materialized.
const Backend& cpu_backend();
// Naive attention with the same vector kernels and threads: all scores are materialized. The
// baseline of speed and memory.
const Backend& standard_backend();

struct CpuDescription {
  std::string name;      // processor brand string
  std::string features;  // supported ISA extensions
  const char* path;      // the selected ISA: "amx", "avx512", "avx2", "baseline"
};
const CpuDescription& describe_cpu();

}  // namespace rocflash
