// Forward or backward on a GPU, timed with events.
#pragma once

#include <string>
#include <vector>

#include "cost.hpp"

namespace rocflash::cli {

struct GpuBenchOptions {
  std::string device, dtype, json;
  std::vector<CostShape> shapes;  // one row each
  int repeat = 0;                 // 0: about a second's worth
  bool backward = false;
  bool compare = true;         // with naive attention
  bool compare_model = false;  // also predict the time with the simulator
  bool quiet = false;          // no progress
};

int bench_gpu(const GpuBenchOptions& options);

}  // namespace rocflash::cli
