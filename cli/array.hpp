// Tensors of the benchmarks: large, without guard zones.
#pragma once

#include <cmath>
#include <cstring>
#include <new>
#include <string>

#include "rocflash/rocflash.hpp"
#include "verify/random.hpp"
#include "verify/scalar.hpp"

namespace rocflash::cli {

inline DType parse_dtype(const std::string& name) {
  for (const DType t : {DType::f32, DType::f16, DType::bf16}) {
    if (name == verify::name_of(t)) return t;
  }
  return DType::f32;
}

inline std::size_t bytes_of(DType dtype, const Dims& shape) {
  std::size_t bytes = size_of(dtype);
  for (const std::int64_t n : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::size_t>(n), &bytes)) throw std::bad_alloc();
  }
  return bytes;
}

class Array {
 public:
  Array(DType dtype, Dims shape) : dtype_(dtype), shape_(shape), bytes_(bytes_of(dtype, shape)) {
    memory_.reserve(bytes_);
    std::memset(memory_.data(), 0, bytes_);
  }
  Tensor tensor() const { return {memory_.data(), dtype_, shape_}; }
  void fill(std::uint64_t seed) {
    verify::Random random(seed);
    for (std::size_t n = 0; n < bytes_; n += size_of(dtype_))
      verify::store(at(n), dtype_, random.normal());
  }
  double difference(const Array& other) const {
    double largest = 0;
    for (std::size_t n = 0; n < bytes_; n += size_of(dtype_)) {
      const double d = std::abs(verify::load(at(n), dtype_) - verify::load(other.at(n), dtype_));
      if (!(d <= largest)) largest = d;  // NaN propagates
    }
    return largest;
  }

  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* at(std::size_t n) const { return static_cast<std::byte*>(memory_.data()) + n; }

  DType dtype_;
  Dims shape_;
  std::size_t bytes_;
  Workspace memory_;  // aligned to cache lines, as in frameworks
};

}  // namespace rocflash::cli
