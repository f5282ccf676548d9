// `rocflash verify`: compares a device with the double-precision reference, feature by feature.
#include <chrono>
#include <cmath>
#include <map>

#include "commands.hpp"
#include "output.hpp"
#include "table.hpp"
#include "verify/run.hpp"
#include "verify/scalar.hpp"
#include "verify/table.hpp"

namespace rocflash::cli {
namespace {

constexpr std::size_t failures_shown = 20;

struct VerifyOptions {
  std::string device, filter, json;
  bool quick = false, full = false, quiet = false;
  std::uint64_t seed = 0;
  int threads = 0;
  std::uint64_t every = 1;

  const char* level() const { return full ? "full" : "quick"; }
};

// One line of the report: variants of a feature, "bias (b,1,1,k)" and "bias (1,h,q,k)", share one.
std::string family(const verify::Case& c) { return c.feature.substr(0, c.feature.find(" (")); }

struct Cell {
  double forward = 0, backward = 0;
  int cases = 0, failed = 0, refused = 0;
  bool gradients = false;  // some features have no backward

  void add(const verify::Result& r) {
    ++cases;
    failed += !r.good();
    refused += !r.refused.empty();
    forward = std::max(forward, r.worst_ratio(false));
    backward = std::max(backward, r.worst_ratio(true));
    gradients = gradients || std::any_of(r.comparisons.begin(), r.comparisons.end(),
                                         [](const verify::Comparison& f) { return f.gradient; });
  }
  void add(const Cell& other) {
    cases += other.cases;
    failed += other.failed;
    refused += other.refused;
    forward = std::max(forward, other.forward);
    backward = std::max(backward, other.backward);
    gradients = gradients || other.gradients;
  }
};

struct Report {
  std::vector<std::string> order;  // of features, as in the table of cases
  std::map<std::pair<std::string, DType>, Cell> cells;
  Cell total;

  explicit Report(const std::vector<verify::Result>& results) {
    for (const verify::Result& r : results) {
      const std::string row = family(r.what);
      if (std::find(order.begin(), order.end(), row) == order.end()) order.push_back(row);
      cells[{row, r.what.dtype}].add(r);
      total.add(r);
    }
  }
  Cell row_total(const std::string& row) const {
    Cell sum;
    for (const DType t : verify::dtypes) {
      if (const auto it = cells.find({row, t}); it != cells.end()) sum.add(it->second);
    }
    return sum;
  }
};

std::string ratio_text(double ratio) {
  return ratio < 1000 ? fmt::format("{:.2f}", ratio) : ">999";
}

void print_table(const Report& report, std::FILE* to) {
  std::vector<std::string> titles{"feature"};
  for (const DType t : verify::dtypes) {
    titles.push_back(fmt::format("{} forward", verify::name_of(t)));
    titles.push_back("backward");
  }
  titles.insert(titles.end(), {"cases", "state"});
  Table table(titles);
  for (const std::string& row : report.order) {
    std::vector<std::string> cells{row};
    for (const DType t : verify::dtypes) {
      const auto it = report.cells.find({row, t});
      const bool any = it != report.cells.end() && it->second.refused < it->second.cases;
      cells.push_back(any ? ratio_text(it->second.forward) : "");
      cells.push_back(any && it->second.gradients ? ratio_text(it->second.backward) : "");
    }
    const Cell sum = report.row_total(row);
    cells.push_back(std::to_string(sum.cases));
    cells.push_back(sum.failed > 0             ? fmt::format("{} FAILED", sum.failed)
                    : sum.refused == sum.cases ? "refused"
                                               : "ok");
    table.add(cells);
  }
  table.print(to);
}

// Which cases the device refused, as documented, with the message of each refusal.
void print_refusals(const std::vector<verify::Result>& results, std::FILE* to) {
  std::map<std::string, int> messages;
  for (const verify::Result& r : results) {
    if (!r.refused.empty()) ++messages[r.refused];
  }
  if (messages.empty()) return;
  fmt::print(to, "\nRefused, as documented\n");
  for (const auto& [text, count] : messages) fmt::print(to, "  {:>5}  {}\n", count, text);
}

std::string reproduce(const VerifyOptions& o, const verify::Case& c) {
  return fmt::format("rocflash verify --device {} --{} --seed {} --filter '{}'", o.device,
                     o.level(), o.seed, c.name());
}

void print_failure(const verify::Result& r, const VerifyOptions& o, std::FILE* to) {
  fmt::print(to, "\nFAILED {}\n", r.what.name());
  if (!r.failure.empty()) fmt::print(to, "  {}\n", r.failure);
  for (const verify::Comparison& f : r.comparisons) {
    if (!f.defect.empty()) fmt::print(to, "  {}: {}\n", f.tensor, f.defect);
    if (f.error > f.bound())
      fmt::print(to, "  {}: error {:.3g} is above {:.3g}; the error of naive attention is {:.3g}\n",
                 f.tensor, f.error, f.bound(), f.naive_error);
  }
  fmt::print(to, "  {}\n  {}\n", r.what.describe(), reproduce(o, r.what));
}

Json to_json(const VerifyOptions& o, const std::vector<verify::Result>& results,
             const Report& report, double seconds) {
  Json json{{"version", version()},
            {"device", o.device},
            {"level", o.level()},
            {"seed", o.seed},
            {"seconds", seconds},
            {"cases", report.total.cases},
            {"failed", report.total.failed},
            {"refused", report.total.refused}};
  json["worst_ratio"] = {{"forward", report.total.forward}, {"backward", report.total.backward}};
  json["results"] = Json::array();
  for (const verify::Result& r : results) {
    Json entry{{"name", r.what.name()}, {"case", r.what.describe()}, {"good", r.good()}};
    if (!r.failure.empty()) entry["failure"] = r.failure;
    if (!r.refused.empty()) entry["refused"] = r.refused;
    for (const verify::Comparison& f : r.comparisons) {
      Json& tensor = entry["tensors"][f.tensor] = {{"error", f.error},
                                                   {"plain_error", f.naive_error},
                                                   {"bound", f.bound()},
                                                   {"ratio", f.ratio()}};
      if (!f.defect.empty()) tensor["defect"] = f.defect;
    }
    json["results"].push_back(entry);
  }
  return json;
}

int verify_device(const VerifyOptions& o) {
  using Clock = std::chrono::steady_clock;
  auto cases = verify::cases(o.full ? verify::Level::full : verify::Level::quick, o.seed, o.filter);
  if (cases.empty()) {
    fmt::print(stderr, "rocflash verify: --filter: no case of --{} has \"{}\" in its name\n",
               o.level(), o.filter);
    return exit_usage;
  }
  const std::size_t found = cases.size();
  std::erase_if(cases, [&](const verify::Case& c) { return c.seed % o.every != 0; });
  if (cases.empty()) {
    fmt::print(stderr,
               "rocflash verify: --every: {} leaves none of {} cases; choose a smaller number\n",
               o.every, found);
    return exit_usage;
  }
  const verify::DeviceName name(o.device);
  const verify::Device device =
      name.gpu() ? verify::Device(verify::Gpu::open(name)) : verify::Device(Backend::cpu);
  const int workers = o.threads > 0 ? o.threads : limits().default_threads;
  std::FILE* to = text_stream(o.json);
  if (!o.quiet)
    fmt::print(
        to,
        "{}: {} cases on {}. Error as a share of what is allowed: twice (backward: "
        "three times)\n"
        "the error of naive attention in the same dtype, both measured against the reference "
        "in f64.\n\n",
        device_line(o.device), cases.size(), threads_text(workers));
  std::fflush(to);

  const auto start = Clock::now();
  Progress progress(o.quiet);
  std::size_t done = 0, failed = 0;
  const auto results = verify::run_all(cases, device, workers, [&](const verify::Result& r) {
    ++done;
    failed += !r.good();
    progress.show(
        fmt::format("{}/{} cases, {} failed: {}", done, cases.size(), failed, r.what.name()), done,
        cases.size());
  });
  progress.clear();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();

  const Report report(results);
  if (!o.quiet) print_table(report, to);
  std::size_t shown = 0;
  for (const verify::Result& r : results) {
    if (!r.good() && shown++ < failures_shown) print_failure(r, o, to);
  }
  if (shown > failures_shown)
    fmt::print(to, "\n{} more failures; --json FILE has all.\n", shown - failures_shown);
  if (!o.quiet) print_refusals(results, to);
  const int refused = report.total.refused, ran = report.total.cases - refused;
  fmt::print(to, "{}{} of {} cases passed{} in {:.1f} s; worst share forward {}{}\n",
             o.quiet ? "" : "\n", ran - report.total.failed, ran,
             refused > 0 ? fmt::format(", {} refused as documented,", refused) : "", seconds,
             ratio_text(report.total.forward),
             report.total.gradients ? ", backward " + ratio_text(report.total.backward) : "");
  write_json(o.json, to_json(o, results, report, seconds));
  return report.total.failed == 0 ? exit_good : exit_failed;
}

}  // namespace

Command add_verify(CLI::App& app) {
  auto* command =
      app.add_subcommand("verify", "Check a device against the double-precision reference");
  const auto o = std::make_shared<VerifyOptions>();
  add_device_option(*command, o->device);
  auto* quick = command->add_flag("--quick", o->quick,
                                  "Every feature and shape once in every dtype (default)");
  command->add_flag("--full", o->full, "All features with all shapes, and random mixtures: minutes")
      ->excludes(quick);
  command
      ->add_option("--filter", o->filter,
                   "Only cases whose name (feature/dtype/shape) contains this")
      ->type_name("TEXT");
  command->add_option("--every", o->every, "Run every N-th case, selected by the seed")
      ->check(positive())
      ->capture_default_str();
  command->add_option("--seed", o->seed, "Seed of the random inputs")->capture_default_str();
  command->add_option("--threads", o->threads, "Cases to run in parallel; 0: automatic")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_flag("--quiet", o->quiet, "Print only failures and the last line");
  add_json_option(*command, o->json);
  return [o] {
    o->device = resolve_device(o->device);
    return verify_device(*o);
  };
}

}  // namespace rocflash::cli
