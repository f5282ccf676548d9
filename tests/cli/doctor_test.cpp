// The checks of `rocflash doctor` against made-up machines: a file system in a temporary directory,
// an environment and the drivers' answers.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "cli/doctor.hpp"

namespace rocflash::cli {
namespace {

namespace fs = std::filesystem;

constexpr uid_t user = 54321;

// A working Linux machine with one MI300X; tests break it.
class DoctorTest : public testing::Test {
 protected:
  DoctorTest() {
    std::string name = (fs::temp_directory_path() / "rocflash_doctor_XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    m.root = name;
    m.uid = user;
    m.groups = {getegid()};
    m.drivers = {{"hip", true, "libamdhip64.so.7", "loaded"},
                 {"cuda", false, "", "not found; tried libcuda.so.1"}};
    m.built_archs = {"gfx942", "gfx1100", "gfx1030", "sm_80"};
    m.cpu_path = "avx512";
    write("/proc/sys/kernel/osrelease", "6.8.0-60-generic\n");
    write("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu avx f16c fma avx2\nbugs\t\t:\n");
    write("/etc/group", "daemon:x:1:\nrender:x:" + std::to_string(getegid()) + ":\n");
    card("0000:03:00.0", "0x1002", "0x120000");
    write("/sys/module/amdgpu/version", "6.12.12\n");
    node("1", 90402);
    device("/dev/kfd", 0660);
    device("/dev/dri/renderD128", 0660);
    write("/opt/rocm/.info/version", "6.4.1-83\n");
  }
  ~DoctorTest() override { fs::remove_all(m.root); }

  void write(const std::string& path, const std::string& text) {
    const fs::path file = m.root / fs::path(path).relative_path();
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void remove(const std::string& path) { fs::remove_all(m.root / fs::path(path).relative_path()); }
  void device(const std::string& path, mode_t mode) {
    write(path, "");
    EXPECT_EQ(chmod((m.root / fs::path(path).relative_path()).c_str(), mode), 0);
  }
  void card(const std::string& address, const std::string& vendor, const std::string& kind) {
    write("/sys/bus/pci/devices/" + address + "/vendor", vendor + "\n");
    write("/sys/bus/pci/devices/" + address + "/class", kind + "\n");
  }
  void node(const std::string& number, unsigned version) {
    write(
        "/sys/class/kfd/kfd/topology/nodes/" + number + "/properties",
        "cpu_cores_count 0\nsimd_count 1216\ngfx_target_version " + std::to_string(version) + "\n");
  }
  void without_amd() {
    for (const char* path : {"/sys", "/dev", "/opt"}) remove(path);
    m.drivers[0] = {"hip", false, "", "not found; tried libamdhip64.so.7"};
  }

  // The only finding with this id.
  Finding finding(const std::string& id) const {
    Finding found{id + " is missing", Severity::ok, "", ""};
    for (const Finding& f : diagnose(m)) {
      if (f.id == id) found = f;
    }
    return found;
  }
  bool reports(const std::string& id) const { return finding(id).id == id; }
  void expect(const std::string& id, Severity severity, const std::string& what,
              const std::string& advice = "") const {
    const Finding f = finding(id);
    EXPECT_EQ(f.id, id);
    EXPECT_STREQ(name_of(f.severity), name_of(severity)) << f.what;
    EXPECT_NE(f.what.find(what), std::string::npos) << f.what;
    EXPECT_NE(f.advice.find(advice), std::string::npos) << f.advice;
  }
  int problems() const {
    const auto all = diagnose(m);
    return static_cast<int>(std::count_if(
        all.begin(), all.end(), [](const Finding& f) { return f.severity >= Severity::warning; }));
  }

  Machine m;
};

TEST(GfxName, ReadsKfdVersions) {
  EXPECT_EQ(gfx_name(90402), "gfx942");
  EXPECT_EQ(gfx_name(90010), "gfx90a");
  EXPECT_EQ(gfx_name(110001), "gfx1101");
}

TEST_F(DoctorTest, AWorkingMachineHasNoProblem) {
  EXPECT_EQ(problems(), 0);
  expect("system.kernel", Severity::ok, "6.8.0-60-generic");
  expect("cpu", Severity::ok, "avx512");
  expect("amd.card", Severity::ok, "AMD GPUs on the PCI bus: 1");
  expect("amd.module", Severity::ok, "amdgpu 6.12.12 is loaded");
  expect("amd.permission", Severity::ok, "may be used");
  expect("amd.rocm", Severity::ok, "ROCm 6.4.1-83 in /opt/rocm");
  expect("amd.driver", Severity::ok, "libamdhip64.so.7");
  EXPECT_FALSE(reports("nvidia.card"));
}

TEST_F(DoctorTest, AMachineWithoutGpusHasNoProblem) {
  without_amd();
  EXPECT_EQ(problems(), 0);
  expect("amd.card", Severity::note, "no AMD GPU");
}

TEST_F(DoctorTest, CpuFeatures) {
  write("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu avx f16c\n");
  m.cpu_path = "baseline";
  expect("cpu.features", Severity::warning,
         "lacks avx2, fma, so attention on it uses the slow path "
         "baseline",
         "-cpu host");
}

TEST_F(DoctorTest, KernelModule) {
  remove("/sys/module/amdgpu");
  expect("amd.module", Severity::error, "amdgpu is not loaded", "modprobe amdgpu");
  write("/.dockerenv", "");
  expect("amd.module", Severity::error, "amdgpu is not loaded", "on the host");
}

TEST_F(DoctorTest, OldKernelModule) {
  write("/sys/module/amdgpu/version", "5.11.5\n");
  expect("amd.module", Severity::error, "amdgpu 5.11.5 is older than ROCm 5's", "amdgpu-dkms");
  remove("/sys/module/amdgpu/version");
  expect("amd.module", Severity::ok, "amdgpu of the kernel is loaded");
}

TEST_F(DoctorTest, NoKfd) {
  remove("/dev/kfd");
  expect("amd.kfd", Severity::error, "/dev/kfd does not exist", "reboot");
  write("/run/.containerenv", "");
  expect("amd.kfd", Severity::error, "/dev/kfd does not exist", "--device /dev/kfd");
  expect("system.container", Severity::note, "podman");
}

TEST_F(DoctorTest, NoRenderNode) {
  remove("/dev/dri");
  expect("amd.render", Severity::error, "no render node", "dmesg");
}

TEST_F(DoctorTest, Permissions) {
  m.groups = {getegid() + 1};
  expect("amd.permission", Severity::error,
         "no permission for /dev/kfd, /dev/dri/renderD128, which belongs to group render",
         "usermod -aG render,video");
  m.environment["container"] = "lxc";
  expect("amd.permission", Severity::error, "no permission for /dev/kfd", "--group-add");
  remove("/etc/group");
  expect("amd.permission", Severity::error, "which has no name here");
  m.uid = 0;
  expect("amd.permission", Severity::ok, "may be used");
  m.uid = user;
  device("/dev/kfd", 0666);
  device("/dev/dri/renderD128", 0666);
  expect("amd.permission", Severity::ok, "may be used");
}

TEST_F(DoctorTest, CardsThatTheKernelDoesNotKnow) {
  card("0000:07:00.0", "0x1002", "0x030000");
  expect("amd.initialized", Severity::warning, "1 of 2 AMD GPUs", "older than the card");
}

TEST_F(DoctorTest, OtherPciDevicesAreNoGpus) {
  card("0000:00:01.0", "0x1002", "0x060400");  // a bridge
  expect("amd.card", Severity::ok, "bus: 1");
}

TEST_F(DoctorTest, ArchitecturesWithoutKernels) {
  node("2", 100306);
  expect("amd.arch", Severity::warning, "no kernels for gfx1036; it has gfx942 gfx1100 gfx1030",
         "ROCFLASH_GPU_ARCHS=gfx1036");
}

TEST_F(DoctorTest, BuildsWithoutKernels) {
  m.built_archs = {"sm_80"};
  expect("amd.kernels", Severity::error, "no kernels for AMD GPUs", "clang 22");
}

TEST_F(DoctorTest, OverriddenArchitecture) {
  m.environment["HSA_OVERRIDE_GFX_VERSION"] = "9.4.2";
  expect("amd.override", Severity::note, "9.4.2 (gfx942)");
  m.environment["HSA_OVERRIDE_GFX_VERSION"] = "10.3.0";
  expect("amd.override", Severity::error, "gfx942 is treated as gfx1030", "unset");
  node("1", 100301);
  expect("amd.override", Severity::warning, "gfx1031 is treated as gfx1030", "unset");
  m.environment["HSA_OVERRIDE_GFX_VERSION"] = "navi";
  expect("amd.override", Severity::error, "must have three numbers", "unset");
}

TEST_F(DoctorTest, OldRocm) {
  write("/opt/rocm/.info/version", "4.5.2-164\n");
  expect("amd.rocm", Severity::error, "ROCm 4.5.2-164", "ROCm 5 or newer");
  remove("/opt/rocm");
  write("/opt/rocm-7.1.0/.info/version", "7.1.0\n");
  expect("amd.rocm", Severity::ok, "ROCm 7.1.0 in /opt/rocm-7.1.0");
}

TEST_F(DoctorTest, MissingRuntime) {
  m.drivers[0] = {"hip", false, "", "not found; tried libamdhip64.so.7"};
  expect("amd.driver", Severity::error, "not used: not found; tried libamdhip64.so.7",
         "ROCFLASH_HIP_LIBRARY");
}

TEST_F(DoctorTest, VisibleDevices) {
  for (const char* name : {"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"}) {
    const std::string id = std::string("visible.") + name;
    EXPECT_FALSE(reports(id));
    for (const char* hidden : {"", "-1"}) {
      m.environment[name] = hidden;
      expect(id, Severity::error, "hides all GPUs", "unset");
    }
    m.environment[name] = "0,1";
    expect(id, Severity::error, "'0,1', but this machine has 1 such GPU", "unset");
    for (const char* good : {"0", "GPU-1f2a5c0c2cd91bd7"}) {
      m.environment[name] = good;
      expect(id, Severity::note, good);
    }
  }
}

TEST_F(DoctorTest, Wsl) {
  without_amd();
  write("/proc/sys/kernel/osrelease", "6.6.87.2-microsoft-standard-WSL2\n");
  expect("system.wsl", Severity::error, "without /dev/dxg", "wsl --update");
  write("/dev/dxg", "");
  expect("system.wsl", Severity::note, "WSL 2");
  expect("amd.wsl", Severity::note, "librocdxg.so, is not installed", "ROCm for WSL");
  write("/opt/rocm/lib/librocdxg.so.1", "");
  expect("amd.wsl", Severity::error, "does not look for it", "HSA_ENABLE_DXG_DETECTION=1");
  m.environment["HSA_ENABLE_DXG_DETECTION"] = "1";
  EXPECT_FALSE(reports("amd.wsl"));
}

TEST_F(DoctorTest, Containers) {
  EXPECT_FALSE(reports("system.container"));
  write("/proc/1/cgroup", "0::/kubepods/burstable/pod1\n");
  expect("system.container", Severity::note, "kubepods");
  m.environment["APPTAINER_CONTAINER"] = "/image.sif";
  expect("system.container", Severity::note, "apptainer");
}

TEST_F(DoctorTest, Nvidia) {
  without_amd();
  card("0000:41:00.0", "0x10de", "0x030200");
  m.drivers[1] = {"cuda", true, "libcuda.so.1", "loaded"};
  const auto version = [&](const std::string& number) {
    write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  " +
                                             number + "  Tue Mar  5\nGCC version: 12.3.0\n");
  };
  version("550.54.15");
  EXPECT_EQ(problems(), 0);
  expect("nvidia.module", Severity::ok, "550.54.15");
  version("515.65.01");
  expect("nvidia.module", Severity::warning, "515.65.01 cannot load the kernels for Hopper",
         "update");
  version("418.87.00");
  expect("nvidia.module", Severity::error, "418.87.00 is older than 450", "update");
  remove("/proc/driver");
  expect("nvidia.module", Severity::error, "not loaded", "nvidia-smi");
  m.environment["CUDA_VISIBLE_DEVICES"] = "1";
  expect("visible.CUDA_VISIBLE_DEVICES", Severity::error, "has 1 such GPU");
  m.drivers[1] = {"cuda", false, "", "not found; tried libcuda.so.1"};
  expect("nvidia.driver", Severity::error, "libcuda.so.1", "--gpus all");
}

TEST_F(DoctorTest, Windows) {
  m.windows = "Windows 10.0.22631";
  m.cpu_features = "sse2 avx f16c fma avx2";
  m.displays = {{"AMD Radeon RX 7900 XTX", 0x1002}, {"Microsoft Basic Display Adapter", 0x1414}};
  m.drivers = {{"hip", true, "C:\\x\\amdhip64_7.dll", "found in ROCm's package"},
               {"cuda", false, "", "not found; tried nvcuda.dll"}};
  EXPECT_EQ(problems(), 0);
  expect("system.windows", Severity::ok, "Windows 10.0.22631");
  expect("cpu", Severity::ok, "avx512");
  expect("amd.card", Severity::ok, "Radeon RX 7900 XTX");
  expect("amd.driver", Severity::ok, "amdhip64_7.dll");
  for (const char* other : {"system.kernel", "amd.module", "amd.permission", "nvidia.card"})
    EXPECT_FALSE(reports(other)) << other;

  m.environment["HIP_VISIBLE_DEVICES"] = "1";
  expect("visible.HIP_VISIBLE_DEVICES", Severity::error, "this machine has 1 such GPU");
  m.drivers[0] = {"hip", false, "", "not found; tried amdhip64_7.dll, amdhip64_6.dll"};
  expect("amd.driver", Severity::error, "tried amdhip64_7.dll", "Adrenalin");
  m.built_archs = {"sm_80"};
  expect("amd.kernels", Severity::error, "no kernels for AMD GPUs");
  m.displays = {{"NVIDIA GeForce RTX 4090", 0x10de}};
  expect("amd.card", Severity::note, "no AMD GPU");
  expect("nvidia.card", Severity::ok, "RTX 4090");
  expect("nvidia.driver", Severity::error, "nvcuda.dll", "install NVIDIA's driver");
  m.cpu_features = "sse2";
  expect("cpu.features", Severity::warning, "lacks avx2, fma, f16c");
}

TEST_F(DoctorTest, Settings) {
  m.environment["ROCFLASH_HOPPER"] = "0";
  expect("environment.ROCFLASH_HOPPER", Severity::note, "'0'");
  m.environment["AMD_SERIALIZE_KERNEL"] = "3";
  expect("environment.AMD_SERIALIZE_KERNEL", Severity::warning, "every launch wait", "unset");
  m.environment["AMD_SERIALIZE_KERNEL"] = "0";
  EXPECT_FALSE(reports("environment.AMD_SERIALIZE_KERNEL"));
}

}  // namespace
}  // namespace rocflash::cli
