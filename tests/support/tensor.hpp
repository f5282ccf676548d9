// A tensor that owns its memory and exports it as a DLTensor with any strides.
#pragma once

#include <rocflash/rocflash.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>
#include <random>
#include <vector>

#include "core/dtype.hpp"
#include "support/dlpack.hpp"

namespace rocflash::test {

// An allocation of exactly the tensor's size, so that a sanitizer detects out-of-bounds accesses.
struct Memory {
  explicit Memory(std::size_t bytes)
      : size(bytes), data(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{64}))) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { ::operator delete(data, std::align_val_t{64}); }
  std::size_t size;
  std::byte* data;
};

class HostTensor {
 public:
  HostTensor() = default;
  // `order` lists the dimensions from the outermost in memory; `gap` elements separate rows of the
  // last dimension.
  HostTensor(DType dtype, std::vector<std::int64_t> shape, std::vector<int> order = {},
             std::int64_t gap = 0)
      : dtype_(dtype), shape_(std::move(shape)), stride_(shape_.size(), 0) {
    const int n = static_cast<int>(shape_.size());
    if (order.empty())
      for (int i = 0; i < n; ++i) order.push_back(i);
    std::int64_t step = 1;
    for (int i = n - 1; i >= 0; --i) {
      const auto dim = static_cast<std::size_t>(order[static_cast<std::size_t>(i)]);
      stride_[dim] = step;
      step *= std::max<std::int64_t>(shape_[dim], 1);
      if (i == n - 1) step += gap;
    }
    memory_ = std::make_shared<Memory>(static_cast<std::size_t>(step) * size_of(dtype_));
    std::memset(memory_->data, 0x5a, memory_->size);
    dl.data = memory_->data;
    dl.device = {kDLCPU, 0};
    dl.ndim = n;
    dl.dtype = dl_dtype(dtype_);
    dl.shape = shape_.data();
    dl.strides = stride_.data();
    dl.byte_offset = 0;
  }
  HostTensor(HostTensor&&) = default;
  HostTensor& operator=(HostTensor&&) = default;

  explicit operator bool() const { return memory_ != nullptr; }
  DType dtype() const { return dtype_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  std::int64_t size() const {
    std::int64_t n = 1;
    for (const std::int64_t s : shape_) n *= s;
    return n;
  }
  const Memory& memory() const { return *memory_; }

  double get(std::initializer_list<std::int64_t> at) const {
    return load_as_double(memory_->data, dtype_, offset(at.begin()));
  }
  void set(std::initializer_list<std::int64_t> at, double x) {
    store_double(memory_->data, dtype_, offset(at.begin()), x);
  }
  // Elements in row-major order of the indices, for any strides.
  double flat(std::int64_t n) const {
    return load_as_double(memory_->data, dtype_, flat_offset(n));
  }
  void set_flat(std::int64_t n, double x) {
    store_double(memory_->data, dtype_, flat_offset(n), x);
  }

  HostTensor& fill(double x) {
    for (std::int64_t n = 0; n < size(); ++n) set_flat(n, x);
    return *this;
  }
  HostTensor& fill_normal(std::mt19937_64& random, double scale = 1) {
    std::normal_distribution<double> normal(0, scale);
    for (std::int64_t n = 0; n < size(); ++n) set_flat(n, normal(random));
    return *this;
  }
  HostTensor& assign(std::initializer_list<double> values) {
    std::int64_t n = 0;
    for (const double x : values) set_flat(n++, x);
    return *this;
  }
  std::vector<std::byte> bytes() const { return {memory_->data, memory_->data + memory_->size}; }
  std::vector<double> values() const {
    std::vector<double> all;
    for (std::int64_t n = 0; n < size(); ++n) all.push_back(flat(n));
    return all;
  }

  DLTensor dl{};  // public, so that tests can make it invalid

 private:
  std::int64_t offset(const std::int64_t* at) const {
    std::int64_t sum = 0;
    for (std::size_t n = 0; n < shape_.size(); ++n) sum += at[n] * stride_[n];
    return sum;
  }
  std::int64_t flat_offset(std::int64_t n) const {
    std::int64_t sum = 0;
    for (std::size_t i = shape_.size(); i-- > 0; n /= shape_[i]) sum += n % shape_[i] * stride_[i];
    return sum;
  }

  DType dtype_ = DType::f32;
  std::vector<std::int64_t> shape_, stride_;
  std::shared_ptr<Memory> memory_;
};

}  // namespace rocflash::test
