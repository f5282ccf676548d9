// `rocflash doctor`: what keeps attention from running, or from running fast, on this machine, and
// what to do about it.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace rocflash::cli {

enum class Severity { ok, note, warning, error };

const char* name_of(Severity severity);

struct Finding {
  std::string id;  // stable, such as "amd.permission"
  Severity severity = Severity::ok;
  std::string what, advice;
};

// A machine as the checks read it. Tests pass made-up ones.
struct Machine {
  struct Driver {
    std::string name;  // "hip", "cuda"
    bool in_use = false;
    std::string library, reason;
  };

  std::filesystem::path root = "/";  // of its file system
  std::map<std::string, std::string> environment;
  unsigned uid = 0;
  std::vector<unsigned> groups;  // of the process
  std::vector<Driver> drivers;
  std::vector<std::string> built_archs;  // that the library has kernels for
  std::string cpu_path;                  // instruction set of the CPU kernels

  // On Windows, whose file system has none of what the checks read elsewhere.
  struct Display {
    std::string name;
    unsigned vendor = 0;
  };
  std::string windows;  // its version; empty on other systems
  std::string cpu_features;
  std::vector<Display> displays;

  static Machine here();
};

// All findings, by subject: system, CPU, AMD, NVIDIA, environment.
std::vector<Finding> diagnose(const Machine& machine);

// "gfx90a" of KFD's 90010, "gfx1101" of 110001.
std::string gfx_name(unsigned gfx_target_version);

}  // namespace rocflash::cli
