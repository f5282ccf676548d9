// Output of a command: text for people, JSON for programs, and never both on standard output.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

namespace rocflash::cli {

using Json = nlohmann::ordered_json;

// Text goes to standard output, unless `--json -` writes JSON there.
inline std::FILE* text_stream(const std::string& json_file) {
  return json_file == "-" ? stderr : stdout;
}

// Writes to the file, or to standard output for "-". Does nothing for "". Throws on write errors.
void write_json(const std::string& file, const Json& json);

// Whether all of standard output was written; otherwise says why not.
bool flush_output();

// The state of long work: a status line on a terminal, and in a log a line every ten seconds.
class Progress {
 public:
  enum class Style { silent, terminal, log };
  using Seconds = std::chrono::duration<double>;

  explicit Progress(bool quiet);
  Progress(std::FILE* to, Style style, Seconds interval);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `done` of `total` steps are finished; 0 of 0: without a bar.
  void show(const std::string& line, std::size_t done = 0, std::size_t total = 0);
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  std::FILE* to_;
  Style style_;
  Seconds interval_;
  Clock::time_point start_ = Clock::now(), last_ = start_;
  bool shown_ = false;
};

// "1 thread", "2 threads".
inline std::string threads_text(int count) {
  return fmt::format("{} thread{}", count, count == 1 ? "" : "s");
}

// "cpu (AMD EPYC, avx512)": the device as the user named it.
std::string device_line(const std::string& device);

}  // namespace rocflash::cli
