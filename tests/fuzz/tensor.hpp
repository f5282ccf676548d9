// A tensor of the fuzzer: any strides, values as doubles, and detection of stray writes.
#pragma once

#include <rocflash/rocflash.h>

#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "core/dtype.hpp"
#include "fuzz/bytes.hpp"

namespace rocflash::fuzz {

class Tensor {
 public:
  Tensor() = default;
  Tensor(Tensor&& other) noexcept { *this = std::move(other); }
  // dl points into the tensor itself, so it is rebuilt.
  Tensor& operator=(Tensor&& other) noexcept;

  // Contiguous, or with strides drawn from `bytes`: permuted dimensions except the last, gaps,
  // negative strides; inputs may also have strides of 0.
  Tensor(DType dtype, std::initializer_list<std::int64_t> shape, Bytes* bytes = nullptr,
         bool input = false);

  explicit operator bool() const { return dl.ndim > 0; }
  DType dtype() const { return dtype_; }
  std::int64_t size() const { return count_; }
  double get(std::int64_t n) const { return load_as_double(first(), dtype_, offset(n)); }
  void set(std::int64_t n, double x) { store_double(first(), dtype_, offset(n), x); }
  std::vector<double> values() const;
  double largest() const;

  const std::vector<std::byte>& bytes() const { return memory_; }
  void wipe();          // resets the memory to the pattern
  bool stray_writes();  // bytes outside the elements that no longer have the pattern

  DLTensor dl{};  // public, so that it can be corrupted; `reset_dl` restores it
  void reset_dl();

  std::int64_t shape[5] = {}, stride[5] = {};  // dl points to these

 private:
  std::byte* first() const { return const_cast<std::byte*>(memory_.data()) + first_; }
  std::int64_t offset(std::int64_t n) const;

  DType dtype_ = DType::f32;
  int ndim_ = 0;
  std::int64_t true_shape_[5] = {}, true_stride_[5] = {};
  std::int64_t count_ = 0;
  std::size_t first_ = 0;
  std::vector<std::byte> memory_;
};

}  // namespace rocflash::fuzz
