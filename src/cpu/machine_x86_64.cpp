// The x86-64 CPU: from CPUID and the OS-enabled register state (XCR0).
#include <cpuid.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "core/once.hpp"
#include "cpu/isa_levels.hpp"
#include "cpu/machine.hpp"
#include "platform/process.hpp"

namespace rocflash::cpu {
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

// The register state that the operating system saves (XCR0).
std::uint64_t saved_state() {
  if (!(cpuid(1).c & (1u << 27))) return 0;
  unsigned low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (std::uint64_t{high} << 32) | low;
}

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

std::string_view vendor() {
  using Letters = std::array<char, 12>;
  static constinit OnFirstUse<Letters> known;
  const Letters& letters = known.get([] {
    Letters text{};
    const Registers r = cpuid(0);
    const unsigned words[] = {r.b, r.d, r.c};
    std::memcpy(text.data(), words, sizeof words);
    return text;
  });
  return {letters.data(), letters.size()};
}

// The CPU, and what Machine has of it.
struct Examined {
  CpuTraits traits;
  std::string features, name;
};

Examined examine() {
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
  Examined m{.traits = {.vendor = vendor(),
                        .avx2 = has("avx2") && has("fma") && has("f16c"),
                        .bf16_dot = has("avx512-bf16")},
             .features = "sse2",
             .name = brand()};
#if defined(ROCFLASH_MODEL_TILES)
  m.traits.tiles = true;  // software model
#else
  // CPUID leaf 0x1d, which describes the palettes, is empty in some virtual machines; palette 1
  // needs no description.
  m.traits.tiles = has("amx-tile") && has("amx-bf16") && platform::request_tile_registers();
#endif
  m.traits.avx512 =
      m.traits.avx2 && has("avx512f") && has("avx512dq") && has("avx512bw") && has("avx512vl");
  for (const Feature& f : features) {
    if (f.present) m.features += std::string(" ") + f.name;
  }
  return m;
}

const Kernels& kernels_of(Level level) {
  switch (level) {
    case Level::amx:
      return amx::kernels;
    case Level::avx512_bf16:
      return avx512_bf16::kernels;
    case Level::avx512:
      return avx512::kernels;
    case Level::avx2:
      return avx2::kernels;
    case Level::baseline:
      break;
  }
  return baseline::kernels;
}

}  // namespace

Machine examine_machine() {
  Examined cpu = examine();
  Machine machine;
  machine.name = std::move(cpu.name);
  machine.features = std::move(cpu.features);
  for (const Level level : levels) {
    if (can_run(cpu.traits, level)) machine.supported.push_back(&kernels_of(level));
  }
  machine.best = &kernels_of(best_level(cpu.traits));
  return machine;
}

}  // namespace rocflash::cpu
