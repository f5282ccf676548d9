// Fuzzes the C ABI: draws a problem, corrupts about half of them, calls the library and checks its
// contract. A valid call succeeds and matches the reference. A rejected call leaves its outputs
// unchanged and has an error message. No call crashes.
#include <rocflash/rocflash.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "fuzz/cache.hpp"
#include "fuzz/combine.hpp"
#include "fuzz/corrupt.hpp"
#include "fuzz/count.hpp"
#include "fuzz/problem.hpp"

namespace rocflash::fuzz {

Counts counts;

namespace {

constexpr std::size_t max_workspace = 64 << 20;

// Corrupted tensors may claim to be on a GPU, so the GPU drivers are disabled.
const int no_gpus = setenv("ROCFLASH_HIP_LIBRARY", "/no/such/library", 1) +
                    setenv("ROCFLASH_CUDA_LIBRARY", "/no/such/library", 1);

[[noreturn]] void fail(const char* what, const char* detail = "") {
  std::fprintf(stderr, "fuzz_c_api: %s %s\n", what, detail);
  std::abort();
}

// A workspace of exactly the queried size.
class Workspace {
 public:
  void provide(std::size_t bytes, rocflash_execution& e) {
    release();
    memory_ = ::operator new(bytes, std::align_val_t{64});
    std::memset(memory_, 0xff, bytes);
    e.workspace = memory_;
    e.workspace_size = bytes;
  }
  void release() { ::operator delete(memory_, std::align_val_t{64}); }
  ~Workspace() { release(); }

 private:
  void* memory_ = nullptr;
};

enum class Op { forward, backward };

// Queries the workspace and runs the call; false if the workspace exceeds max_workspace.
bool run(Op op, Call& c, rocflash_status& status) {
  std::size_t bytes = 0;
  Workspace workspace;
  status = op == Op::forward
               ? rocflash_forward_workspace(&c.problem.s, &c.forward.s, &c.execution.s, &bytes)
               : rocflash_backward_workspace(&c.problem.s, &c.backward.s, &c.execution.s, &bytes);
  ++counts.calls;
  if (status == ROCFLASH_OK) {
    if (bytes > max_workspace) return false;
    workspace.provide(bytes, c.execution.s);
  }
  status = op == Op::forward ? rocflash_forward(&c.problem.s, &c.forward.s, &c.execution.s)
                             : rocflash_backward(&c.problem.s, &c.backward.s, &c.execution.s);
  ++counts.calls;
  return true;
}

void expect_ok(Op op, Call& c, const char* context) {
  rocflash_status status = ROCFLASH_INTERNAL;
  if (!run(op, c, status)) fail(context, "the workspace is too large");
  if (status != ROCFLASH_OK) fail(context, rocflash_last_error());
}

void compare(const Problem& p, const Outputs& got, bool gradients, const Call& call) {
  Outputs exact;
  p.make_outputs(exact, true, nullptr);
  Call reference = call;
  p.set_pointers(exact, reference.forward.s, reference.backward.s);
  reference.execution.s = {
      sizeof reference.execution.s, ROCFLASH_BACKEND_REFERENCE, 1, nullptr, nullptr, 0};
  expect_ok(Op::forward, reference, "the reference rejects an accepted call:");
  if (gradients) expect_ok(Op::backward, reference, "the reference rejects an accepted call:");
  const std::vector<double> bounds = p.bounds(exact);
  ++counts.compared;
  for (std::size_t n = 0; n < (gradients ? std::size(got.all) : 3); ++n) {
    const Tensor &a = *got.all[n], &r = *exact.all[n];
    if (!a || !r) continue;
    for (std::int64_t i = 0; i < a.size(); ++i) {
      const double x = a.get(i), y = r.get(i);
      const bool close = std::isfinite(y) ? std::abs(x - y) <= bounds[n] : x == y;
      if (close) continue;
      char message[160];
      std::snprintf(message, sizeof message,
                    "%s element %lld is %.9g, reference %.9g, allowed %.3g", output_names[n],
                    static_cast<long long>(i), x, y, bounds[n]);
      p.print();
      fail("mismatch:", message);
    }
    if (got.all[n]->stray_writes()) fail("wrote outside the elements of", output_names[n]);
  }
}

// False if the workspace exceeds max_workspace.
bool run(CacheCall& c, rocflash_status& status) {
  std::size_t bytes = 0;
  Workspace workspace;
  status =
      rocflash_decode_workspace(&c.problem.s, &c.append.s, &c.outputs.s, &c.execution.s, &bytes);
  ++counts.calls;
  if (status == ROCFLASH_OK) {
    if (bytes > max_workspace) return false;
    workspace.provide(bytes, c.execution.s);
  }
  status = rocflash_decode(&c.problem.s, &c.append.s, &c.outputs.s, &c.execution.s);
  ++counts.calls;
  return true;
}

void expect_rejection(rocflash_status status) {
  if (status != ROCFLASH_INVALID_ARGUMENT && status != ROCFLASH_UNSUPPORTED)
    fail(rocflash_status_name(status), rocflash_last_error());
  if (rocflash_last_error()[0] == '\0') fail("a rejection without a message");
}

void expect_near(const CacheCall& c, const char* what, const Tensor& got, const Tensor& exact,
                 double bound) {
  for (std::int64_t n = 0; n < got.size(); ++n) {
    const double x = got.get(n), y = exact.get(n);
    if (std::isfinite(y) ? std::abs(x - y) <= bound : x == y) continue;
    char message[160];
    std::snprintf(message, sizeof message, "%s element %lld is %.9g, reference %.9g, allowed %.3g",
                  what, static_cast<long long>(n), x, y, bound);
    c.print();
    fail("decode mismatch:", message);
  }
}

// Runs decode, and draws the same call again for the reference. A rejected call leaves outputs and
// cache unchanged.
void decode_call(Bytes& bytes) {
  const bool corrupted = bytes.chance(120);
  Bytes reference_bytes = bytes;
  CacheCall c(bytes, !corrupted);
  c.execution.s.backend = bytes.chance(32) ? ROCFLASH_BACKEND_STANDARD : ROCFLASH_BACKEND_CPU;
  rocflash_status status = ROCFLASH_INTERNAL;
  if (corrupted) {
    c.corrupt(bytes);
    const Tensor* const written[] = {&c.out, &c.lse, &c.k, &c.v};
    std::vector<std::byte> before[4];
    for (int n = 0; n < 4; ++n) before[n] = written[n]->bytes();
    if (!run(c, status)) return;
    ++(status == ROCFLASH_OK ? counts.accepted : counts.rejected);
    if (status == ROCFLASH_OK) return;
    expect_rejection(status);
    for (int n = 0; n < 4; ++n) {
      if (written[n]->bytes() != before[n]) fail("a rejected decode wrote into outputs or cache");
    }
    return;
  }
  CacheCall reference(reference_bytes, true);
  reference.execution.s.backend = ROCFLASH_BACKEND_REFERENCE;
  if (!run(c, status) || status != ROCFLASH_OK) {
    c.print();
    fail("a valid decode was rejected:", rocflash_last_error());
  }
  if (!run(reference, status) || status != ROCFLASH_OK)
    fail("the reference rejects an accepted call:", rocflash_last_error());
  ++counts.valid;
  ++counts.decoded;
  if (c.k.bytes() != reference.k.bytes() || c.v.bytes() != reference.v.bytes()) {
    c.print();
    fail("the cache differs from that of the reference");
  }
  expect_near(c, "out", c.out, reference.out, c.out_bound(reference.out.largest()));
  expect_near(c, "lse", c.lse, reference.lse, c.lse_bound());
  if (c.out.stray_writes() || c.lse.stray_writes()) fail("decode wrote outside its outputs");
}

// Combines splits, compared with the definition.
void combine_call(Bytes& bytes) {
  const bool corrupted = bytes.chance(100);
  CombineCall c(bytes, !corrupted);
  if (corrupted) c.corrupt(bytes);
  const std::vector<std::byte> before[] = {c.out.bytes(), c.lse.bytes()};
  const rocflash_status status = c.run();
  ++counts.calls;
  if (corrupted) {
    ++(status == ROCFLASH_OK ? counts.accepted : counts.rejected);
    if (status == ROCFLASH_OK) return;
    expect_rejection(status);
    if (c.out.bytes() != before[0] || c.lse.bytes() != before[1]) fail("a rejected combine wrote");
    return;
  }
  if (status != ROCFLASH_OK) fail("a valid combine is rejected:", rocflash_last_error());
  ++counts.valid;
  ++counts.combined;
  if (const char* wrong = c.difference()) fail("combine:", wrong);
}

void one_call(Bytes& bytes) {
  if (bytes.chance(90)) return decode_call(bytes);
  if (bytes.chance(16)) return combine_call(bytes);
  const bool corrupted = bytes.chance(120);
  Problem p(bytes, !corrupted);
  constexpr rocflash_backend backends[] = {ROCFLASH_BACKEND_CPU, ROCFLASH_BACKEND_AUTO,
                                           ROCFLASH_BACKEND_CPU, ROCFLASH_BACKEND_STANDARD,
                                           ROCFLASH_BACKEND_NAIVE};
  const rocflash_backend backend = bytes.pick(backends);
  if (backend == ROCFLASH_BACKEND_STANDARD)
    p.want_no_option_gradients();  // not supported by this backend
  Outputs o;
  p.make_outputs(o, false, corrupted ? nullptr : &bytes);
  Call call{};
  call.problem.s = p.c;
  p.set_pointers(o, call.forward.s, call.backward.s);
  call.execution.s = {sizeof call.execution.s, backend, 1, nullptr, nullptr, 0};
  if (bytes.chance(16)) call.execution.s.num_threads = bytes.range(1, 4);
  const bool gradients = bytes.chance(140);

  if (!corrupted) {
    expect_ok(Op::forward, call, "a valid forward is rejected:");
    if (gradients) expect_ok(Op::backward, call, "a valid backward is rejected:");
    ++counts.valid;
    // This backend rounds every intermediate tensor to the dtype, which the f32 bounds do not
    // cover.
    if (p.comparable() && call.execution.s.backend != ROCFLASH_BACKEND_NAIVE)
      compare(p, o, gradients, call);
    return;
  }

  if (gradients) expect_ok(Op::forward, call, "a valid forward is rejected:");
  corrupt(bytes, p, o, call);
  std::vector<std::byte> before[std::size(o.all)];
  for (std::size_t n = 0; n < std::size(o.all); ++n) before[n] = o.all[n]->bytes();
  rocflash_status status = ROCFLASH_OK;
  if (!run(gradients ? Op::backward : Op::forward, call, status)) return;
  if (status == ROCFLASH_OK) {
    ++counts.accepted;
    return;
  }
  ++counts.rejected;
  expect_rejection(status);
  for (std::size_t n = 0; n < std::size(o.all); ++n) {
    if (o.all[n]->bytes() != before[n]) fail("a rejected call wrote", output_names[n]);
  }
}

}  // namespace
}  // namespace rocflash::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  rocflash::fuzz::Bytes bytes(data, size);
  rocflash::fuzz::one_call(bytes);
  return 0;
}
