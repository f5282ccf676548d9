// Fused backward on AMD GPUs: one kernel computes each of the five products once. It is the dK/dV
// kernel (amd_dkdv.hpp) with a dQ stage: dQ of each tile is added to an f32 accumulator in memory
// with atomics. Their order varies, so the last bits of dQ differ from run to run.
//
//   each wave   S = Q·Kᵀ, dP = dO·Vᵀ, dVᵀ += dOᵀ·P, dKᵀ += Qᵀ·dS   for its keys
//   then        dQ = dS·K                                           for its columns, over all keys
//
// Waves exchange dS through LDS (backward/amd_ds_exchange.hpp). Each wave keeps its columns of K in
// registers.
//
// Specialized kernels have a software-pipelined schedule (cdna_fused_pipelined.hpp). Waves whose
// registers do not hold all of this work in pairs (amd_fused_wave_pairs.hpp). This file has the
// schedule of generic kernels, with two barriers per tile. The tile is in LDS after the first and
// dS after the second. The dQ product then overlaps with the stores of the next tile.
#pragma once

#include "backward/amd_fused_wave_pairs.hpp"
#include "backward/cdna_fused_pipelined.hpp"

namespace rocflash::kernel {

// The dQ stage of main_dk_dv.
template <KernelSpec spec>
class FusedDq {
  using Types = BackwardTypes<spec>;
  using DqTile = DqTilePartition<Types>;
  using Mma = typename Types::Mma;
  using Exchange = typename DqTile::Exchange;
  using Packed = PackedColumn<Mma, Types::tile.streamed>;
  static_assert(Types::buffers == 1);

 public:
  static constexpr bool overlapped = true;

  template <class Result, int depth, int together, class A, class B>
  static Result product(const A& a, const B& b) {
    return multiply_prefetched<Result, depth>(a, b);
  }
  template <int depth, class Sums, class A, class B>
  static void add_product(Sums& sums, const A& a, const B& b) {
    multiply_add_prefetched<depth>(sums, a, b);
  }

  // `lds` has storage for one transposed tile.
  FusedDq(const BackwardArguments& a, const SequenceView& sequence, std::int32_t kv_head,
          std::int32_t first_key, SharedWords4* lds)
      : arguments_(a),
        sequence_(sequence),
        k_(a.problem.k, sequence.batch, sequence.k_row + first_key, sequence.sk - first_key,
           kv_head, lds),
        exchange_(exchange_storage()) {}

  template <class Rounded>
  Packed exchange_ds(const Rounded& ds) const {
    const Packed packed(ds);
    exchange_.write(packed);
    return packed;
  }
  void exchange_zeros() const { exchange_.write(Packed()); }

  void multiply(std::int32_t head, std::int32_t first_query) {
    ROCFLASH_UNROLL
    for (int part = 0; part < DqTile::parts; ++part) dq_[part] = typename Mma::Result{};
    prefetch_fragments<Mma, DqTile::owned / Mma::depth>(
        [&](int step) { return exchange_.fragment(DqTile::query_part(), step); },
        [&](int step, const typename Mma::Operand& left) {
          ROCFLASH_UNROLL
          for (int part = 0; part < DqTile::parts; ++part)
            dq_[part] = Mma::multiply(left, k_.fragment(part, step), dq_[part]);
        });
    head_ = head;
    first_query_ = first_query;
    rows_ = static_cast<std::int32_t>(smaller(sequence_.sq - first_query, DqTile::streamed));
  }

  // Atomic dQ accumulation.
  void add() const {
    using Layout = typename Mma::Layout;
    const arch::BufferResource sums(
        row_address<DType::f32>(arch::reload_kernargs(arguments_).dq_accum, sequence_.batch,
                                sequence_.q_row + first_query_, head_),
        static_cast<std::uint32_t>(rows_ * row_bytes));
    const int row = DqTile::query_part() * Mma::rows + Layout::lane_row(arch::lane());
    ROCFLASH_UNROLL
    for (int part = 0; part < DqTile::parts; ++part) {
      const int column =
          DqTile::column_part(part) * Mma::columns + Layout::lane_column(arch::lane());
      ROCFLASH_UNROLL
      for (int r = 0; r < Mma::results; ++r)
        sums.add(dq_[part][r], static_cast<std::uint32_t>(row * row_bytes + 4 * column +
                                                          Layout::register_row(r) * row_bytes));
    }
  }

 private:
  static constexpr int row_bytes = 4 * spec.bucket;

  static SharedWords4* exchange_storage() {
    ROCFLASH_SHARED_ARRAY Words4 lds[Exchange::chunks];
    return lds;
  }

  const BackwardArguments& arguments_;
  const SequenceView& sequence_;
  KeyColumns<Types> k_;
  Exchange exchange_;
  // dQ of the previous tile; rows_ of them are valid, none before the first tile.
  typename Mma::Result dq_[DqTile::parts] = {};
  std::int32_t head_ = 0, first_query_ = 0, rows_ = 0;
};

template <KernelSpec spec>
void backward_fused(const BackwardArguments& a) {
  if constexpr (backward_tile(this_family, spec).roles == 2) {
    fused_wave_pairs<spec>(a);
  } else if constexpr (spec.variant == Variant::specialized) {
    fused_pipelined<spec>(a);
  } else {
    main_dk_dv<spec, true, true, FusedDq<spec>>(a);
  }
}

}  // namespace rocflash::kernel
