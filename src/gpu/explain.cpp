#include "gpu/explain.hpp"

#include <charconv>
#include <utility>

#include "core/calls.hpp"
#include "core/error.hpp"
#include "gpu/dispatch/select.hpp"
#include "gpu/plan/append.hpp"
#include "gpu/plan/attention.hpp"
#include "gpu/plan/combine.hpp"
#include "gpu/plan/refusal.hpp"

namespace rocflash::gpu {
namespace {

ExplainedKernel explained(const kernel::KernelSpec& spec) {
  return {kernel::name_of(spec).text, kernel::name_of(spec.op), kernel::name_of(spec.schedule)};
}

void add_features(Explanation& e, Features features) {
  for (int n = 0; n < kernel::feature_count; ++n)
    if (const auto feature = static_cast<Feature>(n); features.has(feature))
      e.features.emplace_back(name_of(feature));
}

void add_rejections(Explanation& e, const Rejections& rejected) {
  for (const Rejection& r : rejected.list())
    e.rejected.push_back({explained(r.kernel), text_of(r.reason, r.features)});
}

void explain_attention(Explanation& e, const Problem& p, const ForwardOutputs& outputs, Chip chip,
                       Gradients gradients) {
  const AttentionSelection s = select(p, outputs, chip, gradients);
  add_features(e, s.decode.features);
  add_rejections(e, s.decode.rejected);
  if (s.decodes)
    e.splits = s.decode.splits;
  else
    add_rejections(e, s.forward.rejected);
}

void explain_selection(Explanation& e, const ForwardCall& c, Chip chip) {
  explain_attention(e, c.problem, c.outputs, chip, Gradients::possible);
}
void explain_selection(Explanation& e, const DecodeCall& c, Chip chip) {
  Plan append;
  const Problem p = plan_append(append, c.problem, c.append, nullptr, chip);
  explain_attention(e, p, c.outputs, chip, Gradients::never);
}
void explain_selection(Explanation& e, const BackwardCall& c, Chip chip) {
  const BackwardSelection s = select(c.problem, c.tensors, chip);
  add_features(e, s.features);
  add_rejections(e, s.rejected);
}

void add_launches(Explanation& e, const Plan& plan, Chip chip) {
  e.workspace = plan.workspace.value();
  for (const Launch& launch : plan.launches()) {
    const LaunchShape& shape = launch.shape;
    const kernel::Family family =
        kernel::has_kernel(chip.family, launch.kernel) ? chip.family : kernel::Family::sm90;
    e.launches.push_back({.kernel = explained(kernel::kernel_spec(launch.kernel)),
                          .family = name_of(family),
                          .grid = {shape.grid_x, shape.grid_y, shape.grid_z},
                          .threads = shape.threads,
                          .dynamic_shared = shape.dynamic_shared,
                          .cluster = shape.cluster,
                          .pdl = shape.pdl});
  }
}

template <class Call>
Explanation explain_call(const Call& call, std::string refusal, Chip chip) {
  Explanation e;
  e.refusal = std::move(refusal);
  if (!e.refusal.empty()) return e;
  try {
    explain_selection(e, call, chip);
    Plan plan;
    plan_call(plan, call, nullptr, chip);
    add_launches(e, plan, chip);
  } catch (const Refusal& refused) {
    e.refusal = refused.message();
  }
  return e;
}

struct Card {
  std::string_view arch;
  int units;  // as the driver counts them
};
constexpr Card cards[] = {
#define ROCFLASH_DEVICE(arch, name, cus, mhz, xcds, per, math, flops) {#arch, (cus) / (per)},
#include "table/devices.inc"
};

const kernel::Member* member_of(std::string_view arch) {
  for (const kernel::Member& member : kernel::members)
    if (arch == member.arch) return &member;
  return nullptr;
}

// The number of "sm_89"; 0 for other names.
int sm_of(std::string_view arch) {
  int number = 0;
  if (arch.starts_with("sm_")) std::from_chars(arch.data() + 3, arch.data() + arch.size(), number);
  return number;
}

}  // namespace

Explanation explain(const ForwardCall& c, Chip chip) { return explain_call(c, refusal(c), chip); }
Explanation explain(const DecodeCall& c, Chip chip) { return explain_call(c, refusal(c), chip); }
Explanation explain(const BackwardCall& c, Chip chip) {
  return explain_call(c, refusal(c, chip.family), chip);
}
// These have one kernel for all problems.
Explanation explain(const CombineCall& c, Chip chip) {
  Explanation e;
  e.splits = static_cast<std::int32_t>(c.splits);
  Plan plan;
  plan_combine(plan, c, chip);
  add_launches(e, plan, chip);
  return e;
}
Explanation explain(const RotateCall& c, Chip chip) {
  Explanation e;
  Plan plan;
  plan_rotate(plan, c.problem, c.rotary, c.out, chip);
  add_launches(e, plan, chip);
  return e;
}

std::optional<Chip> chip_of(std::string_view arch, int units) {
  arch = arch.substr(0, arch.find(':'));  // "gfx942:sramecc+:xnack-"
  for (const Card& card : cards)
    if (units == 0 && card.arch == arch) units = card.units;
  if (units == 0) return std::nullopt;
  // Of an extension ("sm_90a"), whose devices run the kernels of its base too.
  if (const kernel::Member* of = member_of(std::string(arch) + "a"))
    return Chip{kernel::base_of(of->family), units, of->machine.workgroup_shared, true};
  if (const kernel::Member* of = member_of(arch))
    return Chip{of->family, units, of->machine.workgroup_shared};
  if (sm_of(arch) < 80) return std::nullopt;
  return Chip{kernel::Family::sm80, units, member_of("sm_80")->machine.workgroup_shared};
}

std::string known_archs() {
  std::string all;
  for (const Card& card : cards) all += text(all.empty() ? "" : " ", card.arch);
  return all;
}

}  // namespace rocflash::gpu
