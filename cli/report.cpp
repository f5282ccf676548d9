// `rocflash report`: what the compiler made of each GPU kernel of this build, as
// kernels/build/report.cpp wrote it down.
#include "commands.hpp"
#include "output.hpp"

#ifdef ROCFLASH_KERNEL_REPORT
#define ROCFLASH_EMBED(name, file)                       \
  asm(".pushsection .rodata\n" #name ": .incbin \"" file \
      "\"\n"                                             \
      ".byte 0\n.popsection");                           \
  extern "C" const char name[];
ROCFLASH_EMBED(kernel_report_text, ROCFLASH_KERNEL_REPORT "/report.txt")
ROCFLASH_EMBED(kernel_report_json, ROCFLASH_KERNEL_REPORT "/report.json")
#endif

namespace rocflash::cli {
namespace {

int report(const std::string& json_file) {
#ifdef ROCFLASH_KERNEL_REPORT
  fmt::print(text_stream(json_file), "{}", static_cast<const char*>(kernel_report_text));
  write_json(json_file, Json::parse(static_cast<const char*>(kernel_report_json)));
#else
  fmt::print(text_stream(json_file), "This build has no kernels for GPUs.\n");
  write_json(json_file, Json{{"targets", Json::array()}});
#endif
  return exit_good;
}

}  // namespace

Command add_report(CLI::App& app) {
  auto* command = app.add_subcommand(
      "report", "Show registers, memory and occupancy of every GPU kernel of this build");
  const auto json = std::make_shared<std::string>();
  add_json_option(*command, *json);
  return [json] { return report(*json); };
}

}  // namespace rocflash::cli
