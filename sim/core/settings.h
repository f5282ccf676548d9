// Settings of the simulated machine from environment variables.
#pragma once

#include <string>
#include <vector>

#include "core/target.h"
#include "core/wave.h"

namespace rocflash::sim {

struct Settings {
  std::vector<const Target*> devices;  // ROCFLASH_SIM_ARCH, ROCFLASH_SIM_DEVICES
  Checks checks;                       // ROCFLASH_SIM_CHECKS, ROCFLASH_SIM_BUDGET
  int threads = 0;                     // ROCFLASH_SIM_THREADS
  std::string counters;                // ROCFLASH_SIM_COUNTERS: "table", "json" or a file
  bool trace = false;                  // ROCFLASH_SIM_TRACE: one line per launch
  std::string time;                    // ROCFLASH_SIM_TIME: "table", "json" or a file
  std::string timeline;                // ROCFLASH_SIM_TIMELINE: a file, of the last launch
  std::string time_report;             // ROCFLASH_SIM_TIME_REPORT: "instructions" or "lines"
  bool time_only = false;     // ROCFLASH_SIM_TIME_ONLY: execute only the sampled workgroups
  double time_clock_mhz = 0;  // ROCFLASH_SIM_TIME_CLOCK: instead of the model's clock
};

// Throws std::invalid_argument with the variable, its value and the allowed values.
Settings read_settings();

// "all", "none", or names such as "undefined,wait"; a leading '-' removes a check from all.
Checks parse_checks(const std::string& text);

}  // namespace rocflash::sim
