// A validated DLTensor: dtype, strides and data pointer resolved, its extent within 64-bit
// addresses.
#pragma once

#include <rocflash/rocflash.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "core/dtype.hpp"

namespace rocflash {

inline constexpr int max_dims = 5;

// DLPack's device with an integer type: a caller's header may define types that ours does not.
struct Device {
  int type = kDLCPU, id = 0;
  bool operator==(const Device&) const = default;
};

struct Tensor {
  const char* name = "";
  std::byte* data = nullptr;
  DType dtype = DType::f32;
  Device device;
  int ndim = 0;
  std::int64_t shape[max_dims] = {};
  std::int64_t stride[max_dims] = {};  // in elements; 0 for dimensions of one element

  bool empty() const;
  std::string shape_text() const;
};

enum class Access { read, write };
enum class Data { required, may_be_null };  // workspace queries accept null data

// Validates one tensor; errors start with `name`. Null gives nullopt.
std::optional<Tensor> read_tensor(const char* name, const DLTensor* tensor, Access access,
                                  Data data);

// The bytes that a tensor spans, and its strides if it is not contiguous.
struct Extent {
  struct Step {
    std::int64_t bytes, count;
  };

  Extent() = default;
  explicit Extent(const Tensor& tensor);

  std::uintptr_t first = 0, last = 0;
  bool empty = true, contiguous = true;
  std::int64_t element = 0;  // bytes
  Step step[max_dims];       // absolute strides, smallest first
  int steps = 0;
};

// Whether two tensors share a byte. Interleaved views do not. The search is bounded: irregular
// strides that exceed it pass as disjoint.
bool overlap(const Extent& a, const Extent& b);

std::string shape_text(std::initializer_list<std::int64_t> shape);
std::string device_text(Device device);

}  // namespace rocflash
