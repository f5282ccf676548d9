#include "verify/run.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>

#include "verify/append_reference.hpp"
#include "verify/device_tensors.hpp"
#include "verify/planned.hpp"
#include "verify/random.hpp"
#include "verify/tensors.hpp"

namespace rocflash::verify {
namespace {

// Workspace of exactly the requested size, filled with NaN and followed by a guard zone.
class GuardedWorkspace {
 public:
  explicit GuardedWorkspace(std::size_t bytes) : size_(bytes), memory_(bytes + guard) {
    std::memset(memory_.data(), 0xFF, size_ + guard);
  }
  void give_to(Execution& e) const {
    e.workspace = memory_.data();
    e.workspace_size = size_;
  }
  bool intact() const {
    const auto* end = static_cast<const unsigned char*>(memory_.data()) + size_;
    return std::all_of(end, end + guard, [](unsigned char c) { return c == 0xFF; });
  }

 private:
  static constexpr std::size_t guard = 256;
  std::size_t size_;
  Workspace memory_;
};

// Queries the workspace size of an operation and runs it. Returns an error, or nothing.
template <class Size, class Run>
std::string call(const char* op, Execution execution, Size size, Run run) {
  try {
    const GuardedWorkspace workspace(size(execution));
    workspace.give_to(execution);
    run(execution);
    return workspace.intact() ? "" : std::string(op) + ": wrote beyond its workspace";
  } catch (const Error& e) {
    return std::string(op) + ": " + e.what();
  }
}

// The same in GPU memory.
class GuardedGpuWorkspace {
 public:
  GuardedGpuWorkspace(const std::shared_ptr<Gpu>& gpu, std::size_t bytes)
      : gpu_(gpu), memory_(gpu, bytes + guard) {
    gpu->fill(memory_.data(), 0xFF, memory_.size());
  }
  void give_to(Execution& e) const {
    e.workspace = memory_.data();
    e.workspace_size = memory_.size() - guard;
  }
  bool intact() const {
    unsigned char end[guard];
    gpu_->download(end, memory_.data() + memory_.size() - guard, guard);
    return std::all_of(end, end + guard, [](unsigned char c) { return c == 0xFF; });
  }

 private:
  static constexpr std::size_t guard = 256;
  std::shared_ptr<Gpu> gpu_;
  GpuMemory memory_;
};

// Copies the appended keys and values, and the rotary tables, to the GPU.
Append on_gpu(DeviceTensors& tensors_on_gpu, const Append& host) {
  Append on_device = host;
  if (host.k_new) {
    on_device.k_new = tensors_on_gpu.input(*host.k_new);
    on_device.v_new = tensors_on_gpu.view_or_input(*host.v_new, *host.k_new, *on_device.k_new);
  }
  for (std::optional<Tensor>* t : {&on_device.cu_seqlens_k_new, &on_device.rotary_cos,
                                   &on_device.rotary_sin, &on_device.rotary_seqlens}) {
    if (*t) *t = tensors_on_gpu.input(**t);
  }
  return on_device;
}

// Whether the backend computes no gradients of the bias and of ALiBi's slopes.
bool lacks_option_gradients(const Device& device) {
  return !device.gpu && device.backend == Backend::standard;
}

// Checks that such a backend rejects these gradients, and removes them from the outputs. Returns an
// error if it does not reject them.
std::string remove_unsupported_gradients(const Problem& problem, BackwardTensors tensors,
                                         const Execution& execution, Outputs& out,
                                         const Device& device) {
  if (!lacks_option_gradients(device) || !(out.dbias || out.dalibi_slopes)) return {};
  const auto like = [&](const std::optional<Buffer>& b) -> std::optional<Tensor> {
    if (!b) return std::nullopt;
    return Tensor{nullptr, b->dtype(), b->shape(), {}, problem.q.device()};
  };
  tensors.dbias = like(out.dbias);
  tensors.dalibi_slopes = like(out.dalibi_slopes);
  try {
    workspace_size(problem, tensors, execution);
    return "backward: must refuse dbias or dalibi_slopes, but accepts it";
  } catch (const Error& e) {
    if (e.status() != Status::unsupported) return std::string("backward: ") + e.what();
  }
  out.dbias.reset();
  out.dalibi_slopes.reset();
  return {};
}

// Runs forward and backward, or decode, on a GPU, including all copies. `refused` gets the message
// of an error with status ROCFLASH_UNSUPPORTED.
std::string compute_on_gpu(Inputs& in, Outputs& out, const Device& device, Gpu::Stream stream,
                           By by, std::string& refused) {
  DeviceTensors tensors_on_gpu(device.gpu);
  Problem problem = in.problem();
  if (device.fault) device.fault(problem);
  problem = tensors_on_gpu.input(problem);
  // Append writes to the KV cache, so the cache is copied back.
  if (!in.what.appended.empty()) {
    problem.k = tensors_on_gpu.output(in.k);
    problem.v =
        in.what.mla ? first_columns(problem.k, in.what.value_dim) : tensors_on_gpu.output(in.v);
  }
  ForwardOutputs outputs{tensors_on_gpu.output(out.out), tensors_on_gpu.output(out.lse),
                         std::nullopt};
  if (out.s_dmask) outputs.s_dmask = tensors_on_gpu.output(*out.s_dmask);
  // s_dmask can be requested without lse, which is then in the workspace: half of the seeds do
  // that.
  ForwardOutputs requested = outputs;
  if (in.what.weights && in.what.seed % 2 != 0) requested.lse.reset();
  Execution execution{.stream = stream};
  const bool decodes = in.what.decodes();
  Append append = decodes ? in.append() : Append{};
  if (device.append_fault) device.append_fault(append);
  append = on_gpu(tensors_on_gpu, append);
  const std::string op = decodes ? "decode" : "forward";
  const auto run = [&](const ForwardOutputs& written) {
    const GuardedGpuWorkspace workspace(
        device.gpu, decodes ? workspace_size(problem, append, written, execution)
                            : workspace_size(problem, written, execution));
    workspace.give_to(execution);
    if (decodes)
      decode(problem, append, written, execution, by);
    else
      forward(problem, written, execution, by);
    device.gpu->wait(stream);
    return workspace.intact();
  };
  try {
    if (!run(requested) || (!requested.lse && !run({outputs.out, outputs.lse, std::nullopt})))
      return op + ": wrote beyond its workspace";
  } catch (const Error& e) {
    if (e.status() == Status::unsupported) refused = e.what();
    return op + ": " + e.what();
  }
  if (out.gradients) {
    BackwardTensors tensors{tensors_on_gpu.input(in.dout.tensor()),
                            outputs.out,
                            *outputs.lse,
                            tensors_on_gpu.output(out.dq),
                            tensors_on_gpu.output(out.dk),
                            tensors_on_gpu.output(out.dv),
                            std::nullopt};
    if (out.dsinks) tensors.dsinks = tensors_on_gpu.output(*out.dsinks);
    Execution backward_execution{.stream = stream};
    if (std::string failure =
            remove_unsupported_gradients(problem, tensors, backward_execution, out, device);
        !failure.empty())
      return failure;
    if (out.dbias) tensors.dbias = tensors_on_gpu.output(*out.dbias);
    if (out.dalibi_slopes) tensors.dalibi_slopes = tensors_on_gpu.output(*out.dalibi_slopes);
    if (out.delta) tensors.delta = tensors_on_gpu.output(*out.delta);
    if (in.dlse) tensors.dlse = tensors_on_gpu.input(in.dlse->tensor());
    try {
      const GuardedGpuWorkspace workspace(device.gpu,
                                          workspace_size(problem, tensors, backward_execution));
      workspace.give_to(backward_execution);
      backward(problem, tensors, backward_execution, by);
      device.gpu->wait(stream);
      if (!workspace.intact()) return "backward: wrote beyond its workspace";
    } catch (const Error& e) {
      return std::string("backward: ") + e.what();
    }
  }
  return tensors_on_gpu.copy_back();
}

// Runs forward and backward, or decode, on the host. Returns an error, or nothing.
std::string compute(const Inputs& in, Outputs& out, const Device& device, int threads,
                    By by = By::call) {
  Problem problem = in.problem();
  if (device.fault) device.fault(problem);
  const Execution execution{.backend = device.backend, .num_threads = threads};
  const ForwardOutputs outputs = out.forward();
  if (in.what.decodes()) {
    Append append = in.append();
    if (device.append_fault) device.append_fault(append);
    return call(
        "decode", execution,
        [&](const Execution& e) { return workspace_size(problem, append, outputs, e); },
        [&](const Execution& e) { decode(problem, append, outputs, e, by); });
  }
  std::string failure = call(
      "forward", execution, [&](const Execution& e) { return workspace_size(problem, outputs, e); },
      [&](const Execution& e) { forward(problem, outputs, e, by); });
  if (!failure.empty() || !out.gradients) return failure;
  failure = remove_unsupported_gradients(problem, out.backward(in), execution, out, device);
  if (!failure.empty()) return failure;
  const BackwardTensors tensors = out.backward(in);
  return call(
      "backward", execution,
      [&](const Execution& e) { return workspace_size(problem, tensors, e); },
      [&](const Execution& e) { backward(problem, tensors, e, by); });
}

std::string write_errors(Outputs& out) {
  for (const auto& [name, buffer, gradient] : out.all()) {
    if (!buffer) continue;
    for (const std::string& what : {buffer->out_of_bounds_write(), buffer->unwritten()}) {
      if (!what.empty()) return std::string(name) + ": " + what;
    }
  }
  return {};
}

// Tensors that GPUs accumulate with atomics in any order, unless `deterministic` is set.
bool has_atomic_accumulation(std::string_view tensor) {
  return tensor == "dq" || tensor == "dbias" || tensor == "dalibi_slopes";
}

std::string differing_bits(Outputs& a, Outputs& b, bool skip_atomic) {
  const auto first = a.all(), second = b.all();
  for (std::size_t n = 0; n < first.size(); ++n) {
    if (skip_atomic && has_atomic_accumulation(first[n].name)) continue;
    if (first[n].buffer && first[n].buffer->bytes() != second[n].buffer->bytes())
      return std::string(first[n].name) +
             ": other bits in a second run (by a plan; on the CPU with another number of threads)";
  }
  return {};
}

// For each row of `columns` elements, whether all of them are 0.
std::vector<bool> zero_rows(const std::vector<double>& values, std::int64_t columns) {
  std::vector<bool> zero(values.size() / static_cast<std::size_t>(columns));
  for (std::size_t row = 0; row < zero.size(); ++row) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(row) * columns;
    zero[row] = std::all_of(begin, begin + columns, [](double x) { return x == 0; });
  }
  return zero;
}

std::vector<bool> for_elements(const std::vector<bool>& rows, std::int64_t columns) {
  std::vector<bool> elements;
  elements.reserve(rows.size() * static_cast<std::size_t>(columns));
  for (const bool row : rows)
    elements.insert(elements.end(), static_cast<std::size_t>(columns), row);
  return elements;
}

std::vector<bool> both(std::vector<bool> a, const std::vector<bool>& b) {
  for (std::size_t n = 0; n < a.size(); ++n) a[n] = a[n] && b[n];
  return a;
}

// Which elements of the bias contribute to no nonzero weight. `weights` has the dimensions
// (sequence, head, query, key).
std::vector<bool> bias_without_weight(const Buffer& dbias, const Buffer& weights) {
  std::vector<bool> without_weight(static_cast<std::size_t>(dbias.size()), true);
  const Dims shape = dbias.shape(), full = weights.shape();
  const std::vector<double> values = weights.values();
  for (std::size_t n = 0; n < values.size(); ++n) {
    std::int64_t rest = static_cast<std::int64_t>(n), element = 0, step = 1;
    for (std::size_t dim = full.size(); dim-- > 0; rest /= full[dim]) {
      if (shape[dim] == 1) continue;
      element += rest % full[dim] * step;
      step *= shape[dim];
    }
    if (values[n] != 0) without_weight[static_cast<std::size_t>(element)] = false;
  }
  return without_weight;
}

// Removes the large elements from `all` and returns them: one rounding of a large element would
// allow any error of the others.
ComparedTensor take_large(ComparedTensor& all) {
  constexpr double large = 0x1p16;
  ComparedTensor of_large, others;
  for (std::size_t n = 0; n < all.reference.size(); ++n) {
    const bool is_large = std::isfinite(all.reference[n]) && std::abs(all.reference[n]) >= large;
    ComparedTensor& to = is_large ? of_large : others;
    to.reference.push_back(all.reference[n]);
    to.naive.push_back(all.naive[n]);
    to.device.push_back(all.device[n]);
  }
  all = std::move(others);
  return of_large;
}

// Elements that must be exactly 0: rows of fully masked queries, of keys that no query attends to,
// and of unused rows. A gradient may also be 0 because its terms cancel, which holds only up to
// rounding. Therefore dq and dk must be 0 only where out and dv, which are sums of weights, are 0.
std::vector<bool> exact_zeros(const std::string& tensor, const Case& c, Outputs& reference) {
  const auto zeros = [&](Buffer& b, std::int64_t columns) {
    return zero_rows(b.values(), columns);
  };
  if (tensor == "out") return for_elements(zeros(reference.out, c.value_dim), c.value_dim);
  if (tensor == "dv") return for_elements(zeros(reference.dv, c.value_dim), c.value_dim);
  if (tensor == "dq")
    return for_elements(both(zeros(reference.dq, c.head_dim), zeros(reference.out, c.value_dim)),
                        c.head_dim);
  if (tensor == "dk")
    return for_elements(both(zeros(reference.dk, c.head_dim), zeros(reference.dv, c.value_dim)),
                        c.head_dim);
  if (tensor == "dbias") return bias_without_weight(*reference.dbias, *reference.s_dmask);
  return {};
}

}  // namespace

std::string documented_refusal(const Case& c) {
  if (c.dtype == DType::f64) return "dtype";
  return {};
}

bool Result::good() const {
  return failure.empty() && std::all_of(comparisons.begin(), comparisons.end(),
                                        [](const Comparison& f) { return f.good(); });
}

double Result::worst_ratio(bool gradient) const {
  double worst = 0;
  for (const Comparison& f : comparisons) {
    if (f.gradient == gradient) worst = std::max(worst, f.ratio());
  }
  return worst;
}

namespace {

// Runs the same problem twice: on a new stream, and by a plan on the default stream.
std::string compute_twice_on_gpu(Inputs& in, Outputs& first, Inputs& in_again, Outputs& second,
                                 const Device& device, std::string& refused) {
  const auto destroy = [&](void* stream) { device.gpu->destroy_stream(stream); };
  const std::unique_ptr<void, decltype(destroy)> stream(device.gpu->make_stream(), destroy);
  const std::string failure = compute_on_gpu(in, first, device, stream.get(), By::call, refused);
  return failure.empty() ? compute_on_gpu(in_again, second, device, nullptr, By::plan, refused)
                         : failure;
}

Result run_once(const Case& what, const Device& device) {
  Result result{what, {}, {}, {}};
  const Inputs in(what);
  // Decode writes to its KV cache: each run has a copy, and the reference implementation and naive
  // attention get the expected cache.
  Inputs device_inputs = in, repeated_inputs = in;
  const bool decodes = what.decodes();
  const Inputs reference_inputs = decodes ? after_append(in, Arithmetic::exact) : in;
  const Inputs naive_inputs = decodes ? after_append(in, Arithmetic::every_step_rounded) : in;
  // The reference's weights show which elements of the bias have no effect.
  Case with_weights = what;
  with_weights.weights |= what.bias && what.has_backward();
  Outputs reference(with_weights, true), naive(what, false), found(what, false),
      repeated(what, false);

  const auto step = [&](std::string failure) {
    if (result.failure.empty()) result.failure = std::move(failure);
    return result.failure.empty();
  };
  if (device.gpu) {
    std::string refused;
    const std::string failure =
        compute_twice_on_gpu(device_inputs, found, repeated_inputs, repeated, device, refused);
    const std::string documented = documented_refusal(what);
    if (!documented.empty()) {
      result.refused = refused;
      if (refused.empty())
        step("must be refused (" + documented + "), but: " + (failure.empty() ? "ran" : failure));
      return result;
    }
    if (!step(failure)) return result;
  } else {
    if (!step(compute(device_inputs, found, device, what.threads))) return result;
    if (!step(compute(repeated_inputs, repeated, device, what.threads + 2, By::plan)))
      return result;
  }
  step(write_errors(found));
  step(differing_bits(found, repeated, device.gpu && !what.deterministic));
  step(device_inputs.fingerprint() == in.fingerprint() ? "" : "an input was changed");
  step(cache_mismatch(in, device_inputs));
  step(device_inputs.k.bytes() == repeated_inputs.k.bytes()
           ? ""
           : "k: other bits with another number of threads");
  if (!step(compute(reference_inputs, reference, Backend::reference, 1))) return result;
  if (!step(compute(naive_inputs, naive, Backend::naive, 1))) return result;
  if (!what.appended.empty())
    result.comparisons.push_back(
        compare_appended_keys(reference_inputs, naive_inputs, device_inputs));

  const auto exact = reference.all(), baseline = naive.all(), results = found.all();
  for (std::size_t n = 0; n < results.size(); ++n) {
    if (!results[n].buffer) continue;
    const std::string name = results[n].name;
    ComparedTensor values{exact[n].buffer->values(), baseline[n].buffer->values(),
                          results[n].buffer->values()};
    const Tolerance tolerance{results[n].buffer->dtype(), results[n].gradient, name == "s_dmask",
                              exact_zeros(name, what, reference)};
    if (name == "lse" && what.has_large_scores())
      result.comparisons.push_back(compare("lse of large scores", take_large(values), tolerance));
    result.comparisons.push_back(compare(name, values, tolerance));
  }
  return result;
}

}  // namespace

Result run(const Case& what, const Device& device) {
  constexpr int draws = 16;
  Result result = run_once(what, device);
  if (result.good()) return result;
  for (int draw = 1; draw < draws && result.failure.empty(); ++draw) {
    Case again = what;
    // The lowest bit selects outputs (delta_output), which must be those of the first draw.
    again.seed = (derive_seed(what.seed, "draw " + std::to_string(draw)) & ~std::uint64_t{1}) |
                 (what.seed & 1);
    const Result other = run_once(again, device);
    result.failure = other.failure;
    for (std::size_t n = 0; n < other.comparisons.size(); ++n)
      result.comparisons[n].pool(other.comparisons[n], draw + 1);
  }
  return result;
}

std::vector<Result> run_all(const std::vector<Case>& cases, const Device& device, int workers,
                            const std::function<void(const Result&)>& done) {
  std::vector<Result> results(cases.size());
  std::atomic<std::size_t> next{0};
  std::atomic<bool> device_failed{false};
  std::mutex mutex;
  const auto work = [&] {
    for (std::size_t n = next++; n < cases.size(); n = next++) {
      Result result{
          cases[n], {}, device_failed ? "not run: the device failed in an earlier case" : "", {}};
      try {
        if (!device_failed) result = run(cases[n], device);
      } catch (const Error& e) {
        // A driver error outside of calls: after an illegal memory access all later calls fail.
        result.failure = e.what();
        device_failed = true;
      }
      const std::lock_guard lock(mutex);
      results[n] = std::move(result);
      if (done) done(results[n]);
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int n = 1; n < workers; ++n) threads.emplace_back(work);
    work();
  }
  return results;
}

}  // namespace rocflash::verify
