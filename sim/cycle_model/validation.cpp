// Assembling, running and comparing the microkernels.
#include "cycle_model/validation.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>

#include "core/launch.h"
#include "core/memory.h"
#include "cycle_model/model.h"

namespace rocflash::sim {
namespace {

// Figures in clocks were measured near the highest clock.
double clock_of(const Target& target) { return cycle_model_parameters(target).chip.clock_highest; }

std::string kernel_name(std::size_t point, int size) { return fmt::format("k{}_{}", point, size); }

// A count at which all waves of the kernel are resident.
int registers_of(const ValidationPoint& p) {
  const int per_simd = (p.waves + 3) / 4 * std::max(1, p.groups_per_unit);
  return per_simd > 4 ? 64 : per_simd > 2 ? 128 : 256;
}

// s[4:5]: the workgroup's part of the buffer, s[8:9]: its second half, where it is used; v0:
// the work-item; v1 to v3 and s12 on are free.
std::string kernel_text(const ValidationPoint& p, const std::string& name, int repeats) {
  const bool gfx9 = p.target.starts_with("gfx9");
  const bool gfx12 = p.target.starts_with("gfx12");
  const bool halves = p.pattern.find("s[8:9]") != std::string::npos;
  std::string text = fmt::format(
      ".text\n.globl {0}\n.p2align 8\n.type {0},@function\n{0}:\n"
      "  {1} s[4:5], s[0:1], 0x0\n  {2} s6, s[0:1], 0x8\n  v_and_b32 v0, 0x3ff, v0\n  {3}\n"
      "{5}  s_mul_i32 s6, {4}, s6\n  s_add_u32 s4, s4, s6\n  s_addc_u32 s5, s5, 0\n{6}",
      name, gfx9 ? "s_load_dwordx2" : "s_load_b64", gfx9 ? "s_load_dword" : "s_load_b32",
      gfx12 ? "s_wait_kmcnt 0" : "s_waitcnt lgkmcnt(0)", gfx12 ? "ttmp9" : "s2",
      halves ? "  s_lshr_b32 s10, s6, 1\n" : "",
      halves ? "  s_add_u32 s8, s4, s10\n  s_addc_u32 s9, s5, 0\n" : "");
  if (p.one_simd) {
    text += fmt::format(
        "  v_readfirstlane_b32 s7, v0\n  s_and_b32 s7, s7, 0xc0\n  s_cmp_eq_u32 s7, 0\n"
        "  s_cbranch_scc1 .Lgo_{0}\n  s_endpgm\n.Lgo_{0}:\n",
        name);
  }
  text += p.prologue;
  const std::string ending =
      fmt::format("  {}\n  s_endpgm\n",
                  gfx12 ? "s_wait_loadcnt 0\n  s_wait_dscnt 0" : "s_waitcnt vmcnt(0) lgkmcnt(0)");
  if (!p.other.empty()) {
    text += fmt::format(
        "  v_readfirstlane_b32 s7, v0\n  s_cmp_lt_u32 s7, {0}\n  s_cbranch_scc1 .Lfirst_{1}\n"
        ".rept {2}\n{3}\n.endr\n{4}.Lfirst_{1}:\n",
        p.waves / 2 * (gfx9 ? 64 : 32), name, repeats, p.other, ending);
  }
  text += fmt::format("\n.rept {}\n{}\n.endr\n", repeats, p.pattern) + ending;
  text += fmt::format(
      ".Lend_{0}:\n.size {0}, .Lend_{0}-{0}\n.rodata\n.p2align 6\n.amdhsa_kernel {0}\n"
      "  .amdhsa_user_sgpr_kernarg_segment_ptr 1\n  .amdhsa_next_free_vgpr {1}\n"
      "  .amdhsa_next_free_sgpr 32\n  .amdhsa_group_segment_fixed_size 16384\n"
      "  .amdhsa_kernarg_size 16\n  {2}\n.end_amdhsa_kernel\n",
      name, registers_of(p), gfx9 ? ".amdhsa_accum_offset 32" : ".amdhsa_wavefront_size32 1");
  return text;
}

std::string metadata(const std::string& target,
                     const std::vector<std::pair<std::string, int>>& kernels) {
  std::string text = fmt::format(
      ".amdgpu_metadata\n---\namdhsa.version: [1, 2]\namdhsa.target: amdgcn-amd-amdhsa--{}\n"
      "amdhsa.kernels:\n",
      target);
  for (const auto& [name, registers] : kernels) {
    text += fmt::format(
        "  - .name: {0}\n    .symbol: {0}.kd\n    .kernarg_segment_size: 16\n"
        "    .kernarg_segment_align: 8\n    .group_segment_fixed_size: 16384\n"
        "    .private_segment_fixed_size: 0\n    .wavefront_size: {2}\n    .sgpr_count: 32\n"
        "    .vgpr_count: {1}\n    .max_flat_workgroup_size: 1024\n    .args:\n"
        "      - .offset: 0\n        .size: 8\n        .value_kind: by_value\n"
        "      - .offset: 8\n        .size: 8\n        .value_kind: by_value\n",
        name, registers, target.starts_with("gfx9") ? 64 : 32);
  }
  return text + "...\n.end_amdgpu_metadata\n";
}

double cycles(Module& module, const ValidationPoint& p, const std::string& kernel, u8* buffer) {
  LaunchRequest request;
  request.module = &module;
  request.kernel = module.object().find_kernel(kernel);
  if (request.kernel == nullptr) throw std::runtime_error("no kernel " + kernel);
  const u32 units = static_cast<u32>(module.target().compute_units);
  request.grid[0] = p.groups_per_unit > 0 ? units * static_cast<u32>(p.groups_per_unit) : 1;
  request.block[0] = static_cast<u32>(request.kernel->wave_size * p.waves);
  const u64 arguments[2] = {reinterpret_cast<u64>(buffer), p.buffer_bytes / request.grid[0]};
  request.arguments = {reinterpret_cast<const u8*>(arguments), sizeof arguments};
  request.checks = {};
  request.checks.undefined = request.checks.lds_bounds = request.checks.lds_race = false;
  request.checks.wait = request.checks.barrier = request.checks.misaligned = false;
  CycleModel model(request, {true, clock_of(module.target()), {}});
  request.traces = &model;
  const LaunchResult result = run_kernel(request);
  if (!result.ok()) throw std::runtime_error(p.name + ": " + result.report->text());
  return model.predict().cycles;
}

// Lazily mapped memory: most pages of a large buffer are never touched.
class LazyBuffer {
 public:
  explicit LazyBuffer(u64 bytes) : bytes_(bytes) {
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<u8*>(mapped);
    Memory::instance().add(data_, bytes_, "validation", 0);
  }
  ~LazyBuffer() {
    Memory::instance().remove(data_);
    munmap(data_, bytes_);
  }
  LazyBuffer(const LazyBuffer&) = delete;
  LazyBuffer& operator=(const LazyBuffer&) = delete;
  [[nodiscard]] u8* data() const { return data_; }

 private:
  u64 bytes_;
  u8* data_;
};

double value_of(const ValidationPoint& p, double clocks, const Target& target) {
  if (p.bytes == 0) return clocks / p.instructions - p.subtract;
  const double rate = p.bytes * (p.one_simd ? (p.waves + 3) / 4 : p.waves) / clocks;
  if (p.groups_per_unit == 0) return rate;
  return rate * p.groups_per_unit * target.compute_units * clock_of(target) * 1e6 / 1e12;
}

}  // namespace

bool Validated::holds() const { return std::abs(error()) <= point.tolerance; }

std::vector<Validated> validate(std::span<const ValidationPoint> points, const Assemble& assemble) {
  std::map<std::string, std::string> texts;
  std::map<std::string, std::vector<std::pair<std::string, int>>> names;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const ValidationPoint& p = points[i];
    for (const int size : {0, 1}) {
      const std::string name = kernel_name(i, size);
      texts[p.target] += kernel_text(p, name, p.repeats[size]);
      names[p.target].emplace_back(name, registers_of(p));
    }
  }
  std::map<std::string, std::unique_ptr<Module>> modules;
  for (const auto& [target, text] : texts) {
    const auto code = assemble(text + metadata(target, names[target]), target);
    modules[target] =
        std::make_unique<Module>(CodeObject::load(code, target), *find_target(target), 0);
  }
  std::vector<Validated> results;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const ValidationPoint& p = points[i];
    Module& module = *modules.at(p.target);
    const LazyBuffer memory(p.buffer_bytes);
    u8* buffer = memory.data();
    const double few = cycles(module, p, kernel_name(i, 0), buffer);
    const double many = cycles(module, p, kernel_name(i, 1), buffer);
    const double clocks = (many - few) / (p.repeats[1] - p.repeats[0]);
    results.push_back({p, value_of(p, clocks, module.target())});
  }
  return results;
}

std::string validation_table(std::span<const Validated> results) {
  std::string out = fmt::format("{:<8} {:<7} {:<48} {:>9} {:>9} {:>6} {:>8}  {}\n", "target",
                                "what", "microkernel", "measured", "model", "", "error", "source");
  double sum = 0;
  double squares = 0;
  int independent = 0;
  for (const Validated& r : results) {
    const ValidationPoint& p = r.point;
    out += fmt::format("{:<8} {:<7} {:<48} {:>9.2f} {:>9.2f} {:>6} {:>7.1f}%{} {}{}\n", p.target,
                       p.group, p.name, p.measured, r.model, p.unit, 100 * r.error(),
                       r.holds() ? " " : "*", p.source, p.independent ? " (independent)" : "");
    if (!p.independent) continue;
    ++independent;
    sum += std::abs(r.error());
    squares += r.error() * r.error();
  }
  out += "* error above the tolerance (see docs/design/cycle-model.md)\n";
  if (independent > 0) {
    out += fmt::format(
        "independent: no parameter was taken from the figure; {} of {} points, mean error {:.1f} "
        "%, "
        "root mean square {:.1f} %\n",
        independent, results.size(), 100 * sum / independent,
        100 * std::sqrt(squares / independent));
  }
  return out;
}

}  // namespace rocflash::sim
