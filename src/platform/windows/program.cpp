#include "platform/program.hpp"

#include <io.h>

#include <algorithm>
#include <cstdlib>
#include <cwchar>

#include "platform/windows/text.hpp"

namespace rocflash::platform {
namespace {

// Quotes an argument for the C run-time libraries, which count backslashes only before a quote.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  std::size_t backslashes = 0;
  for (const char c : text) {
    if (c == '"') out.append(backslashes + 1, '\\');
    backslashes = c == '\\' ? backslashes + 1 : 0;
    out += c;
  }
  out.append(backslashes, '\\');
  return out + "\"";
}

// An inheritable handle, closed at the end.
class Handle {
 public:
  Handle() = default;
  explicit Handle(HANDLE handle) : handle_(handle) {}
  ~Handle() { close(); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  HANDLE* address() { return &handle_; }
  HANDLE get() const { return handle_; }
  void close() {
    if (handle_ != nullptr && handle_ != INVALID_HANDLE_VALUE) CloseHandle(handle_);
    handle_ = nullptr;
  }

 private:
  HANDLE handle_ = nullptr;
};

// The variables of this process and more, as CreateProcess takes them.
std::wstring environment_block(const Variables& more) {
  Variables all = environment();
  for (const auto& [name, value] : more) all[name] = value;
  std::wstring block;
  for (const auto& [name, value] : all) block += wide(name + "=" + value) + L'\0';
  return block + L'\0';
}

std::wstring registry_text(const wchar_t* key, const wchar_t* name) {
  wchar_t text[256] = {};
  DWORD bytes = sizeof text - sizeof *text;
  RegGetValueW(HKEY_LOCAL_MACHINE, key, name, RRF_RT_REG_SZ, nullptr, text, &bytes);
  return text;
}

}  // namespace

std::filesystem::path program_path() { return path_of(nullptr); }

Variables environment() {
  Variables variables;
  wchar_t* const block = GetEnvironmentStringsW();
  for (const wchar_t* entry = block; entry && *entry;) {
    const std::wstring_view text(entry);
    const std::size_t equals = text.find(L'=', 1);  // "=C:=C:\" has the directory of a drive
    if (equals != std::wstring_view::npos)
      variables[utf8(text.substr(0, equals))] = utf8(text.substr(equals + 1));
    entry += text.size() + 1;
  }
  FreeEnvironmentStringsW(block);
  return variables;
}

void set_variable(const char* name, const std::string& value) {
  SetEnvironmentVariableW(wide(name).c_str(), wide(value).c_str());
  _putenv_s(name, value.c_str());
}

bool is_terminal(std::FILE* stream) {
  const int file = _fileno(stream);
  DWORD mode = 0;
  const auto console = reinterpret_cast<HANDLE>(_get_osfhandle(file));
  if (_isatty(file) == 0 || !GetConsoleMode(console, &mode)) return false;
  // The progress bar has terminal sequences, which older consoles do not know.
  return SetConsoleMode(console, mode | ENABLE_VIRTUAL_TERMINAL_PROCESSING) != 0;
}

void end_on_closed_pipe() {}

Output output_of(const Variables& variables, const std::vector<std::string>& words) {
  Output output{};
  for (const std::string& word : words)
    output.command += (output.command.empty() ? "" : " ") + quoted(word);
  SECURITY_ATTRIBUTES inherited{sizeof inherited, nullptr, TRUE};
  Handle read, write;
  if (!CreatePipe(read.address(), write.address(), &inherited, 0)) return output;
  SetHandleInformation(read.get(), HANDLE_FLAG_INHERIT, 0);
  const Handle nothing(CreateFileW(L"NUL", GENERIC_READ | GENERIC_WRITE,
                                   FILE_SHARE_READ | FILE_SHARE_WRITE, &inherited, OPEN_EXISTING, 0,
                                   nullptr));
  STARTUPINFOW start{};
  start.cb = sizeof start;
  start.dwFlags = STARTF_USESTDHANDLES;
  start.hStdInput = nothing.get();
  start.hStdOutput = write.get();
  start.hStdError = nothing.get();
  PROCESS_INFORMATION process{};
  std::wstring line = wide(output.command), block = environment_block(variables);
  if (!CreateProcessW(wide(words.front()).c_str(), line.data(), nullptr, nullptr, TRUE,
                      CREATE_UNICODE_ENVIRONMENT, block.data(), nullptr, &start, &process))
    return output;
  const Handle child(process.hProcess), thread(process.hThread);
  write.close();
  char part[4096];
  for (DWORD size = 0; ReadFile(read.get(), part, sizeof part, &size, nullptr) && size != 0;)
    output.text.append(part, size);
  WaitForSingleObject(child.get(), INFINITE);
  DWORD status = 1;
  output.good = GetExitCodeProcess(child.get(), &status) && status == 0;
  return output;
}

// DLLs are where programs are.
std::filesystem::path library_directory() { return program_path().parent_path(); }

const char* simulator_name() { return "amdhip64_7.dll"; }

// Drivers decide on Windows, not the owners of files.
User this_user() { return {}; }

std::optional<Access> access_of(const std::filesystem::path&) { return std::nullopt; }

std::string windows_version() {
  // GetVersion answers with the version that the program's manifest names.
  const wchar_t* const key = L"SOFTWARE\\Microsoft\\Windows NT\\CurrentVersion";
  DWORD major = 0, minor = 0, size = sizeof major;
  RegGetValueW(HKEY_LOCAL_MACHINE, key, L"CurrentMajorVersionNumber", RRF_RT_REG_DWORD, nullptr,
               &major, &size);
  size = sizeof minor;
  RegGetValueW(HKEY_LOCAL_MACHINE, key, L"CurrentMinorVersionNumber", RRF_RT_REG_DWORD, nullptr,
               &minor, &size);
  // Before Windows 10 there is only a text, such as "6.3".
  const std::string number = major != 0 ? std::to_string(major) + "." + std::to_string(minor)
                                        : utf8(registry_text(key, L"CurrentVersion"));
  std::string version = "Windows " + number + "." + utf8(registry_text(key, L"CurrentBuild"));
  const HMODULE system = GetModuleHandleW(L"ntdll.dll");
  using Version = const char*();
  if (auto* const wine = reinterpret_cast<Version*>(
          reinterpret_cast<void*>(GetProcAddress(system, "wine_get_version"))))
    version += std::string(", Wine ") + wine();
  return version;
}

std::vector<DisplayAdapter> display_adapters() {
  std::vector<DisplayAdapter> found;
  std::wstring previous;
  DISPLAY_DEVICEW device{};
  device.cb = sizeof device;
  for (DWORD number = 0; EnumDisplayDevicesW(nullptr, number, &device, 0) != 0; ++number) {
    const std::wstring id = device.DeviceID;  // "PCI\VEN_1002&DEV_744C&SUBSYS_..."
    // An adapter has an entry per output, which differ in the last part of the key.
    std::wstring key = device.DeviceKey;
    key.erase(std::min(key.size(), key.find_last_of(L'\\')));
    const std::size_t at = id.find(L"VEN_");
    if (at == std::wstring::npos || key == previous) continue;
    previous = key;
    found.push_back({utf8(device.DeviceString),
                     static_cast<unsigned>(std::wcstoul(id.c_str() + at + 4, nullptr, 16))});
  }
  return found;
}

}  // namespace rocflash::platform
