// Validated calls, the input of backends: problem, outputs and resources.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/append.hpp"
#include "core/names.hpp"
#include "core/partials.hpp"
#include "core/problem.hpp"

namespace rocflash::core {

// Threads or a stream, and the caller's workspace. The backend checks the workspace size.
struct Resources : Execution {
  std::size_t workspace_size = 0;
};

struct ForwardCall {
  Problem problem;
  ForwardOutputs outputs;
  Resources resources;
};

// Forward over a KV cache, to which new keys and values are appended first.
struct DecodeCall : ForwardCall {
  Append append;
};

struct BackwardCall {
  Problem problem;
  BackwardTensors tensors;
  Resources resources;
  // Output, may be null: (rowsum(dO·O) − dlse) / dropout scale, query_stride 1.
  RowStatistic delta = {};
  RowStatistic dlse = {};  // input, may be null: gradient of lse
};

struct CombineCall : Partials {
  Resources resources;
};

// Rotary embedding alone. The problem has only queries, each rotated to its own position.
struct RotateCall {
  Problem problem;
  Rotary rotary;
  Rows out;
  Resources resources;
};

}  // namespace rocflash::core
