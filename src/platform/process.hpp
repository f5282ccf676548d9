// The process: its environment, CPUs and forks. One implementation per operating system.
#pragma once

#include <memory>

namespace rocflash::platform {

// A variable of the process's environment at the time of construction. Where C libraries keep
// copies of the environment, as on Windows, getenv would miss what Python sets.
class Variable {
 public:
  explicit Variable(const char* name);
  const char* get() const { return value_; }  // null if it is not set

 private:
  const char* value_ = nullptr;
  std::unique_ptr<char[]> copy_;
};

// CPUs in the affinity mask of this process, at least 1.
int usable_cpus();

// Asks the operating system for AMX's tile registers, which it may require before their use.
bool request_tile_registers();

// Registers functions for before a fork, and for after it in the parent and in the child. Without
// effect on systems that have no fork.
void on_fork(void (*before)(), void (*in_parent)(), void (*in_child)());

}  // namespace rocflash::platform
