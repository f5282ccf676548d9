// A corrupt code object is an error and never terminates the process: truncated and mutated files
// through the loader and the HIP calls, and mutated code through launches.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "harness.h"

namespace rocflash::sim::test {
namespace {

const std::vector<u8>& good_object() {
  static const std::vector<u8> code =
      compile_hip(ROCFLASH_SIM_TEST_SOURCE "/kernels/launch.hip", "gfx942", "-O2 -g");
  return code;
}

// Loads and decodes the file; whether it was accepted.
bool survives(std::span<const u8> bytes) {
  try {
    const auto module = load(bytes, "gfx942");
    for (const KernelInfo& kernel : module->object().kernels()) {
      (void)module->program(kernel.wave_size);
      (void)module->object().source_line(kernel.entry);
      (void)module->object().symbolize(kernel.entry);
    }
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

TEST(Robustness, TruncatedFilesAreRejected) {
  const auto& good = good_object();
  ASSERT_TRUE(survives(good));
  for (std::size_t size = 0; size < good.size(); size += size < 512 ? 1 : 97) {
    EXPECT_FALSE(survives(std::span(good).first(size))) << size << " of " << good.size();
  }
}

TEST(Robustness, MutatedFilesDoNotCrash) {
  std::mt19937 random(11);
  int rejected = 0;
  for (int i = 0; i < 1500; ++i) {
    auto bytes = good_object();
    const int mutations = 1 + int(random() % 8);
    for (int m = 0; m < mutations; ++m) {
      // Half of them in the headers, where they have the most effect.
      const std::size_t range =
          m % 2 == 0 ? std::min<std::size_t>(bytes.size(), 2048) : bytes.size();
      const std::size_t at = random() % range;
      switch (random() % 3) {
        case 0:
          bytes[at] = u8(random());
          break;
        case 1:
          bytes[at] ^= u8(1u << random() % 8);
          break;
        default:
          for (std::size_t k = at; k < std::min(at + 8, bytes.size()); ++k) bytes[k] = 0xff;
      }
    }
    rejected += survives(bytes) ? 0 : 1;
  }
  EXPECT_GT(rejected, 100);  // otherwise the mutations have no effect
}

// The offset of a string in the file.
std::size_t find_bytes(const std::vector<u8>& file, std::string_view text) {
  const auto at = std::ranges::search(file, text);
  return static_cast<std::size_t>(at.begin() - file.begin());
}

TEST(Robustness, LinesOfEveryVersionAreRead) {
  for (const char* version : {"-gdwarf-2", "-gdwarf-3", "-gdwarf-4", "-gdwarf-5"}) {
    const auto code = compile_hip(ROCFLASH_SIM_TEST_SOURCE "/kernels/launch.hip", "gfx942",
                                  std::string("-O2 ") + version);
    const auto module = load(code, "gfx942");
    for (const KernelInfo& kernel : module->object().kernels()) {
      const auto line = module->object().source_line(kernel.entry);
      ASSERT_TRUE(line.has_value()) << version << " " << kernel.name;
      EXPECT_TRUE(line->file.starts_with("/")) << version << " " << line->file;
      EXPECT_TRUE(line->file.ends_with("launch.hip") || line->file.ends_with("device.h"))
          << version << " " << line->file;
      EXPECT_GT(line->line, 0u);
      EXPECT_FALSE(module->object().source_line(kernel.entry + (1 << 26)).has_value());
    }
  }
}

// LLVM's reader of line tables crashed on some of these.
TEST(Robustness, CorruptLineTablesDoNotCrash) {
  const auto& good = good_object();
  // Debug sections are between code and symbols, around the compiler's name.
  const std::size_t middle = find_bytes(good, "clang version");
  ASSERT_LT(middle, good.size());
  const std::size_t first = middle > 8192 ? middle - 8192 : 64;
  const std::size_t last = std::min(good.size(), middle + 8192);
  std::mt19937 random(11);
  for (int i = 0; i < 400; ++i) {
    std::vector<u8> bad = good;
    const int changes = 1 << random() % 8;
    for (int k = 0; k < changes; ++k) {
      bad[first + random() % (last - first)] = static_cast<u8>(random() % 3 == 0 ? 255 : random());
    }
    (void)survives(bad);
  }
}

// One field of the ELF, program and section headers at a time.
TEST(Robustness, AnyHeaderFieldMayBeCorrupt) {
  const auto& good = good_object();
  u64 sections;
  std::memcpy(&sections, good.data() + 40, 8);
  for (std::size_t at = 16; at + 8 <= good.size(); at += 8) {
    if (at > 64 + 56 * 12 && at < sections) continue;
    for (const u64 corrupt : {u64{0}, u64{1}, u64{0x7fffffff}, ~u64{0}, u64{good.size()}}) {
      auto bytes = good;
      std::memcpy(bytes.data() + at, &corrupt, 8);
      (void)survives(bytes);
    }
  }
}

TEST(Robustness, AnyBundleFieldMayBeCorrupt) {
  std::vector<u8> bundle(24 + 8 + 24 + 4 + 64, 0);
  std::memcpy(bundle.data(), "__CLANG_OFFLOAD_BUNDLE__", 24);
  bundle[24] = 1;
  for (std::size_t at = 24; at + 8 <= bundle.size(); at += 8) {
    for (const u64 corrupt : {u64{1}, u64{40}, u64{1} << 40, ~u64{0}}) {
      auto bytes = bundle;
      std::memcpy(bytes.data() + at, &corrupt, 8);
      EXPECT_FALSE(survives(bytes));
    }
  }
  for (std::size_t size = 0; size < bundle.size(); ++size) {
    EXPECT_FALSE(survives(std::span(bundle).first(size)));
  }
}

// Mutated instructions: the launch ends with a fault report or a result, never a crash.
TEST(Robustness, MutatedCodeIsStoppedByTheLaunch) {
  std::mt19937 random(5);
  const auto probe = load(good_object(), "gfx942");
  const u64 offset = probe->object().code_address() - probe->object().bias();
  const std::size_t size = probe->object().code().size();
  Checks checks;
  checks.budget = 100000;
  for (int i = 0; i < 200; ++i) {
    auto bytes = good_object();
    // The file offset of .text differs from its address: find it by content.
    const auto code = probe->object().code();
    const auto where = std::search(bytes.begin(), bytes.end(), code.begin(), code.begin() + 64);
    ASSERT_NE(where, bytes.end()) << offset;
    for (int m = 0; m < 4; ++m) where[long(random() % size)] = u8(random());
    try {
      const auto module = load(bytes, "gfx942");
      for (const KernelInfo& kernel : module->object().kernels()) {
        Buffer<u32> data(4096);
        data.fill(1);
        Shape shape;
        shape.grid[0] = 2;
        (void)launch(*module, kernel.name, shape,
                     Arguments(data.data(), data.data(), data.data(), u32{64}), checks);
      }
    } catch (const std::exception&) {
    }
  }
}

// hipModuleLoadData gets an address and no size: offsets in the headers must be checked before they
// are followed.
TEST(Robustness, AnImageAtTheEndOfMemoryIsNotOverrun) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto& good = good_object();
  const std::size_t pages = (good.size() + page - 1) / page;
  auto* memory = static_cast<u8*>(mmap(nullptr, (pages + 1) * page, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(mprotect(memory + pages * page, page, PROT_NONE), 0);
  u8* image = memory + pages * page - good.size();
  std::copy(good.begin(), good.end(), image);
  EXPECT_EQ(CodeObject::copy(image), good);
  // Truncated to half: the mapping ends before the extent in the headers.
  u8* half = memory + pages * page - good.size() / 2;
  std::memmove(half, good.data(), good.size() / 2);
  EXPECT_THROW((void)CodeObject::copy(half), std::runtime_error);
  for (const std::size_t field : {32, 40, 54, 56, 58, 60}) {
    std::copy(good.begin(), good.end(), image);
    std::memset(image + field, 0xff, field < 54 ? 8 : 2);
    EXPECT_THROW((void)CodeObject::copy(image), std::runtime_error) << field;
  }
  munmap(memory, (pages + 1) * page);
}

TEST(Robustness, AnEntryThatIsNoInstructionIsAnError) {
  AsmKernel k;
  k.body = "  s_nop 0\n";
  auto bytes = assemble(wrap_kernel(k), k.target);
  const auto module = load(bytes, k.target);
  // The descriptor's entry offset, twelve bytes further: past the end of the code.
  KernelInfo moved = *module->object().find_kernel("k");
  moved.entry += 4096;
  LaunchRequest request;
  request.module = module.get();
  request.kernel = &moved;
  request.grid[0] = 8;
  request.block[0] = 64;
  EXPECT_THROW((void)run_kernel(request), std::runtime_error);
}

}  // namespace
}  // namespace rocflash::sim::test
