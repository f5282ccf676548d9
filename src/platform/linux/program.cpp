#include "platform/program.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

namespace rocflash::platform {
namespace {

// Quotes an argument for the shell.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace

std::filesystem::path program_path() { return std::filesystem::read_symlink("/proc/self/exe"); }

Variables environment() {
  Variables variables;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return variables;
}

void set_variable(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }

bool is_terminal(std::FILE* stream) { return isatty(fileno(stream)) != 0; }

void end_on_closed_pipe() { std::signal(SIGPIPE, SIG_DFL); }

Output output_of(const Variables& variables, const std::vector<std::string>& words) {
  Output output{};
  for (const auto& [name, value] : variables) output.command += name + "=" + quoted(value) + " ";
  for (const std::string& word : words) output.command += quoted(word) + " ";
  output.command += "2>/dev/null";
  // The words are quoted. NOLINTNEXTLINE(bugprone-command-processor)
  std::FILE* pipe = popen(output.command.c_str(), "r");
  if (pipe == nullptr) return output;
  char part[4096];
  while (const std::size_t n = std::fread(part, 1, sizeof part, pipe)) output.text.append(part, n);
  output.good = pclose(pipe) == 0;
  return output;
}

std::filesystem::path library_directory() {
  return program_path().parent_path().parent_path() / "lib";
}

const char* simulator_name() { return "libamdhip64.so"; }

User this_user() {
  User user;
  user.id = geteuid();
  std::vector<gid_t> groups(static_cast<std::size_t>(std::max(0, getgroups(0, nullptr))));
  const int count = getgroups(static_cast<int>(groups.size()), groups.data());
  groups.resize(static_cast<std::size_t>(std::max(0, count)));
  user.groups.assign(groups.begin(), groups.end());
  user.groups.push_back(getegid());
  return user;
}

std::optional<Access> access_of(const std::filesystem::path& file) {
  struct stat about{};
  if (stat(file.c_str(), &about) != 0) return std::nullopt;
  const auto allows = [&](mode_t read_and_write) {
    return (about.st_mode & read_and_write) == read_and_write;
  };
  return Access{about.st_uid, about.st_gid, allows(S_IRUSR | S_IWUSR), allows(S_IRGRP | S_IWGRP),
                allows(S_IROTH | S_IWOTH)};
}

std::string windows_version() { return {}; }

std::vector<DisplayAdapter> display_adapters() { return {}; }

}  // namespace rocflash::platform
