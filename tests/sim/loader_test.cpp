// Code objects of other assemblers: older metadata, incomplete descriptors, no
// metadata at all, code for a whole family.
#include <gtest/gtest.h>

#include "harness.h"

namespace rocflash::sim::test {
namespace {

constexpr std::size_t kAbiVersion = 8;  // in e_ident
constexpr std::size_t kFlags = 48;

void replace(std::string& text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  ASSERT_NE(at, text.npos) << from;
  text.replace(at, from.size(), to);
}

std::string source(const std::string& target) {
  AsmKernel k;
  k.target = target;
  k.wave = target.starts_with("gfx9") ? 64 : 32;
  k.arguments = 1;
  const bool legacy_mnemonics = !target.starts_with("gfx11") && !target.starts_with("gfx12");
  const std::string wait =
      target.starts_with("gfx12") ? "  s_wait_kmcnt 0x0\n" : "  s_waitcnt lgkmcnt(0)\n";
  k.body = std::string(legacy_mnemonics ? "  s_load_dwordx2" : "  s_load_b64") +
           " s[4:5], s[0:1], 0x0\n  v_and_b32 v0, 0x3ff, v0\n  v_lshlrev_b32 v1, 2, v0\n" + wait +
           (legacy_mnemonics ? "  global_store_dword" : "  global_store_b32") + " v1, v0, s[4:5]\n";
  return wrap_kernel(k);
}

// Without the lines of the metadata that version 1.2 added.
std::string older(std::string text, const std::string& target, const char* version) {
  replace(text, "amdhsa.version: [1, 2]", std::string("amdhsa.version: ") + version);
  replace(text, "amdhsa.target: amdgcn-amd-amdhsa--" + target + "\n", "");
  return text;
}

void expect_runs(std::span<const u8> code, const std::string& device) {
  const auto module = load(code, device);
  Buffer<u32> out(32);
  Shape shape;
  shape.block[0] = 32;
  const auto result = launch(*module, "k", shape, Arguments(out.data()));
  ASSERT_TRUE(result.ok()) << result.report->text();
  for (u32 i = 0; i < 32; ++i) ASSERT_EQ(out[i], i);
}

class Loader : public testing::TestWithParam<const char*> {};

TEST_P(Loader, TakesTheTargetFromTheFlags) {
  const std::string target = GetParam();
  for (const char* version : {"[1, 0]", "[1, 1]"}) {
    auto code = assemble(older(source(target), target, version), target, "-mcode-object-version=4");
    EXPECT_EQ(load(code, target)->object().version(), 4);
    EXPECT_EQ(load(code, target)->object().target().substr(0, target.size()), target);
    expect_runs(code, target);
    // ABI versions 1 and 0: version 3, and an assembler that does not set the field.
    for (const u8 abi : {u8{1}, u8{0}}) {
      code[kAbiVersion] = abi;
      EXPECT_GE(load(code, target)->object().version(), 3);
      expect_runs(code, target);
    }
  }
  const auto other = target == "gfx942" ? "gfx950" : "gfx942";
  const auto code =
      assemble(older(source(target), target, "[1, 1]"), target, "-mcode-object-version=4");
  EXPECT_THROW((void)load(code, other), std::runtime_error);
}

TEST_P(Loader, TakesTheKernargSizeFromTheFirstSource) {
  const std::string target = GetParam();
  std::string text = source(target);
  replace(text, "  .amdhsa_kernarg_size 8\n", "");  // the descriptor then has 0
  const auto said_once = assemble(text, target);
  EXPECT_EQ(load(said_once, target)->object().find_kernel("k")->kernarg_bytes, 8u);
  expect_runs(said_once, target);
  replace(text, "    .kernarg_segment_size: 8\n", "    .kernarg_segment_size: 0\n");
  expect_runs(assemble(text, target), target);  // the arguments' own extent
  const auto args = text.find("    .args:\n");
  text.erase(args, text.find("...\n.end_amdgpu_metadata") - args);
  expect_runs(assemble(text, target), target);  // the caller's buffer
}

TEST_P(Loader, NeedsNoMetadata) {
  const std::string target = GetParam();
  std::string text = source(target);
  text.erase(text.find(".amdgpu_metadata"));
  const auto code = assemble(text, target);
  const auto module = load(code, target);
  const KernelInfo* kernel = module->object().find_kernel("k");
  ASSERT_NE(kernel, nullptr);
  EXPECT_EQ(kernel->wave_size, target.starts_with("gfx9") ? 64 : 32);
  EXPECT_GT(kernel->vgprs, 0u);
  expect_runs(code, target);
}

INSTANTIATE_TEST_SUITE_P(Targets, Loader, testing::ValuesIn(kMainTargets),
                         [](const auto& info) { return std::string(info.param); });

TEST(LoaderFlags, SpellFeatures) {
  const auto target_of = [](u32 features, u8 abi) {
    auto code =
        assemble(older(source("gfx942"), "gfx942", "[1, 1]"), "gfx942", "-mcode-object-version=4");
    u32 flags;
    std::memcpy(&flags, code.data() + kFlags, 4);
    flags = (flags & 0xff) | features;
    std::memcpy(code.data() + kFlags, &flags, 4);
    code[kAbiVersion] = abi;
    return load(code, "gfx942")->object().target();
  };
  EXPECT_EQ(target_of(0x500, 2), "gfx942");  // both may be either
  EXPECT_EQ(target_of(0xb00, 2), "gfx942:sramecc-:xnack+");
  EXPECT_EQ(target_of(0xe00, 2), "gfx942:sramecc+:xnack-");
  EXPECT_EQ(target_of(0x300, 1), "gfx942:sramecc+:xnack+");
  EXPECT_EQ(target_of(0x200, 1), "gfx942:sramecc+");
}

TEST(LoaderFlags, RejectUnknownMachines) {
  auto code =
      assemble(older(source("gfx942"), "gfx942", "[1, 1]"), "gfx942", "-mcode-object-version=4");
  code[kFlags] = 0xfe;  // no machine
  EXPECT_THROW((void)load(code, "gfx942"), std::runtime_error);
  auto future = assemble(source("gfx942"), "gfx942");
  future[kAbiVersion] = 5;
  EXPECT_THROW((void)load(future, "gfx942"), std::runtime_error);
}

TEST(LoaderGeneric, RunsOnEveryMember) {
  for (const auto& [generic, like, member, other] :
       {std::tuple{"gfx9-4-generic", "gfx942", "gfx950", "gfx90a"},
        {"gfx10-3-generic", "gfx1030", "gfx1034", "gfx1100"},
        {"gfx11-generic", "gfx1100", "gfx1151", "gfx1201"},
        {"gfx12-generic", "gfx1201", "gfx1200", "gfx1100"}}) {
    std::string text = source(like);
    replace(text, std::string("--") + like, std::string("--") + generic);
    const auto code = assemble(text, generic, "-mcode-object-version=6");
    expect_runs(code, like);
    expect_runs(code, member);
    EXPECT_THROW((void)load(code, other), std::runtime_error);
    expect_runs(assemble(older(text, generic, "[1, 1]"), generic, "-mcode-object-version=6"), like);
  }
}

}  // namespace
}  // namespace rocflash::sim::test
