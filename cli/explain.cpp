// `rocflash explain`: which kernels a device or architecture would run for a problem, and why no
// others. Runs without a device and without kernels.
#include <map>
#include <memory>
#include <rocflash/rocflash.hpp>

#include "commands.hpp"
#include "explain_call.hpp"
#include "kernel_report.hpp"
#include "output.hpp"
#include "table.hpp"
#include "verify/gpu.hpp"

namespace rocflash::cli {
namespace {

struct ExplainOptions {
  std::string device, arch, json;
  int units = 0;
  ExplainedShape shape;
  std::int64_t kv_heads = 0, seqlen_k = 0, queries = 1;
  int value_dim = 0;
  std::vector<std::int64_t> seqlens{4096}, pages;
};

// What the compiler made of the kernels of an architecture, by name; empty if this build has none.
std::map<std::string, Json> reported_kernels(const std::string& arch) {
  std::map<std::string, Json> found;
  const char* const report = kernel_report_json();
  if (!report) return found;
  const Json all = Json::parse(report);
  for (const Json& target : all.at("targets")) {
    const std::string name = target.at("arch");
    if (name != arch && name != arch + "a") continue;
    for (const Json& kernel : target.at("kernels")) found[kernel.at("name")] = kernel;
  }
  return found;
}

Json to_json(const gpu::ExplainedLaunch& launch, const std::map<std::string, Json>& report) {
  Json entry{{"kernel", launch.kernel.name},
             {"operation", launch.kernel.operation},
             {"schedule", launch.kernel.schedule},
             {"family", launch.family},
             {"grid", launch.grid},
             {"block", launch.threads},
             {"dynamic_lds", launch.dynamic_shared},
             {"cluster", launch.cluster},
             {"pdl", launch.pdl}};
  const auto of = report.find(launch.kernel.name);
  for (const char* key : {"vgpr", "agpr", "sgpr", "lds", "scratch", "waves_per_simd"})
    entry[key] = of == report.end() ? Json() : of->second.at(key);
  return entry;
}

Json to_json(const gpu::Explanation& e, const std::map<std::string, Json>& report) {
  Json json{{"refusal", e.refusal.empty() ? Json() : Json(e.refusal)},
            {"features", e.features},
            {"splits", e.splits},
            {"workspace_bytes", e.workspace},
            {"launches", Json::array()},
            {"rejected", Json::array()}};
  for (const gpu::ExplainedLaunch& launch : e.launches)
    json["launches"].push_back(to_json(launch, report));
  for (const gpu::ExplainedRejection& r : e.rejected)
    json["rejected"].push_back({{"kernel", r.kernel.name},
                                {"operation", r.kernel.operation},
                                {"schedule", r.kernel.schedule},
                                {"reason", r.reason}});
  return json;
}

std::string cell(const Json& number) { return number.is_null() ? "-" : number.dump(); }

void print(const gpu::Explanation& e, const Json& json, std::FILE* to) {
  if (!e.refusal.empty()) return fmt::print(to, "not supported: {}\n", e.refusal);
  std::string features;
  for (const std::string& feature : e.features)
    features += (features.empty() ? "" : ", ") + feature;
  fmt::print(to, "features: {}\nsplits: {}, workspace: {} bytes\n",
             features.empty() ? "none" : features, e.splits, e.workspace);
  Table launches({"launch", "operation", "schedule", "grid", "block", "LDS", "dynamic LDS", "VGPRs",
                  "SGPRs", "cluster"},
                 3);
  for (const Json& launch : json.at("launches")) {
    const auto& grid = launch.at("grid");
    const bool flat = grid[1] == 1 && grid[2] == 1;
    launches.add({launch.at("kernel"), launch.at("operation"), launch.at("schedule"),
                  flat ? cell(grid[0])
                       : fmt::format("{},{},{}", cell(grid[0]), cell(grid[1]), cell(grid[2])),
                  cell(launch.at("block")), cell(launch.at("lds")), cell(launch.at("dynamic_lds")),
                  cell(launch.at("vgpr")), cell(launch.at("sgpr")), cell(launch.at("cluster"))});
  }
  if (e.launches.empty())
    fmt::print(to, "\nno launches: the outputs are empty\n");
  else
    fmt::print(to, "\n"), launches.print(to);
  if (e.rejected.empty()) return;
  fmt::print(to, "\n");
  Table rejected({"rejected", "reason"}, 2);
  for (const gpu::ExplainedRejection& r : e.rejected) rejected.add({r.kernel.name, r.reason});
  rejected.print(to);
}

// The device's architecture and units, unless --arch names them.
void find_device(ExplainOptions& o) {
  if (!o.arch.empty()) return;
  const DLDevice wanted = verify::DeviceName(o.device).dlpack();
  const auto gpu = verify::Gpu::open(verify::DeviceName(o.device));  // or throws its reason
  for (const rocflash_device& d : devices()) {
    if (d.device.device_type != wanted.device_type || d.device.device_id != wanted.device_id)
      continue;
    o.arch = d.arch;
    if (o.units == 0) o.units = d.units;
  }
  o.arch = o.arch.substr(0, o.arch.find(':'));
}

int usage(const std::string& message) {
  fmt::print(stderr, "rocflash explain: {}\n", message);
  return exit_usage;
}

int explain_problem(ExplainOptions o) {
  const bool decode = o.shape.op == "decode" || o.shape.op == "append";
  if (decode && (!o.shape.window.empty() || o.seqlen_k > 0))
    return usage(
        "--window and --seqlen-k are not supported with --op decode and append; --seqlen is the "
        "length of the KV cache");
  if (!decode && !o.pages.empty()) return usage("--page-size is for --op decode and append");
  if (o.shape.op == "combine" && o.shape.splits == 0)
    return usage("--op combine needs --splits, the number of partial results");
  if (o.arch.empty() && !verify::DeviceName(o.device).gpu())
    return usage("kernels are selected for GPUs: --arch NAME or --device hip:0, not " + o.device);
  find_device(o);
  const std::optional<gpu::Chip> chip = gpu::chip_of(o.arch, o.units);
  if (!chip) return usage("--arch: " + o.arch + " is not one of " + gpu::known_archs());
  ExplainedShape& s = o.shape;
  s.kv_heads = o.kv_heads > 0 ? o.kv_heads : s.heads;
  s.value_dim = o.value_dim > 0 ? o.value_dim : s.head_dim;
  if (s.heads % s.kv_heads != 0)
    return usage(
        fmt::format("--heads: {} is not a multiple of --kv-heads {}", s.heads, s.kv_heads));
  if (o.pages.empty()) o.pages.push_back(0);

  std::FILE* to = text_stream(o.json);
  fmt::print(to, "{}, family {}, {} units: {}, {}, batch {}, heads {} on {}, head dimension {}\n",
             o.arch, kernel::name_of(chip->has_sm90 ? kernel::Family::sm90 : chip->family),
             chip->units, s.op, s.dtype, s.batch, s.heads, s.kv_heads,
             s.value_dim == s.head_dim ? std::to_string(s.head_dim)
                                       : fmt::format("{}, values {}", s.head_dim, s.value_dim));
  Json results = Json::array();
  const auto report = reported_kernels(o.arch);
  bool supported = true;
  for (const std::int64_t length : o.seqlens) {
    for (const std::int64_t page : o.pages) {
      s.page = page;
      s.sq = decode ? o.queries : length;
      s.sk = !decode && o.seqlen_k > 0 ? o.seqlen_k : length;
      const gpu::Explanation e = explain(s, *chip);
      supported = supported && e.refusal.empty();
      Json json{{"seqlen_q", s.sq}, {"seqlen_k", s.sk}, {"page_size", page}};
      json.update(to_json(e, report));
      fmt::print(to, "\nseqlen {} on {}{}\n", s.sq, s.sk,
                 page > 0 ? fmt::format(", pages of {}", page) : "");
      print(e, json, to);
      results.push_back(std::move(json));
    }
  }
  write_json(o.json, {{"version", version()},
                      {"arch", o.arch},
                      {"family", kernel::name_of(chip->family)},
                      {"units", chip->units},
                      {"op", s.op},
                      {"dtype", s.dtype},
                      {"batch", s.batch},
                      {"heads", s.heads},
                      {"kv_heads", s.kv_heads},
                      {"head_dim", s.head_dim},
                      {"value_dim", s.value_dim},
                      {"with", s.with},
                      {"results", results}});
  return supported ? exit_good : exit_failed;
}

}  // namespace

Command add_explain(CLI::App& app) {
  auto* command =
      app.add_subcommand("explain", "Show which GPU kernels a problem selects, and why no others");
  const auto o = std::make_shared<ExplainOptions>();
  ExplainedShape& s = o->shape;
  add_device_option(*command, o->device);
  command
      ->add_option("--arch", o->arch,
                   "Instead of a device: an architecture, such as gfx942 or sm_90")
      ->type_name("NAME");
  command
      ->add_option("--units", o->units,
                   "Compute units or multiprocessors; default: those of the device")
      ->check(CLI::Range(1, 1 << 16));
  const auto size = [&](const char* name, auto& value, const char* text) {
    return command->add_option(name, value, text)->check(positive());
  };
  command
      ->add_option(
          "--op", s.op,
          "What to explain; append: decode that appends rotated keys to the cache; rotate: "
          "rotary embedding alone")
      ->check(CLI::IsMember({"forward", "backward", "decode", "append", "combine", "rotate"}))
      ->capture_default_str();
  size("--batch", s.batch, "Sequences")->capture_default_str();
  size("--heads", s.heads, "Heads of q")->capture_default_str();
  size("--kv-heads", o->kv_heads, "Heads of k and v; default: as many as q has");
  size("--seqlen", o->seqlens, "Lengths of q, or of the cache for decode; one problem each")
      ->delimiter(',')
      ->type_name("LIST")
      ->capture_default_str();
  size("--seqlen-k", o->seqlen_k, "Length of k and v; default: that of q");
  size("--queries", o->queries, "Decode: length of q")->capture_default_str();
  const CLI::Range head_dims(1, limits().max_head_dim);
  command->add_option("--head-dim", s.head_dim, "Head dimension")
      ->check(head_dims)
      ->capture_default_str();
  command->add_option("--value-dim", o->value_dim, "Head dimension of v; default: that of q")
      ->check(head_dims);
  command->add_option("--dtype", s.dtype, "Of all tensors")
      ->check(CLI::IsMember({"f32", "f16", "bf16"}))
      ->capture_default_str();
  command->add_flag("--causal,!--no-causal", s.causal,
                    "Causal mask (default), or attend to all keys");
  command->add_option("--window", s.window, "Sliding window: keys before and after; -1: no bound")
      ->delimiter(',')
      ->expected(2)
      ->check(CLI::Range(std::int64_t{-1}, std::int64_t{1} << 40))
      ->type_name("LEFT,RIGHT");
  size("--page-size", o->pages, "Decode: paged KV caches with pages of this many rows")
      ->delimiter(',')
      ->type_name("LIST");
  command
      ->add_option("--splits", s.splits,
                   "num_splits; 0: automatic. Of --op combine: the partial results")
      ->check(CLI::Range(0, 1 << 16))
      ->capture_default_str();
  std::string names;
  for (const std::string& name : explained_options()) names += (names.empty() ? "" : ", ") + name;
  command->add_option("--with", s.with, "Options of the call, among " + names)
      ->delimiter(',')
      ->check(CLI::IsMember(explained_options()))
      ->type_name("LIST");
  add_json_option(*command, o->json);
  return [o] {
    if (o->arch.empty()) o->device = resolve_device(o->device);
    return explain_problem(*o);
  };
}

}  // namespace rocflash::cli
