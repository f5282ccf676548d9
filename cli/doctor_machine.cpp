#include "doctor_machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <rocflash/rocflash.hpp>
#include <sstream>
#include <utility>

#include "platform/program.hpp"

namespace rocflash::cli {

namespace fs = std::filesystem;

Machine Machine::here() {
  Machine m;
  m.environment = platform::environment();
  platform::User user = platform::this_user();
  m.uid = user.id;
  m.groups = std::move(user.groups);
  for (const rocflash_driver& d : rocflash::drivers())
    m.drivers.push_back({d.name, d.in_use != 0, d.library, d.reason});
  for (const rocflash_target& t : targets()) m.built_archs.emplace_back(t.arch);
  m.cpu_path = devices().front().arch;
  m.cpu_features = devices().front().features;
  m.windows = platform::windows_version();
  for (const platform::DisplayAdapter& adapter : platform::display_adapters())
    m.displays.push_back({adapter.name, adapter.vendor});
  return m;
}

std::string gfx_name(unsigned version) {
  return fmt::format("gfx{}{:x}{:x}", version / 10000, version / 100 % 100, version % 100);
}

fs::path MachineReader::at(const std::string& path) const {
  return machine_.root / fs::path(path).relative_path();
}

bool MachineReader::exists(const std::string& path) const {
  std::error_code error;
  return fs::exists(at(path), error);
}

std::string MachineReader::text(const std::string& path) const {
  std::ifstream file(at(path), std::ios::binary);
  std::string all{std::istreambuf_iterator<char>(file), {}};
  all.erase(all.find_last_not_of(" \n\t\r") + 1);
  return all;
}

std::vector<std::string> MachineReader::entries(const std::string& path) const {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(at(path), error))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<std::string> MachineReader::variable(const std::string& name) const {
  const auto found = machine_.environment.find(name);
  if (found == machine_.environment.end()) return std::nullopt;
  return found->second;
}

bool MachineReader::may_use(const std::string& path) const {
  const std::optional<platform::Access> access = platform::access_of(at(path));
  if (!access) return false;
  if (machine_.uid == 0) return true;
  if (access->user == machine_.uid) return access->by_user;
  const auto& groups = machine_.groups;
  const bool member = std::find(groups.begin(), groups.end(), access->group) != groups.end();
  return member ? access->by_group : access->by_others;
}

std::string MachineReader::group_of(const std::string& path) const {
  const std::optional<platform::Access> access = platform::access_of(at(path));
  if (!access) return "no group";
  std::istringstream lines(text("/etc/group"));  // name:password:gid:members
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    if (line.substr(second + 1, line.find(':', second + 1) - second - 1) ==
        std::to_string(access->group))
      return fmt::format("group {} (gid {})", line.substr(0, first), access->group);
  }
  return fmt::format("gid {}, which has no name here", access->group);
}

std::vector<std::string> MachineReader::cards(Vendor vendor) const {
  const std::string id = vendor == Vendor::amd ? "0x1002" : "0x10de";
  std::vector<std::string> found;
  for (const std::string& address : entries("/sys/bus/pci/devices")) {
    const std::string directory = "/sys/bus/pci/devices/" + address;
    const std::string kind = text(directory + "/class");
    // Display controllers, and processing accelerators, which Instinct cards are.
    if (text(directory + "/vendor") == id && (kind.starts_with("0x03") || kind.starts_with("0x12")))
      found.push_back(address);
  }
  return found;
}

std::vector<std::string> MachineReader::initialized_gpus() const {
  std::vector<std::string> archs;
  const std::string nodes = "/sys/class/kfd/kfd/topology/nodes";
  for (const std::string& node : entries(nodes)) {
    std::istringstream lines(text(nodes + "/" + node + "/properties"));
    std::string name;
    for (std::uint64_t value = 0; lines >> name >> value;) {
      if (name == "gfx_target_version" && value != 0)  // 0: a CPU
        archs.push_back(gfx_name(static_cast<unsigned>(value)));
    }
  }
  return archs;
}

std::string MachineReader::container() const {
  if (exists("/.dockerenv")) return "docker";
  if (exists("/run/.containerenv")) return "podman";
  if (variable("KUBERNETES_SERVICE_HOST")) return "kubernetes";
  if (variable("SINGULARITY_CONTAINER") || variable("APPTAINER_CONTAINER")) return "apptainer";
  if (const auto named = variable("container"); named && !named->empty()) return *named;
  const std::string groups = text("/proc/1/cgroup");
  for (const char* kind : {"docker", "kubepods", "lxc", "containerd"}) {
    if (groups.find(kind) != std::string::npos) return kind;
  }
  return {};
}

bool MachineReader::wsl() const {
  std::string release = text("/proc/sys/kernel/osrelease");
  std::transform(release.begin(), release.end(), release.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return release.find("microsoft") != std::string::npos;
}

}  // namespace rocflash::cli
