// What a kernel is told. The host fills these structs and the device reads them, so both compile
// this header; the problem is the very one that the door checked.
//
// The host cannot look into the int tensors of a GPU (that would mean to wait for it), so kernels
// take no length, page or batch index on trust: sequence.hpp clamps them to what the tensors hold.
#pragma once

#include <cstdint>

#include "core/problem.hpp"
#include "table/kernels.hpp"

namespace rocflash::kernel {

// Which workgroup does what. Workgroups count in one dimension; group g of `groups` does a query
// block of some plane, a pair of sequence and head, in an order that lets those who read the same
// keys run where and when they share a cache (WorkItem in work.hpp).
struct Work {
  std::int32_t query_blocks = 0;  // of a sequence: max_q over the tile's rows, rounded up
  std::int32_t groups = 0;
  std::int32_t partitions = 1;  // chips with caches of their own that take workgroups in turn: XCDs
  std::int32_t planes_together = 1;  // so many planes take turns, the longest blocks of all first
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
  std::int32_t groups = 0;  // workgroups; any number will do
  std::int32_t caches = 0;
};

// What the kernels of an operation are given.
template <Operation operation>
struct ArgumentsChoice;
template <>
struct ArgumentsChoice<Operation::forward> {
  using Type = ForwardArguments;
};
template <>
struct ArgumentsChoice<Operation::weights> {
  using Type = WeightsArguments;
};
template <Operation operation>
using ArgumentsOf = typename ArgumentsChoice<operation>::Type;

// The device lays structs out as the host does; a difference would show here first.
static_assert(sizeof(void*) == 8 && sizeof(Problem) % 8 == 0 && alignof(Problem) == 8);

}  // namespace rocflash::kernel
