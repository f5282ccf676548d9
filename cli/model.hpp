// What the simulator's cycle model predicts for a GPU that is there: the same benchmark in a process
// of its own, on the simulator.
#pragma once

#include <string>

#include "cost.hpp"

namespace rocflash::cli {

struct Prediction {
  double seconds = 0;
  double clock_mhz = 0;  // of the last kernel
  double matrix_busy = 0;
};

// `arch` is the GPU's ("gfx942"). Throws std::runtime_error that says what is missing: the
// simulator's library is looked for beside the command, or where ROCFLASH_SIM_LIBRARY says.
Prediction predict_on_simulator(const std::string& arch, const std::string& op,
                                const std::string& dtype, const CostShape& shape);

// From the JSON of the simulator's last launch.
Prediction parse_prediction(double seconds, const std::string& last_launch);

}  // namespace rocflash::cli
