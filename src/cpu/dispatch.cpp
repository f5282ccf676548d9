// ISA dispatch: the best kernels for this CPU, or those named by ROCFLASH_CPU_ISA, selected once.
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "core/once.hpp"
#include "cpu/backend.hpp"
#include "cpu/kernels.hpp"
#include "cpu/machine.hpp"
#include "platform/process.hpp"

namespace rocflash {
namespace cpu {
namespace {

const Machine& machine() {
  static constinit OnFirstUse<Machine> known;
  return known.get(examine_machine);
}

const Kernels& choose() {
  const platform::Variable variable("ROCFLASH_CPU_ISA");
  const char* const wanted = variable.get();
  if (!wanted || !*wanted) return *machine().best;
  std::string supported;
  for (const Kernels* kernels : machine().supported) {
    if (std::string_view(kernels->name) == wanted) return *kernels;
    supported += (supported.empty() ? "" : ", ") + std::string(kernels->name);
  }
  refuse("ROCFLASH_CPU_ISA is '", std::string_view(wanted), "'; this CPU supports ", supported);
}

}  // namespace

const Kernels& chosen_kernels() {
  static constinit OnFirstUse<const Kernels*> known;
  return *known.get([] { return &choose(); });
}

}  // namespace cpu

const CpuDescription& describe_cpu() {
  static constinit OnFirstUse<CpuDescription> known;
  return known.get([] {
    return CpuDescription{cpu::machine().name, cpu::machine().features, cpu::chosen_kernels().name};
  });
}

}  // namespace rocflash
