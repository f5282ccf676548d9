// Combine of the tail-split kernel: waves n and n + waves / 2 have the same queries and different
// keys of every tile. The leading wave of each pair ends up with the combined result.
#pragma once

#include "forward/cdna_softmax.hpp"

namespace rocflash::kernel {

// Chunks of LDS per row block of Oᵀ and lane (16 results of 4 bytes), and row blocks per LDS array.
inline constexpr int tail_split_chunks = 4, tail_split_blocks_per_array = 2;

// Offset of a wave pair's LDS slot, in chunks, in each of the two arrays.
template <class Types>
int tail_split_slot() {
  return arch::wave() % (Types::waves / 2) * tail_split_blocks_per_array * tail_split_chunks *
         arch::wave_size;
}

// O and the row sum of both waves of a pair are rescaled to the common row max, then added. All of
// LDS is free at this point: O goes through both arrays, two row blocks in each.
template <class Types>
void combine_tail_split(DeferredMaxSoftmax& softmax, typename Types::Outputs& out,
                        SharedWords4* const (&lds)[2]) {
  using Mma = typename Types::Mma;
  static_assert(Types::Outputs::row_parts <= 2 * tail_split_blocks_per_array &&
                Mma::results == 4 * tail_split_chunks);
  constexpr int pairs = Types::waves / 2;
  const int wave = arch::wave();
  const bool leading = wave < pairs;

  // Row max and row sum of the partner wave.
  auto* const statistics = (ROCFLASH_SHARED float*)lds[0] + arch::lane();
  arch::barrier();  // the last reads of K and V are done
  statistics[2 * wave * arch::wave_size] = softmax.row_max;
  statistics[(2 * wave + 1) * arch::wave_size] = softmax.sum;
  arch::barrier();
  const int partner = leading ? wave + pairs : wave - pairs;
  const float row_max = statistics[2 * partner * arch::wave_size];
  const float sum = statistics[(2 * partner + 1) * arch::wave_size];
  out.scale(softmax.rescale(row_max));
  softmax.sum += sum * (row_max == -infinity ? 0 : arch::exp2(row_max - softmax.row_max));
  arch::barrier();

  // O of the trailing wave through LDS to the leading wave.
  const auto for_each_chunk = [&](auto use) {
    ROCFLASH_UNROLL
    for (int block = 0; block < Types::Outputs::row_parts; ++block) {
      SharedWords4* const slot =
          lds[block / tail_split_blocks_per_array] + tail_split_slot<Types>() + arch::lane();
      ROCFLASH_UNROLL
      for (int n = 0; n < tail_split_chunks; ++n)
        use(slot[(block % tail_split_blocks_per_array * tail_split_chunks + n) * arch::wave_size],
            out.part[block][0], 4 * n);
    }
  };
  if (!leading)
    for_each_chunk([](SharedWords4& chunk, const typename Mma::Result& o, int n) {
      const float x[4] = {o[n], o[n + 1], o[n + 2], o[n + 3]};
      chunk = __builtin_bit_cast(Words4, x);
    });
  arch::barrier();
  if (leading)
    for_each_chunk([](const SharedWords4& chunk, typename Mma::Result& o, int n) {
      const Words4 words = chunk;
      ROCFLASH_UNROLL
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t word = words[i];
        o[n + i] += __builtin_bit_cast(float, word);
      }
    });
}

}  // namespace rocflash::kernel
