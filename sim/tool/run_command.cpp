// Runs a described kernel, with breakpoints and register dumps, and prints buffers.
#include "tool/run_command.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <stdexcept>

#include "core/launch.h"
#include "core/settings.h"
#include "cycle_model/model.h"
#include "tool/typed_buffer.h"

namespace rocflash::sim::tool {
namespace {

using nlohmann::json;

std::vector<u8> read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::invalid_argument("cannot read " + path);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(in)), {});
  return {bytes.begin(), bytes.end()};
}

// "v0-v7" or "s4" or "a0-a3": file letter, first, last.
struct RegisterRange {
  char file;
  int first, last;
};

std::vector<RegisterRange> parse_registers(const std::string& text) {
  std::vector<RegisterRange> ranges;
  std::size_t start = 0;
  while (start < text.size()) {
    const auto comma = std::min(text.find(',', start), text.size());
    std::string part = text.substr(start, comma - start);
    start = comma + 1;
    if (part == "vcc") part = fmt::format("s{}-s{}", int{sreg::kVcc}, sreg::kVcc + 1);
    if (part == "exec") part = fmt::format("s{}-s{}", int{sreg::kExec}, sreg::kExec + 1);
    if (part == "m0") part = fmt::format("s{}", int{sreg::kM0});
    static const std::regex range("([vsa])([0-9]{1,3})(-\\1([0-9]{1,3}))?");
    std::smatch m;
    if (!std::regex_match(part, m, range))
      throw std::invalid_argument("'" + part + "' is not a register range such as v0-v7");
    RegisterRange r{part[0], std::stoi(m[2]), 0};
    r.last = m[4].matched ? std::stoi(m[4]) : r.first;
    if (r.last < r.first) throw std::invalid_argument("'" + part + "' ends before it begins");
    ranges.push_back(r);
  }
  return ranges;
}

class Breakpoint final : public Observer {
 public:
  Breakpoint(u64 address, const RunOptions& options, const Program& program)
      : address_(address),
        options_(options),
        program_(program),
        ranges_(parse_registers(options.registers)),
        left_(options.hits) {}

  void before(const Wave& w, const Op& op) override {
    if (op.address != address_ || left_ <= 0 || w.index != options_.wave ||
        w.group->linear != options_.group) {
      return;
    }
    --left_;
    hit_ = true;
    fmt::print("before {}  (workgroup {} wave {}, after {} instructions)\n", program_.text(op),
               w.group->linear, w.index, w.executed - 1);
    for (const RegisterRange& r : ranges_) show(w, r);
  }

  [[nodiscard]] bool hit() const { return hit_; }

 private:
  static void show(const Wave& w, const RegisterRange& r) {
    for (int i = r.first; i <= r.last; ++i) {
      if (r.file == 's') {
        if (i >= sreg::kCount) continue;
        const std::string name = i == sreg::kVcc        ? "vcc_lo"
                                 : i == sreg::kVcc + 1  ? "vcc_hi"
                                 : i == sreg::kExec     ? "exec_lo"
                                 : i == sreg::kExec + 1 ? "exec_hi"
                                 : i == sreg::kM0       ? "m0"
                                                        : fmt::format("s{}", i);
        fmt::print("  {:<8} {:#010x}{}\n", name, w.sgpr[i],
                   w.strict && w.sgpr_undef[i] != 0 ? "  (undefined bits)" : "");
        continue;
      }
      const int row = r.file == 'a' ? kAgprBase + i : i;
      if (row >= static_cast<int>(w.rows.size())) continue;
      fmt::print("  {}{}\n", r.file, i);
      for (int lane = 0; lane < w.size; lane += 8) {
        fmt::print("    [{:>2}]", lane);
        for (int k = lane; k < lane + 8; ++k) {
          const bool unknown = w.strict && w.vgpr_undef[row].lane[k] != 0;
          if (unknown) {
            fmt::print("  ????????");
          } else {
            fmt::print("  {:08x}", w.vgpr[row].lane[k]);
          }
        }
        fmt::print("\n");
      }
    }
  }

  u64 address_;
  const RunOptions& options_;
  const Program& program_;
  std::vector<RegisterRange> ranges_;
  int left_;
  bool hit_ = false;
};

void three(const json& d, const char* key, u32 out[3]) {
  if (!d.contains(key)) return;
  const json& v = d[key];
  if (v.is_array() ? v.size() > 3 : !v.is_number_unsigned()) {
    throw std::invalid_argument(
        fmt::format("{} is a number or up to three in brackets, not {}", key, v.dump()));
  }
  for (std::size_t i = 0; i < 3; ++i) {
    out[i] = v.is_array() ? (i < v.size() ? v[i].get<u32>() : 1) : (i == 0 ? v.get<u32>() : 1);
  }
}

// The kernarg segment: {"buffer": "a"} or {"i32": 5}, in order, aligned as the ABI aligns.
std::vector<u8> pack_arguments(const json& list, std::map<std::string, TypedBuffer>& buffers) {
  std::vector<u8> bytes;
  const auto append = [&](const void* value, u64 size) {
    bytes.resize((bytes.size() + size - 1) / size * size);
    const auto* p = static_cast<const u8*>(value);
    bytes.insert(bytes.end(), p, p + size);
  };
  for (const json& argument : list) {
    if (!argument.is_object() || argument.size() != 1) {
      throw std::invalid_argument("an argument is {\"buffer\": name} or {type: value}: " +
                                  argument.dump());
    }
    const std::string key = argument.begin().key();
    const json& value = argument.begin().value();
    if (key == "buffer") {
      const auto it = buffers.find(value.get<std::string>());
      if (it == buffers.end()) {
        throw std::invalid_argument("there is no buffer " + value.dump());
      }
      append(&it->second.data, 8);
    } else {
      u8 raw[8] = {};
      write_number(key, raw, value);
      append(raw, type_bytes(key));
    }
  }
  return bytes;
}

// If the metadata lists arguments, the sizes must match; a struct may be given by its members.
void check_arguments(const KernelInfo& kernel, u64 bytes) {
  u64 begin = 0, end = 0;  // of the last argument that callers give
  for (const KernelArgument& a : kernel.arguments) {
    if (!a.kind.starts_with("hidden_") && a.offset + u64{a.size} > end)
      begin = a.offset, end = begin + a.size;
  }
  if (end > 0 ? bytes <= begin || bytes > end : bytes > 0 && !kernel.arguments.empty()) {
    throw std::invalid_argument(
        fmt::format("arguments take {} bytes; those of '{}' end at {}", bytes, kernel.name, end));
  }
}

u64 parse_address(const std::string& text, const Module& module) {
  const auto plus = text.find('+');
  const auto number = [&](std::size_t at) {
    char* end = nullptr;
    const u64 value = std::strtoull(text.c_str() + at, &end, 0);
    if (at == text.size() || *end != '\0')
      throw std::invalid_argument("'" + text.substr(at) + "' is not an offset such as 0x40");
    return value;
  };
  if (plus == text.npos && text.starts_with("0x")) return module.object().bias() + number(0);
  const KernelInfo* kernel = module.object().find_kernel(text.substr(0, plus));
  if (kernel == nullptr) throw std::invalid_argument("no kernel '" + text.substr(0, plus) + "'");
  return kernel->entry + (plus == text.npos ? 0 : number(plus + 1));
}

void print_listing(const Module& module, const Program& program, const Counters& counters) {
  fmt::print("{:>12}  {:>8}  instruction\n", "executed", "offset");
  std::string last;
  for (const Op& op : program.ops()) {
    const u64 n = counters.per_instruction[op.index];
    if (n == 0) continue;
    const std::string name = module.object().symbolize(op.address);
    const std::string function = name.substr(0, name.rfind('+'));
    if (function != last) fmt::print("{}:\n", last = function);
    fmt::print("{:>12}  {:>#8x}  {}\n", n, op.address - module.object().bias(), program.text(op));
  }
}

}  // namespace

int run(const RunOptions& options) {
  json d;
  std::ifstream in(options.description);
  if (!in) throw std::invalid_argument("cannot read " + options.description);
  in >> d;
  reject_unknown_keys(d, "the description",
                      {"code_object", "arch", "kernel", "grid", "block", "dynamic_lds", "checks",
                       "buffers", "arguments", "print"});
  const auto parent = std::filesystem::path(options.description).parent_path();
  const std::string directory = parent.empty() ? "." : parent.string();
  const auto code =
      read_bytes(std::filesystem::path(directory) / d.at("code_object").get<std::string>());
  auto object = CodeObject::load(code, d.value("arch", ""));
  const Target* target = find_target(object->target());
  if (target == nullptr) throw std::invalid_argument("no target " + object->target());
  Module module(std::move(object), *target, 0);

  LaunchRequest request;
  request.module = &module;
  const auto kernels = module.object().kernels();
  const std::string name = d.value("kernel", kernels.size() == 1 ? kernels[0].name : "");
  request.kernel = module.object().find_kernel(name);
  if (request.kernel == nullptr) {
    std::string known;
    for (const auto& k : kernels) known += " " + k.name;
    throw std::invalid_argument("no kernel '" + name + "'; there are" + known);
  }
  three(d, "grid", request.grid);
  three(d, "block", request.block);
  request.dynamic_lds = d.value("dynamic_lds", 0u);
  request.threads = options.threads;
  const std::string checks = options.checks.empty() ? d.value("checks", "all") : options.checks;
  request.checks = parse_checks(checks);
  request.count = options.listing || !options.counters.empty();

  std::map<std::string, TypedBuffer> buffers;
  if (d.contains("buffers")) {
    for (const auto& [key, value] : d["buffers"].items()) {
      buffers.emplace(key, make_buffer(key, value, directory));
    }
  }
  const auto arguments = pack_arguments(d.value("arguments", json::array()), buffers);
  check_arguments(*request.kernel, arguments.size());
  request.arguments = arguments;

  const Program& program = module.program(request.kernel->wave_size);
  std::unique_ptr<Breakpoint> breakpoint;
  if (!options.breakpoint.empty()) {
    const u64 address = parse_address(options.breakpoint, module);
    if (program.at(address) == nullptr) {
      throw std::invalid_argument("no instruction starts at " + options.breakpoint);
    }
    breakpoint = std::make_unique<Breakpoint>(address, options, program);
    request.observer = breakpoint.get();
  }
  std::unique_ptr<TimelineFile> timeline;
  std::unique_ptr<CycleModel> model;
  if (options.time) {
    check_launch(request);
    CycleModelOptions time{options.time_only, options.clock_mhz, {}};
    if (!options.timeline.empty()) {
      timeline = std::make_unique<TimelineFile>(options.timeline, module, program);
      time.timeline = timeline->sink();
    }
    model = std::make_unique<CycleModel>(request, std::move(time));
    request.traces = model.get();
  }
  const LaunchResult result = run_kernel(request);
  if (breakpoint != nullptr && !breakpoint->hit()) {
    fmt::print("the breakpoint was not reached by workgroup {} wave {}\n", options.group,
               options.wave);
  }
  if (!result.ok()) fmt::print(stderr, "{}", result.report->text());
  for (const json& item : d.value("print", json::array())) {
    const std::string buffer = (item.is_string() ? item : item.at("buffer")).get<std::string>();
    const auto it = buffers.find(buffer);
    if (it == buffers.end()) throw std::invalid_argument("there is no buffer " + buffer);
    if (item.is_object()) reject_unknown_keys(item, "print", {"buffer", "first", "count"});
    const u64 first = item.is_object() ? item.value("first", u64{0}) : 0;
    const u64 count = item.is_object() ? item.value("count", u64{64}) : 64;
    fmt::print("{}", format_buffer(it->second, first, count));
  }
  if (options.listing) print_listing(module, program, result.counters);
  if (options.counters == "table") fmt::print("{}", result.counters.table());
  if (options.counters == "json") fmt::print("{}\n", result.counters.json());
  if (model != nullptr && result.ok()) {
    const PredictedTime time = model->predict();
    fmt::print("{}", options.time_format == "json" ? time.json() + "\n" : time.table());
    if (options.report == "instructions") {
      fmt::print("{}", instruction_report(time, module, program));
    }
    if (options.report == "lines") fmt::print("{}", line_report(time, module, program));
    if (timeline != nullptr) timeline->write(time);
  }
  return result.ok() ? 0 : 1;
}

}  // namespace rocflash::sim::tool
