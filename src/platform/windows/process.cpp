#include "platform/process.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "platform/windows/text.hpp"

namespace rocflash::platform {

Variable::Variable(const char* name) {
  const std::wstring wide_name = wide(name);
  std::wstring text(64, L'\0');
  for (;;) {
    SetLastError(ERROR_SUCCESS);
    const DWORD size =
        GetEnvironmentVariableW(wide_name.c_str(), text.data(), static_cast<DWORD>(text.size()));
    if (size == 0 && GetLastError() == ERROR_ENVVAR_NOT_FOUND) return;
    if (size < text.size()) {
      text.resize(size);
      break;
    }
    text.resize(size);  // the size that is needed, with the null
  }
  const std::string value = utf8(text);
  copy_ = std::make_unique<char[]>(value.size() + 1);
  std::memcpy(copy_.get(), value.c_str(), value.size() + 1);
  value_ = copy_.get();
}

// A process that may use several groups of 64 CPUs has no mask that counts them.
int usable_cpus() {
  DWORD_PTR process = 0, system = 0;
  if (GetActiveProcessorGroupCount() == 1 &&
      GetProcessAffinityMask(GetCurrentProcess(), &process, &system) != 0)
    return std::max(1, std::popcount(process));
  return std::max(1, static_cast<int>(GetActiveProcessorCount(ALL_PROCESSOR_GROUPS)));
}

// Windows 11 has the function; without it, the registers are not saved.
bool request_tile_registers() {
  constexpr DWORD64 tile_data = DWORD64{1} << 18;
  using Enable = BOOL WINAPI(DWORD64);
  const HMODULE kernel = GetModuleHandleW(L"kernel32.dll");
  auto* const enable = reinterpret_cast<Enable*>(
      reinterpret_cast<void*>(GetProcAddress(kernel, "EnableProcessOptionalXStateFeatures")));
  return enable && enable(tile_data) != 0;
}

void on_fork(void (*)(), void (*)(), void (*)()) {}

}  // namespace rocflash::platform
