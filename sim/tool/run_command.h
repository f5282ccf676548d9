// `rocflash-sim run`: a kernel with buffers and arguments from a JSON description.
#pragma once

#include <string>

namespace rocflash::sim::tool {

struct RunOptions {
  std::string description;
  std::string breakpoint;  // code offset, or kernel+0x40
  std::string registers = "s0-s15,vcc,exec,v0-v7";
  unsigned long long group = 0;
  int wave = 0;
  int hits = 1;
  std::string counters;  // "table" or "json"
  bool listing = false;  // disassembly with execution counts
  std::string checks;
  int threads = 0;
  bool time = false;  // predict the time
  std::string time_format = "table";
  std::string timeline;    // a file for a trace viewer
  std::string report;      // "instructions" or "lines"
  bool time_only = false;  // execute only what the model samples
  double clock_mhz = 0;
};

// The process's exit status: 0, or 1 when the launch failed.
int run(const RunOptions& options);

}  // namespace rocflash::sim::tool
