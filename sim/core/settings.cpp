// Environment variables of the simulator.
#include "core/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <stdexcept>

namespace rocflash::sim {
namespace {

std::string variable(const char* name, const char* otherwise) {
  const char* value =
      secure_getenv(name);  // some variables name files: ignored in privileged programs
  return value != nullptr && *value != '\0' ? value : otherwise;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::size_t start = 0;
  while (start <= text.size()) {
    const auto comma = std::min(text.find(',', start), text.size());
    if (comma > start) parts.push_back(text.substr(start, comma - start));
    start = comma + 1;
  }
  return parts;
}

long long number(const char* name, const std::string& text, long long most = LLONG_MAX) {
  char* end = nullptr;
  const long long value = std::strtoll(text.c_str(), &end, 0);
  if (end == text.c_str() || *end != '\0' || value < 0) {
    throw std::invalid_argument(fmt::format("{}={}: not a number", name, text));
  }
  if (value > most) {
    throw std::invalid_argument(fmt::format("{}={}: it can be 0 to {}", name, text, most));
  }
  return value;
}

bool switched_on(const char* name) {
  const std::string text = variable(name, "0");
  if (text != "0" && text != "1") {
    throw std::invalid_argument(fmt::format("{}={}: it can be 0 or 1", name, text));
  }
  return text == "1";
}

bool* find_check(Checks& checks, const std::string& name) {
  if (name == "undefined") return &checks.undefined;
  if (name == "lds-bounds") return &checks.lds_bounds;
  if (name == "lds-race") return &checks.lds_race;
  if (name == "global-race") return &checks.global_race;
  if (name == "wait") return &checks.wait;
  if (name == "barrier") return &checks.barrier;
  if (name == "misaligned") return &checks.misaligned;
  throw std::invalid_argument(fmt::format(
      "unknown check '{}'; there are undefined, lds-bounds, lds-race, global-race, wait, barrier, "
      "misaligned",
      name));
}

void set_all(Checks& checks, bool value) {
  checks.undefined = checks.lds_bounds = checks.lds_race = checks.wait = checks.barrier =
      checks.misaligned = value;
  checks.global_race = false;  // only by name: it is the most expensive check
}

}  // namespace

Checks parse_checks(const std::string& text) {
  Checks checks;
  const auto parts = split(text);
  const bool subtracts = !parts.empty() && parts.front().front() == '-';
  if (!subtracts && !parts.empty() && parts.front() != "all") set_all(checks, false);
  for (const std::string& part : parts) {
    if (part == "all") {
      set_all(checks, true);
    } else if (part == "none") {
      set_all(checks, false);
    } else if (part.front() == '-') {
      *find_check(checks, part.substr(1)) = false;
    } else {
      *find_check(checks, part) = true;
    }
  }
  return checks;
}

Settings read_settings() {
  Settings s;
  const auto names = split(variable("ROCFLASH_SIM_ARCH", "gfx942"));
  if (names.empty()) throw std::invalid_argument("ROCFLASH_SIM_ARCH names no target");
  const auto count =
      number("ROCFLASH_SIM_DEVICES",
             variable("ROCFLASH_SIM_DEVICES", std::to_string(names.size()).c_str()), 1024);
  for (long long i = 0; i < count; ++i) {
    const std::string& name = names[static_cast<std::size_t>(i) % names.size()];
    const Target* target = find_target(name);
    if (target == nullptr) {
      std::string known;
      for (const Target& t : all_targets()) known += fmt::format(" {}", t.name);
      throw std::invalid_argument(
          fmt::format("ROCFLASH_SIM_ARCH={}: there is no such target; known:{}", name, known));
    }
    s.devices.push_back(target);
  }
  s.checks = parse_checks(variable("ROCFLASH_SIM_CHECKS", "all"));
  s.checks.budget = static_cast<u64>(
      number("ROCFLASH_SIM_BUDGET", variable("ROCFLASH_SIM_BUDGET", "1073741824")));
  s.threads =
      static_cast<int>(number("ROCFLASH_SIM_THREADS", variable("ROCFLASH_SIM_THREADS", "0"), 1024));
  s.counters = variable("ROCFLASH_SIM_COUNTERS", "");
  s.trace = switched_on("ROCFLASH_SIM_TRACE");
  s.time = variable("ROCFLASH_SIM_TIME", "");
  s.timeline = variable("ROCFLASH_SIM_TIMELINE", "");
  s.time_report = variable("ROCFLASH_SIM_TIME_REPORT", "");
  if (!s.time_report.empty() && s.time_report != "instructions" && s.time_report != "lines") {
    throw std::invalid_argument(
        fmt::format("ROCFLASH_SIM_TIME_REPORT={}: it can be instructions or lines", s.time_report));
  }
  s.time_only = switched_on("ROCFLASH_SIM_TIME_ONLY");
  s.time_clock_mhz = static_cast<double>(
      number("ROCFLASH_SIM_TIME_CLOCK", variable("ROCFLASH_SIM_TIME_CLOCK", "0")));
  if (s.time_clock_mhz > 100000) {
    throw std::invalid_argument(
        fmt::format("ROCFLASH_SIM_TIME_CLOCK={:.0f}: it can be 1 to 100000, or 0 for the model's",
                    s.time_clock_mhz));
  }
  return s;
}

}  // namespace rocflash::sim
