// What the command needs of the operating system: its file, output, user and displays. One
// implementation per operating system. Paths and text are UTF-8.
#pragma once

#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace rocflash::platform {

using Variables = std::map<std::string, std::string>;

// The file of this program.
std::filesystem::path program_path();

Variables environment();
// Also for libraries of this process that have a C library of their own.
void set_variable(const char* name, const std::string& value);

bool is_terminal(std::FILE* stream);

// A program whose output is no longer read ends without a message, also under a parent that ignores
// the signal, as Python does.
void end_on_closed_pipe();

struct Output {
  bool good;  // the exit status is 0
  std::string text;
  std::string command;  // for messages
};
// Runs a program with more variables; what it writes to standard error is dropped.
Output output_of(const Variables& variables, const std::vector<std::string>& words);

// The directory of the libraries of this program's build or installation.
std::filesystem::path library_directory();
// The file name of the simulator.
const char* simulator_name();

struct User {
  unsigned id = 0;  // 0 may do everything
  std::vector<unsigned> groups;
};
User this_user();

struct Access {
  unsigned user, group;
  bool by_user, by_group, by_others;  // may read and write
};
// Null if the file does not exist.
std::optional<Access> access_of(const std::filesystem::path& file);

// "Windows 10.0.22631"; empty on other systems, which have files that tell.
std::string windows_version();

inline constexpr unsigned amd_vendor = 0x1002, nvidia_vendor = 0x10de;
struct DisplayAdapter {
  std::string name;     // "AMD Radeon RX 7900 XTX"
  unsigned vendor = 0;  // of PCI
};
// Only on Windows; elsewhere the file system has them.
std::vector<DisplayAdapter> display_adapters();

}  // namespace rocflash::platform
