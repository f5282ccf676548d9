// Predictions of the simulator's cycle model for an installed GPU: the same benchmark in a separate
// process, on the simulator.
#pragma once

#include <string>

#include "cost.hpp"

namespace rocflash::cli {

struct Prediction {
  double seconds = 0;
  double clock_mhz = 0;  // of the last kernel
  double matrix_busy = 0;
};

// `arch` is the GPU's ("gfx942"). The simulator's library is ROCFLASH_SIM_LIBRARY, or is searched
// relative to the command. Throws std::runtime_error with the reason if it is missing or fails.
Prediction predict_on_simulator(const std::string& arch, const std::string& op,
                                const std::string& dtype, const CostShape& shape);

// Parses the JSON of the simulator's last launch.
Prediction parse_prediction(double seconds, const std::string& last_launch);

}  // namespace rocflash::cli
