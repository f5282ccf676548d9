// Ways to spoil a call. Each leaves it either invalid or, if it is accepted, within the memory that
// is there.
#pragma once

#include "fuzz/problem.hpp"

namespace rocflash::fuzz {

// Structs with room behind them, as a caller with a newer header has.
template <class Struct>
struct Roomy {
  Struct s;
  unsigned char tail[64];
};

struct Call {
  Roomy<rocflash_problem> problem;
  Roomy<rocflash_forward_outputs> forward;
  Roomy<rocflash_backward_tensors> backward;
  Roomy<rocflash_execution> execution;
};

void damage(Bytes& bytes, Problem& p, Outputs& o, Call& call);

}  // namespace rocflash::fuzz
