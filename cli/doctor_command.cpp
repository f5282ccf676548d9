// `rocflash doctor`: prints the findings.
#include <algorithm>
#include <memory>
#include <rocflash/rocflash.hpp>

#include "commands.hpp"
#include "doctor.hpp"
#include "output.hpp"

namespace rocflash::cli {
namespace {

std::string count_text(std::ptrdiff_t count, const std::string& what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

int doctor(const std::string& json_file) {
  const auto findings = diagnose(Machine::here());
  std::FILE* to = text_stream(json_file);
  fmt::print(to, "rocflash {}\n", version());
  Json json{{"version", version()}, {"findings", Json::array()}};
  for (const Finding& f : findings) {
    fmt::print(to, "  {:<9}{}\n", name_of(f.severity), f.what);
    if (!f.advice.empty()) fmt::print(to, "  {:<9}-> {}\n", "", f.advice);
    json["findings"].push_back(
        {{"id", f.id}, {"severity", name_of(f.severity)}, {"what", f.what}, {"advice", f.advice}});
  }
  const auto count = [&](Severity s) {
    return std::count_if(findings.begin(), findings.end(),
                         [&](const Finding& f) { return f.severity == s; });
  };
  const auto errors = count(Severity::error), warnings = count(Severity::warning);
  fmt::print(to, "{}, {}\n", count_text(errors, "error"), count_text(warnings, "warning"));
  json["errors"] = errors;
  json["warnings"] = warnings;
  write_json(json_file, json);
  return errors > 0 ? exit_failed : exit_good;
}

}  // namespace

Command add_doctor(CLI::App& app) {
  return add_json_command(
      app, "doctor",
      "Find what keeps GPUs from being used: modules, permissions, ROCm, settings. Exits with 1 "
      "after an error",
      doctor);
}

}  // namespace rocflash::cli
