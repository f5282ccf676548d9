// Misuses of wgmma and of the TMA pipeline that must not compile. Each test defines one macro and
// expects the compiler's message. Without any macro the file compiles.
#define ROCFLASH_THIS_FAMILY sm80
#define ROCFLASH_ARCH_HEADER "arch/sm90.hpp"
#pragma clang force_cuda_host_device begin
#include "tile/sm90.hpp"

namespace rocflash::kernel {

template <int columns>
void product(SharedAddress tile, float* to, ProducerState<2> producer, ConsumerState<2> consumer) {
  using Tile = TmaTile<64, columns>;
  const Pipeline<2> pipeline(tile + Tile::bytes);
  WarpgroupTile<64> scores;
  WarpgroupTile<columns> out;
  Fragments<4> p;
  out.clear();
  pipeline.consumer_wait(consumer);
#ifdef CONSUMER_WAIT_ON_PRODUCER_STATE
  pipeline.consumer_wait(producer);
#endif
  pipeline.producer_acquire_expect_tx(producer, Tile::bytes);

  WgmmaBatch first(out);
  first.template multiply<DType::bf16, columns>(scores, KMajorOperand<Tile>(tile),
                                                KMajorOperand<Tile>(tile));
  first.commit();
#ifdef READ_IN_FLIGHT
  *to = scores.at(0, 0);
#endif
#ifdef ADD_AFTER_COMMIT
  first.template multiply<DType::bf16, columns>(scores, KMajorOperand<Tile>(tile),
                                                KMajorOperand<Tile>(tile));
#endif
  wait<0>(scores);
  p.template convert<DType::bf16>(scores);
  WgmmaBatch second(out, p);
  second.template add<DType::bf16>(out, p, MnMajorOperand<Tile>(tile));
  second.commit();
#ifdef CHANGE_OPERAND
  p.template convert<DType::bf16>(scores);
#endif
  wait<0>(out, p);
  *to = out.at(0, 0);
}

template void product<128>(SharedAddress, float*, ProducerState<2>, ConsumerState<2>);

}  // namespace rocflash::kernel
#pragma clang force_cuda_host_device end
