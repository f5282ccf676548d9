// The kernel catalog: its modules, and the selection of a target for a device.
#include "gpu/catalog.hpp"

#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace rocflash::gpu {
namespace {

using kernel::Family;

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string arch_for(std::string_view device, std::span<const Target> among) {
  const Target* const target = target_for(device, among);
  return target ? target->arch : "none";
}

TEST(TargetFor, AmdMatchesTheExactArchAndIgnoresFeatures) {
  const Target built[] = {
      {"gfx90a", Family::cdna2}, {"gfx942", Family::cdna3}, {"gfx1100", Family::rdna3}};
  EXPECT_EQ(arch_for("gfx942", built), "gfx942");
  EXPECT_EQ(arch_for("gfx942:sramecc+:xnack-", built), "gfx942");
  EXPECT_EQ(arch_for("gfx1101", built), "none");
  EXPECT_EQ(arch_for("gfx94", built), "none");
  EXPECT_EQ(arch_for("gfx9420", built), "none");
  EXPECT_EQ(arch_for("", built), "none");
}

TEST(TargetFor, PtxRunsOnLaterArchitectures) {
  const Target built[] = {{"gfx942", Family::cdna3}, {"sm_80", Family::sm80}};
  EXPECT_EQ(arch_for("sm_80", built), "sm_80");
  EXPECT_EQ(arch_for("sm_86", built), "sm_80");
  EXPECT_EQ(arch_for("sm_90", built), "sm_80");
  EXPECT_EQ(arch_for("sm_120", built), "sm_80");
  EXPECT_EQ(arch_for("sm_75", built), "none");
  EXPECT_EQ(arch_for("sm_", built), "none");
  EXPECT_EQ(arch_for("sm_9x", built), "none");
}

TEST(TargetFor, NewestCompatibleAndArchSpecificFirst) {
  const Target built[] = {{"sm_80", Family::sm80},
                          {"sm_90a", Family::sm80},
                          {"sm_90", Family::sm80},
                          {"sm_89", Family::sm80}};
  EXPECT_EQ(arch_for("sm_80", built), "sm_80");
  EXPECT_EQ(arch_for("sm_89", built), "sm_89");
  EXPECT_EQ(arch_for("sm_90", built), "sm_90a");
  EXPECT_EQ(arch_for("sm_100", built), "sm_90");
}

// An extension family applies to its architecture alone, in addition to the base target.
TEST(TargetFor, ExtensionsAreSelectedInAddition) {
  const Target built[] = {{"sm_80", Family::sm80}, {"sm_90a", Family::sm90}};
  const auto extension = [&](std::string_view device) {
    const Target* const target = extension_for(device, built);
    return std::string(target ? target->arch : "none");
  };
  EXPECT_EQ(arch_for("sm_90", built), "sm_80");
  EXPECT_EQ(extension("sm_90"), "sm_90a");
  EXPECT_EQ(extension("sm_89"), "none");
  EXPECT_EQ(extension("sm_100"), "none");
  EXPECT_EQ(extension("gfx942"), "none");
}

TEST(Catalog, FindsEachOfItsTargets) {
  for (const Target& target : targets()) {
    EXPECT_EQ(target_named(target.arch), &target) << target.arch;
    const std::string device = std::string(target.arch) == "sm_90a" ? "sm_90" : target.arch;
    EXPECT_EQ(kernel::is_extension(target.family) ? extension_for(device) : target_for(device),
              &target)
        << target.arch;
  }
}

// The machine in the ELF header's flags, which the driver checks first.
unsigned machine_flags(std::string_view arch) {
  static constexpr std::pair<std::string_view, unsigned> known[] = {
      {"gfx90a", 0x3f},  {"gfx942", 0x4c},  {"gfx950", 0x4f},  {"gfx1030", 0x36}, {"gfx1031", 0x37},
      {"gfx1032", 0x38}, {"gfx1033", 0x39}, {"gfx1034", 0x3e}, {"gfx1035", 0x3d}, {"gfx1036", 0x45},
      {"gfx1100", 0x41}, {"gfx1101", 0x46}, {"gfx1102", 0x47}, {"gfx1103", 0x44}, {"gfx1150", 0x43},
      {"gfx1151", 0x4a}, {"gfx1152", 0x55}, {"gfx1153", 0x58}, {"gfx1200", 0x48}, {"gfx1201", 0x4e},
      {"gfx906", 0x2f},  {"gfx908", 0x30}};
  for (const auto& [name, flags] : known) {
    if (name == arch) return flags;
  }
  return 0;
}

TEST(Catalog, CodeObjectsAreCompleteAndMatchTheirArch) {
  for (const Target& target : targets()) {
    SCOPED_TRACE(target.arch);
    const auto object = code_object(target);
    const std::string_view text = text_of(object);
    if (kernel::vendor_of(target.family) == kernel::Vendor::nvidia) {
      EXPECT_NE(text.find(std::string(".target ") + target.arch), text.npos);
      EXPECT_NE(text.find(kernel::is_extension(target.family)
                              ? ".visible .entry forward_warp_specialized_f16_64_specialized("
                              : ".visible .entry forward_f16_64_specialized("),
                text.npos);
      ASSERT_FALSE(text.empty());
      EXPECT_EQ(text.find('\0'), text.size() - 1);
      continue;
    }
    Elf64_Ehdr header;
    ASSERT_GT(object.size(), sizeof header);
    std::memcpy(&header, object.data(), sizeof header);
    EXPECT_EQ(std::memcmp(header.e_ident, ELFMAG, SELFMAG), 0);
    EXPECT_EQ(header.e_machine, EM_AMDGPU);
    EXPECT_EQ(header.e_type, ET_DYN);
    // Code object version 5 is ABI version 3.
    EXPECT_EQ(header.e_ident[EI_ABIVERSION], 3);
    EXPECT_EQ(header.e_flags & 0xffu, machine_flags(target.arch));
    EXPECT_EQ(header.e_shoff + std::size_t{header.e_shentsize} * header.e_shnum, object.size());
    EXPECT_NE(text.find(std::string("amdgcn-amd-amdhsa--") + target.arch), text.npos);
    EXPECT_NE(text.find("forward_f16_64_specialized.kd"), text.npos);
  }
}

TEST(Catalog, ModulesContainTheirKernel) {
  for (const Target& target : targets()) {
    if (kernel::is_extension(target.family)) continue;
    SCOPED_TRACE(target.arch);
    const auto module = module_for(target, "forward_bf16_128_generic");
    ASSERT_FALSE(module.empty());
    EXPECT_EQ(module.data(), module_for(target, "forward_bf16_128_generic").data());
    if (target.family != Family::sm80) {
      EXPECT_EQ(module.data(), code_object(target).data());
      continue;
    }
    const std::string_view text = text_of(module);
    EXPECT_NE(text.find(".visible .entry forward_bf16_128_generic("), text.npos);
    EXPECT_EQ(text.find(".entry"), text.rfind(".entry"));
    EXPECT_EQ(text.find('\0'), text.size() - 1);
    EXPECT_TRUE(module_for(target, "forward_bf16_128").empty());
  }
}

TEST(Catalog, ThreadsShareOneCopy) {
  if (targets().empty()) GTEST_SKIP() << "a CPU-only build";
  std::vector<const std::byte*> addresses(8 * targets().size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < 8; ++t) {
      threads.emplace_back([&, t] {
        for (std::size_t i = 0; i < targets().size(); ++i) {
          addresses[t * targets().size() + i] = code_object(targets()[i]).data();
        }
      });
    }
  }
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    EXPECT_NE(addresses[i], nullptr);
    EXPECT_EQ(addresses[i], addresses[i % targets().size()]);
  }
}

}  // namespace
}  // namespace rocflash::gpu
