#include "capabilities.hpp"

#include <array>

#include "verify/scalar.hpp"

namespace rocflash::cli {
namespace {

// A size query for one query and one key of one head. The address is never dereferenced.
void query(const std::string& operation, const DLDevice& device, DType dtype, int head_dim) {
  static std::array<std::byte, 64> placeholder{};
  const auto tensor = [&](DType t, const Dims& shape) {
    return Tensor{placeholder.data(), t, shape, {}, device};
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

std::vector<Capability> capabilities(const DLDevice& device) {
  const int largest = limits().max_head_dim;
  std::vector<Capability> all;
  for (const char* operation : {"forward", "backward", "decode"}) {
    Capability& capability = all.emplace_back(Capability{operation, {}, {}});
    for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
      const std::string name = verify::name_of(dtype);
      capability.head_dim[name] = 0;
      // Support is monotonic: try the common head dimensions from the largest down.
      for (const int size : {largest, 512, 256, 192, 128, 64, 32}) {
        try {
          query(operation, device, dtype, size);
          capability.head_dim[name] = size;
          break;
        } catch (const Error& refusal) {
          capability.refusals[name] = refusal.what();
        }
      }
    }
  }
  return all;
}

std::string capability_text(const Capability& capability) {
  std::map<int, std::string, std::greater<>> by_size;
  for (const auto& [dtype, size] : capability.head_dim) {
    std::string& names = by_size[size];
    names += (names.empty() ? "" : " ") + dtype;
  }
  std::string text;
  for (const auto& [size, names] : by_size) {
    if (!text.empty()) text += "; ";
    text += size > 0 ? names + ", head dimensions to " + std::to_string(size) : "not " + names;
    if (size == 0) text += " (" + capability.refusals.at(names.substr(0, names.find(' '))) + ")";
  }
  return text;
}

}  // namespace rocflash::cli
