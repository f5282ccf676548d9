// Which instruction set runs: found once, from CPUID and what the operating system saves, or named
// by the user.
#include <cpuid.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "api/error.hpp"
#include "cpu/backend.hpp"
#include "cpu/kernels.hpp"

namespace rocflash {
namespace cpu {
namespace {

struct Feature {
  const char* name;
  bool present;
};

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf = 0) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d);
  return r;
}

// The register state that the operating system saves on a task switch.
std::uint64_t saved_state() {
  if (!(cpuid(1).c & (1u << 27))) return 0;
  unsigned low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (std::uint64_t{high} << 32) | low;
}

struct Machine {
  bool avx2, avx512, avx512_bf16;
  std::string features, name;
};

std::string brand() {
  if (cpuid(0x80000000u).a < 0x80000004u) return "x86-64";
  char text[49] = {};
  for (unsigned n = 0; n < 3; ++n) {
    const Registers r = cpuid(0x80000002u + n);
    const unsigned words[] = {r.a, r.b, r.c, r.d};
    std::memcpy(text + 16 * n, words, 16);
  }
  std::string name(text);
  name.erase(0, name.find_first_not_of(' '));
  name.erase(name.find_last_not_of(' ') + 1);
  return name.empty() ? "x86-64" : name;
}

Machine examine() {
  const Registers one = cpuid(1), seven = cpuid(7);
  const std::uint64_t saved = saved_state();
  const bool vectors = (saved & 0x6) == 0x6, wide = vectors && (saved & 0xe0) == 0xe0;
  const bool tiles = (saved & 0x60000) == 0x60000;
  const auto bit = [](unsigned word, int n) { return ((word >> n) & 1u) != 0; };
  const Feature features[] = {
      {"avx", vectors && bit(one.c, 28)},
      {"f16c", vectors && bit(one.c, 29)},
      {"fma", vectors && bit(one.c, 12)},
      {"avx2", vectors && bit(seven.b, 5)},
      {"avx512f", wide && bit(seven.b, 16)},
      {"avx512dq", wide && bit(seven.b, 17)},
      {"avx512bw", wide && bit(seven.b, 30)},
      {"avx512vl", wide && bit(seven.b, 31)},
      {"avx512-bf16", wide && bit(cpuid(7, 1).a, 5)},
      {"avx512-fp16", wide && bit(seven.d, 23)},
      {"amx-tile", tiles && bit(seven.d, 24)},
      {"amx-bf16", tiles && bit(seven.d, 22)},
  };
  const auto has = [&](std::string_view name) {
    for (const Feature& f : features)
      if (f.name == name) return f.present;
    return false;
  };
  Machine m{.avx2 = has("avx2") && has("fma") && has("f16c"),
            .avx512 = false,
            .avx512_bf16 = false,
            .features = "sse2",
            .name = brand()};
  m.avx512 = m.avx2 && has("avx512f") && has("avx512dq") && has("avx512bw") && has("avx512vl");
  m.avx512_bf16 = m.avx512 && has("avx512-bf16");
  for (const Feature& f : features) {
    if (f.present) m.features += std::string(" ") + f.name;
  }
  return m;
}

const Machine& machine() {
  static const Machine m = examine();
  return m;
}

const Kernels& choose() {
  const struct {
    const Kernels& kernels;
    bool runs;
  } sets[] = {{avx512_bf16::kernels, machine().avx512_bf16},
              {avx512::kernels, machine().avx512},
              {avx2::kernels, machine().avx2},
              {baseline::kernels, true}};
  const char* wanted = std::getenv("ROCFLASH_CPU_ISA");
  if (!wanted || !*wanted) {
    for (const auto& set : sets)
      if (set.runs) return set.kernels;
  }
  std::string can;
  for (const auto& set : sets) {
    if (!set.runs) continue;
    if (std::string_view(set.kernels.name) == wanted) return set.kernels;
    can += (can.empty() ? "" : ", ") + std::string(set.kernels.name);
  }
  refuse("ROCFLASH_CPU_ISA: '", std::string_view(wanted), "'; this machine can run ", can);
}

}  // namespace

const Kernels& chosen_kernels() {
  static const Kernels& kernels = choose();
  return kernels;
}

}  // namespace cpu

const CpuDescription& describe_cpu() {
  static const CpuDescription description{cpu::machine().name, cpu::machine().features,
                                          cpu::chosen_kernels().name};
  return description;
}

}  // namespace rocflash
