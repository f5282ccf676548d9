// `rocflash-sim validate`: compares the cycle model with published measurements.
#include "tool/validate_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "cycle_model/validation.h"

namespace rocflash::sim::tool {
namespace {

namespace fs = std::filesystem;

std::vector<u8> assemble(const std::string& clang, const std::string& text,
                         const std::string& target) {
  const fs::path base = fs::temp_directory_path() / fmt::format("rocflash-sim-{}", getpid());
  const fs::path source = base.string() + ".s";
  const fs::path object = base.string() + ".co";
  std::ofstream(source) << text;
  const std::string command = fmt::format("{} -target amdgcn-amd-amdhsa -mcpu={} {} -o {} 2>&1",
                                          clang, target, source.string(), object.string());
  std::string output;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot run " + clang);
  char line[512];
  while (std::fgets(line, sizeof line, pipe) != nullptr) output += line;
  const int status = pclose(pipe);
  fs::remove(source);
  if (status != 0) throw std::runtime_error(command + "\n" + output.substr(0, 2000));
  std::ifstream in(object, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(in)), {});
  fs::remove(object);
  return {bytes.begin(), bytes.end()};
}

}  // namespace

int validate_model(const std::string& clang, const std::string& arch) {
  auto points = validation_points();
  if (!arch.empty()) {
    std::erase_if(points, [&](const ValidationPoint& p) { return p.target != arch; });
    if (points.empty()) throw std::invalid_argument("no published figure for " + arch);
  }
  const auto results = validate(points, [&](const std::string& text, const std::string& target) {
    return assemble(clang, text, target);
  });
  fmt::print("{}", validation_table(results));
  int beyond = 0;
  for (const Validated& r : results) beyond += r.point.tolerance > 0 && !r.holds() ? 1 : 0;
  return beyond == 0 ? 0 : 1;
}

}  // namespace rocflash::sim::tool
