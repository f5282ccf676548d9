// The MFMA phase of the CDNA ping-pong schedule: order and pacing of its steps, and the work that
// is interleaved with them.
#pragma once

#include "forward/amd_common.hpp"

namespace rocflash::kernel {

// Order and pacing of the steps of one MFMA phase. A step multiplies one fragment from LDS: one or
// two MFMA instructions (Mma::instructions). Steps of O += Vᵀ·Pᵀ come first, then those of K·Qᵀ.
template <class Types, bool with_pv, bool with_qk>
struct MfmaSteps {
  using Mma = typename Types::Mma;
  static constexpr int key_steps = Types::wave_keys / Mma::depth;  // depth of P·V
  static constexpr int qk_steps = Types::bucket / Mma::depth;      // depth of K·Qᵀ
  static constexpr int out_blocks = Types::Outputs::row_parts;     // row blocks of Oᵀ
  static constexpr int pv_count = with_pv ? key_steps * out_blocks : 0;
  static constexpr int count = pv_count + (with_qk ? Types::Scores::row_parts * qk_steps : 0);

  // Without K·Qᵀ (last iteration) P·V runs block by block, so that each row block of O completes as
  // early as possible for the epilogue. Otherwise consecutive MFMAs have different accumulators.
  static constexpr int out_block(int n) { return with_qk ? n % out_blocks : n / key_steps; }
  static constexpr int key_step(int n) { return with_qk ? n / out_blocks : n % key_steps; }

  // Steps after the hand-over. Their MFMAs (5 or 3·2) cover the latency of the partner's first LDS
  // reads; a short phase keeps at least three quarters of its steps before it.
  static constexpr int after_handover = smaller(Mma::instructions == 1 ? 5 : 3, count / 4);
  static constexpr int handover = count - after_handover - 1;

  // Steps from one LDS write, or additional LDS read, to the next: the LDS takes the accesses of a
  // wave some cycles apart. Long phases have the steps for a lower rate.
  static constexpr int lds_period = count >= 32 ? 4 : 3;
  static constexpr int first_write = lds_period - 1;

  // prefetch_fragments_paced reads one fragment per step and one more per period: all of them must
  // be in registers at the hand-over.
  static constexpr int max_in_flight = 4 + after_handover;
  static_assert(3 + (handover - 1) + (handover - 1 + lds_period - 1) / lds_period >= count);

  // Steps that advance the tile pointers: in K·Qᵀ, whose reads leave free issue slots, and before
  // the hand-over.
  static constexpr int pointer_base = pv_count < handover - 4 ? pv_count : handover - 4;
  static constexpr int advance_k = pointer_base + 2, advance_v = pointer_base + 4;
};

// Work interleaved with the MFMAs of a phase: operator()<n, slot> is called in step n, slot 0 after
// its first MFMA, slot 1 after its last. None: the phase writes the next tiles to LDS instead.
struct NoInterleave {
  template <int n, int slot>
  void operator()() const {}
};

// The epilogue, interleaved with the last P·V: row block b of O is converted and stored while the
// MFMAs of row block b + 1 run.
template <KernelSpec spec>
class InterleavedEpilogue {
  using Types = ForwardTypes<spec>;
  using Mma = typename Types::Mma;
  using Steps = MfmaSteps<Types, true, false>;
  static constexpr int line_blocks = Epilogue<spec>::line_blocks;
  static constexpr int quads_per_step = Mma::results / 4 / Steps::key_steps;

 public:
  InterleavedEpilogue(Epilogue<spec>& epilogue, const typename Types::Outputs& out)
      : epilogue_(epilogue), out_(out) {}

  template <int n, int slot>
  [[gnu::always_inline]] void operator()() {
    constexpr int block = n / Steps::key_steps - 1, step = n % Steps::key_steps;
    if constexpr (n == 0 && slot == 0) epilogue_.reduce_row_sum();
    if constexpr (n == 1 && slot == 0) epilogue_.normalize();
    if constexpr (n == 1 && slot == 1) epilogue_.find_out_rows();
    if constexpr (n == 2 && slot == 0) epilogue_.store_lse();
    if constexpr (block >= 0) {
      constexpr bool line_complete = block > 0 && block % line_blocks == 0;
      if constexpr (line_complete && step == 0 && slot == 0) epilogue_.read_lines(lines_);
      if constexpr (line_complete && step == Steps::key_steps - 1 && slot == 1)
        epilogue_.store_lines(lines_, block - 1);
      const typename Mma::Result& o = out_.part[block][0];
      ROCFLASH_UNROLL
      for (int quad = step * quads_per_step; quad < (step + 1) * quads_per_step; ++quad) {
        const int i = 4 * quad + 2 * slot;
        const std::uint32_t pair = epilogue_.narrow(o[i], o[i + 1]);
        if (slot == 0)
          low_pair_ = pair;
        else
          epilogue_.put({low_pair_, pair}, block, 4 * quad);
      }
    }
    arch::sched_barrier();
  }

  // The last row block, and the lines that the block before it completed.
  [[gnu::always_inline]] void finish() {
    constexpr int blocks = Steps::out_blocks;
    if constexpr (blocks > 1 && (blocks - 1) % line_blocks == 0) {
      epilogue_.read_lines(lines_);
      epilogue_.store_lines(lines_, blocks - 2);
    }
    epilogue_.finish_block(out_.part[blocks - 1][0], blocks - 1, true);
  }

 private:
  Epilogue<spec>& epilogue_;
  const typename Types::Outputs& out_;
  Words4 lines_[RowExchange<Mma>::rounds];
  std::uint32_t low_pair_ = 0;
};

}  // namespace rocflash::kernel
