// Plans: calls that are validated, and on GPUs planned, once and run many times.
#include <memory>
#include <utility>

#include "api/check.hpp"
#include "api/plan_tensors.hpp"
#include "api/structs.hpp"
#include "core/error.hpp"

// Immutable after its creation, so threads may run it concurrently and a fork finds it whole.
struct rocflash_plan {
  explicit rocflash_plan(const rocflash::TensorRecord& record) : tensors(record) {}
  rocflash_plan(const rocflash_plan&) = delete;
  rocflash_plan& operator=(const rocflash_plan&) = delete;
  virtual ~rocflash_plan() = default;

  virtual void run(const rocflash::ArgumentValues&, const rocflash::Resources&) const = 0;

  rocflash::PlanTensors tensors;
  std::size_t workspace = 0;
  int threads = 1;
  bool on_host = false;
};

namespace rocflash {
namespace {

template <class Call>
class PlanOf final : public rocflash_plan {
 public:
  PlanOf(Checked<Call> checked, const TensorRecord& record)
      : rocflash_plan(record), checked_(std::move(checked)) {
    on_host = record.front().tensor.device.type == kDLCPU;
    threads = checked_.call.resources.threads;
    bind_arguments(checked_.call, tensors.like());
    workspace = checked_.workspace();
    prepared_ = checked_.backend.prepare(checked_.call, tensors.like());
  }

  void run(const ArgumentValues& values, const Resources& resources) const override {
    if (prepared_) {
      check_workspace(resources, Size::of_bytes(workspace), checked_.call.problem);
      return prepared_->run(values, resources.stream);
    }
    Call call = checked_.call;
    bind_arguments(call, values);
    call.resources = resources;
    if (on_host) check_host_values(call);
    checked_.backend.run(call);
  }

 private:
  Checked<Call> checked_;
  std::unique_ptr<const PreparedCall> prepared_;
};

template <class Call>
std::unique_ptr<rocflash_plan> make_plan(Checked<Call> checked, const TensorRecord& record) {
  return std::make_unique<PlanOf<Call>>(std::move(checked), record);
}

// `check` validates a call and records its tensors.
template <class Check>
rocflash_status create_plan(rocflash_plan** plan, const Check& check) {
  return guarded([&] {
    if (!plan) refuse("plan is null; it receives the plan");
    *plan = nullptr;
    TensorRecord record;
    auto checked = check(&record);
    *plan = make_plan(std::move(checked), record).release();
  });
}

void run_plan(const rocflash_plan& plan, const rocflash_plan_arguments& in) {
  ArgumentValues values = plan.tensors.read(in);
  values[Argument::workspace] = reinterpret_cast<std::uintptr_t>(in.workspace);
  Resources resources;
  resources.threads = plan.threads;
  resources.workspace = static_cast<std::byte*>(in.workspace);
  resources.workspace_size = in.workspace_size;
  if (plan.on_host && in.stream) refuse("stream is given; for CPU tensors it must be null");
  resources.stream = in.stream;
  plan.run(values, resources);
}

}  // namespace
}  // namespace rocflash

using namespace rocflash;

rocflash_status rocflash_plan_create_forward(const rocflash_problem* problem,
                                             const rocflash_forward_outputs* outputs,
                                             const rocflash_execution* execution,
                                             rocflash_plan** plan) {
  return create_plan(plan, [&](TensorRecord* record) {
    return check_forward(problem, outputs, execution, Data::may_be_null, record);
  });
}

rocflash_status rocflash_plan_create_backward(const rocflash_problem* problem,
                                              const rocflash_backward_tensors* tensors,
                                              const rocflash_execution* execution,
                                              rocflash_plan** plan) {
  return create_plan(plan, [&](TensorRecord* record) {
    return check_backward(problem, tensors, execution, Data::may_be_null, record);
  });
}

rocflash_status rocflash_plan_create_infer(const rocflash_problem* problem,
                                           const rocflash_forward_outputs* outputs,
                                           const rocflash_execution* execution,
                                           rocflash_plan** plan) {
  return rocflash_plan_create_decode(problem, nullptr, outputs, execution, plan);
}

rocflash_status rocflash_plan_create_decode(const rocflash_problem* problem,
                                            const rocflash_append* append,
                                            const rocflash_forward_outputs* outputs,
                                            const rocflash_execution* execution,
                                            rocflash_plan** plan) {
  return create_plan(plan, [&](TensorRecord* record) {
    return check_decode(problem, append, outputs, execution, Data::may_be_null, record);
  });
}

rocflash_status rocflash_plan_workspace(const rocflash_plan* plan, size_t* bytes) {
  return guarded([&] {
    if (!plan) refuse("plan is null; it is required");
    if (!bytes) refuse("bytes is null; it receives the workspace size");
    *bytes = plan->workspace;
  });
}

rocflash_status rocflash_plan_run(const rocflash_plan* plan,
                                  const rocflash_plan_arguments* arguments) {
  return guarded([&] {
    if (!plan) refuse("plan is null; it is required");
    run_plan(*plan, read_struct("arguments", arguments));
  });
}

void rocflash_plan_destroy(rocflash_plan* plan) { delete plan; }
