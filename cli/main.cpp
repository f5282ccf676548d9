// The `rocflash` command: reads the command line, runs the subcommand, and turns failures into exit
// statuses.
#include <fmt/format.h>

#include <exception>
#include <memory>
#include <new>
#include <rocflash/rocflash.hpp>

#include "commands.hpp"
#include "verify/gpu.hpp"

namespace rocflash::cli {

void add_device_option(CLI::App& command, std::string& device) {
  device = "cpu";
  const auto known = [](const std::string& text) {
    if (text == "auto") return std::string();
    try {
      verify::DeviceName name(text);
      return std::string();
    } catch (const Error& e) {
      return e.what() + std::string(", or auto");
    }
  };
  command.add_option("--device", device, "Who computes: cpu, hip:N, cuda:N, or auto for the best")
      ->check(CLI::Validator(known, ""))
      ->type_name("DEVICE")
      ->capture_default_str();
}

std::string chosen_device(const std::string& device) {
  if (device != "auto") return device;
  const auto all = devices();
  if (all.size() < 2) return "cpu";
  const DLDevice first = all[1].device;
  return fmt::format("{}:{}", first.device_type == kDLROCM ? "hip" : "cuda", first.device_id);
}

void add_json_option(CLI::App& command, std::string& file) {
  command
      .add_option("--json", file,
                  "Also write the results to FILE; - writes them to standard output alone")
      ->type_name("FILE");
}

Command add_json_command(CLI::App& app, const std::string& name, const std::string& about,
                         int (*run)(const std::string& json_file)) {
  auto* command = app.add_subcommand(name, about);
  const auto json = std::make_shared<std::string>();
  add_json_option(*command, *json);
  return [run, json] { return run(*json); };
}

namespace {

int run(int argc, char** argv) {
  CLI::App app(
      "Exact attention on CPUs and GPUs: what it runs on, whether it is right, how fast it is.",
      "rocflash");
  app.set_version_flag("--version", "rocflash " + version());
  app.require_subcommand(0, 1);  // with none, what follows has more to say than CLI11
  const std::pair<const char*, Command> commands[] = {{"info", add_info(app)},
                                                      {"verify", add_verify(app)},
                                                      {"bench", add_bench(app)},
                                                      {"report", add_report(app)}};
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? exit_good : exit_usage;
  }
  for (const auto& [name, command] : commands) {
    if (app.got_subcommand(name)) return command();
  }
  fmt::print(stderr, "rocflash: needs a subcommand\n\n{}", app.help());
  return exit_usage;
}

}  // namespace
}  // namespace rocflash::cli

int main(int argc, char** argv) {
  try {
    return rocflash::cli::run(argc, argv);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "rocflash: not enough memory for what the command line asks for\n");
    return rocflash::cli::exit_failed;
  } catch (const std::exception& e) {
    fmt::print(stderr, "rocflash: {}\n", e.what());
    return rocflash::cli::exit_failed;
  }
}
