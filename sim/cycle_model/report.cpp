// Output of the cycle model: JSON, tables, and a timeline in Chrome trace format.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "core/report_writer.h"
#include "cycle_model/model.h"

namespace rocflash::sim {
namespace {

constexpr std::size_t kRows = 40;            // of a report
constexpr std::size_t kMostEvents = 400000;  // of a timeline: a size that viewers open

Clock all_waits(const OpTime& t) {
  Clock sum = 0;
  for (const Clock c : t.waits) sum += c;
  return sum;
}

std::string wait_columns(const StallCycles& waits, double total) {
  std::string out;
  for (const StallReason c : {StallReason::Issue, StallReason::Dependency, StallReason::Lds,
                              StallReason::Memory, StallReason::Barrier}) {
    out += fmt::format("{:>11.2f}",
                       100 * static_cast<double>(waits[static_cast<std::size_t>(c)]) / total);
  }
  return out;
}

std::string report_head(std::string_view what) {
  return fmt::format("{:>10}{:>9}{:>11}{:>11}{:>11}{:>11}{:>11}  {}\n", "count", "issue %", "issue",
                     "dependency", "lds", "memory", "barrier", what);
}

// Clocks of all waves, the total of the shares.
double wave_clocks(const PredictedTime& time) {
  double sum = 0;
  for (const OpTime& t : time.ops) sum += static_cast<double>(t.issue + all_waits(t));
  return std::max(1.0, sum);
}

}  // namespace

std::string PredictedTime::json() const {
  nlohmann::ordered_json causes;
  for (std::size_t c = 0; c < kStallReasons; ++c) {
    causes[std::string(stall_reason_name(static_cast<StallReason>(c)))] = waits[c];
  }
  return json_line({{"kernel", kernel},
                    {"target", target},
                    {"card", card},
                    {"workgroups", workgroups},
                    {"sampled_workgroups", sampled},
                    {"workgroups_per_unit", resident},
                    {"cycles", cycles},
                    {"clock_mhz", clock_mhz},
                    {"time_us", time_us},
                    {"matrix_busy", matrix_busy},
                    {"unit_matrix_busy", unit_matrix_busy},
                    {"waits", causes},
                    {"tflops", tflops},
                    {"lds_busy", lds_busy},
                    {"lines",
                     {{"l1", lines.l1_hits},
                      {"l2", lines.l2_hits},
                      {"last_level", lines.mall_hits},
                      {"memory", lines.memory}}},
                    {"truncated", truncated}});
}

std::string PredictedTime::table() const {
  Table t(fmt::format("{} on {} ({}): {} workgroups, {} on each of {} units", kernel, target, card,
                      workgroups, resident, units));
  t.row("predicted time [us]", fmt::format("{:.2f}", time_us));
  t.row("cycles", fmt::format("{:.0f}", cycles));
  t.row("clock [MHz]", fmt::format("{:.0f}", clock_mhz));
  if (tflops > 0) t.row("matrix TFLOP/s", fmt::format("{:.1f}", tflops));
  t.row("matrix units busy", percent(matrix_busy));
  t.row("  while a unit works", percent(unit_matrix_busy));
  t.line("matrix units idle, SIMDs busy with or waiting for:");
  for (std::size_t c = 0; c < kStallReasons; ++c) {
    t.row(fmt::format("    {}", stall_reason_name(static_cast<StallReason>(c))), percent(waits[c]));
  }
  t.row("LDS busy", percent(lds_busy));
  t.line(fmt::format("lines from L1 {}, L2 {}, last-level cache {}, memory {}", lines.l1_hits,
                     lines.l2_hits, lines.mall_hits, lines.memory));
  if (truncated)
    t.line("traces were cut short: the rest of each wave is taken to go on like its start");
  return t.text();
}

std::string instruction_report(const PredictedTime& time, const Module& module,
                               const Program& program) {
  const double total = wave_clocks(time);
  std::vector<const Op*> order;
  for (const Op& op : program.ops()) {
    if (time.ops[op.index].count > 0) order.push_back(&op);
  }
  std::ranges::sort(order, [&](const Op* a, const Op* b) {
    return all_waits(time.ops[a->index]) > all_waits(time.ops[b->index]);
  });
  if (order.size() > kRows) order.resize(kRows);
  std::ranges::sort(order, {}, &Op::index);
  std::string out = fmt::format(
      "the {} instructions that waited longest, in program order; shares of all waves' time "
      "[%]\n{}",
      order.size(), report_head("instruction"));
  for (const Op* op : order) {
    const OpTime& t = time.ops[op->index];
    out += fmt::format("{:>10}{:>9.2f}{}  {:#x} {}\n", t.count,
                       100 * static_cast<double>(t.issue) / total, wait_columns(t.waits, total),
                       op->address - module.object().bias(), program.text(*op));
  }
  return out;
}

std::string line_report(const PredictedTime& time, const Module& module, const Program& program) {
  const double total = wave_clocks(time);
  std::map<std::pair<std::string, u32>, OpTime> lines;
  for (const Op& op : program.ops()) {
    const OpTime& t = time.ops[op.index];
    if (t.count == 0) continue;
    const auto at = module.object().source_line(op.address);
    OpTime& line = lines[at ? std::pair{at->file, at->line} : std::pair{std::string("?"), 0u}];
    line.count += t.count;
    line.issue += t.issue;
    for (std::size_t c = 0; c < kStallReasons; ++c) line.waits[c] += t.waits[c];
  }
  std::vector<std::pair<std::pair<std::string, u32>, OpTime>> order(lines.begin(), lines.end());
  std::ranges::sort(order, [](const auto& a, const auto& b) {
    return a.second.issue + all_waits(a.second) > b.second.issue + all_waits(b.second);
  });
  if (order.size() > kRows) order.resize(kRows);
  std::string out =
      fmt::format("source lines by time; shares of all waves' time [%]\n{}", report_head("line"));
  for (const auto& [at, t] : order) {
    out += fmt::format("{:>10}{:>9.2f}{}  {}:{}\n", t.count,
                       100 * static_cast<double>(t.issue) / total, wait_columns(t.waits, total),
                       at.first, at.second);
  }
  return out;
}

// --- timeline --------------------------------------------------------------------------------

struct TimelineFile::State {
  std::string path;
  const Module& module;
  const Program& program;
  std::vector<TimelineEvent> events;
  u64 left_out = 0;
};

TimelineFile::TimelineFile(std::string path, const Module& module, const Program& program)
    : state_(new State{std::move(path), module, program, {}, 0}) {}
TimelineFile::~TimelineFile() = default;

Timeline TimelineFile::sink() {
  return [state = state_.get()](const TimelineEvent& e) {
    if (state->events.size() < kMostEvents) {
      state->events.push_back(e);
    } else {
      ++state->left_out;
    }
  };
}

void TimelineFile::write(const PredictedTime& time) {
  constexpr int kMatrixRow = 1000;
  const Clock slot = cycle_model_parameters(state_->module.target()).issue.issue_period;
  std::ofstream out(state_->path);
  out << "{\"displayTimeUnit\":\"ns\",\"otherData\":" << time.json()
      << ",\"eventsLeftOut\":" << state_->left_out << ",\"traceEvents\":[\n";
  for (int simd = 0; simd < 4; ++simd) {
    out << fmt::format(
        "{{\"ph\":\"M\",\"pid\":{},\"name\":\"process_name\",\"args\":{{\"name\":\"SIMD {}\"}}}},\n"
        "{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":"
        "\"matrix "
        "unit\"}}}},\n",
        simd, simd, simd, kMatrixRow);
  }
  std::set<std::pair<int, int>> named;
  for (const TimelineEvent& e : state_->events) {
    if (!named.insert({e.simd, e.wave}).second) continue;
    out << fmt::format(
        "{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":"
        "\"workgroup "
        "{} wave {}\"}}}},\n",
        e.simd, e.wave, e.group, e.wave);
  }
  bool first = true;
  const auto slice = [&](int simd, int row, Clock start, Clock end, const std::string& name,
                         std::string_view category, const std::string& arguments) {
    out << (first ? "" : ",\n")
        << fmt::format(
               "{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{},\"dur\":{},\"name\":{},\"cat\":\"{}"
               "\","
               "\"args\":{{{}}}}}",
               simd, row, start, end - start, json_text(name), category, arguments);
    first = false;
  };
  for (const TimelineEvent& e : state_->events) {
    const Op& op = state_->program.ops()[e.op];
    const std::string& text = state_->program.text(op);
    const u64 offset = op.address - state_->module.object().bias();
    if (e.waits) {
      slice(e.simd, e.wave, e.start, e.end, fmt::format("wait: {}", stall_reason_name(e.cause)),
            "wait", fmt::format("\"before\":{}", json_text(text)));
      continue;
    }
    const std::string mnemonic = text.substr(0, text.find(' '));
    const std::string arguments =
        fmt::format("\"instruction\":{},\"offset\":\"{:#x}\"", json_text(text), offset);
    const bool matrix = op.kind == InstructionClass::Matrix;
    // In the wave's row an instruction spans its issue slot only: slices of a
    // row must not overlap. Matrix core activity has a separate row.
    slice(e.simd, e.wave, e.start, std::min(e.end, e.start + slot), mnemonic, class_name(op.kind),
          arguments);
    if (matrix) slice(e.simd, kMatrixRow, e.start, e.end, mnemonic, "matrix", arguments);
  }
  out << "\n]}\n";
  out.flush();
  if (!out) throw std::runtime_error(state_->path + ": the timeline cannot be written");
}

}  // namespace rocflash::sim
