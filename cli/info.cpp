// `rocflash info`: what this library is, what it runs on here, and why it does not use the rest.
#include <map>
#include <rocflash/rocflash.hpp>
#include <set>

#include "abilities.hpp"
#include "commands.hpp"
#include "output.hpp"

namespace rocflash::cli {
namespace {

// What there are kernels for; a build may carry some of them only.
constexpr const char* all_targets[]{
#define ROCFLASH_MEMBER(family, arch, ...) #arch,
#include "table/families.inc"
};

const char* driver_of(const rocflash_device& d) {
  return d.device.device_type == kDLROCM ? "hip" : "cuda";
}

int info(const std::string& json_file) {
  const rocflash_limits limit = limits();
  Json json{{"version", version()},
            {"threads", limit.default_threads},
            {"max_head_dim", limit.max_head_dim}};
  std::FILE* to = text_stream(json_file);
  fmt::print(to, "rocflash {}\n", version());

  for (const rocflash_device& d : devices()) {
    const bool cpu = d.device.device_type == kDLCPU;
    const std::string place = cpu ? "cpu" : fmt::format("{}:{}", driver_of(d), d.device.device_id);
    fmt::print(to, "\n{:<11}{}\n", cpu ? "CPU" : place, d.name);
    fmt::print(to, "  path     {}\n", d.arch);
    fmt::print(to, "  features {}\n", d.features);
    if (cpu) {
      fmt::print(to, "  threads  {} of {} usable CPUs (ROCFLASH_NUM_THREADS changes that)\n",
                 limit.default_threads, d.units);
    } else {
      fmt::print(to, "  units    {}\n", d.units);
    }
    Json computes;
    for (const Ability& a : abilities(d.device)) {
      fmt::print(to, "  {:<9}{}\n", a.operation, ability_text(a));
      computes[a.operation] = a.head_dim;
    }
    json["devices"].push_back({{"type", cpu ? "cpu" : "gpu"},
                               {"device", place},
                               {"name", d.name},
                               {"path", d.arch},
                               {"features", d.features},
                               {"units", d.units},
                               {"largest_head_dim", computes}});
  }

  fmt::print(to, "\nGPU drivers\n");
  for (const rocflash_driver& d : drivers()) {
    fmt::print(to, "  {:<5}{:<9}{}{}\n", d.name, d.in_use ? "used" : "not used", d.reason,
               *d.library ? fmt::format(" [{}]", d.library) : "");
    json["drivers"].push_back({{"name", d.name},
                               {"in_use", d.in_use != 0},
                               {"library", d.library},
                               {"reason", d.reason}});
  }
  fmt::print(to, "\nGPU kernels\n");
  std::map<std::string, std::string> families;
  std::set<std::string> carried;
  json["targets"] = Json::array();
  for (const rocflash_target& t : targets()) {
    std::string& archs = families[fmt::format("{:<5}{:<9}", t.driver, t.family)];
    archs += (archs.empty() ? "" : " ") + std::string(t.arch);
    carried.insert(t.arch);
    json["targets"].push_back({{"arch", t.arch}, {"family", t.family}, {"driver", t.driver}});
  }
  if (families.empty()) fmt::print(to, "  none: this library was built for the CPU alone\n");
  for (const auto& [family, archs] : families) fmt::print(to, "  {}{}\n", family, archs);
  std::string left_out;
  json["targets_left_out"] = Json::array();
  for (const char* arch : all_targets) {
    if (carried.contains(arch)) continue;
    left_out += fmt::format(" {}", arch);
    json["targets_left_out"].push_back(arch);
  }
  if (!left_out.empty()) fmt::print(to, "  left out of this build{}\n", left_out);
  fmt::print(to, "\nLimits\n  head size 1 to {}, dropout in steps of 1/{}\n", limit.max_head_dim,
             limit.dropout_steps);
  write_json(json_file, json);
  return exit_good;
}

}  // namespace

Command add_info(CLI::App& app) {
  return add_json_command(
      app, "info", "Show version, devices, path chosen, threads, GPU drivers and kernels", info);
}

}  // namespace rocflash::cli
