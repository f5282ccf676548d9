// dk and dv on AMD GPUs: each workgroup owns a block of keys of one key head, and the queries of all
// heads that share it stream past (amd.hpp). Where registers do not hold both results, each has a kernel
// of its own.
#pragma once

#include "backward/amd.hpp"

namespace rocflash::kernel {

// The workgroup's keys. Under a causal mask the first keys are seen by most queries, so they go first.
inline WorkItem key_item(const BackwardArguments& a, std::int32_t number = arch::group()) {
  WorkItem item(a.work, static_cast<std::int32_t>(a.problem.kv_heads), number);
  item.block = a.work.blocks - 1 - item.block;
  return item;
}

// Which keys a wave has. It is computed again at each step of the end rather than kept in registers.
template <KernelSpec spec>
struct KeysPosition {
  WorkItem item;
  SequenceView sequence;
  std::int32_t block_begin, first;  // keys of the workgroup and of the wave

  explicit KeysPosition(const BackwardArguments& a)
      : item(key_item(a)),
        sequence(a.problem, item.batch),
        block_begin(item.block * BackwardTypes<spec>::tile.owned),
        first(block_begin + arch::wave() * BackwardTypes<spec>::wave_rows) {}
};

template <KernelSpec spec>
std::uint64_t store_keys(const BackwardArguments& a, const Rows& to,
                         const typename BackwardTypes<spec>::Sums& sums, float factor) {
  const KeysPosition<spec> at(a);
  return store_sums<BackwardTypes<spec>>(a.problem, to, at.sequence.batch,
                                         at.sequence.k_row + at.first, at.sequence.sk - at.first,
                                         at.item.head, sums, factor);
}

template <KernelSpec spec, bool want_k, bool want_v>
void finish_keys(const BackwardArguments& a, const typename BackwardTypes<spec>::Sums& dk,
                 const typename BackwardTypes<spec>::Sums& dv) {
  std::uint64_t broken = 0;
  if constexpr (want_k) {
    const BackwardArguments& now = arch::again(a);
    broken |=
        store_keys<spec>(now, now.tensors.dk, dk, now.problem.scale * now.problem.dropout.scale());
  }
  if constexpr (want_v) {
    const BackwardArguments& now = arch::again(a);
    broken |= store_keys<spec>(now, now.tensors.dv, dv, now.problem.dropout.scale());
  }
  repair_rows(broken, [&](int row) {
    const BackwardArguments& now = arch::again(a);
    const KeysPosition<spec> at(now);
    exact_dk_dv<spec.dtype>(now, at.sequence, at.item.head, at.first + row, want_k, want_v);
  });
}

// What the kernel does for dq besides: nothing. (amd_fused.hpp has another answer.)
struct NoQueryGradients {
  template <class... Position>
  explicit NoQueryGradients(const Position&...) {}
  // dS as the right operand that dk needs; the other waves may need it too.
  template <class Rounded>
  Rounded share(const Rounded& ds) const {
    return ds;
  }
  void share_nothing() const {}
  // Behind the barrier after that, for the tile from a query of a head on.
  void multiply(std::int32_t, std::int32_t) const {}
  // During the next tile, and after the last one.
  void add() const {}

  // The products that dk and dv need. Where they are `overlapped`, registers hold more at a time, so that
  // other work runs beside products.
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

template <KernelSpec spec, bool want_k, bool want_v, class QueryGradients = NoQueryGradients>
void keys_kernel(const BackwardArguments& a) {
  using Types = BackwardTypes<spec>;
  using Scores = typename Types::Scores;
  using Block = typename Types::Block;
  using Kept = KeptScores<Types, true>;
  using Queries = Stream<Types, want_k ? Shape::both : Shape::rows>;
  using Douts = Stream<Types, want_k && want_v ? Shape::both
                              : want_k         ? Shape::rows
                                               : Shape::turned>;
  constexpr BackwardTile tile = Types::tile;
  constexpr int buffers = Types::buffers, count = Types::count;
  static_assert(tile.threads >= tile.streamed);

  ROCFLASH_SHARED_ARRAY Words4 shared_q[buffers][Queries::row_chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_qt[buffers][Queries::turned_chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_dout[buffers][Douts::row_chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_doutt[buffers][Douts::turned_chunks];
  alignas(16) ROCFLASH_SHARED_ARRAY float shared_lse[buffers][tile.streamed];
  alignas(16) ROCFLASH_SHARED_ARRAY float shared_delta[buffers][want_k ? tile.streamed : 0];
  ROCFLASH_SHARED_ARRAY Words4 shared_k[Types::waves][Types::Owned::shared_chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_v[Types::waves][want_k ? Types::Owned::shared_chunks : 0];
  alignas(16)
      ROCFLASH_SHARED_ARRAY std::uint8_t shared_kept[Types::waves][Types::full ? Kept::room : 0];

  // The workgroup's keys, the wave's, and the lane's own.
  const Problem& p = a.problem;
  const BackwardTensors& t = a.tensors;
  const auto [item, sequence, block_begin, wave_begin] = KeysPosition<spec>(a);
  if (block_begin >= sequence.sk) return;
  const SeeingQueries wave_queries(p.visibility, sequence, wave_begin, Types::wave_rows);
  const Span seen_by_any = uniform(wave_queries.any), seen_by_all = uniform(wave_queries.all);
  const KeyView key(p.visibility, sequence, wave_begin + Scores::lane_column());

  const Scale scale(p.scale);
  const auto owned = [&](const Rows& rows, bool turn_sign, SharedWords4* room) {
    return own_rows<Types>(rows, sequence.batch, sequence.k_row + wave_begin,
                           sequence.sk - wave_begin, item.head, turn_sign, room);
  };
  typename Types::Owned k = owned(p.k, scale.turn_sign, shared_k[arch::wave()]);
  [[maybe_unused]] typename Types::Owned v;
  if constexpr (want_k) v = owned(p.v, false, shared_v[arch::wave()]);
  QueryGradients dq(a, sequence, item.head, block_begin, shared_qt[0]);

  // Tiles of queries of one head after the other.
  const Range seen = SeeingQueries(p.visibility, sequence, block_begin, tile.owned).any;
  const auto first_query = static_cast<std::int32_t>(seen.begin);
  const std::int32_t tiles =
      seen.empty()
          ? 0
          : (static_cast<std::int32_t>(seen.end) - first_query + tile.streamed - 1) / tile.streamed;
  const auto group = static_cast<std::int32_t>(p.group());
  struct Turn {
    std::int32_t head, query;
  };
  const Turn first_turn{item.head * group, first_query};
  const auto after = [&](Turn turn) {
    turn.query += tile.streamed;
    if (turn.query >= first_query + tiles * tile.streamed) turn = {turn.head + 1, first_query};
    return turn;
  };

  Queries q(p.q);
  Douts dout(t.dout);
  float next_lse = infinity, next_delta = 0;
  const auto block_at = [&](const Rows& rows, Turn turn) {
    return Block(rows, 0, sequence.batch, sequence.q_row + turn.query, sequence.sq - turn.query,
                 turn.head);
  };
  const auto load = [&](Turn turn) {
    const BackwardArguments& now = arch::again(a);
    q.load(block_at(now.problem.q, turn));
    dout.load(block_at(now.tensors.dout, turn));
    const std::int32_t query = turn.query + arch::thread();
    next_lse = infinity;
    next_delta = 0;
    if (arch::thread() < tile.streamed && query < sequence.sq) {
      const std::int64_t row = sequence.q_row + query;
      next_lse = arch::load(&now.tensors.lse.at(sequence.batch, turn.head, row));
      if constexpr (want_k) next_delta = arch::load(&now.delta.at(sequence.batch, turn.head, row));
    }
  };
  const auto store = [&](Turn turn, int buffer) {
    const BackwardArguments& now = arch::again(a);
    if (arch::thread() < tile.streamed) {
      shared_lse[buffer][arch::thread()] = statistic(next_lse, log2_e) - Types::raised;
      if constexpr (want_k) shared_delta[buffer][arch::thread()] = next_delta;
    }
    q.store(now.problem.q, block_at(now.problem.q, turn), shared_q[buffer], shared_qt[buffer]);
    dout.store(now.tensors.dout, block_at(now.tensors.dout, turn), shared_dout[buffer],
               shared_doutt[buffer]);
  };

  typename Types::Sums dk = {}, dv = {};
  Turn turn = first_turn;
  const std::int32_t turns = tiles * group;
  if (turns > 0) {
    load(turn);
    store(turn, 0);
  }
  for (std::int32_t n = 0; n < turns; ++n) {
    const Turn next = after(turn);
    if (n + 1 < turns) load(next);
    arch::barrier();

    const int buffer = n % buffers;
    const std::int32_t begin = turn.query, end = begin + tile.streamed;
    if (begin < seen_by_any.end && end > seen_by_any.begin) {
      // S = Q·Kᵀ, dP = dO·Vᵀ
      k.renew();
      if constexpr (want_k) v.renew();
      const int line = streamed_line<Types>();
      using Operand = typename Types::StreamedOperand;
      const int lane_row = Scores::lane_row();
      const auto lse_of = [&](int i) { return shared_lse[buffer][lane_row + Scores::row(i)]; };
      Scores scores = dq.template product<Scores, spec.bucket, Types::together>(
                 Operand{shared_q[buffer], line}, k),
             gradients;
      dq.add();
      float (&s)[count] = scores.at[0], (&ds)[count] = gradients.at[0];
      if constexpr (want_k)
        gradients = dq.template product<Scores, spec.bucket, Types::together>(
            Operand{shared_dout[buffer], line}, v);
      if constexpr (Types::full || tile.shared_owned) {
        arch::settle(s);
        if constexpr (want_k) arch::settle(ds);
      }
      const auto query = [&](int i) { return begin + lane_row + Scores::row(i); };
      float unit = scale.unit;
      [[maybe_unused]] Kept kept;
      [[maybe_unused]] const bool drops = Types::full && arch::again(p).dropout.on();
      if constexpr (Types::full) {
        const GradientShape shape(arch::again(p), sequence, turn.head);
        if (drops) {
          kept.draw(shared_kept[arch::wave()], shape, begin, wave_begin);
          if constexpr (want_k) {
            ROCFLASH_UNROLL
            for (int i = 0; i < count; ++i) ds[i] = kept(i) ? ds[i] : 0.0f;
          }
        }
        if constexpr (want_k) {
          ROCFLASH_UNROLL
          for (int i = 0; i < count; ++i) ds[i] -= shared_delta[buffer][lane_row + Scores::row(i)];
        }
        shape.template shape<count>(
            query, [&](int) { return key.index; }, [&](int i) -> float& { return s[i]; },
            [&](int i, float slope) {
              if constexpr (want_k) ds[i] *= slope;
            });
        unit = 1;
      }

      // P = exp2(S − lse), dS = P (dP − delta)
      ROCFLASH_UNROLL
      for (int i = 0; i < count; ++i) {
        s[i] = arch::exp2(s[i] * unit - lse_of(i));
        if constexpr (want_k) {
          if constexpr (Types::full) {
            ds[i] = s[i] == 0 ? 0.0f : ds[i] * s[i];
          } else {
            ds[i] = s[i] * (ds[i] - shared_delta[buffer][lane_row + Scores::row(i)]);
          }
        }
      }
      if (begin < seen_by_all.begin || end > seen_by_all.end) {
        ROCFLASH_UNROLL
        for (int i = 0; i < count; ++i) {
          const bool sees = key.seen_by(query(i));
          s[i] = sees ? s[i] : 0.0f;
          if constexpr (want_k) ds[i] = sees ? ds[i] : 0.0f;
        }
      }
      if constexpr (Types::full && want_v) {
        if (drops) {
          ROCFLASH_UNROLL
          for (int i = 0; i < count; ++i) s[i] = kept(i) ? s[i] : 0.0f;
        }
      }

      // dVᵀ += dOᵀ·P, dKᵀ += Qᵀ·dS
      using Turned = typename Types::TurnedOperand;
      if constexpr (want_v)
        dq.template add_product<tile.streamed>(dv, Turned{shared_doutt[buffer]},
                                               rounded_weights<spec.dtype>(scores));
      if constexpr (want_k)
        dq.template add_product<tile.streamed>(dk, Turned{shared_qt[buffer]},
                                               dq.share(rounded_weights<spec.dtype>(gradients)));
    } else {
      dq.add();
      dq.share_nothing();
    }
    if constexpr (buffers == 1) arch::barrier();
    // Without a branch the compiler may put products between stores. The last ones are not read.
    if (QueryGradients::overlapped || n + 1 < turns) store(next, (n + 1) % buffers);
    dq.multiply(turn.head, turn.query);
    turn = next;
  }
  dq.add();
  finish_keys<spec, want_k, want_v>(a, dk, dv);
}

template <KernelSpec spec>
void backward_keys(const BackwardArguments& a) {
  keys_kernel<spec, true, true>(a);
}
template <KernelSpec spec>
void backward_dk(const BackwardArguments& a) {
  keys_kernel<spec, true, false>(a);
}

}  // namespace rocflash::kernel
