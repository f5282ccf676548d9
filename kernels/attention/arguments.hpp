// What a kernel is told. The host fills these structs and the device reads them, so both compile this
// header. The problem is the one that the C ABI checked.
//
// The host cannot read the int tensors of a GPU without waiting for it, so kernels do not trust any
// length, page or batch index: sequence.hpp clamps them to what the tensors hold.
#pragma once

#include <cstdint>

#include "core/new_keys.hpp"
#include "core/problem.hpp"
#include "table/backward.hpp"
#include "table/wide.hpp"

namespace rocflash::kernel {

// How workgroups share the work. They are numbered in one dimension; each computes one block of queries
// of one plane, a pair of sequence and head. The order lets workgroups that read the same keys run where
// and when they share a cache (WorkItem in work.hpp).
struct Work {
  std::int32_t blocks = 0;  // of a sequence: its most rows over those of a tile, rounded up
  std::int32_t groups = 0;
  std::int32_t partitions = 1;  // chips with their own caches that get workgroups in turn: XCDs
  std::int32_t planes_together = 1;  // planes whose blocks alternate, the longest blocks first
};

struct ForwardArguments {
  Problem problem;
  ForwardOutputs outputs;
  Work work;
  std::int32_t caches = 0;  // batches that k and v have: what a block table may name
};

// s_dmask is computed by a kernel of its own.
struct WeightsArguments {
  Problem problem;
  Plane weights;
  std::int32_t groups = 0;  // workgroups; any number is correct
  std::int32_t caches = 0;
};

// The problem is that before anything is appended.
struct AppendArguments {
  Problem problem;
  Append append;
  std::int32_t* used =
      nullptr;              // gets the keys that each sequence then has; null: as many as before
  Rows q;                   // gets the rotated queries; without data: they are not rotated
  std::int32_t groups = 0;  // workgroups; any number is correct
  std::int32_t caches = 0;
};

// What all kernels of backward are given: they share one struct.
struct BackwardArguments {
  Problem problem;
  BackwardTensors tensors;
  Work work;           // its blocks are of queries or of keys, as the kernel owns
  RowStatistic delta;  // dout·out, divided by dropout's scale: one kernel writes it, others read it
  Rows dq_sums;        // f32, as dq: what backward_fused adds to and backward_round reads
  RowStatistic slope_sums;  // of dalibi, per sequence, head and block of queries
};

// What the kernels of an operation are given: the entry declares them so, and the host's plan fills
// it in.
template <Operation operation>
struct ArgumentsChoice;
template <Operation operation>
  requires(is_backward(operation) || (is_wide(operation) && operation != Operation::forward_wide))
struct ArgumentsChoice<operation> {
  using Type = BackwardArguments;
};
template <>
struct ArgumentsChoice<Operation::forward> {
  using Type = ForwardArguments;
};
template <>
struct ArgumentsChoice<Operation::forward_wide> {
  using Type = ForwardArguments;
};
template <>
struct ArgumentsChoice<Operation::weights> {
  using Type = WeightsArguments;
};
template <>
struct ArgumentsChoice<Operation::append> {
  using Type = AppendArguments;
};
template <Operation operation>
using ArgumentsOf = typename ArgumentsChoice<operation>::Type;

// The device lays structs out as the host does; a difference would show here first.
static_assert(sizeof(void*) == 8 && sizeof(Problem) % 8 == 0 && alignof(Problem) == 8);

}  // namespace rocflash::kernel
