#include "model.hpp"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "output.hpp"

namespace rocflash::cli {
namespace {

namespace fs = std::filesystem;

fs::path simulator_library() {
  if (const char* named = std::getenv("ROCFLASH_SIM_LIBRARY"); named != nullptr && *named != '\0')
    return named;
  return fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "lib/sim/libamdhip64.so";
}

// In single quotes, for the shell.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace

Prediction parse_prediction(double seconds, const std::string& last_launch) {
  const Json j = Json::parse(last_launch);
  return {seconds, j["clock_mhz"].get<double>(), j["matrix_busy"].get<double>()};
}

Prediction predict_on_simulator(const std::string& arch, const std::string& op,
                                const std::string& dtype, const CostShape& s) {
  const fs::path library = simulator_library();
  if (!fs::exists(library)) {
    throw std::runtime_error(fmt::format(
        "--compare-model: no simulator at {}; set ROCFLASH_SIM_LIBRARY to its libamdhip64.so",
        library.string()));
  }
  const std::string command = fmt::format(
      "ROCFLASH_HIP_LIBRARY={} ROCFLASH_SIM_ARCH={} ROCFLASH_SIM_CHECKS=none "
      "ROCFLASH_SIM_TIME_ONLY=1 {} bench --device hip:0 --no-standard --repeat 1 --op {} --dtype "
      "{} --batch {} "
      "--heads {} --kv-heads {} --seqlen {} --seqlen-k {} --head-dim {} {} {} --json - 2>/dev/null",
      quoted(library.string()), quoted(arch), quoted(fs::read_symlink("/proc/self/exe").string()),
      op, dtype, s.b, s.h, s.hk, s.sq, s.sk, s.d, s.causal ? "--causal" : "--no-causal",
      s.left >= 0 || s.right >= 0 ? fmt::format("--window {},{}", s.left, s.right) : "");
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("--compare-model: cannot run the simulator");
  std::string text;
  char part[4096];
  while (const std::size_t n = std::fread(part, 1, sizeof part, pipe)) text.append(part, n);
  if (pclose(pipe) != 0) {
    throw std::runtime_error(
        fmt::format("--compare-model: the simulator failed; it was run by\n  {}", command));
  }
  const Json row = Json::parse(text)["results"][0];
  return {row["predicted_seconds"].get<double>(), row["predicted_clock_mhz"].get<double>(),
          row["predicted_matrix_busy"].get<double>()};
}

}  // namespace rocflash::cli
