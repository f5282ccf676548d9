// The library's door for tensors on GPUs, over a fake driver with two devices: one that has kernels
// and one that has none. Addresses are made up, so whoever looks behind them dies.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <rocflash/rocflash.hpp>

#include <cstdlib>
#include <functional>
#include <string>

namespace rocflash {
namespace {

constexpr DLDevice gpu{kDLROCM, 0};

Tensor at(std::uintptr_t address, DType dtype, Dims shape, DLDevice device = gpu) {
  return {reinterpret_cast<void*>(address), dtype, shape, {}, device};
}

struct Given {
  explicit Given(DLDevice device = gpu, DType t = DType::f16, std::int64_t d = 64) {
    problem.q = at(0x100000, t, {2, 30, 4, d}, device);
    problem.k = at(0x200000, t, {2, 50, 2, d}, device);
    problem.v = at(0x300000, t, {2, 50, 2, d}, device);
    outputs.out = at(0x400000, t, {2, 30, 4, d}, device);
    outputs.lse = at(0x500000, DType::f32, {2, 4, 30}, device);
  }
  Problem problem;
  ForwardOutputs outputs;
};

Given packed_call() {
  Given g;
  g.problem.q = at(0x100000, DType::f16, {60, 4, 64});
  g.problem.k = at(0x200000, DType::f16, {80, 2, 64});
  g.problem.v = at(0x300000, DType::f16, {80, 2, 64});
  g.outputs.out = at(0x400000, DType::f16, {60, 4, 64});
  g.outputs.lse = at(0x500000, DType::f32, {4, 60});
  g.problem.cu_seqlens_q = at(0x600000, DType::i32, {3});
  g.problem.cu_seqlens_k = at(0x610000, DType::i32, {3});
  g.problem.max_seqlen_q = 40;
  g.problem.max_seqlen_k = 50;
  return g;
}

// The fake's journal since the last question.
std::string journal() {
  static void* fake = dlopen(std::getenv("ROCFLASH_HIP_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
  const std::string log = reinterpret_cast<const char* (*)()>(dlsym(fake, "fake_log"))();
  reinterpret_cast<void (*)()>(dlsym(fake, "fake_clear"))();
  return log;
}

std::string refused(Status status, const std::function<void()>& call) {
  journal();
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), status) << e.what();
    EXPECT_EQ(journal().find("launch"), std::string::npos) << "a refused call launched";
    return e.what();
  }
  return "was not refused";
}

TEST(GpuDoor, ListsDevicesDriversAndTargets) {
  const auto all = devices();
  ASSERT_EQ(all.size(), 2u);  // the CPU, and the one with kernels
  EXPECT_EQ(all[1].device.device_type, kDLROCM);
  EXPECT_EQ(all[1].device.device_id, 0);
  EXPECT_STREQ(all[1].name, "Fake MI300X");
  EXPECT_STREQ(all[1].arch, "gfx942");
  EXPECT_STREQ(all[1].features, "gfx942 sramecc+ xnack-");
  EXPECT_EQ(all[1].units, 304);
  const rocflash_driver hip = drivers()[0];
  EXPECT_EQ(hip.in_use, 1);
  EXPECT_STREQ(
      hip.reason,
      "found where the environment says; device 1, Fake Nano (gfx803), has no kernels here");
  EXPECT_EQ(drivers()[1].in_use, 0);
  bool found = false;
  for (const rocflash_target& t : targets()) found = found || std::string(t.arch) == "gfx942";
  EXPECT_TRUE(found);
}

TEST(GpuDoor, LaunchesOnTheCallersStream) {
  const Given g;
  journal();
  forward(g.problem, g.outputs, {.stream = reinterpret_cast<void*>(77)});
  const std::string log = journal();
  EXPECT_NE(log.find("launch 8 x "), std::string::npos) << log;
  EXPECT_NE(log.find("on device 0 stream 77"), std::string::npos) << log;
  decode(g.problem, {}, g.outputs);  // attention over a cache, nothing appended
  EXPECT_NE(journal().find("stream 0"), std::string::npos);
}

TEST(GpuDoor, WeightsAreASecondLaunch) {
  Given g;
  g.outputs.lse.reset();
  g.outputs.s_dmask = at(0x700000, DType::f32, {2, 4, 30, 50});
  EXPECT_EQ(workspace_size(g.problem, g.outputs), 0u);
  journal();
  forward(g.problem, g.outputs);
  const std::string log = journal();
  EXPECT_LT(log.find("launch 8 x "), log.find("launch 60 x 256")) << log;
}

// Lengths, tables and indices lie in the GPU's memory: none of them is looked at.
TEST(GpuDoor, DoesNotReadTheGpusInts) {
  Given packed = packed_call();
  packed.problem.seqused_q = at(0x620000, DType::i32, {2});
  packed.problem.leftpad_k = at(0x640000, DType::i32, {2});
  forward(packed.problem, packed.outputs);
  Given paged;
  paged.problem.block_table = at(0x650000, DType::i32, {2, 3});
  paged.problem.seqused_k = at(0x660000, DType::i32, {2});
  forward(paged.problem, paged.outputs);
  Given chosen;
  chosen.problem.cache_batch_idx = at(0x670000, DType::i32, {2});
  forward(chosen.problem, chosen.outputs);
}

TEST(GpuDoor, AQueryNeedsNoMemoryBehindAnyTensor) {
  Given g = packed_call();
  for (Tensor* t : {&g.problem.q, &g.problem.k, &g.problem.v, &g.outputs.out})
    *t = at(0, t->dtype(), t->shape());
  g.problem.cu_seqlens_q = at(0, DType::i32, {3});
  EXPECT_EQ(workspace_size(g.problem, g.outputs), 0u);
  EXPECT_EQ(refused(Status::invalid_argument, [&] { forward(g.problem, g.outputs); }),
            "q: data is null, but its shape is (60, 4, 64)");
}

TEST(GpuDoor, PackedSequencesNeedTheirLongest) {
  Given g = packed_call();
  g.problem.max_seqlen_q = 0;
  EXPECT_EQ(
      refused(Status::invalid_argument, [&] { forward(g.problem, g.outputs); }),
      "max_seqlen_q: 0; with packed sequences on a GPU, whose lengths are not read, it must be "
      "given");
  g = packed_call();
  g.problem.max_seqlen_k = 0;
  EXPECT_EQ(refused(Status::invalid_argument, [&] { forward(g.problem, g.outputs); }).substr(0, 15),
            "max_seqlen_k: 0");
}

TEST(GpuDoor, NothingToDoIsDone) {
  Given g;
  g.problem.q = at(0, DType::f16, {2, 0, 4, 64});
  g.outputs.out = at(0, DType::f16, {2, 0, 4, 64});
  g.outputs.lse = at(0, DType::f32, {2, 4, 0});
  journal();
  forward(g.problem, g.outputs);
  EXPECT_EQ(journal(), "");
}

TEST(GpuDoor, RefusesWhatHasNoKernel) {
  const auto why = [](const Given& g, const Execution& e = {}) {
    return refused(Status::unsupported, [&] { forward(g.problem, g.outputs, e); });
  };
  EXPECT_EQ(why(Given(gpu, DType::f64)), "q: dtype f64; GPU kernels take f32, f16 and bf16");
  const std::string other = why(Given({kDLROCM, 1}));
  const std::string words =
      "q: is on rocm:1, Fake Nano (gfx803), which has no kernels here; there are kernels for gfx";
  EXPECT_EQ(other.substr(0, words.size()), words);
  EXPECT_NE(other.find("gfx942"), std::string::npos) << other;
  const std::string cuda = why(Given({kDLCUDA, 0}));
  EXPECT_EQ(cuda.substr(0, 57), "q: is on cuda:0, but the cuda driver is not in use: ROCFL")
      << cuda;
}

TEST(GpuDoor, GradientsNeedAWorkspace) {
  Given g;
  g.problem.deterministic = true;
  const BackwardTensors b{.dout = g.outputs.out,
                          .out = at(0x900000, DType::f16, {2, 30, 4, 64}),
                          .lse = *g.outputs.lse,
                          .dq = at(0xa00000, DType::f16, {2, 30, 4, 64})};
  // dout·out of each query, in f32, on the next multiple of 64 bytes.
  const std::size_t bytes = workspace_size(g.problem, b);
  EXPECT_EQ(bytes, 2u * 4 * 30 * 4);
  Execution execution;
  execution.workspace = reinterpret_cast<void*>(0xb00000);
  execution.workspace_size = bytes;
  journal();
  backward(g.problem, b, execution);
  const std::string log = journal();
  // Of each (sequence, head) one block: dout·out first, then dq.
  EXPECT_LT(log.find("launch 8 x 256"), log.rfind("launch 8 x 256")) << log;
}

TEST(GpuDoor, AppendsBeforeItAttends) {
  Given g;
  Append a;
  a.k_new = at(0xb00000, DType::f16, {2, 1, 2, 64});
  a.v_new = at(0xc00000, DType::f16, {2, 1, 2, 64});
  EXPECT_EQ(
      refused(Status::invalid_argument, [&] { decode(g.problem, a, g.outputs); }),
      "k_new: 1 rows; without seqused_k all 50 rows of k are in use, and there is no room for "
      "more");
  g.problem.seqused_k = at(0x660000, DType::i32, {2});
  EXPECT_EQ(workspace_size(g.problem, a, g.outputs, {}), 64u);  // the new lengths
  journal();
  decode(g.problem, a, g.outputs,
         {.workspace = reinterpret_cast<void*>(0xe00000), .workspace_size = 64});
  const std::string log = journal();
  EXPECT_LT(log.find("launch 1 x 256"), log.find("launch 8 x ")) << log;
}

TEST(GpuDoor, RefusesWhatMakesNoSense) {
  const auto why = [](const Given& g, const Execution& e = {}) {
    return refused(Status::invalid_argument, [&] { forward(g.problem, g.outputs, e); });
  };
  EXPECT_EQ(why(Given({kDLROCM, 2})), "q: is on rocm:2; the hip driver has 2 devices");
  Given mixed;
  mixed.problem.k = at(0x200000, DType::f16, {2, 50, 2, 64}, {kDLCPU, 0});
  EXPECT_EQ(why(mixed), "k: is on cpu; all tensors must be on rocm:0, where q is");
  Given shared;
  shared.outputs.out = shared.problem.q;
  EXPECT_EQ(why(shared), "out: shares memory with q; an output needs memory of its own");
  EXPECT_EQ(why(Given(), {.backend = Backend::plain}),
            "backend: 3 (plain); q is on rocm:0, where it must be 0 (auto)");
}

TEST(GpuDoor, ADriversErrorComesWithItsWords) {
  const Given g;
  setenv("FAKE_LAUNCH_ERROR", "719", 1);
  try {
    forward(g.problem, g.outputs);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), Status::device_error);
    EXPECT_STREQ(e.what(), "hip: hipModuleLaunchKernel: error 719, fake trouble");
  }
  unsetenv("FAKE_LAUNCH_ERROR");
  forward(g.problem, g.outputs);
}

}  // namespace
}  // namespace rocflash
