// A DLTensor once it has been looked at: dtype named, strides filled in, data resolved, addresses
// that fit.
#pragma once

#include <rocflash/rocflash.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "core/dtype.hpp"

namespace rocflash {

inline constexpr int max_dims = 5;

// DLPack's device with its type as a number: a caller's newer header may know types that ours does
// not.
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
enum class Data { required, may_be_null };  // a workspace query needs no memory behind the tensors

// Checks all that can be said of a tensor on its own, and refuses it by `name` otherwise. Null
// gives nothing.
std::optional<Tensor> read_tensor(const char* name, const DLTensor* tensor, Access access,
                                  Data data);

// The bytes of a tensor: the first and the last, whether its elements fill all that lies between, and otherwise
// the steps between them.
struct Outline {
  struct Step {
    std::int64_t bytes, count;
  };

  Outline() = default;
  explicit Outline(const Tensor& tensor);

  std::uintptr_t first = 0, last = 0;
  bool empty = true, solid = true;
  std::int64_t element = 0;  // bytes
  Step step[max_dims];       // as if none were negative, smallest first
  int steps = 0;
};

// Whether two tensors share memory. Views that interleave do not. Strides so odd that this takes too many
// steps to find out pass.
bool share_memory(const Outline& a, const Outline& b);

std::string shape_text(std::initializer_list<std::int64_t> shape);
std::string device_text(Device device);

}  // namespace rocflash
