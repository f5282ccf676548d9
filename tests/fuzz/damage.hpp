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

// Sizes, strides, dtypes and places that no valid call has, or that only make a tensor smaller.
void damage_tensor(Bytes& bytes, Tensor& t);

template <class Struct>
void damage_size(Bytes& bytes, Roomy<Struct>& r) {
  constexpr int room = sizeof r.tail;
  switch (bytes.range(0, 2)) {
    case 0:
      r.s.struct_size = static_cast<std::size_t>(bytes.raw<std::uint64_t>()) | 8192;
      break;
    case 1:
      r.s.struct_size =
          static_cast<std::size_t>(bytes.range(0, static_cast<int>(sizeof(Struct)) - 1));
      break;
    default:
      r.s.struct_size = sizeof(Struct) + static_cast<std::size_t>(bytes.range(0, room));
      if (bytes.chance(128)) r.tail[bytes.range(0, room - 1)] = bytes.byte();
  }
}

void damage(Bytes& bytes, Problem& p, Outputs& o, Call& call);

}  // namespace rocflash::fuzz
