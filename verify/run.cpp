#include "verify/run.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>

#include "verify/appended.hpp"
#include "verify/mirror.hpp"
#include "verify/random.hpp"
#include "verify/tensors.hpp"

namespace rocflash::verify {
namespace {

// Scratch memory of exactly the size that was asked for, full of NaN, with a guard behind.
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

// `size` and `run` are the two calls of an operation, given what they need but the execution.
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

// Scratch memory of a GPU, as the host's above.
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

// What decode appends, on the GPU.
Append on_gpu(Mirror& mirror, const Append& host) {
  Append there = host;
  if (host.k_new) {
    there.k_new = mirror.input(*host.k_new);
    there.v_new = mirror.within(*host.v_new, *host.k_new, *there.k_new);
  }
  for (std::optional<Tensor>* t :
       {&there.cu_seqlens_k_new, &there.rotary_cos, &there.rotary_sin, &there.rotary_seqlens}) {
    if (*t) *t = mirror.input(**t);
  }
  return there;
}

// Who does not compute the gradients of the bias and of ALiBi's slopes.
bool lacks_option_gradients(const Device& device) {
  return !device.gpu && device.backend == Backend::standard;
}

// Such a device has to refuse these gradients, and is then not asked for them. Returns what is wrong
// if it does not.
std::string leave_out_option_gradients(const Problem& problem, BackwardTensors tensors,
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
    return "backward: ought to refuse dbias or dalibi_slopes, but takes it";
  } catch (const Error& e) {
    if (e.status() != Status::unsupported) return std::string("backward: ") + e.what();
  }
  out.dbias.reset();
  out.dalibi_slopes.reset();
  return {};
}

// Forward, then backward, or decode on a GPU: everything there and back. `refused` gets the message of a refusal by
// ROCFLASH_UNSUPPORTED.
std::string compute_on_gpu(Inputs& in, Outputs& out, const Device& device, Gpu::Stream stream,
                           std::string& refused) {
  Mirror mirror(device.gpu);
  Problem problem = in.problem();
  if (device.fault) device.fault(problem);
  problem = mirror.input(problem);
  // What is appended to comes back.
  if (!in.what.appended.empty()) {
    problem.k = mirror.output(in.k);
    problem.v =
        in.what.shared_values ? first_columns(problem.k, in.what.value_dim) : mirror.output(in.v);
  }
  ForwardOutputs outputs{mirror.output(out.out), mirror.output(out.lse), std::nullopt};
  if (out.s_dmask) outputs.s_dmask = mirror.output(*out.s_dmask);
  // A caller who wants s_dmask need not want lse; the workspace holds one then.
  ForwardOutputs asked = outputs;
  if (in.what.weights && in.what.seed % 2 != 0) asked.lse.reset();
  Execution execution{.stream = stream};
  const bool decodes = in.what.decodes();
  Append append = decodes ? in.append() : Append{};
  if (device.append_fault) device.append_fault(append);
  append = on_gpu(mirror, append);
  const std::string op = decodes ? "decode" : "forward";
  const auto run = [&](const ForwardOutputs& wanted) {
    const GuardedGpuWorkspace workspace(device.gpu,
                                        decodes ? workspace_size(problem, append, wanted, execution)
                                                : workspace_size(problem, wanted, execution));
    workspace.give_to(execution);
    if (decodes)
      decode(problem, append, wanted, execution);
    else
      forward(problem, wanted, execution);
    device.gpu->wait(stream);
    return workspace.intact();
  };
  try {
    if (!run(asked) || (!asked.lse && !run({outputs.out, outputs.lse, std::nullopt})))
      return op + ": wrote beyond its workspace";
  } catch (const Error& e) {
    if (e.status() == Status::unsupported) refused = e.what();
    return op + ": " + e.what();
  }
  if (out.gradients) {
    BackwardTensors tensors{
        mirror.input(in.dout.tensor()), outputs.out,           *outputs.lse, mirror.output(out.dq),
        mirror.output(out.dk),          mirror.output(out.dv), std::nullopt};
    if (out.dsinks) tensors.dsinks = mirror.output(*out.dsinks);
    Execution there{.stream = stream};
    if (std::string wrong = leave_out_option_gradients(problem, tensors, there, out, device);
        !wrong.empty())
      return wrong;
    if (out.dbias) tensors.dbias = mirror.output(*out.dbias);
    if (out.dalibi_slopes) tensors.dalibi_slopes = mirror.output(*out.dalibi_slopes);
    try {
      const GuardedGpuWorkspace workspace(device.gpu, workspace_size(problem, tensors, there));
      workspace.give_to(there);
      backward(problem, tensors, there);
      device.gpu->wait(stream);
      if (!workspace.intact()) return "backward: wrote beyond its workspace";
    } catch (const Error& e) {
      return std::string("backward: ") + e.what();
    }
  }
  return mirror.fetch();
}

// Forward, then backward with its results, or decode, as a user would. Returns what went wrong.
std::string compute(const Inputs& in, Outputs& out, const Device& device, int threads) {
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
        [&](const Execution& e) { decode(problem, append, outputs, e); });
  }
  std::string failure = call(
      "forward", execution, [&](const Execution& e) { return workspace_size(problem, outputs, e); },
      [&](const Execution& e) { forward(problem, outputs, e); });
  if (!failure.empty() || !out.gradients) return failure;
  failure = leave_out_option_gradients(problem, out.backward(in), execution, out, device);
  if (!failure.empty()) return failure;
  const BackwardTensors tensors = out.backward(in);
  return call(
      "backward", execution,
      [&](const Execution& e) { return workspace_size(problem, tensors, e); },
      [&](const Execution& e) { backward(problem, tensors, e); });
}

std::string stray_writes(Outputs& out) {
  for (const auto& [name, buffer, gradient] : out.all()) {
    if (!buffer) continue;
    for (const std::string& what : {buffer->trespass(), buffer->unwritten()}) {
      if (!what.empty()) return std::string(name) + ": " + what;
    }
  }
  return {};
}

// On a GPU the order in which these are added up is free unless the same bits are asked for.
bool has_free_order(std::string_view tensor) {
  return tensor == "dq" || tensor == "dbias" || tensor == "dalibi_slopes";
}

std::string differing_bits(Outputs& a, Outputs& b, bool free_order) {
  const auto first = a.all(), second = b.all();
  for (std::size_t n = 0; n < first.size(); ++n) {
    if (free_order && has_free_order(first[n].name)) continue;
    if (first[n].buffer && first[n].buffer->bytes() != second[n].buffer->bytes())
      return std::string(first[n].name) +
             ": other bits in a second run (on the CPU with another number of threads)";
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

// A query that sees nothing, a key that no query sees, a row that is not in use: their rows are
// exactly 0. A gradient may also be 0 because its terms cancel, which no device owes to the last
// bit; so dq and dk are asked for it only where out and dv, which are sums of weights, vanish as
// well.
// Which elements of the bias serve no query and key between which there is weight. `weights` has
// one for each of (sequence, head, query, key).
std::vector<bool> idle_bias(const Buffer& dbias, const Buffer& weights) {
  std::vector<bool> idle(static_cast<std::size_t>(dbias.size()), true);
  const Dims shape = dbias.shape(), full = weights.shape();
  const std::vector<double> values = weights.values();
  for (std::size_t n = 0; n < values.size(); ++n) {
    std::int64_t rest = static_cast<std::int64_t>(n), element = 0, step = 1;
    for (std::size_t dim = full.size(); dim-- > 0; rest /= full[dim]) {
      if (shape[dim] == 1) continue;
      element += rest % full[dim] * step;
      step *= shape[dim];
    }
    if (values[n] != 0) idle[static_cast<std::size_t>(element)] = false;
  }
  return idle;
}

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
  if (tensor == "dbias") return idle_bias(*reference.dbias, *reference.s_dmask);
  return {};
}

}  // namespace

std::string documented_refusal(const Case& c) {
  if (c.dtype == DType::f64) return "dtype";
  return {};
}

bool Result::good() const {
  return failure.empty() &&
         std::all_of(findings.begin(), findings.end(), [](const Finding& f) { return f.good(); });
}

double Result::worst_ratio(bool gradient) const {
  double worst = 0;
  for (const Finding& f : findings) {
    if (f.gradient == gradient) worst = std::max(worst, f.ratio());
  }
  return worst;
}

namespace {

// The same problem twice, on a stream of its own and on the default one.
std::string compute_twice_on_gpu(Inputs& in, Outputs& first, Inputs& in_again, Outputs& second,
                                 const Device& device, std::string& refused) {
  const auto drop = [&](void* stream) { device.gpu->drop_stream(stream); };
  const std::unique_ptr<void, decltype(drop)> stream(device.gpu->make_stream(), drop);
  const std::string failure = compute_on_gpu(in, first, device, stream.get(), refused);
  return failure.empty() ? compute_on_gpu(in_again, second, device, nullptr, refused) : failure;
}

Result run_once(const Case& what, const Device& device) {
  Result result{what, {}, {}, {}};
  const Inputs in(what);
  // Decode writes into its cache: each run has one of its own, and the judges get what it should
  // have become.
  Inputs of_tried = in, of_again = in;
  const bool decodes = what.decodes();
  const Inputs of_reference = decodes ? after_append(in, Arithmetic::exact) : in;
  const Inputs of_plain = decodes ? after_append(in, Arithmetic::by_steps) : in;
  // The reference's weights tell which elements of the bias have nothing to do.
  Case with_weights = what;
  with_weights.weights |= what.bias && what.has_backward();
  Outputs reference(with_weights, true), plain(what, false), tried(what, false), again(what, false);

  const auto step = [&](std::string failure) {
    if (result.failure.empty()) result.failure = std::move(failure);
    return result.failure.empty();
  };
  if (device.gpu) {
    std::string refused;
    const std::string failure =
        compute_twice_on_gpu(of_tried, tried, of_again, again, device, refused);
    const std::string documented = documented_refusal(what);
    if (!documented.empty()) {
      result.refused = refused;
      if (refused.empty())
        step("ought to be refused (" + documented +
             "), but: " + (failure.empty() ? "ran" : failure));
      return result;
    }
    if (!step(failure)) return result;
  } else {
    if (!step(compute(of_tried, tried, device, what.threads))) return result;
    if (!step(compute(of_again, again, device, what.threads + 2))) return result;
  }
  step(stray_writes(tried));
  step(differing_bits(tried, again, device.gpu && !what.deterministic));
  step(of_tried.fingerprint() == in.fingerprint() ? "" : "an input was changed");
  step(damage(in, of_tried));
  step(of_tried.k.bytes() == of_again.k.bytes() ? "" : "k: other bits with other threads");
  if (!step(compute(of_reference, reference, Backend::reference, 1))) return result;
  if (!step(compute(of_plain, plain, Backend::plain, 1))) return result;
  if (!what.appended.empty())
    result.findings.push_back(judge_appended_keys(of_reference, of_plain, of_tried));

  const auto exact = reference.all(), yardstick = plain.all(), found = tried.all();
  for (std::size_t n = 0; n < found.size(); ++n) {
    if (!found[n].buffer) continue;
    const std::string name = found[n].name;
    result.findings.push_back(judge(
        name, {exact[n].buffer->values(), yardstick[n].buffer->values(), found[n].buffer->values()},
        {found[n].buffer->dtype(), found[n].gradient, name == "s_dmask",
         exact_zeros(name, what, reference)}));
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
    again.seed = derive_seed(what.seed, "draw " + std::to_string(draw));
    const Result other = run_once(again, device);
    result.failure = other.failure;
    for (std::size_t n = 0; n < other.findings.size(); ++n)
      result.findings[n].pool(other.findings[n], draw + 1);
  }
  return result;
}

std::vector<Result> run_all(const std::vector<Case>& cases, const Device& device, int workers,
                            const std::function<void(const Result&)>& done) {
  std::vector<Result> results(cases.size());
  std::atomic<std::size_t> next{0};
  std::atomic<bool> broken{false};
  std::mutex one_at_a_time;
  const auto work = [&] {
    for (std::size_t n = next++; n < cases.size(); n = next++) {
      Result result{cases[n], {}, broken ? "not run: the device failed before" : "", {}};
      try {
        if (!broken) result = run(cases[n], device);
      } catch (const Error& e) {
        // What the device says outside of calls. A kernel that reads where nothing is makes all later calls fail.
        result.failure = e.what();
        broken = true;
      }
      const std::lock_guard lock(one_at_a_time);
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
