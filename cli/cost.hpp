// What attention costs: arithmetic, bytes that have to move, bytes that kernels ask for, and the
// peak of a device. Pure functions.
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

// Multiplications and additions of forward's two products. Causal counts as half, by custom; a
// window counts the keys it lets each query see.
double forward_flops(const CostShape& shape);

// Bytes between a GPU's memory and its kernels.
struct Traffic {
  double least = 0;      // each input read once, each output written once
  double requested = 0;  // as workgroups ask for it: every block of queries reads the keys it sees
};
// For elements of two bytes, by the tiles of the family's plain kernels; `family` as
// rocflash_target has it.
Traffic forward_traffic(const CostShape& shape, const std::string& family);
// Of the kernels that compute each gradient in one order: dout·out, then dq, then dk and dv.
Traffic backward_traffic(const CostShape& shape, const std::string& family);

// TFLOP/s of f16 and bf16 matrix products without sparsity, at the boost clock of the
// architecture's first product; none for architectures that the table does not have.
std::optional<double> peak_tflops(const std::string& arch, int units);

}  // namespace rocflash::cli
