// A tensor that owns its memory and detects wrong accesses: guard zones before and after it, gaps
// between strided elements, and a pattern that is NaN in all floating-point dtypes in every byte
// that belongs to no element.
#pragma once

#include <rocflash/rocflash.hpp>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "verify/case.hpp"

namespace rocflash::verify {

// The dimensions that a layout rearranges. The last dimension stays contiguous.
struct Axes {
  std::size_t row, head;
  std::size_t broadcast;  // has stride 0 in Layout::broadcast
};

enum class Role : std::uint8_t { input, output };  // elements of outputs never share an address

// Strides for a shape, and the range of element offsets relative to the first element.
struct Placement {
  Dims shape, strides;
  std::int64_t lowest = 0, highest = 0;  // half-open
  std::int64_t shift = 0;                // misalignment of the first element, in elements
};

Placement lay_out(const Dims& shape, Layout layout, Axes axes, Role role);

class Buffer {
 public:
  Buffer(DType dtype, Placement placement);
  Buffer(DType dtype, const Dims& shape)
      : Buffer(dtype, lay_out(shape, Layout::compact, {}, Role::output)) {}

  Tensor tensor() const { return {first(), dtype_, placement_.shape, placement_.strides}; }
  DType dtype() const { return dtype_; }
  const Dims& shape() const { return placement_.shape; }
  std::int64_t size() const;  // elements

  // Elements in row-major order of the shape, whatever the strides.
  std::vector<double> values() const;
  // Sets each element to next(its index).
  void fill(const std::function<double(const Dims&)>& next);
  void set(const Dims& index, double value);
  double get(const Dims& index) const;

  // Empty, or a description of a write outside the elements.
  std::string out_of_bounds_write() const;
  // Empty, or the first element that still holds the poison.
  std::string unwritten() const;

  const std::vector<std::byte>& bytes() const { return bytes_; }
  // Replaces all bytes, for example with those of a copy on a GPU.
  void set_bytes(std::vector<std::byte> bytes) {
    std::copy(bytes.begin(), bytes.end(), bytes_.begin());  // in place: views stay valid
  }

 private:
  std::byte* first() const;
  std::byte* address(const Dims& index) const;
  std::int64_t columns() const { return placement_.shape[placement_.shape.size() - 1]; }
  std::int64_t step() const {  // bytes from column to column
    return placement_.strides[placement_.strides.size() - 1] *
           static_cast<std::int64_t>(size_of(dtype_));
  }
  template <class Visit>
  void for_each_row(Visit visit) const;

  DType dtype_;
  Placement placement_;
  mutable std::vector<std::byte> bytes_;  // tensors are views that DLPack cannot make const
};

}  // namespace rocflash::verify
