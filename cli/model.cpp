#include "model.hpp"

#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "device.hpp"
#include "output.hpp"
#include "platform/program.hpp"

namespace rocflash::cli {
namespace fs = std::filesystem;

Prediction parse_prediction(double seconds, const std::string& last_launch) {
  const Json j = Json::parse(last_launch);
  return {seconds, j["clock_mhz"].get<double>(), j["matrix_busy"].get<double>()};
}

Prediction predict_on_simulator(const std::string& arch, const std::string& op,
                                const std::string& dtype, const CostShape& s) {
  const fs::path library = simulator_library();
  if (!fs::exists(library)) {
    throw std::runtime_error(
        fmt::format("--compare-model: no simulator at {}; set ROCFLASH_SIM_LIBRARY to its {}",
                    library.string(), platform::simulator_name()));
  }
  const platform::Variables variables{{"ROCFLASH_HIP_LIBRARY", library.string()},
                                      {"ROCFLASH_SIM_ARCH", arch},
                                      {"ROCFLASH_SIM_CHECKS", "none"},
                                      {"ROCFLASH_SIM_TIME_ONLY", "1"}};
  std::vector<std::string> words{platform::program_path().string(), "bench"};
  const auto add = [&](const char* option, const auto& value) {
    words.insert(words.end(), {option, fmt::format("{}", value)});
  };
  add("--device", "hip:0");
  words.emplace_back("--no-standard");
  add("--repeat", 1);
  add("--op", op);
  add("--dtype", dtype);
  add("--batch", s.b);
  add("--heads", s.h);
  add("--kv-heads", s.hk);
  add("--seqlen", s.sq);
  add("--seqlen-k", s.sk);
  add("--head-dim", s.d);
  words.emplace_back(s.causal ? "--causal" : "--no-causal");
  if (s.left >= 0 || s.right >= 0) add("--window", fmt::format("{},{}", s.left, s.right));
  add("--json", "-");
  const platform::Output output = platform::output_of(variables, words);
  if (!output.good) {
    throw std::runtime_error(fmt::format(
        "--compare-model: the simulator failed; the command was\n  {}", output.command));
  }
  const Json row = Json::parse(output.text)["results"][0];
  return {row["predicted_seconds"].get<double>(), row["predicted_clock_mhz"].get<double>(),
          row["predicted_matrix_busy"].get<double>()};
}

}  // namespace rocflash::cli
