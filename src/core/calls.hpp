// The calls that backends are given, whole: what to compute, what to write, and with what.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/append.hpp"
#include "core/names.hpp"
#include "core/parts.hpp"
#include "core/problem.hpp"

namespace rocflash::core {

// Threads or a stream, and the caller's scratch memory. Whether that is enough is checked by the
// backend, which knows how much it needs.
struct Resources : Execution {
  std::size_t workspace_size = 0;
};

struct ForwardCall {
  Problem problem;
  ForwardOutputs outputs;
  Resources resources;
};

// Forward over a cache, into which new keys and values are written first.
struct DecodeCall : ForwardCall {
  Append append;
};

struct BackwardCall {
  Problem problem;
  BackwardTensors tensors;
  Resources resources;
};

struct CombineCall : Parts {
  Resources resources;
};

// Rotary embedding by itself. Of the problem there are only queries, which are rotated, each at its own
// position.
struct RotateCall {
  Problem problem;
  Rotary rotary;
  Rows out;
  Resources resources;
};

}  // namespace rocflash::core
