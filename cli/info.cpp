// `rocflash info`: version, devices and their capabilities, drivers and kernels of this build.
// AMD's come first; the JSON lists devices as the library numbers them, the CPU first.
#include <map>
#include <memory>
#include <rocflash/rocflash.hpp>
#include <set>

#include "capabilities.hpp"
#include "commands.hpp"
#include "output.hpp"
#include "verify/gpu.hpp"

namespace rocflash::cli {
namespace {

// All architectures with kernels; a build can contain a subset.
constexpr const char* all_targets[]{
#define ROCFLASH_MEMBER(family, arch, ...) #arch,
#include "table/devices.inc"
};

bool is_cpu(const rocflash_device& d) { return d.device.device_type == kDLCPU; }

Json device_json(const rocflash_device& d, const std::vector<Capability>& all) {
  Json computes, refusals = Json::object();
  for (const Capability& a : all) {
    computes[a.operation] = a.head_dim;
    if (!a.refusals.empty()) refusals[a.operation] = a.refusals;
  }
  return {{"type", is_cpu(d) ? "cpu" : "gpu"},
          {"device", device_name(d.device)},
          {"name", d.name},
          {"path", d.arch},
          {"features", d.features},
          {"units", d.units},
          {"largest_head_dim", computes},
          {"refusals", refusals}};
}

void print_device(const rocflash_device& d, const std::vector<Capability>& all, std::FILE* to) {
  fmt::print(to, "\n{:<11}{}\n", is_cpu(d) ? "CPU" : device_name(d.device), d.name);
  fmt::print(to, "  path     {}\n  features {}\n", d.arch, d.features);
  if (is_cpu(d)) {
    fmt::print(to, "  threads  {} of {} usable CPUs (ROCFLASH_NUM_THREADS changes that)\n",
               limits().default_threads, d.units);
  } else {
    fmt::print(to, "  units    {}\n", d.units);
  }
  for (const Capability& a : all) fmt::print(to, "  {:<9}{}\n", a.operation, capability_text(a));
}

// The devices to show: all, or the one that --device names.
std::vector<rocflash_device> shown_devices(const std::string& wanted) {
  auto all = devices();
  if (wanted.empty()) return all;
  const verify::DeviceName name(wanted);
  if (name.gpu()) verify::Gpu::open(name);  // or throws the reason
  std::erase_if(all, [&](const rocflash_device& d) {
    return d.device.device_type != name.dlpack().device_type ||
           d.device.device_id != name.dlpack().device_id;
  });
  return all;
}

Json drivers_shown(std::FILE* to) {
  Json json = Json::array();
  fmt::print(to, "\nGPU drivers\n");
  for (const rocflash_driver& d : drivers()) {
    fmt::print(to, "  {:<5}{:<9}{}{}\n", d.name, d.in_use ? "used" : "not used", d.reason,
               *d.library ? fmt::format(" [{}]", d.library) : "");
    json.push_back({{"name", d.name},
                    {"in_use", d.in_use != 0},
                    {"library", d.library},
                    {"reason", d.reason}});
  }
  return json;
}

void show_targets(std::FILE* to, Json& json) {
  fmt::print(to, "\nGPU kernels\n");
  // By driver, AMD's first, and family.
  std::map<std::pair<bool, std::string>, std::string> families;
  std::set<std::string> included;
  json["targets"] = Json::array();
  for (const rocflash_target& t : targets()) {
    const bool amd = t.driver == std::string("hip");
    std::string& archs = families[{!amd, fmt::format("{:<5}{:<9}", t.driver, t.family)}];
    archs += (archs.empty() ? "" : " ") + std::string(t.arch);
    included.insert(t.arch);
    json["targets"].push_back({{"arch", t.arch}, {"family", t.family}, {"driver", t.driver}});
  }
  if (families.empty()) fmt::print(to, "  none: this is a CPU-only build\n");
  for (const auto& [family, archs] : families) fmt::print(to, "  {}{}\n", family.second, archs);
  std::string excluded;
  json["targets_left_out"] = Json::array();
  for (const char* arch : all_targets) {
    if (included.contains(arch)) continue;
    excluded += fmt::format(" {}", arch);
    json["targets_left_out"].push_back(arch);
  }
  if (!excluded.empty()) fmt::print(to, "  left out of this build{}\n", excluded);
}

int info(const std::string& device, const std::string& json_file) {
  const rocflash_limits limit = limits();
  Json json{{"version", version()},
            {"threads", limit.default_threads},
            {"max_head_dim", limit.max_head_dim},
            {"dropout_steps", limit.dropout_steps},
            {"has_backward", limit.has_backward != 0}};
  std::FILE* to = text_stream(json_file);
  fmt::print(to, "rocflash {}\n", version());
  const auto all = shown_devices(device);
  std::vector<std::vector<Capability>> computes;
  for (const rocflash_device& d : all) {
    computes.push_back(capabilities(d.device));
    json["devices"].push_back(device_json(d, computes.back()));
  }
  for (const bool cpu : {false, true}) {
    for (std::size_t n = 0; n < all.size(); ++n) {
      if (is_cpu(all[n]) == cpu) print_device(all[n], computes[n], to);
    }
  }
  json["drivers"] = drivers_shown(to);
  show_targets(to, json);
  fmt::print(to, "\nLimits\n  head dimension 1 to {}, dropout in steps of 1/{}\n",
             limit.max_head_dim, limit.dropout_steps);
  write_json(json_file, json);
  return exit_good;
}

}  // namespace

Command add_info(CLI::App& app) {
  auto* command = app.add_subcommand(
      "info", "Show version, devices, path chosen, threads, GPU drivers and kernels");
  struct Options {
    std::string device, json;
  };
  const auto o = std::make_shared<Options>();
  auto* chosen = add_device_option(*command, o->device);
  add_json_option(*command, o->json);
  return
      [o, chosen] { return info(chosen->count() > 0 ? resolve_device(o->device) : "", o->json); };
}

}  // namespace rocflash::cli
