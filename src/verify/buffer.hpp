// A tensor with memory of its own, made to catch mistakes: guard zones before and after, gaps
// between strided elements, and every byte that is not an element set to a pattern that is NaN in
// all floating dtypes.
#pragma once

#include <rocflash/rocflash.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "verify/case.hpp"

namespace rocflash::verify {

// Strides for a shape, and the range of elements they reach around the first one.
struct Placement {
  Dims shape, strides;
  std::int64_t lowest = 0, highest = 0;
};

enum class Role : std::uint8_t { input, output };  // outputs never repeat elements

// `row` and `head` are the dimensions that layouts rearrange; the last one stays contiguous.
Placement place(const Dims& shape, Layout layout, std::size_t row, std::size_t head, Role role);

class Buffer {
 public:
  Buffer(DType dtype, Placement placement);
  Buffer(DType dtype, const Dims& shape) : Buffer(dtype, compact(shape)) {}

  Tensor tensor() const { return {first(), dtype_, place_.shape, place_.strides}; }
  DType dtype() const { return dtype_; }
  const Dims& shape() const { return place_.shape; }
  std::int64_t size() const;  // elements

  // Elements in row-major order of the shape, whatever the strides.
  std::vector<double> values() const;
  void fill(const std::function<double()>& next);
  double at(const Dims& index) const;
  void set(const Dims& index, double value);
  // Row-major visit of all indices.
  void for_each(const std::function<void(const Dims&)>& visit) const;

  // All bytes back to the poison.
  void poison();
  // Empty, or what was written outside of the elements.
  std::string trespass() const;
  // Empty, or the first element that still holds the poison.
  std::string unwritten() const;

  bool same_bytes(const Buffer& other) const { return bytes_ == other.bytes_; }

 private:
  static Placement compact(const Dims& shape);
  std::byte* first() const;
  std::byte* address(const Dims& index) const;

  DType dtype_;
  Placement place_;
  mutable std::vector<std::byte> bytes_;  // tensors are views that DLPack cannot make const
};

}  // namespace rocflash::verify
