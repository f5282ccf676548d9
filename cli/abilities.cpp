#include "abilities.hpp"

#include <array>

#include "verify/scalar.hpp"

namespace rocflash::cli {
namespace {

// One query and one key of one head: what depends on lengths is not asked here. The address is never read.
void ask(const std::string& operation, const DLDevice& device, DType dtype, int head_dim) {
  static std::array<std::byte, 64> nowhere{};
  const auto tensor = [&](DType t, const Dims& shape) {
    return Tensor{nowhere.data(), t, shape, {}, device};
  };
  const Tensor row = tensor(dtype, {1, 1, 1, head_dim}), lse = tensor(DType::f32, {1, 1, 1});
  const Problem problem{.q = row, .k = row, .v = row};
  const ForwardOutputs outputs{row, lse, std::nullopt};
  if (operation == "forward") {
    workspace_size(problem, outputs, Execution{});
  } else if (operation == "decode") {
    workspace_size(problem, Append{}, outputs, Execution{});
  } else {
    const BackwardTensors tensors{
        .dout = row, .out = row, .lse = lse, .dq = row, .dk = row, .dv = row};
    workspace_size(problem, tensors, Execution{});
  }
}

}  // namespace

std::vector<Ability> abilities(const DLDevice& device) {
  const int largest = limits().max_head_dim;
  std::vector<Ability> all;
  for (const char* operation : {"forward", "backward", "decode"}) {
    Ability& ability = all.emplace_back(Ability{operation, {}, {}});
    for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
      const std::string name = verify::name_of(dtype);
      ability.head_dim[name] = 0;
      // Sizes are served up to a bound: the usual ones, from the largest on.
      for (const int size : {largest, 512, 256, 192, 128, 64, 32}) {
        try {
          ask(operation, device, dtype, size);
          ability.head_dim[name] = size;
          break;
        } catch (const Error& refusal) {
          ability.refusals[name] = refusal.what();
        }
      }
    }
  }
  return all;
}

std::string ability_text(const Ability& ability) {
  std::map<int, std::string, std::greater<>> by_size;
  for (const auto& [dtype, size] : ability.head_dim) {
    std::string& names = by_size[size];
    names += (names.empty() ? "" : " ") + dtype;
  }
  std::string text;
  for (const auto& [size, names] : by_size) {
    if (!text.empty()) text += "; ";
    text += size > 0 ? names + ", head sizes to " + std::to_string(size) : "not " + names;
    if (size == 0) text += " (" + ability.refusals.at(names.substr(0, names.find(' '))) + ")";
  }
  return text;
}

}  // namespace rocflash::cli
