// Fused backward (amd_fused.hpp) where a wave's registers do not hold the accumulators of dK and
// dV, k and v: on RDNA, with 256 VGPRs, and on gfx950 above 128 columns. Two waves share the same
// keys:
//
//   P wave      S = Q·Kᵀ,  P = exp2(S − lse)                dVᵀ += dOᵀ·P
//   dS wave     dP = dO·Vᵀ,        dS = P (dP − delta)      dKᵀ += Qᵀ·dS
//   all waves                                               dQ = dS·K, a column slice, all keys
//
// Both run the same instructions on different operands, except between the products. P passes
// through LDS in f32, dS is exchanged among all waves (backward/amd_ds_exchange.hpp). dQ of a tile
// is added to the f32 accumulator with atomics, in any order; RDNA2 has no f32 atomics and
// accumulates in order (backward/rdna2_dq_ordered.hpp). backward/amd_postprocess.hpp converts the
// accumulator.
//
//   registers   k or v of the wave's keys, accumulator of dV or dK
//   LDS         a tile of q and dout, row-major and transposed; k transposed; P and dS of the tile
//
// A tile takes three barriers: after the tile, P and dS are written to LDS. On RDNA other
// workgroups of the WGP hide the latency. On gfx950 there is one wave per SIMD, which prefetches
// operands.
#pragma once

#include "backward/amd_wave_pair_tiles.hpp"
#include "backward/dq_accumulate.hpp"
#include "backward/rdna2_dq_ordered.hpp"
#include "tile/batched_products.hpp"

namespace rocflash::kernel {

// dQ = dS·K of a tile: the wave's 16 queries and wave_strips · 16 columns, all keys. With ordered
// accumulation dQᵀ = Kᵀ·dSᵀ, where a lane has adjacent columns of a query.
template <KernelSpec spec>
class PairDq {
  using Types = PairTypes<spec>;
  using Mma = typename Types::Mma;
  using Layout = typename Mma::Layout;
  using Exchange = typename Types::Exchange;
  using Accumulator = DqAccumulatorBlocks<Mma::columns>;
  static constexpr bool ordered = has_ordered_dq(this_family),
                        blocks = dq_accum_in_blocks(this_family);
  static constexpr int wave_strips = Types::wave_strips, row_bytes = 4 * spec.bucket;
  static constexpr int quads = Mma::results / 4;  // adjacent columns, loaded and stored together

 public:
  PairDq(const BackwardArguments& a, const SequenceView& sequence, int wave, std::int32_t head,
         std::int32_t first_query)
      : a_(a),
        sequence_(sequence),
        query_part_(wave * wave_strips / Types::strips),
        strip_(wave * wave_strips % Types::strips),
        head_(head),
        first_row_(first_query + query_part_ * Mma::rows) {}

  // Ordered accumulation: loads the accumulator.
  void load() {
    const arch::BufferResource from = accumulator();
    ROCFLASH_UNROLL
    for (int part = 0; part < wave_strips; ++part) {
      ROCFLASH_UNROLL
      for (int quad = 0; quad < quads; ++quad)
        before_[part][quad] = from.load16_coherent(quad_offset(part, quad));
    }
  }
  // `line` is the lane's operand line; `adds`: with ordered accumulation, whether dQ is wanted.
  void multiply(const Exchange& exchange, const ROCFLASH_SHARED PairShared<spec>& shared, int line,
                bool adds) {
    const auto columns_of = [&](int part, int step) {
      constexpr int steps = Types::column_keys / Mma::depth;
      return transposed_operand<typename Types::KeyColumns::Operand>(shared.k[step / steps], line)
          .fragment(strip_ + part, step % steps);
    };
    constexpr int dq_steps = Types::tile.owned / Mma::depth;
    if constexpr (arch::wave_size == 64) {
      // Fragments of k are used further apart than those of dS, so k is the prefetched operand.
      ROCFLASH_UNROLL
      for (int part = 0; part < wave_strips; ++part) {
        typename Mma::Operand ds[dq_steps];
        ROCFLASH_UNROLL
        for (int step = 0; step < dq_steps; ++step) ds[step] = exchange.fragment(query_part_, step);
        prefetch_fragments<Mma, dq_steps>([&](int step) { return columns_of(part, step); },
                                          [&](int step, const typename Mma::Operand& right) {
                                            dq_[part] = Mma::multiply(ds[step], right, dq_[part]);
                                          });
      }
    } else if (adds) {
      ROCFLASH_UNROLL
      for (int step = 0; step < dq_steps; ++step) {
        const typename Mma::Operand ds =
            exchange.template fragment<ordered ? Side::right : Side::left>(query_part_, step);
        ROCFLASH_UNROLL
        for (int part = 0; part < wave_strips; ++part) {
          const typename Mma::Operand k = columns_of(part, step);
          dq_[part] = Mma::multiply(ordered ? k : ds, ordered ? ds : k, dq_[part]);
        }
      }
    }
  }
  // Adds dQ to the accumulator: in the order of `load` and `add`, or with atomics.
  void add() const {
    const arch::BufferResource to = accumulator();
    if constexpr (ordered) {
      ROCFLASH_UNROLL
      for (int part = 0; part < wave_strips; ++part) {
        ROCFLASH_UNROLL
        for (int quad = 0; quad < quads; ++quad) {
          Float4 sum = __builtin_bit_cast(Float4, before_[part][quad]);
          ROCFLASH_UNROLL
          for (int r = 0; r < 4; ++r) sum[r] += dq_[part][4 * quad + r];
          to.store16(__builtin_bit_cast(Words4, sum), quad_offset(part, quad));
        }
      }
    } else {
      const int own_offset = arch::opaque_vgpr(blocks ? 4 * arch::lane()
                                                      : Layout::lane_row(arch::lane()) * row_bytes +
                                                            4 * Layout::lane_column(arch::lane()));
      ROCFLASH_UNROLL
      for (int part = 0; part < wave_strips; ++part) {
        ROCFLASH_UNROLL
        for (int r = 0; r < Mma::results; ++r)
          to.add(dq_[part][r],
                 static_cast<std::uint32_t>(
                     own_offset +
                     (blocks ? 4 * (part * Accumulator::block_floats + arch::wave_size * r)
                             : Layout::register_row(r) * row_bytes + 4 * Mma::columns * part)));
      }
    }
  }

 private:
  // The wave's part of the accumulator. Blocks include rows past the end of the sequence.
  arch::BufferResource accumulator() const {
    const auto rows = static_cast<std::int32_t>(smaller(sequence_.sq - first_row_, Mma::rows));
    const BackwardArguments& now = arch::reload_kernargs(a_);
    return arch::BufferResource(
        blocks ? reinterpret_cast<std::byte*>(
                     Accumulator(now, sequence_, head_).start(first_row_, strip_))
               : row_address<DType::f32>(now.dq_accum, sequence_.batch,
                                         sequence_.q_row + first_row_, head_) +
                     4 * Mma::columns * strip_,
        rows <= 0 ? 0
        : blocks  ? 4 * Accumulator::block_floats * wave_strips
                  : rows * row_bytes);
  }
  static std::uint32_t quad_offset(int part, int quad) {
    const int lane = arch::opaque_lane();
    return static_cast<std::uint32_t>(
        4 * (Layout::lane_column(lane) * Mma::rows + Layout::lane_row(lane)) +
        4 * (part * Accumulator::block_floats + Layout::register_row(4 * quad)));
  }

  const BackwardArguments& a_;
  const SequenceView& sequence_;
  int query_part_, strip_;
  std::int32_t head_, first_row_;
  [[maybe_unused]] Words4 before_[ordered ? wave_strips : 1][quads];
  typename Mma::Result dq_[wave_strips] = {};
};

// A wave of a pair: its keys, and P or dS of a tile.
template <KernelSpec spec>
class PairWave {
  using Types = PairTypes<spec>;
  using Mma = typename Types::Mma;
  using Scores = typename Types::Scores;
  using Packed = PackedColumn<Mma, Types::tile.streamed>;
  using KeepMask = DropoutKeepMask<Types, true>;
  static constexpr BackwardTile tile = Types::tile;
  static constexpr int parts = Types::parts, count = Types::count;
  static constexpr bool ordered = has_ordered_dq(this_family);

 public:
  typename Types::Sums sums[parts] = {};  // dV of the P wave, dK of the dS wave

  // The scores of a tile: S and P, or dP and dS. A tile that no key of the wave is visible to has
  // rounded values of 0.
  struct Tile {
    std::int32_t head, first_query;
    bool attends;
    int line;  // the lane's line of operands
    Scores scores[parts];
    Packed packed[parts];
  };

  PairWave(const BackwardArguments& a, const SequenceView& sequence, std::int32_t kv_head,
           std::int32_t first_key, int wave, ROCFLASH_SHARED PairShared<spec>& shared)
      : p_(a.problem),
        sequence_(sequence),
        first_key_(first_key),
        wave_(wave),
        shared_(shared),
        scale_(a.problem.scale) {
    const Problem& p = a.problem;
    const AttendingQueries queries(p.visibility, sequence, first_key, Types::wave_keys);
    visible_to_any_ = uniform(queries.any);
    visible_to_all_ = uniform(queries.all);
    ROCFLASH_UNROLL
    for (int n = 0; n < parts; ++n) {
      const std::int32_t first = first_key + n * Mma::columns;
      own_[n] =
          load_owned_rows<Types>(is_p() ? p.k : p.v, sequence.batch, sequence.k_row + first,
                                 sequence.sk - first, kv_head, is_p() && scale_.negate_q, nullptr);
      key_[n] = KeyView(p.visibility, sequence, first + Scores::lane_column());
    }
  }

  // The P wave: P, rounded and to LDS. The dS wave: dP − delta, in the registers of the scores.
  void compute(Tile& t) {
    const std::int32_t end = t.first_query + tile.streamed;
    t.attends = t.first_query < visible_to_any_.end && end > visible_to_any_.begin;
    // Opaque in each tile under register pressure, so that derived addresses are not kept.
    t.line = operand_line<Mma, Side::left>();
    if constexpr (Types::together > 0) t.line = arch::opaque_vgpr(t.line);
    if constexpr (ordered) {
      ROCFLASH_UNROLL
      for (int c = 0; c < parts; ++c) own_[c].rematerialize_elements();
    }
    if (!t.attends) return;
    // S = Q·Kᵀ, or dP = dO·Vᵀ
    products<Scores, spec.bucket, Types::together, ordered>(
        t.scores, typename Types::StreamedOperand{shared_.rows[role()], t.line}, own_);
    [[maybe_unused]] const bool drops = Types::generic && arch::reload_kernargs(p_).dropout.on();
    ROCFLASH_UNROLL
    for (int c = 0; c < parts; ++c) {
      arch::pin_vgpr(t.scores[c].at[0]);
      [[maybe_unused]] KeepMask kept;
      if constexpr (Types::generic) {
        if (drops)
          kept.draw(shared_.keep_mask[wave_],
                    ScoreModGradient(arch::reload_kernargs(p_), sequence_, t.head), t.first_query,
                    first_key_ + c * Mma::columns);
      }
      if (is_p()) {
        compute_p(t, c, drops, kept);
      } else {
        float (&ds)[count] = t.scores[c].at[0];
        drop(ds, drops, kept);
        ROCFLASH_UNROLL
        for (int i = 0; i < count; ++i) ds[i] -= statistic(i);
      }
    }
  }
  // The dS wave: dS = P (dP − delta), to LDS for all waves. After a barrier.
  void compute_ds(Tile& t, const typename Types::Exchange& exchange) {
    if (is_p()) return;
    ROCFLASH_UNROLL
    for (int c = 0; c < parts; ++c) {
      if (t.attends) {
        float (&ds)[count] = t.scores[c].at[0];
        ROCFLASH_UNROLL
        for (int i = 0; i < count; i += 4) {
          const Float4 weight = shared_.weights[pair()][c][i / 4][arch::lane()];
          ROCFLASH_UNROLL
          for (int e = 0; e < 4; ++e) {
            ds[i + e] *= weight[e];
            if constexpr (Types::generic) ds[i + e] = weight[e] == 0 ? 0.0f : ds[i + e];
          }
        }
        t.packed[c] = Packed(rounded_weights<spec.dtype>(t.scores[c]));
      }
      exchange.write(t.packed[c], c);
    }
  }
  // dVᵀ += dOᵀ·P, or dKᵀ += Qᵀ·dS
  void add_products(const Tile& t) {
    if (!t.attends) return;
    kernel::add_products<tile.streamed, Types::together>(
        sums,
        transposed_operand<typename Types::TransposedOperand>(shared_.transposed[1 - role()],
                                                              t.line),
        t.packed);
  }
  bool is_p() const { return role() == 0; }

 private:
  int role() const { return wave_ / Types::pairs; }
  int pair() const { return wave_ % Types::pairs; }
  float statistic(int i) const {
    const auto* const of_lane = (const ROCFLASH_SHARED Float4*)shared_.statistics[role()] +
                                result_slot<Mma>(Scores::lane_row()) / 4;
    return of_lane[result_slot<Mma>(Scores::row(i)) / 4][i % 4];
  }
  float addend(int i) const {
    const auto* const of_lane =
        (const ROCFLASH_SHARED Float4*)shared_.addend + result_slot<Mma>(Scores::lane_row()) / 4;
    return of_lane[result_slot<Mma>(Scores::row(i)) / 4][i % 4];
  }
  static void drop(float (&x)[count], [[maybe_unused]] bool drops,
                   [[maybe_unused]] const KeepMask& kept) {
    if constexpr (Types::generic) {
      if (drops) {
        ROCFLASH_UNROLL
        for (int i = 0; i < count; ++i) x[i] = kept(i) ? x[i] : 0.0f;
      }
    }
  }
  // P = exp(S − lse). The dS wave gets P times the slope.
  void compute_p(Tile& t, int c, bool drops, const KeepMask& kept) {
    float (&s)[count] = t.scores[c].at[0];
    const int lane_row = Scores::lane_row();
    const auto query = [&](int i) { return t.first_query + lane_row + Scores::row(i); };
    float slopes[Types::generic ? count : 1];
    if constexpr (Types::generic) {
      ROCFLASH_UNROLL
      for (int i = 0; i < count; ++i) slopes[i] = 1;
      ScoreModGradient(arch::reload_kernargs(p_), sequence_, t.head)
          .template apply<count, FastNaturalLogDomain>(
              QueryPerScore{query}, [&](int) { return key_[c].index; },
              [&](int i) -> float& { return s[i]; },
              [&](int i, float slope) { slopes[i] *= slope; });
    }
    const bool ragged = t.first_query < visible_to_all_.begin ||
                        t.first_query + tile.streamed > visible_to_all_.end;
    ROCFLASH_UNROLL
    for (int i = 0; i < count; ++i) {
      typename Types::RowExponent row;
      row.base = statistic(i);
      if constexpr (Types::generic) row.addend = addend(i);
      s[i] = Types::weight(s[i], scale_.softmax_scale, row);
    }
    if (ragged) {
      ROCFLASH_UNROLL
      for (int i = 0; i < count; ++i) s[i] = key_[c].visible_to(query(i)) ? s[i] : 0.0f;
    }
    ROCFLASH_UNROLL
    for (int i = 0; i < count; i += 4) {
      Float4 shared{s[i], s[i + 1], s[i + 2], s[i + 3]};
      if constexpr (Types::generic)
        shared *= Float4{slopes[i], slopes[i + 1], slopes[i + 2], slopes[i + 3]};
      shared_.weights[pair()][c][i / 4][arch::lane()] = shared;
    }
    drop(s, drops, kept);
    t.packed[c] = Packed(rounded_weights<spec.dtype>(t.scores[c]));
  }

  const Problem& p_;
  const SequenceView& sequence_;
  std::int32_t first_key_;
  int wave_;
  ROCFLASH_SHARED PairShared<spec>& shared_;
  Scale scale_;
  Span visible_to_any_, visible_to_all_;
  typename Types::Owned own_[parts];
  KeyView key_[parts];
};

// Epilogue: stores dV or dK. It computes the position again instead of keeping it in registers.
template <KernelSpec spec, class WaveSums>
void epilogue_wave_pairs(const BackwardArguments& a, const WaveSums& sums) {
  using Types = PairTypes<spec>;
  struct Position {
    WorkTile item;
    SequenceView sequence;
    std::int32_t first;
    Position(const BackwardArguments& now, int part)
        : item(key_work_tile(now,
                             has_ordered_dq(this_family) ? stored_ticket() : arch::workgroup_id())),
          sequence(now.problem, item.batch),
          first(item.block * Types::tile.owned + arch::wave() % Types::pairs * Types::wave_keys +
                part * Types::Mma::columns) {}
  };
  ROCFLASH_UNROLL
  for (int n = 0; n < Types::parts; ++n) {
    const auto store_all = [&] {
      const BackwardArguments& now = arch::reload_kernargs(a);
      const Position at(now, n);
      const bool dv = arch::wave() < Types::pairs;
      return store_accumulator<Types>(
          now.problem, dv ? now.tensors.dv : now.tensors.dk, at.sequence.batch,
          at.sequence.k_row + at.first, at.sequence.sk - at.first, at.item.head, sums[n],
          now.problem.dropout.scale() * (dv ? 1.0f : now.problem.scale));
    };
    recompute_rows(store_all(), [&](int row) {
      const BackwardArguments& now = arch::reload_kernargs(a);
      const Position at(now, n);
      const bool dv = arch::wave() < Types::pairs;
      exact_dk_dv<spec.dtype>(now, at.sequence, at.item.head, at.first + row, !dv, dv);
    });
  }
}

template <KernelSpec spec>
void fused_wave_pairs(const BackwardArguments& a) {
  using Types = PairTypes<spec>;
  using Mma = typename Types::Mma;
  constexpr BackwardTile tile = Types::tile;
  constexpr bool ordered = has_ordered_dq(this_family);
  ROCFLASH_SHARED_ARRAY PairShared<spec> shared;

  const Problem& p = a.problem;
  const int wave = arch::wave();
  const WorkTile item = key_work_tile(a, ordered ? take_ticket(a) : arch::workgroup_id());
  const SequenceView sequence(p, item.batch);
  const std::int32_t block_begin = item.block * tile.owned;
  if (block_begin >= sequence.sk) return;
  PairWave<spec> own(a, sequence, item.head, block_begin + wave % Types::pairs * Types::wave_keys,
                     wave, shared);
  ROCFLASH_UNROLL
  for (int n = 0; n < Types::column_tiles; ++n) {
    const std::int32_t first = block_begin + n * Types::column_keys;
    Types::KeyStaging::copy(p.k,
                            typename Types::Block(p.k, 0, sequence.batch, sequence.k_row + first,
                                                  sequence.sk - first, item.head),
                            shared.k[n]);
  }
  using Tiles = QueryTiles<tile.streamed, ordered>;
  using Position = typename Tiles::Position;
  // Aligned to accumulator blocks.
  const Tiles tiles(p, item.head,
                    AttendingQueries(p.visibility, sequence, block_begin, tile.owned).any,
                    ordered ? tile.streamed : DqAccumulatorBlocks<Mma::columns>::rows);
  [[maybe_unused]] const OrderedDqAccumulation<tile.owned, tile.streamed> order(
      p.visibility, sequence, item.block);
  const auto counter = [&](Position position) {
    return DqOrder(arch::reload_kernargs(a), sequence).counter(position.head, position.query);
  };
  // On RDNA2 this kernel also computes subsets of the gradients; elsewhere separate kernels do.
  const bool wanted = !ordered || (own.is_p() ? a.tensors.dv : a.tensors.dk);
  const typename Types::Exchange exchange(shared.ds);

  PairTileLoader<spec> loader(a, sequence, wave / Types::pairs, shared);
  const std::int32_t iterations = tiles.count();
  Position position = tiles.first(), before{};
  if (iterations > 0) {
    loader.load(position);
    loader.store(position);
  }
  for (std::int32_t n = 0; n < iterations; ++n) {
    const Position next = tiles.after(position);
    arch::barrier();
    if (n + 1 < iterations) loader.load(next);
    typename PairWave<spec>::Tile scores;
    scores.head = position.head;
    scores.first_query = position.query;
    own.compute(scores);

    const bool adds = !ordered || arch::reload_kernargs(a).dq_accum;
    [[maybe_unused]] std::uint32_t blocks_done = 0;
    if constexpr (ordered) arch::wait_stores();  // of the previous tile
    arch::barrier();
    if constexpr (ordered) {
      if (adds) {
        if (n > 0) order.arrive(counter(before));
        blocks_done = order.load_progress(counter(position), position.query);
      }
    }
    own.compute_ds(scores, exchange);
    if (wanted) own.add_products(scores);
    PairDq<spec> dq(a, sequence, wave, position.head, position.query);
    if constexpr (ordered) {
      if (adds) {
        order.wait(counter(position), blocks_done);
        dq.load();
      }
    }
    arch::barrier();
    dq.multiply(exchange, shared, scores.line, adds);
    if (adds) dq.add();
    if (n + 1 < iterations) loader.store(next);
    before = position;
    position = next;
  }
  if constexpr (ordered) {
    if (iterations > 0 && arch::reload_kernargs(a).dq_accum) {
      arch::wait_stores();
      arch::barrier();
      order.arrive(counter(before));
    }
  }
  epilogue_wave_pairs<spec>(a, own.sums);
}

}  // namespace rocflash::kernel
