#include "platform/shared_library.hpp"

#include "platform/windows/text.hpp"

namespace rocflash::platform {
namespace {

// The dependencies of a library that is opened by its full path are searched in its own directory.
HMODULE open_file(const std::wstring& path) {
  const bool is_name = path.find_last_of(L"\\/") == std::wstring::npos;
  return LoadLibraryExW(path.c_str(), nullptr, is_name ? 0 : LOAD_WITH_ALTERED_SEARCH_PATH);
}

HMODULE module_of(const void* code) {
  HMODULE module = nullptr;
  GetModuleHandleExW(
      GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT,
      static_cast<const wchar_t*>(code), &module);
  return module;
}

// ROCm's packages for Python install its runtime next to this one: site-packages has
// rocflash/lib/rocflash.dll and _rocm_sdk_core/bin/amdhip64_7.dll. Empty elsewhere.
std::wstring rocm_directory() {
  std::wstring path = path_of(module_of(reinterpret_cast<const void*>(&rocm_directory)));
  for (int level = 0; level < 3; ++level) {  // rocflash.dll, lib, rocflash
    const std::size_t separator = path.find_last_of(L"\\/");
    if (separator == std::wstring::npos) return {};
    path.erase(separator);
  }
  return path + L"\\_rocm_sdk_core\\bin";
}

}  // namespace

std::span<const char* const> hip_driver_names() {
  static constexpr const char* names[] = {"amdhip64_7.dll", "amdhip64_6.dll"};
  return names;
}

std::span<const char* const> cuda_driver_names() {
  static constexpr const char* names[] = {"nvcuda.dll"};
  return names;
}

void* open_library(const char* path, std::string& error) {
  const HMODULE library = open_file(wide(path));
  if (!library) error = std::string(path) + ": " + text_of(GetLastError());
  return library;
}

void* loaded_library(const char* name) {
  HMODULE library = nullptr;  // GetModuleHandleEx counts the use, as open_library does
  GetModuleHandleExW(0, wide(name).c_str(), &library);
  return library;
}

void close_library(void* library) { FreeLibrary(static_cast<HMODULE>(library)); }

void* symbol_of(void* library, const char* name) {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), name));
}

// The graphics driver has a copy in System32, which is older than that of ROCm's packages. No other
// directory is searched: PATH and the current directory may belong to others.
InstalledLibrary open_installed_library(std::span<const char* const> names) {
  if (const std::wstring directory = rocm_directory(); !directory.empty()) {
    for (const char* name : names) {
      const std::wstring path = directory + L"\\" + wide(name);
      if (const HMODULE library = open_file(path)) {
        return {library, utf8(path), "found in ROCm's package"};
      }
    }
  }
  for (const char* name : names) {
    if (const HMODULE library =
            LoadLibraryExW(wide(name).c_str(), nullptr, LOAD_LIBRARY_SEARCH_SYSTEM32))
      return {library, utf8(path_of(library)), "found in the system's directory"};
  }
  return {};
}

void pin_library_of(const void* code) {
  HMODULE module = nullptr;
  GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_PIN,
                     static_cast<const wchar_t*>(code), &module);
}

// Windows has no counterpart of setuid.
bool is_privileged() { return false; }

}  // namespace rocflash::platform
