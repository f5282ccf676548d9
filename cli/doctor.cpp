// The checks of `rocflash doctor`. Each reads the machine and appends findings; none runs a program
// or changes anything.
#include "doctor.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "doctor_machine.hpp"
#include "platform/program.hpp"

namespace rocflash::cli {
namespace {

class Examination {
 public:
  explicit Examination(const Machine& machine) : m_(machine), read_(machine) {}

  std::vector<Finding> run() {
    if (!m_.windows.empty()) {
      check_windows();
      check_environment();
      return std::move(findings_);
    }
    check_system();
    check_cpu();
    check_amd();
    check_nvidia();
    check_environment();
    return std::move(findings_);
  }

 private:
  void add(std::string id, Severity severity, std::string what, std::string advice = {}) {
    findings_.push_back({std::move(id), severity, std::move(what), std::move(advice)});
  }

  const Machine::Driver* driver(const std::string& name) const {
    for (const Machine::Driver& d : m_.drivers) {
      if (d.name == name) return &d;
    }
    return nullptr;
  }

  void check_windows();
  void check_windows_driver(unsigned vendor, const char* name, const std::string& advice);
  void check_system();
  void check_cpu();
  void report_cpu(const std::vector<std::string>& missing);
  void check_amd();
  void check_wsl();
  bool check_kernels(const char* prefix, const std::string& subject, const char* vendor);
  void check_amdgpu(std::size_t cards);
  void check_permissions();
  void check_architectures();
  void check_override(const std::vector<std::string>& archs);
  void check_rocm();
  void check_driver(const char* name, const std::string& advice);
  void check_visible(const char* variable, std::size_t count);
  void check_nvidia();
  void check_environment();

  const Machine& m_;
  MachineReader read_;
  std::vector<Finding> findings_;
};

constexpr const char* container_devices =
    "start the container with --device /dev/kfd --device /dev/dri --group-add video --group-add "
    "$(getent group render | cut -d: -f3)";

// "6.12.12" as {6, 12, 12}; stops at the first part that is no number.
std::vector<int> version_of(const std::string& text) {
  std::vector<int> parts;
  std::istringstream words(text);
  for (std::string part; std::getline(words, part, '.');) {
    int number = 0;
    if (std::from_chars(part.data(), part.data() + part.size(), number).ec != std::errc()) break;
    parts.push_back(number);
  }
  return parts;
}

void Examination::check_windows() {
  add("system.windows", Severity::ok, m_.windows);
  std::vector<std::string> missing;
  for (const char* name : {"avx2", "fma", "f16c"}) {
    if (fmt::format(" {} ", m_.cpu_features).find(fmt::format(" {} ", name)) == std::string::npos)
      missing.emplace_back(name);
  }
  report_cpu(missing);
  check_windows_driver(platform::amd_vendor, "hip",
                       "install AMD's driver, AMD Software: Adrenalin Edition, or ROCm's torch, "
                       "which contains amdhip64_7.dll; if it is installed, name it with "
                       "ROCFLASH_HIP_LIBRARY");
  check_windows_driver(platform::nvidia_vendor, "cuda", "install NVIDIA's driver (nvcuda.dll)");
}

void Examination::check_windows_driver(unsigned vendor, const char* name,
                                       const std::string& advice) {
  const bool amd = vendor == platform::amd_vendor;
  const std::string subject = amd ? "amd" : "nvidia";
  std::size_t count = 0;
  for (const Machine::Display& display : m_.displays) {
    if (display.vendor != vendor) continue;
    add(subject + ".card", Severity::ok, display.name);
    ++count;
  }
  const Machine::Driver* d = driver(name);
  if (count == 0 && !(d && d->in_use)) {
    if (amd) add("amd.card", Severity::note, "there is no AMD GPU");
    return;
  }
  if (!check_kernels(amd ? "gfx" : "sm_", subject, amd ? "AMD" : "NVIDIA")) return;
  check_driver(name, advice);
  if (count > 0) check_visible(amd ? "HIP_VISIBLE_DEVICES" : "CUDA_VISIBLE_DEVICES", count);
}

void Examination::check_system() {
  add("system.kernel", Severity::ok,
      "kernel " + (read_.text("/proc/sys/kernel/osrelease").empty()
                       ? std::string("unknown")
                       : read_.text("/proc/sys/kernel/osrelease")));
  if (const std::string kind = read_.container(); !kind.empty())
    add("system.container", Severity::note,
        "this is a container (" + kind + "), which uses the host's kernel modules");
  if (read_.wsl()) check_wsl();
}

void Examination::check_wsl() {
  if (!read_.exists("/dev/dxg"))
    return add("system.wsl", Severity::error, "this is WSL without /dev/dxg, so it has no GPU",
               "in Windows: `wsl --update`, and `wsl --set-version NAME 2` for a distribution of "
               "WSL 1; then install the GPU's Windows driver");
  add("system.wsl", Severity::note, "this is WSL 2, where GPUs are used through /dev/dxg");
  const auto* hip = driver("hip");
  if (hip && hip->in_use) return;
  bool library = false;
  for (const char* directory : {"/opt/rocm/lib", "/usr/lib", "/usr/lib/x86_64-linux-gnu"}) {
    for (const std::string& name : read_.entries(directory))
      library = library || name.starts_with("librocdxg.so");
  }
  if (!library)
    add("amd.wsl", Severity::note, "ROCm's library for WSL, librocdxg.so, is not installed",
        "for a Radeon GPU install ROCm for WSL (AMD's guide for Radeon and Ryzen, chapter WSL); "
        "kernel modules are not needed there");
  else if (read_.variable("HSA_ENABLE_DXG_DETECTION").value_or("") != "1")
    add("amd.wsl", Severity::error, "librocdxg.so is installed, but ROCm does not look for it",
        "export HSA_ENABLE_DXG_DETECTION=1");
}

void Examination::check_cpu() {
  const std::string info = read_.text("/proc/cpuinfo");
  const std::size_t at = info.find("\nflags");
  const std::string flags =
      at == std::string::npos ? "" : info.substr(at, info.find('\n', at + 1) - at) + " ";
  std::vector<std::string> missing;
  for (const char* name : {"avx2", "fma", "f16c"}) {
    if (flags.find(fmt::format(" {} ", name)) == std::string::npos) missing.emplace_back(name);
  }
  if (flags.empty()) missing.clear();
  report_cpu(missing);
}

void Examination::report_cpu(const std::vector<std::string>& missing) {
  if (missing.empty())
    add("cpu", Severity::ok, "the CPU kernels use " + m_.cpu_path);
  else
    add("cpu.features", Severity::warning,
        fmt::format("this CPU lacks {}, so attention on it uses the slow path {}",
                    fmt::join(missing, ", "), m_.cpu_path),
        "in a virtual machine pass the host's CPU through (QEMU: -cpu host)");
}

void Examination::check_amd() {
  const std::size_t cards = read_.cards(Vendor::amd).size();
  const auto* hip = driver("hip");
  if (cards == 0 && !read_.exists("/dev/kfd") && !(hip && hip->in_use)) {
    if (!read_.wsl()) add("amd.card", Severity::note, "there is no AMD GPU");
    return;
  }
  if (cards > 0) add("amd.card", Severity::ok, fmt::format("AMD GPUs on the PCI bus: {}", cards));
  if (!read_.wsl()) check_amdgpu(cards);
  check_architectures();
  check_rocm();
  if (!check_kernels("gfx", "amd", "AMD")) return;
  check_driver("hip",
               "install ROCm's runtime (libamdhip64.so) or ROCm's torch, which contains it; if it "
               "is installed, name it with ROCFLASH_HIP_LIBRARY");
  for (const char* name : {"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"})
    check_visible(name, std::max(cards, read_.initialized_gpus().size()));
}

bool Examination::check_kernels(const char* prefix, const std::string& subject,
                                const char* vendor) {
  if (std::any_of(m_.built_archs.begin(), m_.built_archs.end(),
                  [&](const std::string& arch) { return arch.starts_with(prefix); }))
    return true;
  add(subject + ".kernels", Severity::error,
      fmt::format("this build has no kernels for {} GPUs", vendor),
      "install the released wheel, or build with clang 22 (scripts/setup.sh verify)");
  return false;
}

void Examination::check_amdgpu(std::size_t cards) {
  const std::string container = read_.container();
  if (!read_.exists("/sys/module/amdgpu"))
    return add("amd.module", Severity::error, "the kernel module amdgpu is not loaded",
               container.empty()
                   ? "sudo modprobe amdgpu; if that fails, install it (amdgpu-dkms, or a newer "
                     "kernel), and look for `blacklist amdgpu` in /etc/modprobe.d"
                   : "load it on the host; a container cannot");
  // Only AMD's own packages have a version; the kernel's module has that of the kernel.
  const std::string version = read_.text("/sys/module/amdgpu/version");
  const auto parts = version_of(version);
  constexpr int first_of_rocm_5[] = {5, 13};
  if (!parts.empty() &&
      std::lexicographical_compare(parts.begin(), parts.end(), std::begin(first_of_rocm_5),
                                   std::end(first_of_rocm_5)))
    add("amd.module", Severity::error,
        fmt::format("the kernel module amdgpu {} is older than ROCm 5's, 5.13", version),
        "update amdgpu-dkms");
  else
    add("amd.module", Severity::ok,
        "the kernel module amdgpu " + (version.empty() ? "of the kernel" : version) + " is loaded");
  if (!read_.exists("/dev/kfd"))
    return add("amd.kfd", Severity::error, "/dev/kfd does not exist, so no program can compute",
               container.empty()
                   ? "reboot after the driver's installation; `sudo dmesg | grep kfd` "
                     "has the reason if it is still missing"
                   : container_devices);
  check_permissions();
  const std::size_t initialized = read_.initialized_gpus().size();
  if (initialized < cards)
    add("amd.initialized", Severity::warning,
        fmt::format("the kernel module has initialized {} of {} AMD GPUs for computing",
                    initialized, cards),
        "a kernel or amdgpu-dkms older than the card does not know it: update it; `sudo dmesg | "
        "grep -e amdgpu -e kfd` has the reason. An integrated GPU may be disabled in the BIOS");
}

void Examination::check_permissions() {
  std::vector<std::string> nodes{"/dev/kfd"};
  for (const std::string& name : read_.entries("/dev/dri")) {
    if (name.starts_with("renderD")) nodes.push_back("/dev/dri/" + name);
  }
  const std::string container = read_.container();
  if (nodes.size() == 1)
    add("amd.render", Severity::error, "/dev/dri has no render node",
        container.empty() ? "`sudo dmesg | grep amdgpu` says why the module created none"
                          : container_devices);
  std::vector<std::string> denied;
  for (const std::string& node : nodes) {
    if (!read_.may_use(node)) denied.push_back(node);
  }
  if (denied.empty()) return add("amd.permission", Severity::ok, "GPUs may be used");
  add("amd.permission", Severity::error,
      fmt::format("no permission for {}, which belongs to {}", fmt::join(denied, ", "),
                  read_.group_of(denied.front())),
      container.empty() ? "sudo usermod -aG render,video $USER, then log in again"
                        : "start the container with --group-add and the number of that group");
}

void Examination::check_architectures() {
  const auto archs = read_.initialized_gpus();
  for (const std::string& arch : archs) {
    const bool built =
        std::find(m_.built_archs.begin(), m_.built_archs.end(), arch) != m_.built_archs.end();
    if (built) continue;
    std::string known;
    for (const std::string& each : m_.built_archs) {
      if (each.starts_with("gfx")) known += (known.empty() ? "" : " ") + each;
    }
    if (known.empty()) continue;  // reported once, as a build without kernels
    add("amd.arch", Severity::warning,
        fmt::format("this build has no kernels for {}; it has {}", arch, known),
        "build with ROCFLASH_GPU_ARCHS=" + arch +
            "; configuration rejects an architecture that has no kernels at all");
  }
  check_override(archs);
}

void Examination::check_override(const std::vector<std::string>& archs) {
  const auto value = read_.variable("HSA_OVERRIDE_GFX_VERSION");
  if (!value || value->empty()) return;
  const auto parts = version_of(*value);
  const std::string advice =
      "unset HSA_OVERRIDE_GFX_VERSION: rocflash has kernels for each architecture, and kernels of "
      "another one may fail or compute wrong results";
  if (parts.size() != 3)
    return add("amd.override", Severity::error,
               fmt::format("HSA_OVERRIDE_GFX_VERSION is '{}'; it must have three numbers, such as "
                           "10.3.0",
                           *value),
               advice);
  const std::string forced =
      gfx_name(static_cast<unsigned>(10000 * parts[0] + 100 * parts[1] + parts[2]));
  for (const std::string& arch : archs) {
    if (arch == forced) continue;
    const bool same_generation =
        arch.substr(0, arch.size() - 2) == forced.substr(0, forced.size() - 2);
    return add(
        "amd.override", same_generation ? Severity::warning : Severity::error,
        fmt::format("HSA_OVERRIDE_GFX_VERSION is {}, so {} is treated as {}", *value, arch, forced),
        advice);
  }
  add("amd.override", Severity::note,
      fmt::format("HSA_OVERRIDE_GFX_VERSION is {} ({})", *value, forced), advice);
}

void Examination::check_rocm() {
  for (const std::string& name : read_.entries("/opt")) {
    if (name != "rocm" && !name.starts_with("rocm-")) continue;
    const std::string version = read_.text("/opt/" + name + "/.info/version");
    if (version.empty()) continue;
    const auto parts = version_of(version);
    const bool old = !parts.empty() && parts.front() < 5;
    add("amd.rocm", old ? Severity::error : Severity::ok,
        fmt::format("ROCm {} in /opt/{}", version, name),
        old ? "install ROCm 5 or newer: older runtimes lack functions that the library calls" : "");
    if (name == "rocm") return;  // a link to one of the others
  }
}

void Examination::check_driver(const char* name, const std::string& advice) {
  const Machine::Driver* d = driver(name);
  if (!d) return;
  const std::string id = fmt::format("{}.driver", name == std::string("hip") ? "amd" : "nvidia");
  if (d->in_use)
    add(id, Severity::ok, fmt::format("the {} driver is used: {}", name, d->library));
  else
    add(id, Severity::error, fmt::format("the {} driver is not used: {}", name, d->reason), advice);
}

// Indices, or UUIDs, which are not checked. The runtime ignores all entries after an invalid one.
void Examination::check_visible(const char* variable, std::size_t count) {
  const auto value = read_.variable(variable);
  if (!value) return;
  const std::string id = "visible." + std::string(variable);
  if (value->empty() || *value == "-1")
    return add(id, Severity::error,
               fmt::format("{} is '{}', which hides all GPUs", variable, *value),
               fmt::format("unset {}", variable));
  std::istringstream entries(*value);
  for (std::string entry; std::getline(entries, entry, ',');) {
    std::size_t index = 0;
    const char* const end = entry.data() + entry.size();
    const auto [rest, error] = std::from_chars(entry.data(), end, index);
    if (error == std::errc() && rest == end && index >= count)
      return add(id, Severity::error,
                 fmt::format("{} is '{}', but this machine has {} such GPU{}", variable, *value,
                             count, count == 1 ? "" : "s"),
                 fmt::format("unset {}, or use the numbers from 0", variable));
  }
  add(id, Severity::note, fmt::format("{} is '{}'", variable, *value));
}

void Examination::check_nvidia() {
  const std::size_t cards = read_.cards(Vendor::nvidia).size();
  const auto* cuda = driver("cuda");
  if (cards == 0 && !read_.exists("/dev/nvidiactl") && !(cuda && cuda->in_use)) return;
  add("nvidia.card", Severity::ok, fmt::format("NVIDIA GPUs on the PCI bus: {}", cards));
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue ..."
  std::istringstream words(read_.text("/proc/driver/nvidia/version"));
  std::string version;
  for (std::string word; version.empty() && words >> word;) {
    if (version_of(word).size() >= 2) version = word;
  }
  if (version.empty()) {
    if (!read_.wsl())
      add("nvidia.module", Severity::error, "the kernel module nvidia is not loaded",
          read_.container().empty() ? "install NVIDIA's driver; `nvidia-smi` must list the GPU"
                                    : "start the container with --gpus all");
  } else if (const int major = version_of(version).front(); major < 450) {
    add("nvidia.module", Severity::error,
        fmt::format("NVIDIA's driver {} is older than 450, which the kernels need", version),
        "update the driver");
  } else if (major < 525) {
    add("nvidia.module", Severity::warning,
        fmt::format("NVIDIA's driver {} cannot load the kernels for Hopper, which need 525",
                    version),
        "update the driver; on other GPUs nothing is lost");
  } else {
    add("nvidia.module", Severity::ok, "NVIDIA's driver " + version);
  }
  check_driver("cuda", "install NVIDIA's driver (libcuda.so.1); in a container use --gpus all");
  if (read_.cards(Vendor::amd).empty()) check_visible("CUDA_VISIBLE_DEVICES", cards);
}

void Examination::check_environment() {
  for (const auto& [name, value] : m_.environment) {
    if (name.starts_with("ROCFLASH_"))
      add("environment." + name, Severity::note, fmt::format("{} is '{}'", name, value));
  }
  for (const char* name : {"HIP_LAUNCH_BLOCKING", "CUDA_LAUNCH_BLOCKING", "AMD_SERIALIZE_KERNEL"}) {
    const auto value = read_.variable(name);
    if (value && !value->empty() && *value != "0")
      add(std::string("environment.") + name, Severity::warning,
          fmt::format("{} is '{}', which makes every launch wait", name, *value),
          fmt::format("unset {} unless you search for an error", name));
  }
}

}  // namespace

const char* name_of(Severity severity) {
  constexpr const char* names[] = {"ok", "note", "warning", "error"};
  return names[static_cast<std::size_t>(severity)];
}

std::vector<Finding> diagnose(const Machine& machine) { return Examination(machine).run(); }

}  // namespace rocflash::cli
