// The cost of attention: FLOPs, minimum memory traffic, memory traffic that kernels request, and
// the peak of a device. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace rocflash::cli {

struct CostShape {
  std::int64_t b, h, hk, sq, sk, d;
  bool causal = false;
  std::int64_t left = -1, right = -1;  // a window; -1: no bound
};

// FLOPs of forward's two products. By convention a causal mask halves them; a window counts the
// visible keys of each query.
double forward_flops(const CostShape& shape);

// Bytes between a GPU's memory and its kernels.
struct Traffic {
  double least = 0;      // each input read once, each output written once
  double requested = 0;  // by the workgroups: each query block reads its visible keys
};
// For 16-bit elements and the tiles of the family's specialized kernels; `family` is that of
// rocflash_target.
Traffic forward_traffic(const CostShape& shape, const std::string& family);
// For the backward kernels that the family selects: preprocess, then fused or one per gradient.
Traffic backward_traffic(const CostShape& shape, const std::string& family);

// Peak TFLOP/s of dense f16 and bf16 matrix products at the boost clock of the architecture's first
// product; none for architectures that are not in the table.
std::optional<double> peak_tflops(const std::string& arch, int units);

}  // namespace rocflash::cli
