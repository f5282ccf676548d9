// POSIX's setenv and unsetenv, which tests call and Windows lacks.
#pragma once

#include <cstdlib>

extern "C" __declspec(dllimport) int __stdcall SetEnvironmentVariableA(const char*, const char*);

inline int setenv(const char* name, const char* value, int) {
  return SetEnvironmentVariableA(name, value) != 0 && _putenv_s(name, value) == 0 ? 0 : -1;
}
inline int unsetenv(const char* name) {
  SetEnvironmentVariableA(name, nullptr);
  return _putenv_s(name, "");
}
