// Uses of Hopper's products that must not compile; each test defines one, and expects the
// compiler's message. Without any it compiles.
#define ROCFLASH_THIS_FAMILY sm80
#define ROCFLASH_ARCH_HEADER "arch/sm90.hpp"
#pragma clang force_cuda_host_device begin
#include "tile/sm90.hpp"

namespace rocflash::kernel {

template <int columns>
void product(SharedAddress tile, float* to, FillPlace<2> fill, DrainPlace<2> drain) {
  using Tile = Panels<64, columns>;
  const Ring<2> ring(tile + Tile::bytes);
  GroupTile<64> scores;
  GroupTile<columns> sums;
  Fragments<4> left;
  sums.clear();
  ring.wait(drain);
#ifdef DRAIN_AS_FILL
  ring.wait(fill);
#endif
  ring.fill(fill, Tile::bytes);

  Products first(sums);
  first.template multiply<DType::bf16, columns>(scores, RowLines<Tile>(tile), RowLines<Tile>(tile));
  first.commit();
#ifdef READ_IN_FLIGHT
  *to = scores.at(0, 0);
#endif
#ifdef ADD_AFTER_COMMIT
  first.template multiply<DType::bf16, columns>(scores, RowLines<Tile>(tile), RowLines<Tile>(tile));
#endif
  wait<0>(scores);
  left.template round<DType::bf16>(scores);
  Products second(sums, left);
  second.template add<DType::bf16>(sums, left, ColumnLines<Tile>(tile));
  second.commit();
#ifdef CHANGE_OPERAND
  left.template round<DType::bf16>(scores);
#endif
  wait<0>(sums, left);
  *to = sums.at(0, 0);
}

template void product<128>(SharedAddress, float*, FillPlace<2>, DrainPlace<2>);

}  // namespace rocflash::kernel
#pragma clang force_cuda_host_device end
