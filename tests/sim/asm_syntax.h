// Assembly syntax of each generation for the same operations.
#pragma once

#include <fmt/format.h>

#include <string>

namespace rocflash::sim::test {

struct AsmSyntax {
  std::string target;
  int wave = 64;

  [[nodiscard]] bool gfx9() const { return target.starts_with("gfx9"); }
  [[nodiscard]] bool gfx10() const { return target.starts_with("gfx10"); }
  [[nodiscard]] bool gfx11() const { return target.starts_with("gfx11"); }
  [[nodiscard]] bool gfx12() const { return target.starts_with("gfx12"); }
  [[nodiscard]] bool legacy_mnemonics() const { return gfx9() || gfx10(); }

  [[nodiscard]] std::string load(int v, int address, int base) const {
    return fmt::format("  {} v{}, v{}, s[{}:{}]\n",
                       legacy_mnemonics() ? "global_load_dword" : "global_load_b32", v, address,
                       base, base + 1);
  }
  [[nodiscard]] std::string store(int address, const std::string& v, int base) const {
    return fmt::format("  {} v{}, {}, s[{}:{}]\n",
                       legacy_mnemonics() ? "global_store_dword" : "global_store_b32", address, v,
                       base, base + 1);
  }
  [[nodiscard]] std::string add(int v, int amount) const {
    return fmt::format("  {} v{}, {}, v{}\n", gfx9() ? "v_add_u32" : "v_add_nc_u32", v, amount, v);
  }
  [[nodiscard]] std::string scalar_load8(int s, int base, int offset) const {
    return fmt::format("  {} s[{}:{}], s[{}:{}], {:#x}\n",
                       legacy_mnemonics() ? "s_load_dwordx8" : "s_load_b256", s, s + 7, base,
                       base + 1, offset);
  }
  [[nodiscard]] std::string wait_all() const {
    if (gfx12()) return "  s_wait_loadcnt 0x0\n  s_wait_kmcnt 0x0\n  s_wait_dscnt 0x0\n";
    return "  s_waitcnt vmcnt(0) lgkmcnt(0)\n";
  }
  [[nodiscard]] std::string barrier() const {
    return gfx12() ? "  s_barrier_signal -1\n  s_barrier_wait 0xffff\n" : "  s_barrier\n";
  }
  // The lane mask registers a compare writes.
  [[nodiscard]] std::string vcc() const { return wave == 32 ? "vcc_lo" : "vcc"; }
  [[nodiscard]] std::string exec() const { return wave == 32 ? "exec_lo" : "exec"; }
  [[nodiscard]] std::string mask_bits() const { return wave == 32 ? "b32" : "b64"; }
};

}  // namespace rocflash::sim::test
