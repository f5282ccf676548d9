// Compiling and launching for tests.
#include "harness.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <stdexcept>

namespace rocflash::sim::test {
namespace {

namespace fs = std::filesystem;

fs::path cache_directory() {
  const fs::path path = fs::path(ROCFLASH_SIM_TEST_CACHE);
  fs::create_directories(path);
  return path;
}

std::vector<u8> read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  return {bytes.begin(), bytes.end()};
}

void run_command(const std::string& command) {
  std::string output;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot run " + command);
  char line[512];
  while (std::fgets(line, sizeof line, pipe) != nullptr) output += line;
  if (pclose(pipe) != 0) throw std::runtime_error(command + "\n" + output);
}

// Runs `command` with {out} replaced unless its result is already in the cache.
std::vector<u8> cached(const std::string& key, const std::string& suffix,
                       const std::function<void(const fs::path& out)>& make) {
  const fs::path path =
      cache_directory() / fmt::format("{:016x}{}", std::hash<std::string>()(key), suffix);
  if (!fs::exists(path)) {
    const fs::path fresh = path.string() + fmt::format(".{}", getpid());
    make(fresh);
    fs::rename(fresh, path);
  }
  return read_file(path);
}

}  // namespace

std::vector<u8> compile_hip(const std::string& path, const std::string& target,
                            const std::string& flags) {
  const auto source = read_file(path);
  const std::string command = fmt::format(
      "{} -x hip --offload-arch={} --cuda-device-only -nogpulib -nogpuinc "
      "--no-gpu-bundle-output -std=c++20 {} {}",
      ROCFLASH_SIM_CLANG, target, flags, path);
  return cached(command + std::string(source.begin(), source.end()), ".co",
                [&](const fs::path& out) { run_command(command + " -o " + out.string()); });
}

std::vector<u8> compile_member(const std::string& path, const std::string& target,
                               const std::string& flags) {
  const std::string generic = target.starts_with("gfx10")   ? "gfx10-3-generic"
                              : target.starts_with("gfx11") ? "gfx11-generic"
                                                            : "gfx12-generic";
  const auto bytes = compile_hip(path, generic, flags + " -S");
  std::string text(bytes.begin(), bytes.end());
  for (auto at = text.find(generic); at != text.npos; at = text.find(generic, at)) {
    text.replace(at, generic.size(), target);
  }
  // Generic objects are version 6; the directive would override the command line.
  const std::string directive = ".amdhsa_code_object_version 6";
  if (const auto at = text.find(directive); at != text.npos) text.replace(at + 28, 1, "5");
  const bool wave64 = flags.find("-mwavefrontsize64") != std::string::npos;
  return assemble(text, target,
                  std::string("-mcode-object-version=5") + (wave64 ? " -mwavefrontsize64" : ""));
}

std::vector<u8> assemble(const std::string& text, const std::string& target,
                         const std::string& flags) {
  return cached(target + flags + text, ".co", [&](const fs::path& out) {
    const std::string source = out.string() + ".s";
    std::ofstream(source) << text;
    run_command(fmt::format("{} -target amdgcn-amd-amdhsa -mcpu={} {} {} -o {}", ROCFLASH_SIM_CLANG,
                            target, flags, source, out.string()));
    fs::remove(source);
  });
}

std::string group_id_register(const std::string& target) {
  return target.starts_with("gfx12") ? "ttmp9" : "s2";
}

std::string wrap_kernel(const AsmKernel& k) {
  const bool cdna = k.target.starts_with("gfx9");
  const bool one_file = cdna && k.target != "gfx906" && k.target != "gfx908";  // of registers
  std::string args;
  for (int i = 0; i < k.arguments; ++i) {
    args += fmt::format("      - .offset: {}\n        .size: 8\n        .value_kind: by_value\n",
                        8 * i);
  }
  std::string text = ".text\n.globl k\n.p2align 8\n.type k,@function\nk:\n";
  text += k.body;
  text += "\n  s_endpgm\n.Lend:\n.size k, .Lend-k\n.rodata\n.p2align 6\n.amdhsa_kernel k\n";
  text += fmt::format(
      "  .amdhsa_user_sgpr_kernarg_segment_ptr 1\n  .amdhsa_next_free_vgpr {}\n"
      "  .amdhsa_next_free_sgpr 96\n  .amdhsa_group_segment_fixed_size {}\n"
      "  .amdhsa_private_segment_fixed_size {}\n  .amdhsa_kernarg_size {}\n"
      "  .amdhsa_float_denorm_mode_32 3\n  .amdhsa_float_denorm_mode_16_64 3\n",
      one_file ? 512 : k.vgprs, k.lds, k.scratch, 8 * k.arguments);
  if (one_file) text += "  .amdhsa_accum_offset 256\n";
  if (!cdna) text += fmt::format("  .amdhsa_wavefront_size32 {}\n", k.wave == 32 ? 1 : 0);
  text += fmt::format(
      ".end_amdhsa_kernel\n.amdgpu_metadata\n---\namdhsa.version: [1, 2]\n"
      "amdhsa.target: amdgcn-amd-amdhsa--{}\namdhsa.kernels:\n  - .name: k\n    .symbol: k.kd\n"
      "    .kernarg_segment_size: {}\n    .kernarg_segment_align: 8\n"
      "    .group_segment_fixed_size: {}\n    .private_segment_fixed_size: {}\n"
      "    .wavefront_size: {}\n    .sgpr_count: 96\n    .vgpr_count: {}\n"
      "    .max_flat_workgroup_size: 1024\n    .args:\n{}...\n.end_amdgpu_metadata\n",
      k.target, 8 * k.arguments, k.lds, k.scratch, k.wave, k.vgprs, args);
  return text;
}

std::unique_ptr<Module> build(const AsmKernel& k) {
  std::string flags = k.debug ? "-g" : "";
  if (k.wave == 64 && !k.target.starts_with("gfx9")) flags += " -mwavefrontsize64";
  return load(assemble(wrap_kernel(k), k.target, flags), k.target);
}

std::unique_ptr<Module> load(std::span<const u8> code, const std::string& target) {
  const Target* t = find_target(target);
  if (t == nullptr) throw std::runtime_error("no target " + target);
  return std::make_unique<Module>(CodeObject::load(code, target), *t, 0);
}

LaunchResult launch(Module& module, const std::string& kernel, const Shape& shape,
                    const Arguments& arguments, const Checks& checks, bool count) {
  LaunchRequest request;
  request.module = &module;
  request.kernel = module.object().find_kernel(kernel);
  if (request.kernel == nullptr) throw std::runtime_error("no kernel " + kernel);
  std::copy_n(shape.grid, 3, request.grid);
  std::copy_n(shape.block, 3, request.block);
  request.dynamic_lds = shape.dynamic_lds;
  request.arguments = arguments.bytes();
  request.checks = checks;
  request.count = count;
  return run_kernel(request);
}

}  // namespace rocflash::sim::test
