// Kernels on simulated GPUs, through the library as it ships, with every check of the simulator on.
// The environment says which GPUs: see CMakeLists.txt.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "verify/gpu.hpp"
#include "verify/run.hpp"
#include "verify/table.hpp"

namespace rocflash::verify {
namespace {

std::shared_ptr<Gpu> open(int index = 0) {
  DeviceName name("hip:" + std::to_string(index));
  return Gpu::open(name);
}

int count_devices() { return static_cast<int>(devices().size()) - 1; }

void expect_good(const Result& r, const std::string& where) {
  EXPECT_TRUE(r.good()) << where << ": " << r.what.name() << "\n"
                        << r.what.describe() << "\n"
                        << r.failure;
  for (const Finding& f : r.findings) {
    EXPECT_TRUE(f.good()) << f.tensor << ": error " << f.error << " of " << f.bound() << " "
                          << f.defect;
  }
}

Case find_case(const std::string& feature, const std::string& shape, DType dtype) {
  for (const Feature& f : features()) {
    for (const Shape& s : shapes()) {
      if (f.name == feature && s.name == shape) return make_case(f, s, dtype, 0);
    }
  }
  ADD_FAILURE() << feature << "/" << shape;
  return {};
}

// One case in ROCFLASH_TEST_EVERY of the table, another selection for each architecture.
TEST(Verify, SampleOfTheTable) {
  const auto gpu = open();
  const std::string arch = gpu->about().arch;
  const auto every = std::strtoull(std::getenv("ROCFLASH_TEST_EVERY"), nullptr, 10);
  const std::uint64_t turn = std::hash<std::string>{}(arch) % every;
  int ran = 0, refused = 0;
  for (const Case& c : cases(Level::quick)) {
    const bool refusal = !documented_refusal(c).empty();
    if (refusal ? c.seed % 16 != 0 : c.seed % every != turn) continue;
    const Result r = run(c, gpu);
    expect_good(r, arch);
    EXPECT_EQ(r.refused.empty(), !refusal) << c.name();
    (refusal ? refused : ran)++;
  }
  EXPECT_GT(ran, 10);
  EXPECT_GT(refused, 0);
}

// The judge must notice a GPU that errs.
TEST(Verify, NoticesAFault) {
  Device device(open());
  device.fault = [](Problem& p) { p.causal = true; };
  const Result r = run(find_case("plain", "64x64", DType::f16), device);
  EXPECT_FALSE(r.good());
}

TEST(Members, EachLoadsAndRuns) {
  ASSERT_GT(count_devices(), 0);
  for (int n = 0; n < count_devices(); ++n) {
    const auto gpu = open(n);
    const std::string arch = gpu->about().arch;
    expect_good(run(find_case("causal", "64x64", DType::f16), gpu), arch);
    expect_good(run(find_case("softcap", "33x1", DType::bf16), gpu), arch);
  }
}

// Several threads on two devices, all at once and from the first call on.
TEST(Threads, ShareWhatIsLoaded) {
  ASSERT_EQ(count_devices(), 2);
  const Case c = find_case("causal", "64x64", DType::bf16);
  std::vector<Result> results(6);
  {
    std::vector<std::jthread> threads;
    for (std::size_t n = 0; n < results.size(); ++n)
      threads.emplace_back([&, n] { results[n] = run(c, open(static_cast<int>(n % 2))); });
  }
  for (const Result& r : results) expect_good(r, "thread");
}

TEST(Threads, TheCurrentDeviceStaysWhatItWas) {
  ASSERT_EQ(count_devices(), 2);
  void* library = dlopen(drivers()[0].library, RTLD_NOW | RTLD_LOCAL);
  const auto get = reinterpret_cast<int (*)(int*)>(dlsym(library, "hipGetDevice"));
  const auto set = reinterpret_cast<int (*)(int)>(dlsym(library, "hipSetDevice"));
  const auto gpu = open(1);
  const GpuMemory memory(gpu, 1 << 16);
  gpu->fill(memory.data(), 0, memory.size());
  const auto at = [&](std::size_t offset) {
    return Tensor(memory.data() + offset, DType::f16, {1, 8, 1, 64}, {}, gpu->dlpack());
  };
  ASSERT_EQ(set(0), 0);
  forward({.q = at(0), .k = at(1024), .v = at(2048)}, {.out = at(4096)});
  int current = -1;
  ASSERT_EQ(get(&current), 0);
  EXPECT_EQ(current, 0);
}

// What a kernel does wrong comes back as the driver's error.
TEST(Errors, AnAccessBeyondItsTensorIsReported) {
  const auto gpu = open();
  const GpuMemory memory(gpu, 4096);
  gpu->fill(memory.data(), 0, memory.size());
  const auto at = [&](std::size_t offset, std::int64_t rows) {
    return Tensor(memory.data() + offset, DType::f16, {1, rows, 1, 64}, {}, gpu->dlpack());
  };
  try {
    forward({.q = at(0, 8), .k = at(2048, 800), .v = at(2048, 800)}, {.out = at(1024, 8)});
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), Status::device_error);
    EXPECT_NE(std::string(e.what()).find("illegal memory access"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace rocflash::verify
