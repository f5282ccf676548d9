// rocflash-sim: run, inspect and disassemble AMD kernels without an AMD GPU.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <iterator>

#include "core/disassemble.h"
#include "core/launch.h"
#include "tool/run_command.h"
#include "tool/validate_command.h"

namespace rocflash::sim::tool {
namespace {

std::unique_ptr<CodeObject> open_object(const std::string& path, const std::string& arch) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::invalid_argument("cannot read " + path);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(in)), {});
  return CodeObject::load({reinterpret_cast<const u8*>(bytes.data()), bytes.size()}, arch);
}

void info(const std::string& path, const std::string& arch) {
  const auto object = open_object(path, arch);
  const Target* target = find_target(object->target());
  fmt::print("{}: {}, code object version {}, {} bytes of code\n", path, object->target(),
             object->version(), object->code().size());
  for (const KernelInfo& k : object->kernels()) {
    fmt::print("  {}\n    wave{}, {} VGPRs, {} AGPRs, {} SGPRs, {} spilled, LDS {}, scratch {}",
               k.name, k.wave_size, k.vgprs, k.agprs, k.sgprs, k.vgpr_spills, k.lds_bytes,
               k.scratch_bytes);
    if (target != nullptr) {
      fmt::print(", {} waves per SIMD", waves_per_simd(*target, k, k.lds_bytes, k.max_threads));
    }
    fmt::print("\n");
    for (const KernelArgument& a : k.arguments) {
      fmt::print("    {:>4}  {:>3} bytes  {} {}\n", a.offset, a.size, a.kind, a.name);
    }
  }
}

// Disassembly with unsupported instructions marked.
int listing(const std::string& path, const std::string& arch, int wave) {
  const auto object = open_object(path, arch);
  if (wave == 0) wave = object->kernels().empty() ? 64 : object->kernels()[0].wave_size;
  int unknown = 0;
  std::string last;
  for (Instruction& in :
       disassemble(object->code(), object->code_address(), object->target(), wave)) {
    const std::string name = object->symbolize(in.address);
    const std::string function = name.substr(0, name.rfind('+'));
    if (function != last) fmt::print("{}:\n", last = function);
    bool known = in.valid;
    if (in.valid && split_dual(in.text).second.empty()) {
      parse_instruction(in);
      known = find_semantics(in.has("lds") ? in.mnemonic + ".lds" : in.mnemonic) != nullptr;
    }
    if (!known) ++unknown;
    fmt::print("  {:#8x}  {}{}\n", in.address - object->bias(), in.text,
               known ? "" : "   <- not simulated");
  }
  return unknown == 0 ? 0 : 1;
}

// Coverage of LLVM's opcode table of a target.
void coverage(const std::string& arch, bool names) {
  if (!arch.empty() && find_target(arch) == nullptr)
    throw std::invalid_argument("no target " + arch);
  for (const Target& target : all_targets()) {
    if (!arch.empty() && target.name != arch) continue;
    int known = 0;
    std::vector<std::string> unsupported;
    std::vector<std::string> missing;
    for (const std::string& mnemonic : known_mnemonics(target.name)) {
      if (find_semantics(mnemonic) != nullptr) {
        ++known;
      } else if (!unsupported_reason(mnemonic).empty()) {
        unsupported.push_back(mnemonic);
      } else {
        missing.push_back(mnemonic);
      }
    }
    fmt::print("{}: {} mnemonics supported, {} explicitly not supported, {} without semantics\n",
               target.name, known, unsupported.size(), missing.size());
    if (!names) continue;
    for (const std::string& m : missing) fmt::print("  missing  {}\n", m);
    for (const std::string& m : unsupported)
      fmt::print("  not supported  {}  ({})\n", m, unsupported_reason(m));
  }
}

}  // namespace
}  // namespace rocflash::sim::tool

int main(int argc, char** argv) {
  using namespace rocflash::sim;
  using namespace rocflash::sim::tool;
  CLI::App app{"Runs AMD GPU code objects on the CPU and checks what hardware does not."};
  app.require_subcommand(1);

  RunOptions options;
  auto* run_command = app.add_subcommand("run", "run a kernel described by a JSON file");
  run_command->add_option("description", options.description, "the JSON file")->required();
  run_command->add_option("--break", options.breakpoint,
                          "print registers before this instruction: 0xOFFSET or KERNEL+0xOFFSET");
  run_command->add_option("--registers", options.registers, "which, e.g. v0-v7,s0-s3,vcc,exec,a0");
  run_command->add_option("--group", options.group, "linear workgroup to stop in")
      ->check(CLI::Range(i64{0}, INT64_MAX));
  run_command->add_option("--wave", options.wave, "wave of it to stop in")
      ->check(CLI::Range(0, 31));
  run_command->add_option("--hits", options.hits, "how many times to stop")
      ->check(CLI::Range(1, INT32_MAX));
  run_command->add_option("--counters", options.counters, "table or json")
      ->check(CLI::IsMember({"table", "json"}));
  // Each option of the cycle model implies --time.
  std::vector<const CLI::Option*> of_time;
  of_time.push_back(run_command->add_flag("--time", options.time,
                                          "predict the time on the GPU by the cycle model"));
  of_time.push_back(run_command->add_option("--time-format", options.time_format, "table or json")
                        ->check(CLI::IsMember({"table", "json"})));
  of_time.push_back(run_command->add_option(
      "--timeline", options.timeline,
      "write one compute unit's schedule for chrome://tracing or Perfetto"));
  of_time.push_back(
      run_command->add_option("--report", options.report, "waits by instructions or lines")
          ->check(CLI::IsMember({"instructions", "lines"})));
  of_time.push_back(
      run_command->add_option("--clock", options.clock_mhz, "MHz instead of the model's clock")
          ->check([](const std::string& text) {
            const double mhz = std::strtod(text.c_str(), nullptr);
            return mhz >= 1 && mhz <= 100000 ? "" : text + ": it can be 1 to 100000";
          }));
  of_time.push_back(run_command->add_flag("--time-only", options.time_only,
                                          "execute only the workgroups that the model samples"));
  run_command->add_flag("--listing", options.listing, "disassembly with execution counts");
  run_command->add_option("--checks", options.checks,
                          "all, none, or a list such as undefined,wait");
  run_command->add_option("--threads", options.threads, "worker threads (0: all cores)")
      ->check(CLI::Range(0, 1024));

  std::string path;
  std::string arch;
  int wave = 0;
  auto* info_command =
      app.add_subcommand("info", "kernels, registers and arguments of a code object");
  info_command->add_option("code_object", path)->required();
  info_command->add_option("--arch", arch, "which member of an offload bundle");
  auto* list_command = app.add_subcommand("disassemble", "instructions of a code object");
  list_command->add_option("code_object", path)->required();
  list_command->add_option("--arch", arch, "which member of an offload bundle");
  list_command->add_option("--wave", wave, "32 or 64")->check(CLI::IsMember({32, 64}));

  bool names = false;
  auto* coverage_command = app.add_subcommand(
      "coverage", "which of LLVM's mnemonics have semantics, a target at a time");
  coverage_command->add_option("--arch", arch);
  coverage_command->add_flag("--names", names, "list the mnemonics that are not supported");

  std::string clang = "clang++-22";
  auto* validate_command =
      app.add_subcommand("validate", "compare the cycle model with published measurements");
  validate_command->add_option("--arch", arch,
                               "one of gfx942, gfx950, gfx1100, gfx1201; default: all");
  validate_command->add_option("--clang", clang, "assembles the microkernels");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  try {
    if (run_command->parsed()) {
      options.time =
          std::ranges::any_of(of_time, [](const CLI::Option* o) { return o->count() > 0; });
      return run(options);
    }
    if (info_command->parsed()) info(path, arch);
    if (list_command->parsed()) return listing(path, arch, wave);
    if (coverage_command->parsed()) coverage(arch, names);
    if (validate_command->parsed()) return validate_model(clang, arch);
    return 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "rocflash-sim: {}\n", e.what());
    return 2;
  }
}
