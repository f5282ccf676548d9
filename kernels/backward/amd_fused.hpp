// Backward on AMD GPUs in one kernel that computes each of the five products once. It is the kernel that
// owns keys (amd_keys.hpp), and computes dq too: each tile's share of it is added to sums in memory, to which all
// workgroups of a head add. In which order they do so is not known, so dq's last bits differ from run to run.
//
//   each wave   S = Q·Kᵀ, dP = dO·Vᵀ, dVᵀ += dOᵀ·P, dKᵀ += Qᵀ·dS      for keys of its own
//   then        dQ = dS·K                                              for columns of its own, over all keys
//
// dS is what waves exchange, through LDS (backward/exchange.hpp). The columns of k that a wave
// multiplies it with stay in registers.
//
// Plain problems have a schedule of their own (amd_steps.hpp), and so have waves whose registers do not hold all of that
// (amd_pairs.hpp). Here is that of problems with options: an iteration
// has two barriers. Before the first a tile is written to LDS; what needs it lies between them. Before the second
// dS is written. Behind it dq's product runs while the next tile is written.
#pragma once

#include "backward/amd_pairs.hpp"
#include "backward/amd_steps.hpp"

namespace rocflash::kernel {

// Takes part in the kernel that owns keys.
template <KernelSpec spec>
class QueryGradients {
  using Types = BackwardTypes<spec>;
  using Share = QueryShare<Types>;
  using Mma = typename Types::Mma;
  using Exchange = typename Share::Exchange;
  using Packed = PackedColumn<Mma, Types::tile.streamed>;
  static_assert(Types::buffers == 1);

 public:
  static constexpr bool overlapped = true;

  template <class Result, int depth, int together, class A, class B>
  static Result product(const A& a, const B& b) {
    return product_ahead<Result, depth>(a, b);
  }
  template <int depth, class Sums, class A, class B>
  static void add_product(Sums& sums, const A& a, const B& b) {
    add_product_ahead<depth>(sums, a, b);
  }

  // `room` has a tile of columns.
  QueryGradients(const BackwardArguments& a, const SequenceView& sequence, std::int32_t kv_head,
                 std::int32_t first_key, SharedWords4* room)
      : arguments_(a),
        sequence_(sequence),
        k_(a.problem.k, sequence.batch, sequence.k_row + first_key, sequence.sk - first_key,
           kv_head, room),
        exchange_(exchange_room()) {}

  template <class Rounded>
  Packed share(const Rounded& ds) const {
    const Packed packed(ds);
    exchange_.write(packed);
    return packed;
  }
  void share_nothing() const { exchange_.write(Packed()); }

  void multiply(std::int32_t head, std::int32_t first_query) {
    ROCFLASH_UNROLL
    for (int part = 0; part < Share::parts; ++part) dq_[part] = typename Mma::Result{};
    read_ahead<Mma, Share::owned / Mma::depth>(
        [&](int step) { return exchange_.fragment(Share::query_part(), step); },
        [&](int step, const typename Mma::Operand& left) {
          ROCFLASH_UNROLL
          for (int part = 0; part < Share::parts; ++part)
            dq_[part] = Mma::multiply(left, k_.fragment(part, step), dq_[part]);
        });
    head_ = head;
    first_query_ = first_query;
    rows_ = static_cast<std::int32_t>(smaller(sequence_.sq - first_query, Share::streamed));
  }

  // Adds that to the sums, which other workgroups add to at the same time.
  void add() const {
    using Layout = typename Mma::Layout;
    const arch::Window sums(
        row_address<DType::f32>(arch::again(arguments_).dq_sums, sequence_.batch,
                                sequence_.q_row + first_query_, head_),
        static_cast<std::uint32_t>(rows_ * row_bytes));
    const int row = Share::query_part() * Mma::rows + Layout::lane_row(arch::lane());
    ROCFLASH_UNROLL
    for (int part = 0; part < Share::parts; ++part) {
      const int column =
          Share::column_part(part) * Mma::columns + Layout::lane_column(arch::lane());
      ROCFLASH_UNROLL
      for (int r = 0; r < Mma::results; ++r)
        sums.add(dq_[part][r], static_cast<std::uint32_t>(row * row_bytes + 4 * column +
                                                          Layout::register_row(r) * row_bytes));
    }
  }

 private:
  static constexpr int row_bytes = 4 * spec.bucket;

  static SharedWords4* exchange_room() {
    ROCFLASH_SHARED_ARRAY Words4 room[Exchange::chunks];
    return room;
  }

  const BackwardArguments& arguments_;
  const SequenceView& sequence_;
  KeyColumns<Types> k_;
  Exchange exchange_;
  // A tile of dq: up to rows_ of it count, which is none before the first.
  typename Mma::Result dq_[Share::parts] = {};
  std::int32_t head_ = 0, first_query_ = 0, rows_ = 0;
};

template <KernelSpec spec>
void backward_fused(const BackwardArguments& a) {
  if constexpr (backward_tile(this_family, spec).roles == 2) {
    paired_fused<spec>(a);
  } else if constexpr (spec.variant == Variant::plain) {
    plain_fused<spec>(a);
  } else {
    keys_kernel<spec, true, true, QueryGradients<spec>>(a);
  }
}

}  // namespace rocflash::kernel
