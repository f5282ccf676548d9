// Forward with the CDNA ping-pong schedule. Two waves share each SIMD, whose matrix core runs in
// parallel with its VALU: while one wave issues MFMAs, its partner computes the softmax.
//
//   VGPRs   Q (whole head dim), S or P of one tile, O, the next K and V tiles in flight
//   LDS     K row-major and V transposed, double-buffered
//
// One iteration of a wave has two phases:
//
//   MFMA phase      O += P·V of tile n − 1, then S = K·Qᵀ of tile n
//   softmax phase   P of tile n
//
// The leading waves (one per SIMD) start; the trailing waves are staggered by one phase:
//
//   leading wave    | MFMA 0     | softmax 0  | MFMA 1     | softmax 1  | ...
//   trailing wave                | MFMA 0     | softmax 0  | MFMA 1     | ...
//                   b            b            b            b            workgroup barriers
//
// Each wave passes two barriers per iteration: it waits for its MFMA phase, and hands the matrix
// core over to its partner. The hand-over comes a few MFMAs before the end, once all operands are
// in registers, so that the partner's first LDS reads overlap with the remaining MFMAs. The last
// iteration has no hand-over: no LDS write follows it. s_setprio is 0 in the softmax phase, 1 in
// the MFMA phase, and 2 for the MFMAs after the hand-over.
//
// LDS buffer n % 2 holds K tile n and V tile n − 1, which both waves read in iteration n. It may be
// overwritten after that, so each wave writes its share of K tile n + 1 and V tile n to the other
// buffer in iteration n.
//
// Tail-split kernel (ForwardTypes::tail_split): both waves of a SIMD have the same queries, and
// each has half of the keys of every tile, which halves the phases. cdna_tail_split.hpp combines
// them.
#pragma once

#include "forward/amd_common.hpp"
#include "forward/cdna_mfma_steps.hpp"
#include "forward/cdna_query_staging.hpp"
#include "forward/cdna_softmax.hpp"
#include "forward/cdna_tail_split.hpp"
#include "forward/cdna_visible_tiles.hpp"
#include "tile/fragment_prefetch.hpp"

namespace rocflash::kernel {

// LDS of the workgroup. Each array also holds the RowExchange slots of half of the waves: Q goes
// through them in the prologue and O in the epilogue.
template <KernelSpec spec>
struct PingPongLds {
  using Types = ForwardTypes<spec>;
  static constexpr int exchange_chunks =
      Types::waves / 2 * RowExchange<typename Types::Mma>::Tile::chunks;
  static constexpr int k_chunks =
      Types::Keys::chunks > exchange_chunks ? Types::Keys::chunks : exchange_chunks;
  static constexpr int v_chunks =
      Types::Values::Tile::chunks > exchange_chunks ? Types::Values::Tile::chunks : exchange_chunks;

  SharedWords4 (&k)[2][k_chunks];
  SharedWords4 (&v)[2][v_chunks];
};

// What a wave computes in the workgroup's tile of queries.
template <KernelSpec spec>
struct WaveRole {
  using Types = ForwardTypes<spec>;
  bool trailing;            // staggered by one phase
  int first_tile_key;       // of each key tile, for this wave
  std::int32_t wave_begin;  // its first query

  explicit WaveRole(std::int32_t block_begin) : trailing(arch::wave() >= Types::waves / 2) {
    const bool second_half = Types::tail_split && trailing;
    first_tile_key = second_half ? Types::wave_keys : 0;
    wave_begin =
        block_begin + (arch::wave() - (second_half ? Types::query_waves : 0)) * Types::wave_queries;
  }
};

// One wave of the ping-pong schedule. All members are in registers: everything is inlined into the
// kernel.
template <KernelSpec spec>
class PingPongWave {
  using Types = ForwardTypes<spec>;
  using Mma = typename Types::Mma;
  using Scores = typename Types::Scores;
  using Exchange = RowExchange<Mma>;
  static constexpr ForwardTile tile = Types::tile;
  static constexpr int key_steps = Types::wave_keys / Mma::depth;
  // CDNA1 has too few VGPRs for the epilogue in parallel with the last P·V.
  static constexpr bool may_interleave_epilogue =
      !Types::tail_split && this_family != Family::cdna1;

 public:
  [[gnu::always_inline]] PingPongWave(const ForwardArguments& a, const SequenceView& sequence,
                                      std::int64_t kv_head, const MaskBounds& bounds,
                                      const WaveRole<spec>& role, std::int32_t first_key,
                                      std::int32_t tiles, const PingPongLds<spec>& lds)
      : a_(a),
        lds_(lds),
        role_(role),
        first_key_(first_key),
        tiles_(tiles),
        scale_(a.problem.scale),
        next_(a, sequence, kv_head, first_key),
        visible_(bounds, role.wave_begin, Types::wave_queries, first_key, tile.keys) {
    next_.advance_k();  // K tile 0, which the leading waves load on their own
    next_.advance_k();  // K tile 1
    next_.advance_v();  // V tile 0
    // After the bounds of the wave: shared subexpressions would else move to the VALU.
    const std::int32_t query = role.wave_begin + Scores::lane_column();
    const std::int32_t begin = bounds.begin(query), end = bounds.end(query);
    lane_key_begin_ = begin;
    lane_keys_ = query < sequence.sq && end > begin ? static_cast<std::uint32_t>(end - begin) : 0;
    ROCFLASH_UNROLL
    for (auto& block : out_.part) arch::pin_vgpr(block[0]);  // zeroed before the wait for Q
  }

  // Prologue, after the loads of Q and of K tile 0 were issued: K tile 0 to LDS, loads of the next
  // tiles, Q to fragments.
  [[gnu::always_inline]] void prologue(typename Types::FirstStaging& first_k,
                                       QueryStaging<spec>& q) {
    if (role_.trailing) {
      arch::barrier();  // staggers the trailing waves by one phase
    } else {
      first_k.store(lds_.k[0]);
    }
    next_.load_k();
    next_.load_v();
    // A leading wave and its partner use the same slot, one phase apart.
    q.to_fragments(scale_.negate_q,
                   &lds_.v[0][0] + arch::wave() % (Types::waves / 2) * Exchange::Tile::chunks, q_);
  }

  // Iterations up to the last visible tile; returns the number of iterations done.
  [[gnu::always_inline]] std::int32_t main_loop() {
    std::int32_t n = 0;
    for (; n < visible_.begin; ++n) skip_tile(n, n % 2);
    if (n < visible_.end) {
      iterate<false, true>(n++, 0);
      for (; n + 1 < visible_.end; n += 2) {
        iterate<true, true>(n, 1);
        iterate<true, true>(n + 1, 0);
      }
      if (n < visible_.end) iterate<true, true>(n++, 1);
    }
    return n;
  }

  // Whether the last P·V of this wave is the last phase of the workgroup, and all of its queries
  // are in use. The other waves have the time of that phase for their epilogues.
  bool interleaves_epilogue(const OutputPosition& position) const {
    return arch::uniform(may_interleave_epilogue && role_.trailing &&
                         visible_.begin < visible_.end && visible_.end == tiles_ &&
                         role_.wave_begin + Types::wave_queries <= position.sq);
  }

  // The last P·V with the epilogue interleaved. No wave reads K any more: its LDS is the slot.
  [[gnu::always_inline]] NonFiniteQueries last_phase_with_epilogue(const OutputPosition& position,
                                                                   int buffer) {
    if constexpr (may_interleave_epilogue) {
      Epilogue<spec> epilogue(arch::reload_kernargs(a_), position, softmax_, exchange_slot());
      InterleavedEpilogue<spec> interleave(epilogue, out_);
      Scores none;
      arch::setprio<1>();
      mfma_phase<true, false>(buffer, true, none, interleave);
      interleave.finish();
      return epilogue.non_finite();
    }
    return {};
  }

  // From iteration n on: the last P·V of this wave, then iterations in which only other waves have
  // visible tiles.
  [[gnu::always_inline]] void drain(std::int32_t n) {
    if (visible_.begin < visible_.end) {
      iterate<true, false>(n, n % 2);
      ++n;
    }
    for (; n <= tiles_; ++n) skip_tile(n, n % 2);
  }

  [[gnu::always_inline]] void combine_tail_split() {
    kernel::combine_tail_split<Types>(softmax_, out_, {&lds_.k[0][0], &lds_.v[0][0]});
  }
  // The priority is lowered: the VALU goes to waves that still compute a softmax.
  [[gnu::always_inline]] NonFiniteQueries epilogue(const OutputPosition& position) {
    SharedWords4* const slot =
        Types::tail_split ? &lds_.k[0][0] + tail_split_slot<Types>() : exchange_slot();
    arch::setprio<0>();
    return store_outputs<spec>(arch::reload_kernargs(a_), position, softmax_, out_, slot);
  }

 private:
  SharedWords4* exchange_slot() const {
    return &lds_.k[0][0] + arch::wave() * Exchange::Tile::chunks;
  }

  // Iteration n: MFMA phase, loads of the tiles after the next, softmax phase.
  template <bool with_pv, bool with_qk>
  [[gnu::always_inline]] void iterate(std::int32_t n, int buffer) {
    Scores scores;
    // The trailing waves do not wait in the last iteration: the leading waves hand nothing over.
    if (with_qk || n < tiles_ || !role_.trailing) arch::barrier();
    arch::setprio<1>();
    mfma_phase<with_pv, with_qk>(buffer, n == tiles_, scores);
    if (!with_qk && n == tiles_) return;
    arch::setprio<0>();
    next_.load_k();
    next_.load_v();
    if constexpr (with_qk) softmax_phase<!with_pv>(n, scores);
  }

  // Iteration n of a wave that attends to neither tile: its share of the LDS writes and global
  // loads, and both barriers.
  [[gnu::always_inline]] void skip_tile(std::int32_t n, int buffer) {
    if (n < tiles_ || !role_.trailing) arch::barrier();
    arch::setprio<1>();
    if (n < tiles_) {
      next_.store_k(lds_.k[1 - buffer]);
      next_.store_v(lds_.v[1 - buffer]);
      next_.advance_k();
      next_.advance_v();
    }
    if (n < tiles_) arch::barrier();
    if (n == tiles_) return;
    arch::setprio<0>();
    next_.load_k();
    next_.load_v();
  }

  // O += P·V of tile n − 1 and S = K·Qᵀ of tile n, from LDS buffer `buffer`.
  template <bool with_pv, bool with_qk, class Interleave>
  [[gnu::always_inline]] void mfma_phase(int buffer, bool last, Scores& scores,
                                         Interleave& interleave) {
    using Steps = MfmaSteps<Types, with_pv, with_qk>;
    constexpr int qk_steps = Steps::qk_steps;
    const typename Types::ValueOperand v = Types::values_from(lds_.v[buffer], role_.first_tile_key);
    const typename Types::KeyOperand k{lds_.k[buffer] +
                                       role_.first_tile_key * Types::Keys::row_chunks};
    typename Mma::Result s;
    prefetch_fragments_paced<Mma, Steps::count, Steps::max_in_flight, Steps::lds_period>(
        [&](int n) {
          return n < Steps::pv_count ? v.fragment(Steps::out_block(n), Steps::key_step(n))
                                     : k.fragment((n - Steps::pv_count) / qk_steps,
                                                  (n - Steps::pv_count) % qk_steps);
        },
        [&]<int n>(const typename Mma::Operand& left, auto read_another) {
          const auto between_mfmas = [&] {
            arch::sched_barrier();
            read_another();
            if constexpr (__is_same(Interleave, const NoInterleave))
              stage_next_tiles<Steps, n>(buffer, with_qk || !last);
            interleave.template operator()<n, 0>();
            arch::sched_barrier();
          };
          if constexpr (n < Steps::pv_count) {
            typename Mma::Result& o = out_.part[Steps::out_block(n)][0];
            o = Mma::multiply_interleaved(left, p_.fragment(0, Steps::key_step(n)), o,
                                          between_mfmas);
            arch::pin_vgpr(o);
            interleave.template operator()<n, 1>();
          } else {
            constexpr int m = n - Steps::pv_count;
            if (m % qk_steps == 0) s = {};
            s = Mma::multiply_interleaved(left, q_.fragment(0, m % qk_steps), s, between_mfmas);
            arch::pin_vgpr(s);
            if (m % qk_steps == qk_steps - 1) {
              ROCFLASH_UNROLL
              for (int r = 0; r < Mma::results; ++r)
                scores.at[0][m / qk_steps * Mma::results + r] = s[r];
            }
          }
          if (n == Steps::handover) {
            // The remaining MFMAs issue before those of the partner: the softmax waits for them.
            arch::setprio<2>();
            if (with_qk || !last) arch::barrier();
          }
        });
  }
  template <bool with_pv, bool with_qk>
  [[gnu::always_inline]] void mfma_phase(int buffer, bool last, Scores& scores) {
    const NoInterleave none;
    mfma_phase<with_pv, with_qk>(buffer, last, scores, none);
  }

  // Step n of an MFMA phase: its share of the LDS writes of the next tiles, which are in registers,
  // and the pointers of the tiles after those.
  template <class Steps, int n>
  [[gnu::always_inline]] void stage_next_tiles(int buffer, bool has_next) {
    ROCFLASH_UNROLL
    for (int i = 0; i < next_.stores; ++i) {
      if (n == smaller(Steps::first_write + Steps::lds_period * i, Steps::handover) && has_next)
        next_.store_one(i, lds_.k[1 - buffer], lds_.v[1 - buffer]);
    }
    if (n == Steps::advance_k) next_.advance_k();
    if (n == Steps::advance_v) next_.advance_v();
  }

  // P of tile n, while the partner wave issues MFMAs.
  template <bool first>
  [[gnu::always_inline]] void softmax_phase(std::int32_t n, Scores& scores) {
    if (__builtin_expect(!visible_.is_unmasked(n), false)) apply_mask(n, scores);
    float sum = 0;
    if constexpr (!first)
      sum = exp2_and_row_sum<spec.dtype>(scores, scale_.softmax_scale, softmax_.base_, p_);
    if (first || __builtin_expect(arch::any(!softmax_.fits(sum)), false)) {
      const float factor = softmax_.rescale(column_maximum(scores, 0) * scale_.softmax_scale);
      if constexpr (!first) out_.scale(factor);
      sum = exp2_and_row_sum<spec.dtype>(scores, scale_.softmax_scale, softmax_.base_, p_);
    }
    softmax_.sum += sum;
    ROCFLASH_UNROLL
    for (int step = 0; step < key_steps; ++step) arch::sched_barrier(p_.step_[step]);
  }

  [[gnu::always_inline]] void apply_mask(std::int32_t n, Scores& scores) const {
    float (&s)[Scores::per_column] = scores.at[0];
    const std::int32_t key =
        first_key_ + n * tile.keys + role_.first_tile_key + Scores::lane_row() - lane_key_begin_;
    ROCFLASH_UNROLL
    for (int i = 0; i < Scores::per_column; ++i)
      s[i] = static_cast<std::uint32_t>(key + Scores::row(i)) < lane_keys_ ? s[i] : -infinity;
  }

  const ForwardArguments& a_;
  const PingPongLds<spec>& lds_;
  const WaveRole<spec>& role_;
  const std::int32_t first_key_;  // of tile 0
  const std::int32_t tiles_;      // of the workgroup
  const Scale scale_;
  KvStaging<spec> next_;  // K and V tiles in flight, from global memory to LDS
  const VisibleTiles visible_;
  std::int32_t lane_key_begin_;  // first visible key of the lane's query
  std::uint32_t lane_keys_;      // number of its visible keys
  DeferredMaxSoftmax softmax_;
  typename Types::Outputs out_ = {};                     // Oᵀ
  RegisterFragments<Mma, QueryStaging<spec>::steps> q_;  // Qᵀ
  RegisterFragments<Mma, key_steps> p_;                  // Pᵀ of one tile
};

template <KernelSpec spec>
void forward_pingpong(const ForwardArguments& a) {
  using Types = ForwardTypes<spec>;
  using Lds = PingPongLds<spec>;
  constexpr ForwardTile tile = Types::tile;
  static_assert(!Types::generic);

  ROCFLASH_SHARED_ARRAY Words4 shared_keys[2][Lds::k_chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_values[2][Lds::v_chunks];
  const Lds lds{shared_keys, shared_values};

  // Work tile.
  const Problem& p = a.problem;
  const Lengths& l = p.lengths;
  preload_kernargs(a.work.blocks, a.work.workgroups, a.work.xcds, a.work.bh_interleave, p.heads,
                   p.kv_heads, l.batch, l.rows_q, l.rows_k, l.cu_q, l.cu_k, l.used_q, l.used_k,
                   l.leftpad_k, p.max_q, p.max_k, p.k.data, p.k.batch_stride, p.k.row_stride,
                   p.k.head_stride, p.k.columns, p.q.data, p.q.batch_stride, p.q.row_stride,
                   p.q.head_stride, p.q.columns, p.visibility.left, p.visibility.right,
                   p.visibility.chunk);
  const WorkTile item =
      work_tile_by_bh(a.work, static_cast<std::int32_t>(p.heads),
                      arch::workgroup_id() + (Types::tail_split ? a.first_workgroup : 0));
  if (__builtin_expect(l.packed_q(), false)) zero_unused_rows<tile.threads>(a, item, spec.dtype);
  const SequenceView sequence = sequence_view(p, item.batch);
  const OutputPosition position(item, sequence);
  const std::int32_t block_begin = item.block * tile.queries;
  if (block_begin >= sequence.q_rows) return;
  const WaveRole<spec> role(block_begin);

  // Loads of K tile 0, which is mostly an L2 hit, then of Q, whose latency is about one phase of
  // each half of the waves.
  using Block = typename Types::Block;
  const MaskBounds bounds(p.visibility, sequence.sq, sequence.sk);
  const std::int32_t first_key =
      arch::uniform(block_begin < sequence.sq ? bounds.begin(block_begin) : 0);
  const std::int64_t kv_head = p.heads == p.kv_heads ? item.head : p.kv_head(item.head);
  typename Types::FirstStaging first_k(p.k, arch::thread() % (tile.threads / 2));
  if (!role.trailing)
    first_k.load(Block(
        arch::uniform(bh_row<spec.dtype>(p.k, sequence.batch, sequence.k_row + first_key, kv_head)),
        extent_bytes<spec.dtype, tile.keys>(p.k, sequence.sk - first_key)));
  QueryStaging<spec> q;
  q.load(p.q, sequence, item.head, role.wave_begin);
  arch::sched_barrier();

  const Span visible = VisibleKeySpans(bounds, block_begin, tile.queries).by_any;
  const std::int32_t tiles = arch::uniform(
      visible.end <= visible.begin ? 0 : (visible.end - first_key + tile.keys - 1) / tile.keys);
  PingPongWave<spec> wave(a, sequence, kv_head, bounds, role, first_key, tiles, lds);
  wave.prologue(first_k, q);
  const std::int32_t n = wave.main_loop();

  NonFiniteQueries non_finite = {};
  if (wave.interleaves_epilogue(position)) {
    non_finite = wave.last_phase_with_epilogue(position, n % 2);
  } else {
    wave.drain(n);
    if constexpr (Types::tail_split) {
      wave.combine_tail_split();
      if (role.trailing) return;
    }
    non_finite = wave.epilogue(position);
  }
  recompute_rows<spec>(arch::reload_kernargs(a), position, non_finite);
}

}  // namespace rocflash::kernel
