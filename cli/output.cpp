#include "output.hpp"

#include <unistd.h>

#include <fstream>
#include <iostream>
#include <rocflash/rocflash.hpp>
#include <stdexcept>

#include "verify/gpu.hpp"

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
  const DLDevice wanted = verify::DeviceName(device).dlpack();
  for (const rocflash_device& d : devices()) {
    if (d.device.device_type == wanted.device_type && d.device.device_id == wanted.device_id)
      return fmt::format("{} ({}, {})", device, d.name, d.arch);
  }
  return device;
}

}  // namespace rocflash::cli
