// Windows' functions with UTF-8 text: those with an A at the end take the system's code page, which
// lacks most characters.
#pragma once

#ifndef NOMINMAX
#define NOMINMAX
#endif
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#include <windows.h>

#include <string>
#include <string_view>

namespace rocflash::platform {

inline std::wstring wide(std::string_view text) {
  const auto size = static_cast<int>(text.size());
  const int needed = MultiByteToWideChar(CP_UTF8, 0, text.data(), size, nullptr, 0);
  std::wstring all(static_cast<std::size_t>(needed), L'\0');
  MultiByteToWideChar(CP_UTF8, 0, text.data(), size, all.data(), needed);
  return all;
}

inline std::string utf8(std::wstring_view text) {
  const auto size = static_cast<int>(text.size());
  const int needed =
      WideCharToMultiByte(CP_UTF8, 0, text.data(), size, nullptr, 0, nullptr, nullptr);
  std::string all(static_cast<std::size_t>(needed), '\0');
  WideCharToMultiByte(CP_UTF8, 0, text.data(), size, all.data(), needed, nullptr, nullptr);
  return all;
}

// The path of a module; null is the program.
inline std::wstring path_of(HMODULE module) {
  std::wstring path(MAX_PATH, L'\0');
  for (;;) {
    const DWORD size = GetModuleFileNameW(module, path.data(), static_cast<DWORD>(path.size()));
    if (size < path.size()) return path.substr(0, size);
    path.resize(2 * path.size());
  }
}

// The text of a system error, without its line break.
inline std::string text_of(DWORD error) {
  wchar_t* text = nullptr;
  const DWORD size = FormatMessageW(
      FORMAT_MESSAGE_ALLOCATE_BUFFER | FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS,
      nullptr, error, 0, reinterpret_cast<wchar_t*>(&text), 0, nullptr);
  std::string all = size != 0 ? utf8({text, size}) : std::string();
  LocalFree(text);
  all.erase(all.find_last_not_of(" .\r\n") + 1);
  return all.empty() ? "error " + std::to_string(error) : all;
}

}  // namespace rocflash::platform
