// The aarch64 CPU: from the kernel's hardware capabilities.
#include <sys/auxv.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "cpu/machine.hpp"

namespace rocflash::cpu {
namespace {

struct Capability {
  const char* name;
  unsigned long type;  // of the auxiliary vector's entry
  int bit;
};

// The bits are Linux's, which headers of older systems do not all define.
constexpr unsigned long hwcap = 16, hwcap2 = 26;
constexpr Capability capabilities[] = {
    {"fphp", hwcap, 9},  {"asimdhp", hwcap, 10}, {"asimddp", hwcap, 20}, {"sve", hwcap, 22},
    {"sve2", hwcap2, 1}, {"i8mm", hwcap2, 13},   {"bf16", hwcap2, 14},
};

bool has(const Capability& c) { return ((getauxval(c.type) >> c.bit) & 1u) != 0; }

bool has_bf16() {
  for (const Capability& c : capabilities) {
    if (std::string_view(c.name) == "bf16") return has(c);
  }
  return false;
}

}  // namespace

Machine examine_machine() {
  Machine machine;
  machine.name = "AArch64";
  machine.features = "neon";
  for (const Capability& c : capabilities) {
    if (!has(c)) continue;
    machine.features += std::string(" ") + c.name;
  }
  // BFDOT does two multiply-adds per lane.
  if (has_bf16()) machine.supported.push_back(&neon_bf16::kernels);
  machine.supported.push_back(&neon::kernels);
  machine.best = machine.supported.front();
  return machine;
}

}  // namespace rocflash::cpu
