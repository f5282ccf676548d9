// The `rocflash` command: parses the command line, runs the subcommand and maps failures to exit
// statuses.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <rocflash/rocflash.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "commands.hpp"
#include "output.hpp"
#include "platform/program.hpp"
#include "spelling.hpp"

namespace rocflash::cli {

void add_json_option(CLI::App& command, std::string& file) {
  command
      .add_option(
          "--json", file,
          "Also write the results to FILE; - or nothing writes them to standard output alone")
      ->type_name("[FILE]")
      ->expected(0, 1)
      ->default_str("-");
}

Command add_json_command(CLI::App& app, const std::string& name, const std::string& about,
                         int (*run)(const std::string& json_file)) {
  auto* command = app.add_subcommand(name, about);
  const auto json = std::make_shared<std::string>();
  add_json_option(*command, *json);
  return [run, json] { return run(*json); };
}

namespace {

// Settings that no command can use are reported once, before any work.
void check_environment() {
  limits();  // ROCFLASH_NUM_THREADS
  rocflash_device cpu{};
  cpu.struct_size = sizeof cpu;
  check(rocflash_query_device(0, &cpu));  // ROCFLASH_CPU_ISA; opens no driver
}

// `help` and `help COMMAND` are --help and COMMAND --help.
std::vector<std::string> words_of(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words.front() == "help") {
    words.erase(words.begin());
    words.emplace_back("--help");
  }
  return words;
}

int run(int argc, char** argv) {
  CLI::App app("Exact attention on CPUs and GPUs: devices, correctness and speed.", "rocflash");
  app.set_version_flag("-V,--version", "rocflash " + version());
  app.require_subcommand(0, 1);  // without one, the help below is more useful than CLI11's message
  const std::pair<const char*, Command> commands[] = {
      {"info", add_info(app)},       {"verify", add_verify(app)},   {"bench", add_bench(app)},
      {"kernels", add_kernels(app)}, {"explain", add_explain(app)}, {"doctor", add_doctor(app)}};
  app.add_subcommand("help", "Show this help, or that of a command");
  app.add_subcommand("version", "Show the version");
  try {
    auto words = words_of(argc, argv);
    std::reverse(words.begin(), words.end());  // as CLI11 takes them
    app.parse(words);
  } catch (const CLI::ParseError& e) {
    const int code = e.get_exit_code();
    const bool by_name = code == static_cast<int>(CLI::ExitCodes::ExtrasError) || code == 0;
    if (const std::string unknown = by_name ? unknown_words(app) : ""; !unknown.empty()) {
      fmt::print(stderr, "{}\nRun with --help for more information.\n", unknown);
      return exit_usage;
    }
    return app.exit(e) == 0 ? exit_good : exit_usage;
  }
  if (app.got_subcommand("version")) return fmt::print("rocflash {}\n", version()), exit_good;
  for (const auto& [name, command] : commands) {
    if (!app.got_subcommand(name)) continue;
    check_environment();
    return command();
  }
  fmt::print(stderr, "rocflash: needs a subcommand\n\n{}", app.help());
  return exit_usage;
}

int guarded(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "rocflash: not enough memory for the requested sizes\n");
  } catch (const std::system_error& e) {
    // What fmt::print throws when it cannot write names no file.
    fmt::print(
        stderr, "rocflash: {}\n",
        std::ferror(stdout) ? "cannot write to standard output: " + e.code().message() : e.what());
  } catch (const std::exception& e) {
    fmt::print(stderr, "rocflash: {}\n", e.what());
  }
  return exit_failed;
}

}  // namespace
}  // namespace rocflash::cli

int main(int argc, char** argv) {
  rocflash::platform::end_on_closed_pipe();  // `rocflash info | head -1`
  const int status = rocflash::cli::guarded(argc, argv);
  if (status != rocflash::cli::exit_good && std::ferror(stdout)) return status;  // it was reported
  const bool written = rocflash::cli::flush_output();
  return written || status != rocflash::cli::exit_good ? status : rocflash::cli::exit_failed;
}
