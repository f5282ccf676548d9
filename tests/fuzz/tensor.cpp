#include "fuzz/tensor.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "support/dlpack.hpp"

namespace rocflash::fuzz {
namespace {

constexpr std::byte pattern{0x5a};

}  // namespace

Tensor::Tensor(DType dtype, std::initializer_list<std::int64_t> dims, Bytes* bytes, bool input)
    : dtype_(dtype), ndim_(static_cast<int>(dims.size())) {
  std::copy(dims.begin(), dims.end(), true_shape_);
  count_ = 1;
  for (const std::int64_t n : dims) count_ *= n;

  int order[5] = {0, 1, 2, 3, 4};  // outermost first; the last dimension stays innermost
  if (bytes && ndim_ > 2 && bytes->chance(96)) std::swap(order[ndim_ - 2], order[ndim_ - 3]);
  if (bytes && ndim_ > 3 && bytes->chance(48)) std::swap(order[0], order[1]);
  std::int64_t step = 1, lowest = 0;
  for (int n = ndim_ - 1; n >= 0; --n) {
    const int d = order[n];
    const std::int64_t size = true_shape_[d];
    true_stride_[d] = step;
    if (bytes && n < ndim_ - 1) {
      if (input && bytes->chance(24)) {
        true_stride_[d] = 0;
        continue;
      }
      if (bytes->chance(32) && size > 0) {
        true_stride_[d] = -step;
        lowest += step * (size - 1);
      }
    }
    step *= std::max<std::int64_t>(size, 1);
    if (bytes && bytes->chance(48)) step += bytes->range(1, 5);
  }
  // Space for a corrupted dtype that is wider, and for a corrupted offset.
  const std::size_t width = bytes ? size_of(dtype_) : 8;
  memory_.assign(static_cast<std::size_t>(step) * width + (bytes ? 0 : 16), pattern);
  first_ = static_cast<std::size_t>(lowest) * size_of(dtype_);
  reset_dl();
}

Tensor& Tensor::operator=(Tensor&& other) noexcept {
  dtype_ = other.dtype_;
  ndim_ = other.ndim_;
  count_ = other.count_;
  first_ = other.first_;
  memory_ = std::move(other.memory_);
  std::copy(other.true_shape_, other.true_shape_ + 5, true_shape_);
  std::copy(other.true_stride_, other.true_stride_ + 5, true_stride_);
  reset_dl();
  return *this;
}

void Tensor::reset_dl() {
  std::copy(true_shape_, true_shape_ + 5, shape);
  std::copy(true_stride_, true_stride_ + 5, stride);
  dl = {first(), {kDLCPU, 0}, ndim_, test::dl_dtype(dtype_), shape, stride, 0};
}

std::int64_t Tensor::offset(std::int64_t n) const {
  std::int64_t sum = 0;
  for (int d = ndim_ - 1; d >= 0; n /= true_shape_[d--])
    sum += n % true_shape_[d] * true_stride_[d];
  return sum;
}

std::vector<double> Tensor::values() const {
  std::vector<double> all(static_cast<std::size_t>(count_));
  for (std::int64_t n = 0; n < count_; ++n) all[static_cast<std::size_t>(n)] = get(n);
  return all;
}

double Tensor::largest() const {
  double most = 0;
  for (std::int64_t n = 0; n < count_; ++n) most = std::max(most, std::abs(get(n)));
  return most;
}

void Tensor::wipe() { std::fill(memory_.begin(), memory_.end(), pattern); }

bool Tensor::stray_writes() {
  std::vector<bool> element(memory_.size(), false);
  for (std::int64_t n = 0; n < count_; ++n) {
    const auto at =
        first_ + static_cast<std::size_t>(offset(n) * static_cast<std::int64_t>(size_of(dtype_)));
    for (std::size_t b = 0; b < size_of(dtype_); ++b) element[at + b] = true;
  }
  for (std::size_t n = 0; n < memory_.size(); ++n) {
    if (!element[n] && memory_[n] != pattern) return true;
  }
  return false;
}

}  // namespace rocflash::fuzz
