// `rocflash kernels`, formerly `rocflash report`: compiler statistics of each GPU kernel of this
// build.
#include "commands.hpp"
#include "kernel_report.hpp"
#include "output.hpp"

namespace rocflash::cli {
namespace {

int kernels(const std::string& json_file) {
  const char* text = kernel_report_text();
  fmt::print(text_stream(json_file), "{}", text ? text : "This build has no kernels for GPUs.\n");
  const char* json = kernel_report_json();
  write_json(json_file, json ? Json::parse(json) : Json{{"targets", Json::array()}});
  return exit_good;
}

}  // namespace

Command add_kernels(CLI::App& app) {
  Command command = add_json_command(
      app, "kernels", "Show registers, memory and occupancy of every GPU kernel of this build",
      kernels);
  app.get_subcommand("kernels")->alias("report");
  return command;
}

}  // namespace rocflash::cli
