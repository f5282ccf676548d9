// Tensors that the benchmarks own: large, without guards.
#pragma once

#include <cmath>
#include <string>
#include <vector>

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

class Array {
 public:
  Array(DType dtype, Dims shape) : dtype_(dtype), shape_(shape) {
    std::size_t elements = 1;
    for (const std::int64_t n : shape_) elements *= static_cast<std::size_t>(n);
    bytes_.resize(elements * size_of(dtype_));
  }
  Tensor tensor() const { return {bytes_.data(), dtype_, shape_}; }
  void fill(std::uint64_t seed) {
    verify::Random random(seed);
    for (std::size_t n = 0; n < bytes_.size(); n += size_of(dtype_))
      verify::store(&bytes_[n], dtype_, random.normal());
  }
  double difference(const Array& other) const {
    double largest = 0;
    for (std::size_t n = 0; n < bytes_.size(); n += size_of(dtype_)) {
      const double d =
          std::abs(verify::load(&bytes_[n], dtype_) - verify::load(&other.bytes_[n], dtype_));
      if (!(d <= largest)) largest = d;  // a NaN wins, and shows
    }
    return largest;
  }

  std::size_t bytes() const { return bytes_.size(); }

 private:
  DType dtype_;
  Dims shape_;
  std::vector<std::byte> bytes_;
};

}  // namespace rocflash::cli
