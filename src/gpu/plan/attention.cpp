#include "gpu/plan/attention.hpp"

#include "gpu/dispatch/select.hpp"
#include "gpu/plan/append.hpp"
#include "gpu/plan/backward.hpp"
#include "gpu/plan/decode.hpp"
#include "gpu/plan/forward.hpp"
#include "gpu/plan/weights.hpp"

namespace rocflash::gpu {
namespace {

void plan_attention(Plan& plan, const Problem& p, const ForwardOutputs& o, std::byte* workspace,
                    Chip chip, Gradients gradients) {
  const AttentionSelection s = select(p, o, chip, gradients);
  if (s.decodes) return plan_decode(plan, s.decode, p, o, workspace, chip);
  plan_forward(plan, s.forward, p, o, chip);
  plan_weights(plan, p, o, chip);
}

}  // namespace

void plan_call(Plan& plan, const ForwardCall& c, std::byte* workspace, Chip chip) {
  plan_attention(plan, c.problem, c.outputs, workspace, chip, Gradients::possible);
}

void plan_call(Plan& plan, const DecodeCall& c, std::byte* workspace, Chip chip) {
  plan_attention(plan, plan_append(plan, c.problem, c.append, workspace, chip), c.outputs,
                 workspace, chip, Gradients::never);
}

void plan_call(Plan& plan, const BackwardCall& c, std::byte* workspace, Chip chip) {
  plan_backward(plan, c.problem, c.tensors, workspace, chip, c.delta, c.dlse);
}

}  // namespace rocflash::gpu
