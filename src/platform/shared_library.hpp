// Shared libraries at run time, and whether the environment may name them. One implementation per
// operating system. Paths are UTF-8.
#pragma once

#include <span>
#include <string>

namespace rocflash::platform {

// The file names of the GPU drivers, the newest first.
std::span<const char* const> hip_driver_names();
std::span<const char* const> cuda_driver_names();

// Opens a library for itself: its symbols do not become visible to others. Null on failure, and
// `error` has the reason.
void* open_library(const char* path, std::string& error);
// The library of this name that the process has already loaded, or null.
void* loaded_library(const char* name);
void close_library(void* library);
// Null if the library lacks the symbol.
void* symbol_of(void* library, const char* name);

struct InstalledLibrary {
  void* library = nullptr;
  std::string path;   // that was opened
  std::string where;  // for messages, such as "found on the library path"
};
// Opens the first of `names` in the directories where the system's drivers are installed.
InstalledLibrary open_installed_library(std::span<const char* const> names);

// Keeps the library that contains `code` mapped until the process ends.
void pin_library_of(const void* code);

// Whether this process has privileges that its caller lacks (setuid, setgid, file capabilities).
// The caller controls the environment, so it must not select code to load then.
bool is_privileged();

}  // namespace rocflash::platform
