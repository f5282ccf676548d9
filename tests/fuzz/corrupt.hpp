// Corruptions of a call. Each makes it invalid, or leaves it within its memory.
#pragma once

#include "fuzz/problem.hpp"

namespace rocflash::fuzz {

// A struct followed by extra bytes, as a caller with a newer header has.
template <class Struct>
struct Oversized {
  Struct s;
  unsigned char tail[64];
};

struct Call {
  Oversized<rocflash_problem> problem;
  Oversized<rocflash_forward_outputs> forward;
  Oversized<rocflash_backward_tensors> backward;
  Oversized<rocflash_execution> execution;
};

// Sets sizes, strides, dtypes or devices that no valid call has, or that make the tensor smaller.
void corrupt_tensor(Bytes& bytes, Tensor& t);

template <class Struct>
void corrupt_size(Bytes& bytes, Oversized<Struct>& r) {
  constexpr int tail_size = sizeof r.tail;
  switch (bytes.range(0, 2)) {
    case 0:
      r.s.struct_size = static_cast<std::size_t>(bytes.raw<std::uint64_t>()) | 8192;
      break;
    case 1:
      r.s.struct_size =
          static_cast<std::size_t>(bytes.range(0, static_cast<int>(sizeof(Struct)) - 1));
      break;
    default:
      r.s.struct_size = sizeof(Struct) + static_cast<std::size_t>(bytes.range(0, tail_size));
      if (bytes.chance(128)) r.tail[bytes.range(0, tail_size - 1)] = bytes.byte();
  }
}

void corrupt(Bytes& bytes, Problem& p, Outputs& o, Call& call);

}  // namespace rocflash::fuzz
