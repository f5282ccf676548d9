// dK and dV on AMD GPUs: each workgroup owns a block of keys of one KV head, and the query tiles of
// the GQA group stream through LDS (amd_common.hpp). Where registers do not hold both accumulators,
// dK and dV have separate kernels.
#pragma once

#include "backward/amd_common.hpp"

namespace rocflash::kernel {

// The workgroup's block of keys. Under a causal mask most queries attend to the first keys, so
// those blocks start first (LPT order).
inline WorkTile key_work_tile(const BackwardArguments& a,
                              std::int32_t number = arch::workgroup_id()) {
  WorkTile item(a.work, static_cast<std::int32_t>(a.problem.kv_heads), number);
  item.block = a.work.blocks - 1 - item.block;
  return item;
}

// The keys of a wave. The epilogue computes it again instead of keeping it in registers.
template <KernelSpec spec>
struct KeyBlockPosition {
  WorkTile item;
  SequenceView sequence;
  std::int32_t block_begin, first;  // keys of the workgroup and of the wave

  explicit KeyBlockPosition(const BackwardArguments& a)
      : item(key_work_tile(a)),
        sequence(a.problem, item.batch),
        block_begin(item.block * BackwardTypes<spec>::tile.owned),
        first(block_begin + arch::wave() * BackwardTypes<spec>::wave_rows) {}
};

template <KernelSpec spec>
std::uint64_t store_key_gradient(const BackwardArguments& a, const Rows& to,
                                 const typename BackwardTypes<spec>::Sums& sums, float factor) {
  const KeyBlockPosition<spec> at(a);
  return store_accumulator<BackwardTypes<spec>>(
      a.problem, to, at.sequence.batch, at.sequence.k_row + at.first, at.sequence.sk - at.first,
      at.item.head, sums, factor);
}

template <KernelSpec spec, bool want_k, bool want_v>
void epilogue_dk_dv(const BackwardArguments& a, const typename BackwardTypes<spec>::Sums& dk,
                    const typename BackwardTypes<spec>::Sums& dv) {
  std::uint64_t non_finite = 0;
  if constexpr (want_k) {
    const BackwardArguments& now = arch::reload_kernargs(a);
    non_finite |= store_key_gradient<spec>(now, now.tensors.dk, dk,
                                           now.problem.scale * now.problem.dropout.scale());
  }
  if constexpr (want_v) {
    const BackwardArguments& now = arch::reload_kernargs(a);
    non_finite |= store_key_gradient<spec>(now, now.tensors.dv, dv, now.problem.dropout.scale());
  }
  recompute_rows(non_finite, [&](int row) {
    const BackwardArguments& now = arch::reload_kernargs(a);
    const KeyBlockPosition<spec> at(now);
    exact_dk_dv<spec.dtype>(now, at.sequence, at.item.head, at.first + row, want_k, want_v);
  });
}

// The query tiles that attend to a workgroup's keys: those of one head of the GQA group after the
// other, in descending order for ordered dQ accumulation.
template <int streamed, bool descending = false>
class QueryTiles {
 public:
  struct Position {
    std::int32_t head, query;
  };

  // `visible`: the queries that attend. The first tile starts at a multiple of `alignment`.
  QueryTiles(const Problem& p, std::int32_t kv_head, Range visible, int alignment)
      : first_query_(
            arch::uniform(static_cast<std::int32_t>(visible.begin / alignment * alignment))),
        tiles_(arch::uniform(visible.empty() ? 0
                                             : (static_cast<std::int32_t>(visible.end) -
                                                first_query_ + streamed - 1) /
                                                   streamed)),
        gqa_group_(static_cast<std::int32_t>(p.gqa_group())),
        first_head_(kv_head * gqa_group_) {}

  std::int32_t count() const { return tiles_ * gqa_group_; }
  Position first() const { return {first_head_, start()}; }
  Position after(Position position) const {
    position.query += descending ? -streamed : streamed;
    if (descending ? position.query < first_query_
                   : position.query >= first_query_ + tiles_ * streamed)
      position = {position.head + 1, start()};
    return position;
  }

 private:
  std::int32_t start() const {
    return descending ? first_query_ + (tiles_ - 1) * streamed : first_query_;
  }

  std::int32_t first_query_, tiles_, gqa_group_, first_head_;
};

// The row statistics of a tile in LDS.
struct TileStatistics {
  const ROCFLASH_SHARED float *base, *addend, *delta;
};

// P = exp(S − lse) and dS = P (dP − delta) of a tile, in the registers of S and dP. `first_query`,
// `first_key`: of the wave's scores.
template <class Types, bool want_k, bool want_v>
void compute_p_and_ds(const Problem& p, const SequenceView& sequence, std::int32_t head,
                      std::int32_t first_query, std::int32_t first_key, const KeyView& key,
                      Span visible_to_all, float softmax_scale, TileStatistics statistics,
                      ROCFLASH_SHARED std::uint8_t* shared_keep_mask, float (&s)[Types::count],
                      float (&ds)[Types::count]) {
  using Scores = typename Types::Scores;
  constexpr BackwardTile tile = Types::tile;
  constexpr int count = Types::count;
  // Recomputed per tile: generic kernels have no VGPR left for it.
  const int lane_row =
      Scores::Layout::lane_row(Types::generic ? arch::opaque_lane() : arch::lane());
  if constexpr (Types::generic || tile.shared_owned) {
    arch::pin_vgpr(s);
    if constexpr (want_k) arch::pin_vgpr(ds);
  }
  const auto query = [&](int i) { return first_query + lane_row + Scores::row(i); };
  [[maybe_unused]] DropoutKeepMask<Types, true> kept;
  [[maybe_unused]] const bool drops = Types::generic && arch::reload_kernargs(p).dropout.on();
  if constexpr (Types::generic) {
    const ScoreModGradient score_mod(arch::reload_kernargs(p), sequence, head);
    if (drops) {
      kept.draw(shared_keep_mask, score_mod, first_query, first_key);
      if constexpr (want_k) {
        ROCFLASH_UNROLL
        for (int i = 0; i < count; ++i) ds[i] = kept(i) ? ds[i] : 0.0f;
      }
    }
    if constexpr (want_k) {
      ROCFLASH_UNROLL
      for (int i = 0; i < count; ++i) ds[i] -= statistics.delta[lane_row + Scores::row(i)];
    }
    score_mod.template apply<count, FastNaturalLogDomain>(
        QueryPerScore{query}, [&](int) { return key.index; }, [&](int i) -> float& { return s[i]; },
        [&](int i, float slope) {
          if constexpr (want_k) ds[i] *= slope;
        });
  }
  ROCFLASH_UNROLL
  for (int i = 0; i < count; ++i) {
    typename Types::RowExponent row;
    row.base = statistics.base[lane_row + Scores::row(i)];
    if constexpr (Types::generic) row.addend = statistics.addend[lane_row + Scores::row(i)];
    s[i] = Types::weight(s[i], softmax_scale, row);
    if constexpr (want_k) {
      if constexpr (Types::generic) {
        ds[i] = s[i] == 0 ? 0.0f : ds[i] * s[i];
      } else {
        ds[i] = s[i] * (ds[i] - statistics.delta[lane_row + Scores::row(i)]);
      }
    }
  }
  if (first_query < visible_to_all.begin || first_query + tile.streamed > visible_to_all.end) {
    ROCFLASH_UNROLL
    for (int i = 0; i < count; ++i) {
      const bool attends_to = key.visible_to(query(i));
      s[i] = attends_to ? s[i] : 0.0f;
      if constexpr (want_k) ds[i] = attends_to ? ds[i] : 0.0f;
    }
  }
  if constexpr (Types::generic && want_v) {
    if (drops) {
      ROCFLASH_UNROLL
      for (int i = 0; i < count; ++i) s[i] = kept(i) ? s[i] : 0.0f;
    }
  }
}

// The dQ stage of kernels that do not compute dQ. amd_fused.hpp has the stage that does.
struct NoDq {
  template <class... Position>
  explicit NoDq(const Position&...) {}
  // Publishes dS to the other waves, and returns it as the B operand of dK.
  template <class Rounded>
  Rounded exchange_ds(const Rounded& ds) const {
    return ds;
  }
  void exchange_zeros() const {}
  // dQ = dS·K of a tile, after the barrier that publishes dS.
  void multiply(std::int32_t, std::int32_t) const {}
  // Adds dQ to the accumulator, during the next tile.
  void add() const {}

  // The products of dK and dV. `overlapped`: operands are prefetched to registers, so that other
  // work overlaps with matrix instructions.
  static constexpr bool overlapped = false;
  template <class Result, int depth, int together, class A, class B>
  static Result product(const A& a, const B& b) {
    return kernel::product<Result, depth, together>(a, b);
  }
  template <int depth, class Sums, class A, class B>
  static void add_product(Sums& sums, const A& a, const B& b) {
    kernel::add_product<depth>(sums, a, b);
  }
};

template <KernelSpec spec, bool want_k, bool want_v, class FusedDq = NoDq>
void main_dk_dv(const BackwardArguments& a) {
  using Types = BackwardTypes<spec>;
  using Scores = typename Types::Scores;
  using Block = typename Types::Block;
  using KeepMask = DropoutKeepMask<Types, true>;
  using Queries = StreamedTensor<Types, want_k ? TileLayout::both : TileLayout::rows>;
  using Douts = StreamedTensor<Types, want_k && want_v ? TileLayout::both
                                      : want_k         ? TileLayout::rows
                                                       : TileLayout::transposed>;
  constexpr BackwardTile tile = Types::tile;
  constexpr int buffers = Types::buffers;
  static_assert(tile.threads >= tile.streamed);

  ROCFLASH_SHARED_ARRAY Words4 shared_q[buffers][Queries::row_chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_qt[buffers][Queries::transposed_chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_dout[buffers][Douts::row_chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_doutt[buffers][Douts::transposed_chunks];
  alignas(16) ROCFLASH_SHARED_ARRAY float shared_base[buffers][tile.streamed];
  alignas(16)
      ROCFLASH_SHARED_ARRAY float shared_addend[buffers][Types::generic ? tile.streamed : 0];
  alignas(16) ROCFLASH_SHARED_ARRAY float shared_delta[buffers][want_k ? tile.streamed : 0];
  ROCFLASH_SHARED_ARRAY Words4 shared_k[Types::waves][Types::Owned::shared_chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_v[Types::waves][want_k ? Types::Owned::shared_chunks : 0];
  alignas(16) ROCFLASH_SHARED_ARRAY std::uint8_t
      shared_keep_mask[Types::waves][Types::generic ? KeepMask::bytes : 0];

  const Problem& p = a.problem;
  const BackwardTensors& t = a.tensors;
  const auto [item, sequence, block_begin, wave_begin] = KeyBlockPosition<spec>(a);
  if (block_begin >= sequence.sk) return;
  const AttendingQueries wave_queries(p.visibility, sequence, wave_begin, Types::wave_rows);
  const Span visible_to_any = uniform(wave_queries.any), visible_to_all = uniform(wave_queries.all);
  const KeyView key(p.visibility, sequence, wave_begin + Scores::lane_column());

  const Scale scale(p.scale);
  const auto owned = [&](const Rows& rows, bool negate, SharedWords4* lds) {
    return load_owned_rows<Types>(rows, sequence.batch, sequence.k_row + wave_begin,
                                  sequence.sk - wave_begin, item.head, negate, lds);
  };
  typename Types::Owned k = owned(p.k, scale.negate_q, shared_k[arch::wave()]);
  [[maybe_unused]] typename Types::Owned v;
  if constexpr (want_k) v = owned(p.v, false, shared_v[arch::wave()]);
  FusedDq dq(a, sequence, item.head, block_begin, shared_qt[0]);

  const QueryTiles<tile.streamed> tiles(
      p, item.head, AttendingQueries(p.visibility, sequence, block_begin, tile.owned).any, 1);
  using Position = typename QueryTiles<tile.streamed>::Position;

  Queries q(p.q);
  Douts dout(t.dout);
  float next_lse = infinity, next_delta = 0;
  const auto block_at = [&](const Rows& rows, Position position) {
    return Block(rows, 0, sequence.batch, sequence.q_row + position.query,
                 sequence.sq - position.query, position.head);
  };
  const auto load = [&](Position position) {
    const BackwardArguments& now = arch::reload_kernargs(a);
    q.load(block_at(now.problem.q, position));
    dout.load(block_at(now.tensors.dout, position));
    const std::int32_t query = position.query + arch::thread();
    next_lse = infinity;
    next_delta = 0;
    if (arch::thread() < tile.streamed && query < sequence.sq) {
      const std::int64_t row = sequence.q_row + query;
      next_lse = arch::load(&now.tensors.lse.at(sequence.batch, position.head, row));
      if constexpr (want_k)
        next_delta = arch::load(&now.delta.at(sequence.batch, position.head, row));
    }
  };
  const auto store = [&](Position position, int buffer) {
    const BackwardArguments& now = arch::reload_kernargs(a);
    if (arch::thread() < tile.streamed) {
      const typename Types::RowExponent row(now, sequence.batch, position.head,
                                            sequence.q_row + position.query + arch::thread(),
                                            next_lse);
      shared_base[buffer][arch::thread()] = row.base;
      if constexpr (Types::generic) shared_addend[buffer][arch::thread()] = row.addend;
      if constexpr (want_k) shared_delta[buffer][arch::thread()] = next_delta;
    }
    q.store(now.problem.q, block_at(now.problem.q, position), shared_q[buffer], shared_qt[buffer]);
    dout.store(now.tensors.dout, block_at(now.tensors.dout, position), shared_dout[buffer],
               shared_doutt[buffer]);
  };

  typename Types::Sums dk = {}, dv = {};
  Position position = tiles.first();
  const std::int32_t iterations = tiles.count();
  if (iterations > 0) {
    load(position);
    store(position, 0);
  }
  for (std::int32_t n = 0; n < iterations; ++n) {
    const Position next = tiles.after(position);
    if (n + 1 < iterations) load(next);
    arch::barrier();

    const int buffer = n % buffers;
    const std::int32_t begin = position.query, end = begin + tile.streamed;
    if (begin < visible_to_any.end && end > visible_to_any.begin) {
      // S = Q·Kᵀ, dP = dO·Vᵀ
      k.rematerialize_addresses();
      if constexpr (want_k) v.rematerialize_addresses();
      const int line = streamed_line<Types>();
      using Operand = typename Types::StreamedOperand;
      Scores scores = dq.template product<Scores, spec.bucket, Types::together>(
                 Operand{shared_q[buffer], line}, k),
             gradients;
      dq.add();
      if constexpr (want_k)
        gradients = dq.template product<Scores, spec.bucket, Types::together>(
            Operand{shared_dout[buffer], line}, v);
      compute_p_and_ds<Types, want_k, want_v>(
          p, sequence, position.head, begin, wave_begin, key, visible_to_all, scale.softmax_scale,
          {shared_base[buffer], shared_addend[buffer], shared_delta[buffer]},
          shared_keep_mask[arch::wave()], scores.at[0], gradients.at[0]);

      // dVᵀ += dOᵀ·P, dKᵀ += Qᵀ·dS
      using TransposedRows = typename Types::TransposedOperand;
      if constexpr (want_v)
        dq.template add_product<tile.streamed>(dv, TransposedRows{shared_doutt[buffer]},
                                               rounded_weights<spec.dtype>(scores));
      if constexpr (want_k)
        dq.template add_product<tile.streamed>(
            dk, TransposedRows{shared_qt[buffer]},
            dq.exchange_ds(rounded_weights<spec.dtype>(gradients)));
    } else {
      dq.add();
      dq.exchange_zeros();
    }
    if constexpr (buffers == 1) arch::barrier();
    // Unconditional in the overlapped schedule, so that the compiler may interleave stores with
    // products. The last stores are not read.
    if (FusedDq::overlapped || n + 1 < iterations) store(next, (n + 1) % buffers);
    dq.multiply(position.head, position.query);
    position = next;
  }
  dq.add();
  epilogue_dk_dv<spec, want_k, want_v>(a, dk, dv);
}

template <KernelSpec spec>
void backward_dkdv(const BackwardArguments& a) {
  main_dk_dv<spec, true, true>(a);
}
template <KernelSpec spec>
void backward_dk(const BackwardArguments& a) {
  main_dk_dv<spec, true, false>(a);
}

}  // namespace rocflash::kernel
