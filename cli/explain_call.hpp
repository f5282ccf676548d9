// The calls that `rocflash explain` explains, without tensors. The library's internal names and
// those of its C++ wrapper are in different files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpu/explain.hpp"

namespace rocflash::cli {

struct ExplainedShape {
  std::string op = "forward", dtype = "bf16";
  std::int64_t batch = 2, heads = 8, kv_heads = 8, sq = 0, sk = 0;
  int head_dim = 64, value_dim = 64;
  bool causal = true;
  std::vector<std::int64_t> window;
  std::int64_t page = 0;  // rows of a page; 0: not paged
  int splits = 0;
  std::vector<std::string> with;  // among explained_options
};

// Options of a call by name.
std::vector<std::string> explained_options();

gpu::Explanation explain(const ExplainedShape& shape, gpu::Chip chip);

}  // namespace rocflash::cli
