// Forward, or backward, on a GPU, timed by its own events.
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
  bool compare = true;         // with standard attention
  bool compare_model = false;  // hardware: predict the time on the simulator, too
};

int bench_gpu(const GpuBenchOptions& options);

}  // namespace rocflash::cli
