#include "output.hpp"

#include <unistd.h>

#include <fstream>
#include <iostream>
#include <rocflash/rocflash.hpp>
#include <stdexcept>

namespace rocflash::cli {

void write_json(const std::string& file, const Json& json) {
  if (file.empty()) return;
  if (file == "-") {
    std::cout << json.dump(2) << '\n' << std::flush;
    return;
  }
  std::ofstream out(file);
  out << json.dump(2) << '\n';
  if (!out.flush()) throw std::runtime_error("--json: cannot write " + file);
}

Progress::Progress() : watched_(isatty(fileno(stderr)) != 0) {}

void Progress::show(const std::string& line) {
  if (!watched_) return;
  fmt::print(stderr, "\r\033[K{}", line);
  std::fflush(stderr);
  shown_ = true;
}

void Progress::clear() {
  if (shown_) fmt::print(stderr, "\r\033[K");
  shown_ = false;
}

std::string device_line(const std::string& device) {
  const rocflash_device cpu = devices().at(0);
  return fmt::format("{} ({}, {})", device, cpu.name, cpu.arch);
}

}  // namespace rocflash::cli
