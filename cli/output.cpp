#include "output.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <rocflash/rocflash.hpp>
#include <stdexcept>

#include "platform/program.hpp"
#include "verify/gpu.hpp"

namespace rocflash::cli {

void write_json(const std::string& file, const Json& json) {
  if (file.empty()) return;
  if (file == "-") {
    fmt::print(stdout, "{}\n", json.dump(2));
    return;
  }
  std::ofstream out(file);
  out << json.dump(2) << '\n';
  if (!out.flush()) throw std::runtime_error("--json: cannot write " + file);
}

bool flush_output() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return true;
  fmt::print(stderr, "rocflash: cannot write to standard output: {}\n",
             errno != 0 ? std::strerror(errno) : "an earlier write failed");
  return false;
}

Progress::Progress(bool quiet)
    : Progress(stderr,
               quiet                           ? Style::silent
               : platform::is_terminal(stderr) ? Style::terminal
                                               : Style::log,
               Seconds(10)) {}

Progress::Progress(std::FILE* to, Style style, Seconds interval)
    : to_(to), style_(style), interval_(interval) {}

namespace {

// "[#####     ]  50% "
std::string bar(std::size_t done, std::size_t total) {
  constexpr std::size_t width = 20;
  if (total == 0) return {};
  const std::size_t filled = std::min(width, width * done / total);
  return fmt::format("[{:<{}}] {:>3}% ", std::string(filled, '#'), width, 100 * done / total);
}

}  // namespace

void Progress::show(const std::string& line, std::size_t done, std::size_t total) {
  if (style_ == Style::terminal) {
    fmt::print(to_, "\r\033[K{}{}", bar(done, total), line);
    shown_ = true;
  } else if (const auto now = Clock::now(); style_ == Style::log && now - last_ >= interval_) {
    last_ = now;
    fmt::print(to_, "[{:.0f} s] {}\n", Seconds(now - start_).count(), line);
  } else {
    return;
  }
  std::fflush(to_);
}

void Progress::clear() {
  if (shown_) fmt::print(to_, "\r\033[K");
  shown_ = false;
}

std::string device_line(const std::string& device) {
  const DLDevice named = verify::DeviceName(device).dlpack();
  for (const rocflash_device& d : devices()) {
    if (d.device.device_type == named.device_type && d.device.device_id == named.device_id)
      return fmt::format("{} ({}, {})", device, d.name, d.arch);
  }
  return device;
}

}  // namespace rocflash::cli
