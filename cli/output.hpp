// Where a command's output goes: text for people, JSON for programs, and never both on standard
// output.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

namespace rocflash::cli {

using Json = nlohmann::ordered_json;

// Text goes to standard output, unless `--json -` writes JSON there.
inline std::FILE* text_stream(const std::string& json_file) {
  return json_file == "-" ? stderr : stdout;
}

// Writes to the file, or to standard output for "-". Does nothing for "". Throws when it cannot be
// written.
void write_json(const std::string& file, const Json& json);

// A line on a terminal that replaces itself; silent where standard error is no terminal.
class Progress {
 public:
  Progress();
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(const std::string& line);
  void clear();

 private:
  bool watched_;
  bool shown_ = false;
};

// "1 thread", "2 threads".
inline std::string threads_text(int count) {
  return fmt::format("{} thread{}", count, count == 1 ? "" : "s");
}

// "cpu (AMD EPYC, avx512)": the device by the name it was asked for.
std::string device_line(const std::string& device);

}  // namespace rocflash::cli
