// Sampling, extrapolation and dispatch of workgroups.
#include "cycle_model/model.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <set>

#include "core/counters.h"
#include "core/memory.h"
#include "isa/matrix.h"
#include "isa/mfma_f64.h"
#include "isa/mfma_f8f6f4.h"

namespace rocflash::sim {
namespace {

constexpr u64 kDetailed = 8;          // workgroups traced in full, at most
constexpr u64 kWindow = 64;           // workgroups of one XCD that are executed with only_sampled
constexpr u64 kDispatched = 1 << 22;  // workgroups of an XCD, beyond which it is extrapolated

// Resident workgroups per CU, limited by registers, LDS, waves and barriers.
int resident_groups(const Target& target, const LaunchRequest& r) {
  const u32 threads = r.block[0] * r.block[1] * r.block[2];
  const u32 lds = r.kernel->lds_bytes + r.dynamic_lds;
  const int per_simd = waves_per_simd(target, *r.kernel, 0, threads);
  const int waves = static_cast<int>((threads + static_cast<u32>(r.kernel->wave_size) - 1) /
                                     static_cast<u32>(r.kernel->wave_size));
  int groups = std::max(1, per_simd * 4 / waves);
  // The waves of a workgroup are spread evenly: each SIMD must have slots for its share.
  groups = std::max(1, std::min(groups, per_simd / std::max(1, (waves + 3) / 4)));
  if (waves < 4) groups = std::max(1, per_simd * 4 / waves);
  if (lds > 0) groups = std::min(groups, std::max(1, groups_by_lds(target, lds)));
  return std::min(groups, 32);
}

double matrix_flops(const Op& op, std::string_view mnemonic) {
  if (is_f8f6f4(op)) {
    return 2.0 *
           (mnemonic.find("32x32x64") != std::string_view::npos ? 32.0 * 32 * 64 : 16.0 * 16 * 128);
  }
  if (is_mfma_f64(op))
    return 2.0 * (mnemonic.find("16x16x4") != std::string_view::npos ? 1024 : 256);
  const MatrixShape* s = find_matrix_shape(op.parameter, mnemonic.starts_with("v_wmma"));
  return s == nullptr ? 0 : 2.0 * s->m * s->n * s->k * s->blocks;
}

// Power-limited clock at this matrix core utilization.
double clock_at(const ChipParameters& c, double busy) {
  const double percent = 100 * busy;
  if (percent <= c.busy_low) return c.clock_highest;
  if (percent >= c.busy_high) return c.clock_busy + c.clock_slope * (percent - c.busy_high);
  const double part = (percent - c.busy_low) / (c.busy_high - c.busy_low);
  return std::min(c.clock_highest, c.clock_highest + part * (c.clock_busy - c.clock_highest));
}

// y = a + b x by least squares; b = 0 where x does not vary, a = 0 where y is `proportional`.
std::vector<double> fit_line(const std::vector<std::pair<double, double>>& points,
                             bool proportional) {
  double n = 0;
  double sx = 0;
  double sy = 0;
  double sxx = 0;
  double sxy = 0;
  for (const auto& [x, y] : points) {
    n += 1;
    sx += x;
    sy += y;
    sxx += x * x;
    sxy += x * y;
  }
  if (proportional) return {0, sy / std::max(1.0, sx)};
  const double spread = n * sxx - sx * sx;
  if (spread <= 1e-6 * n * sxx) return {sy / std::max(1.0, n), 0};
  const double b = (n * sxy - sx * sy) / spread;
  return {(sy - b * sx) / n, b};
}

}  // namespace

CycleModel::CycleModel(const LaunchRequest& request, CycleModelOptions options)
    : request_(request),
      options_(std::move(options)),
      parameters_(cycle_model_parameters(request.module->target())),
      program_(request.module->program(request.kernel->wave_size)),
      ops_(time_ops(program_, request.module->target(), parameters_)) {
  groups_ = u64{request.grid[0]} * request.grid[1] * request.grid[2];
  xcds_ = parameters_.chip.xcds;
  cus_per_xcd_ = std::max(1, parameters_.chip.cus / xcds_);
  choose();
  if (options_.only_sampled) {
    for (const auto& [linear, trace] : traces_) executed_.push_back(linear);
    for (u64 i = 0; i < window_; ++i) executed_.push_back(i * static_cast<u64>(xcds_));
    std::ranges::sort(executed_);
    const auto rest = std::ranges::unique(executed_);
    executed_.erase(rest.begin(), rest.end());
  }
  instructions_.assign(options_.only_sampled ? executed_.size() : groups_, 0);
}

void CycleModel::add(u64 linear, bool detailed) {
  auto& trace = traces_[linear];
  if (trace == nullptr) {
    trace = std::make_unique<WorkgroupTrace>();
    trace->linear = linear;
    trace->detailed = detailed;
  }
  trace->detailed = trace->detailed || detailed;
}

void CycleModel::choose() {
  const u64 xcds = static_cast<u64>(xcds_);
  const u64 own = (groups_ + xcds - 1) / xcds;  // workgroups of the first XCD
  const u64 cus = static_cast<u64>(cus_per_xcd_);
  const u64 most = static_cast<u64>(resident_groups(request_.module->target(), request_));
  resident_ = static_cast<int>(std::min(most, (own + cus - 1) / cus));
  const u64 together = static_cast<u64>(resident_);
  window_ = options_.only_sampled ? std::min(own, kWindow) : own;
  // The last workgroup whose CU is still at full occupancy.
  const u64 last =
      std::min(window_, std::max<u64>(own, (together - 1) * cus + 1) - (together - 1) * cus) - 1;
  std::set<u64> bases;
  if (together * 4 <= kDetailed) {
    bases = {0, last * 3 / 8, last * 5 / 8, last};
  } else {
    bases = {0, last / 2};
  }
  const u64 present = std::min(own, cus * together);  // resident on the XCD at a time
  for (const u64 base : bases) {
    Sample sample;
    for (u64 i = 0; i < together; ++i) {
      const u64 index = base + i * cus;
      if (index >= own && i > 0) break;
      sample.groups.push_back(index * xcds);
      add(index * xcds, true);
    }
    // Workgroups at growing distances, before and after, each with the weight of those around
    // it. One that is on the same CU is replaced by the next.
    const auto add_neighbor = [&](double weight, u64 index) {
      if (std::ranges::find(sample.groups, index * xcds) != sample.groups.end()) ++index;
      if (index < own) sample.neighbors.emplace_back(weight, index * xcds);
    };
    for (u64 d = 1; d < present; d *= 2) {
      const double weight = d == 1 ? 1 : 0.75 * static_cast<double>(d);
      add_neighbor(weight, base + d);
      if (base >= d) add_neighbor(weight, base - d);
    }
    std::erase_if(sample.neighbors, [&](const auto& n) { return n.second >= groups_; });
    for (const auto& n : sample.neighbors) add(n.second, false);
    if (xcds > 1 && base * xcds + 1 < groups_) {
      sample.other_xcd = base * xcds + 1;
      add(sample.other_xcd, false);
    }
    samples_.push_back(std::move(sample));
  }
}

u64 CycleModel::workgroup_at(u64 dispatch_index) {
  if (!options_.only_sampled) return dispatch_index;
  return dispatch_index < executed_.size() ? executed_[dispatch_index] : kNoGroup;
}

WorkgroupTrace* CycleModel::trace(u64 linear) {
  const auto it = traces_.find(linear);
  return it == traces_.end() ? nullptr : it->second.get();
}

void CycleModel::executed(u64 linear, u64 instructions) {
  const auto index = options_.only_sampled
                         ? std::ranges::lower_bound(executed_, linear) - executed_.begin()
                         : static_cast<std::ptrdiff_t>(linear);
  instructions_[static_cast<std::size_t>(index)] = instructions;
}

std::vector<u64> CycleModel::lines_of(u64 linear) const {
  std::vector<u64> lines;
  for (const WaveTrace& w : traces_.at(linear)->waves) {
    lines.insert(lines.end(), w.lines.begin(), w.lines.end());
  }
  std::ranges::sort(lines);
  const auto rest = std::ranges::unique(lines);
  lines.erase(rest.begin(), rest.end());
  return lines;
}

// Bytes of the allocations that the samples access.
double CycleModel::footprint() const {
  std::set<const Allocation*> touched;
  double bytes = 0;
  const Allocation* last = nullptr;
  for (const Sample& sample : samples_) {
    for (const u64 linear : sample.groups) {
      for (const u64 line : lines_of(linear)) {
        const u64 address = line * kLineBytes;
        if (last != nullptr && last->contains(address, 1)) continue;
        const Allocation* found = Memory::instance().find(address);
        if (found == nullptr) continue;
        last = found;
        if (touched.insert(found).second) bytes += static_cast<double>(found->size);
      }
    }
  }
  return bytes;
}

CuTime CycleModel::replay_sample(const Sample& sample, double clock, bool draw) {
  std::vector<std::pair<double, std::vector<u64>>> neighbors;
  for (const auto& [weight, linear] : sample.neighbors) {
    neighbors.emplace_back(weight, lines_of(linear));
  }
  const std::vector<u64> other =
      sample.other_xcd == ~0ull ? std::vector<u64>{} : lines_of(sample.other_xcd);
  const u64 xcds = static_cast<u64>(xcds_);
  const u64 own = (groups_ + xcds - 1) / xcds;
  const double present = static_cast<double>(
      std::min<u64>(own, static_cast<u64>(cus_per_xcd_) * static_cast<u64>(resident_)));
  Sharing sharing;
  sharing.cus = [&](u64 line) {
    double n = 1;
    for (const auto& [weight, lines] : neighbors) {
      if (std::ranges::binary_search(lines, line)) n += weight;
    }
    return std::min(n, present);
  };
  sharing.other_xcds = [&](u64 line) { return std::ranges::binary_search(other, line); };
  sharing.footprint_bytes = footprint();
  sharing.active_cus =
      static_cast<int>(std::min<u64>(groups_, static_cast<u64>(parameters_.chip.cus)));
  sharing.active_cus_per_xcd = static_cast<int>(std::min<u64>(own, static_cast<u64>(cus_per_xcd_)));
  std::vector<const WorkgroupTrace*> list;
  // With several workgroups per CU, a second replay has them out of phase, as in the
  // middle of a launch.
  const int rounds = sample.groups.size() > 1 ? 2 : 1;
  for (int i = 0; i < rounds; ++i) {
    for (const u64 linear : sample.groups) list.push_back(traces_.at(linear).get());
  }
  const CuSetup setup{parameters_, ops_, sharing, clock, static_cast<int>(sample.groups.size())};
  return replay(setup, list, draw ? options_.timeline : Timeline{});
}

// Instructions of a workgroup; if it was not executed, of the one at the same window index.
double CycleModel::length(u64 linear) const {
  if (!options_.only_sampled) return static_cast<double>(instructions_[linear]);
  const auto index_of = [&](u64 group) {
    return static_cast<std::size_t>(std::ranges::lower_bound(executed_, group) - executed_.begin());
  };
  const std::size_t index = index_of(linear);
  if (index < executed_.size() && executed_[index] == linear)
    return static_cast<double>(instructions_[index]);
  const u64 xcds = static_cast<u64>(xcds_);
  return static_cast<double>(instructions_[index_of(linear / xcds % window_ * xcds)]);
}

// Of all workgroups; windows repeat.
double CycleModel::all_instructions() const {
  double sum = 0;
  if (groups_ <= kDispatched) {
    for (u64 g = 0; g < groups_; ++g) sum += length(g);
    return sum;
  }
  if (!options_.only_sampled) {
    for (const u64 n : instructions_) sum += static_cast<double>(n);
    return sum;
  }
  for (u64 i = 0; i < window_; ++i) sum += length(i * static_cast<u64>(xcds_));
  return sum / static_cast<double>(window_) * static_cast<double>(groups_);
}

// Clocks until all workgroups are done: each XCD dispatches its own in order to the slot that is
// free first.
double CycleModel::dispatch(const std::vector<double>& fit) const {
  double end = 0;
  const u64 xcds = static_cast<u64>(xcds_);
  for (u64 xcd = 0; xcd < std::min(xcds, groups_); ++xcd) {
    const u64 count = (groups_ - xcd + xcds - 1) / xcds;
    if (count <= kDispatched) {
      end = std::max(end, dispatch(fit, xcd, count));
      continue;
    }
    // Many more than are resident: the dispatch rate is constant.
    const double half = dispatch(fit, xcd, kDispatched / 2);
    const double whole = dispatch(fit, xcd, kDispatched);
    const double rate = (whole - half) / (static_cast<double>(kDispatched) / 2);
    end = std::max(end, whole + rate * static_cast<double>(count - kDispatched));
  }
  return end;
}

double CycleModel::dispatch(const std::vector<double>& fit, u64 xcd, u64 count) const {
  double end = 0;
  std::priority_queue<double, std::vector<double>, std::greater<>> free;
  for (int i = 0; i < cus_per_xcd_ * resident_; ++i) free.push(0);
  for (u64 i = 0; i < count; ++i) {
    const double start = free.top();
    free.pop();
    const double linear_length = length(xcd + i * static_cast<u64>(xcds_));
    const double done = start + std::max(1.0, fit[0] + fit[1] * linear_length);
    end = std::max(end, done);
    free.push(done + parameters_.chip.replacement);
  }
  return end;
}

PredictedTime CycleModel::predict() {
  PredictedTime t;
  const Target& target = request_.module->target();
  t.kernel = request_.kernel->name;
  t.target = target.name;
  t.card = parameters_.card;
  t.workgroups = groups_;
  t.units = parameters_.chip.cus;
  t.resident = resident_;
  double clock = options_.clock_mhz > 0 ? options_.clock_mhz : parameters_.chip.clock_highest;
  std::vector<double> fit;
  double flops_per_instruction = 0;
  double matrix_per_instruction = 0;
  // The clock depends on matrix core utilization, which depends on the clock through memory:
  // two steps are enough.
  const int steps = options_.clock_mhz > 0 ? 1 : 2;
  for (int step = 0; step < steps; ++step) {
    const bool final_step = step == steps - 1;
    std::vector<std::pair<double, double>> points;
    double busy = 0;
    double clocks = 0;
    double traced = 0;
    std::array<double, kStallReasons> waits{};
    t.ops.assign(ops_.size(), {});
    t.group_cycles.clear();
    t.lines = {};
    t.lds_busy = 0;
    t.sampled = 0;
    for (std::size_t i = 0; i < samples_.size(); ++i) {
      const CuTime unit =
          replay_sample(samples_[i], clock, final_step && i == 0 && options_.timeline);
      // Workgroups on one CU end at different times, and the last runs alone: the measure is
      // workgroups per CU time.
      double lengths = 0;
      for (const auto& g : unit.groups) {
        for (const WaveTrace& w : traces_.at(g.linear)->waves) {
          lengths += static_cast<double>(w.ops.size());
          t.truncated = t.truncated || w.truncated;
        }
      }
      const auto done = static_cast<double>(unit.groups.size());
      const auto together = static_cast<double>(samples_[i].groups.size());
      const double gaps = (done / together - 1) * parameters_.chip.replacement;
      const double each = (static_cast<double>(unit.clocks) - gaps) * together / done;
      points.emplace_back(lengths / done, each);
      t.group_cycles.push_back(each);
      traced += lengths;
      t.sampled += unit.groups.size();
      busy += static_cast<double>(unit.matrix_busy);
      clocks += static_cast<double>(unit.clocks);
      t.lds_busy += static_cast<double>(unit.lds_busy);
      for (int c = 0; c < kStallReasons; ++c) {
        waits[static_cast<std::size_t>(c)] +=
            static_cast<double>(unit.waits[static_cast<std::size_t>(c)]);
      }
      t.lines.l1_hits += unit.traffic.l1_hits;
      t.lines.l2_hits += unit.traffic.l2_hits;
      t.lines.mall_hits += unit.traffic.mall_hits;
      t.lines.memory += unit.traffic.memory;
      for (std::size_t k = 0; k < ops_.size(); ++k) {
        t.ops[k].count += unit.ops[k].count;
        t.ops[k].issue += unit.ops[k].issue;
        for (std::size_t c = 0; c < kStallReasons; ++c) t.ops[k].waits[c] += unit.ops[k].waits[c];
      }
    }
    t.unit_matrix_busy = busy / (4 * clocks);
    t.lds_busy /= clocks;
    for (std::size_t c = 0; c < kStallReasons; ++c) t.waits[c] = waits[c] / (4 * clocks);
    fit = fit_line(points, t.truncated);
    double flops = 0;
    for (const Op& op : program_.ops()) {
      if (op.kind != InstructionClass::Matrix || t.ops[op.index].count == 0) continue;
      const std::string& text = program_.text(op);
      flops += static_cast<double>(t.ops[op.index].count) *
               matrix_flops(op, strip_encoding(std::string_view(text).substr(0, text.find(' '))));
    }
    flops_per_instruction = flops / traced;
    matrix_per_instruction = busy / traced;
    if (options_.clock_mhz <= 0) clock = clock_at(parameters_.chip, t.unit_matrix_busy);
  }
  const double instructions = all_instructions();
  t.cycles = dispatch(fit);
  t.clock_mhz = clock;
  t.time_us = parameters_.chip.launch_us + t.cycles / clock;
  t.matrix_busy = matrix_per_instruction * instructions / (4.0 * parameters_.chip.cus * t.cycles);
  t.tflops = flops_per_instruction * instructions / t.time_us / 1e6;
  return t;
}

}  // namespace rocflash::sim
