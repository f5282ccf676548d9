// Shared by the forward schedules of AMD GPUs: kernel types, staging of K and V tiles to LDS, and
// the epilogue of a wave.
//
// Both products are transposed: Sᵀ = K·Qᵀ and Oᵀ += Vᵀ·Pᵀ. Keys, then columns of V, are the rows of
// the product, and queries are its columns. All scores of a lane belong to one query, and, rounded,
// they are the operand Pᵀ without any exchange between lanes (tile/operand_order.hpp).
#pragma once

#include "arch/arch.hpp"
#include "attention/epilogue.hpp"
#include "attention/exact_recompute.hpp"
#include "attention/online_softmax.hpp"
#include "attention/rows.hpp"
#include "attention/score_mod.hpp"
#include "attention/sequence.hpp"
#include "attention/work_tile.hpp"
#include "attention/work_tile_by_bh.hpp"
#include "attention/zero_unused_rows.hpp"
#include "table/features.hpp"
#include "table/forward.hpp"
#include "tile/amd.hpp"
#include "tile/staging.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
struct ForwardTypes : OfSpec<spec> {
  using OfSpec<spec>::dtype, OfSpec<spec>::bucket, OfSpec<spec>::generic;
  static constexpr ForwardTile tile = forward_tile(this_family, spec);

  using Domain = typename ScoreDomainOf<dtype, generic>::Type;
  using Softmax = BasicOnlineSoftmax<Domain>;
  using Mma = arch::Mma<dtype>;
  static constexpr int wave_queries = Mma::columns, waves = tile.threads / arch::wave_size;
  // Tail-split kernel: waves n and n + waves / 2, on one SIMD, have the same queries, and each has
  // half of the keys of every tile.
  static constexpr bool tail_split = spec.schedule == Schedule::tail_split;
  static constexpr int wave_keys = tail_split ? tile.keys / 2 : tile.keys;
  static constexpr int query_waves = tail_split ? waves / 2 : waves;
  static_assert(query_waves * wave_queries == tile.queries);
  // Ping-pong needs two waves per SIMD, and a matrix core that runs in parallel with the VALU.
  // CDNA1 has too few VGPRs for it from head dim 96 on.
  static constexpr bool pingpong =
      arch::wave_size == 64 && waves == 8 && !(this_family == Family::cdna1 && spec.bucket > 64);

  // Rows in global memory: of K and V, which may be paged, and of Q and O.
  using Block = RowBlock<dtype, spec.variant>;
  using QueryBlock = RowBlock<dtype, spec.variant, false>;
  using Keys = RowTile<bucket * element_bytes<dtype>, tile.keys>;
  using Values = Transposed<Mma, dtype, bucket, tile.keys>;

  using KeyOperand = SharedOperand<Mma, Keys, Side::left>;                   // K
  using ValueOperand = typename Values::Operand;                             // Vᵀ
  using Queries = ResidentOperand<Mma, dtype, bucket, tile.shared_queries>;  // Qᵀ
  using Scores = Elements<Mma, wave_keys, wave_queries>;
  using Outputs = Accumulators<Mma, bucket, wave_queries>;  // of Oᵀ

  // V operand of a tile from key `first` on.
  static ValueOperand values_from(const SharedWords4* values, int first) {
    if constexpr (arch::has_ds_read_tr) {
      return {values + first * Values::Tile::row_chunks};
    } else {
      return {.tile = values, .first_chunk = first / chunk_elements<dtype>};
    }
  }

  // Ping-pong: with less than one task per thread only the first waves copy. The branch is then
  // scalar.
  static constexpr int staging_threads(int tasks) {
    return pingpong && tasks < tile.threads ? tasks : tile.threads;
  }
  static constexpr int key_threads = staging_threads(tile.keys * bucket / 8),
                       value_threads =
                           staging_threads(tile.keys * bucket / (arch::has_ds_read_tr ? 8 : 16));
  using KeyStaging = RowStaging<Block, Keys, dtype, bucket, tile.keys, key_threads>;
  // Ping-pong: the leading waves alone copy K tile 0.
  using FirstStaging = RowStaging<Block, Keys, dtype, bucket, tile.keys, tile.threads / 2>;
  using ValueStaging =
      typename SelectStaging<arch::has_ds_read_tr, Block, typename Mma::Layout,
                             typename Values::Tile, dtype, bucket, tile.keys, value_threads>::Type;
};

// Loads these kernel arguments to SGPRs at once. The compiler would load each one at its use, after
// branches and in chains of dependent scalar loads.
template <class... T>
void preload_kernargs(T... arguments) {
  (([](T argument) { asm volatile("" : : "s"(argument)); }(arguments)), ...);
}

// A SequenceView with a shorter chain of scalar loads for dense batches, which have no length
// tensors.
inline SequenceView sequence_view(const Problem& p, std::int64_t batch) {
  const Lengths& l = p.lengths;
  const std::int32_t* const tensors[] = {l.cu_q, l.cu_k, l.used_q, l.used_k, l.leftpad_k};
  std::uintptr_t any = 0;
  for (const std::int32_t* tensor : tensors) any |= reinterpret_cast<std::uintptr_t>(tensor);
  // Compared in 32 bits, which the SALU supports: sequences have less than 2^30 rows here.
  if (__builtin_expect(any != 0, false) ||
      static_cast<std::int32_t>(batch) >= static_cast<std::int32_t>(l.batch))
    return SequenceView(p, batch);
  const auto clamped = [](std::int64_t rows, std::int64_t max_rows) {
    const auto low = static_cast<std::uint32_t>(rows), max = static_cast<std::uint32_t>(max_rows);
    const bool exceeds = arch::opaque_sgpr(static_cast<int>(rows >> 32)) != 0 || low > max;
    return static_cast<std::int32_t>(exceeds ? max : low);
  };
  SequenceView view(p, l.batch);  // past the last sequence: empty
  view.batch = batch;
  view.q_rows = view.sq = clamped(l.rows_q, p.max_q);
  view.k_rows = view.sk = clamped(l.rows_k, p.max_k);
  return view;
}

// row_address with 32-bit batch and head indices: a third fewer scalar multiplications.
template <DType dtype>
std::byte* bh_row(const Rows& rows, std::int64_t batch, std::int64_t row, std::int64_t head) {
  return row_address<dtype>(rows, static_cast<std::uint32_t>(batch), row,
                            static_cast<std::uint32_t>(head));
}
// Extent of a buffer resource: bytes of up to `max_rows` rows of which `left` exist, on the SALU.
template <DType dtype, int max_rows>
std::int32_t extent_bytes(const Rows& rows, std::int32_t left) {
  // Opaque: the compiler would form v_med3, which has no scalar counterpart.
  const std::int32_t existing = arch::opaque_sgpr(left > 0 ? left : 0);
  return (existing < max_rows ? existing : max_rows) *
         static_cast<std::int32_t>(rows.row_stride * element_bytes<dtype>);
}

// Iterates over the tiles of K or V in global memory.
template <KernelSpec spec>
class TileCursor {
  using Types = ForwardTypes<spec>;
  using Block = typename Types::Block;

 public:
  TileCursor(const Rows& rows, const ForwardArguments& a, const SequenceView& sequence,
             std::int64_t kv_head, std::int32_t first_key)
      : rows_(rows), a_(a), sequence_(sequence), kv_head_(kv_head), key_(first_key) {
    if constexpr (!Types::generic) {
      // The address of a tile takes dozens of scalar instructions, during which the matrix core
      // would be idle: it is computed once and then incremented.
      row_bytes_ =
          arch::uniform(static_cast<std::int32_t>(rows.row_stride * element_bytes<spec.dtype>));
      next_ = arch::uniform(
          bh_row<spec.dtype>(rows, sequence.batch, sequence.k_row + first_key, kv_head));
      left_ = arch::uniform(sequence.sk - first_key);
    }
  }

  // To the next tile; the first call selects the first tile.
  void advance() {
    if constexpr (!Types::generic) {
      here_ = next_;
      // Opaque as in extent_bytes. Not every loop is known to the compiler to be uniform.
      const std::int32_t left = arch::opaque_sgpr(arch::uniform(left_ > 0 ? left_ : 0));
      bytes_ = (left < Types::tile.keys ? left : Types::tile.keys) * row_bytes_;
      left_ -= Types::tile.keys;
      next_ += std::int64_t{Types::tile.keys} * row_bytes_;
    }
  }
  Block block() {
    if constexpr (Types::generic) {
      const std::int32_t key = key_;
      key_ += Types::tile.keys;
      return Block(rows_, a_.caches, sequence_.batch, sequence_.k_row + key, sequence_.sk - key,
                   kv_head_);
    } else {
      return Block(here_, bytes_);
    }
  }

 private:
  const Rows& rows_;
  const ForwardArguments& a_;
  const SequenceView& sequence_;
  std::int64_t kv_head_;
  std::int32_t key_;
  const std::byte *next_ = nullptr, *here_ = nullptr;
  std::int32_t row_bytes_ = 0, left_ = 0, bytes_ = 0;
};

// Register staging of the workgroup's K and V tiles: global memory → VGPRs → LDS.
template <KernelSpec spec>
class KvStaging {
  using Types = ForwardTypes<spec>;

 public:
  KvStaging(const ForwardArguments& a, const SequenceView& sequence, std::int64_t kv_head,
            std::int32_t first_key)
      : k_cursor_(a.problem.k, a, sequence, kv_head, first_key),
        v_cursor_(a.problem.v, a, sequence, kv_head, first_key),
        k_(a.problem.k),
        v_(a.problem.v) {}

  void advance_k() { k_cursor_.advance(); }
  void advance_v() { v_cursor_.advance(); }
  void load_k() {
    if (copies_k()) k_.load(k_cursor_.block());
  }
  void load_v() {
    if (copies_v()) v_.load(v_cursor_.block());
  }
  void store_k(SharedWords4* keys) const {
    if (copies_k()) k_.store(keys);
  }
  void store_v(SharedWords4* values) const {
    if (copies_v()) v_.store(values);
  }
  // LDS writes of both tiles one by one, for schedules that interleave them with MFMAs.
  static constexpr int stores = Types::KeyStaging::stores + Types::ValueStaging::stores;
  void store_one(int n, SharedWords4* keys, SharedWords4* values) const {
    if (n < Types::KeyStaging::stores) {
      if (copies_k()) k_.store_one(n, keys);
    } else {
      if (copies_v()) v_.store_one(n - Types::KeyStaging::stores, values);
    }
  }

 private:
  static bool copies_k() {
    return Types::key_threads == Types::tile.threads ||
           arch::wave() < Types::key_threads / arch::wave_size;
  }
  static bool copies_v() {
    return Types::value_threads == Types::tile.threads ||
           arch::wave() < Types::value_threads / arch::wave_size;
  }

  TileCursor<spec> k_cursor_, v_cursor_;
  typename Types::KeyStaging k_;
  typename Types::ValueStaging v_;
};

// Where the outputs of a work tile go. A schedule keeps it during the main loop if its registers
// suffice; others compute it again.
struct OutputPosition {
  WorkTile item;
  std::int64_t q_row;       // first row of the sequence
  std::int32_t q_rows, sq;  // allocated rows of the sequence; rows in use
  OutputPosition(const WorkTile& work_tile, const SequenceView& sequence)
      : item(work_tile), q_row(sequence.q_row), q_rows(sequence.q_rows), sq(sequence.sq) {}
  explicit OutputPosition(const ForwardArguments& a)
      : OutputPosition(
            WorkTile(a.work, static_cast<std::int32_t>(a.problem.heads), arch::workgroup_id()),
            a.problem) {}

 private:
  OutputPosition(const WorkTile& work_tile, const Problem& p)
      : OutputPosition(work_tile, SequenceView(p, work_tile.batch)) {}
};

// A wave's LDS slot of 32 rows by 128 bytes of Q or O. Global memory is accessed in whole 128-byte
// lines along the rows; MFMA fragments hold columns. The slot transposes one into the other.
template <class Mma>
struct RowExchange {
  static constexpr int columns = 64;
  using Tile = RowTile<columns * 2, Mma::columns>;
  static constexpr int rounds = Tile::chunks / arch::wave_size;
  struct Chunk {
    int row, chunk;
    explicit Chunk(int n) {
      const int id = n * arch::wave_size + arch::lane();
      row = id / Tile::row_chunks;
      chunk = id % Tile::row_chunks;
    }
    int offset() const { return Tile::offset(row, chunk); }
  };
};

// Round to nearest, ties to even, without the NaN case: rows with a NaN are recomputed. Where bf16
// has no conversion instruction this takes five operations per pair instead of eleven.
template <DType dtype>
std::uint32_t narrow_pair_no_nan(float low, float high) {
#if !defined(__gfx950__)
  if constexpr (dtype == DType::bf16) {
    const auto rounded = [](float x) {
      const auto bits = __builtin_bit_cast(std::uint32_t, x);
      return bits + 0x7fffu + (bits >> 16 & 1);
    };
    return arch::pack_high16(rounded(low), rounded(high));
  }
#endif
  return narrow_pair<dtype>(low, high);
}

// A kernel argument that is copied to SGPRs once, or loaded at each use.
template <class T, bool copied>
struct Argument {
  using Type = T;
};
template <class T>
struct Argument<T, false> {
  using Type = const T&;
};

// Queries with a non-finite output, one bit per lane.
struct NonFiniteQueries {
  std::uint64_t lanes;
};

// Epilogue of a wave, in stages that a schedule may interleave with other work: row sum over the
// lanes of each query, sink, normalization, stores. The ping-pong schedule stores whole lines
// through a RowExchange slot.
template <KernelSpec spec>
class Epilogue {
  using Types = ForwardTypes<spec>;
  using Mma = typename Types::Mma;
  using Block = typename Types::QueryBlock;
  using Lines = RowExchange<Mma>;

 public:
  // Row blocks of Oᵀ whose columns make up whole lines.
  static constexpr int line_blocks = Lines::columns / Mma::rows;

  // Copies the arguments first: the compiler would load them again after each store.
  Epilogue(const ForwardArguments& a, const OutputPosition& position,
           const typename Types::Softmax& softmax, SharedWords4* slot)
      : a_(a),
        position_(position),
        softmax_(softmax),
        slot_(slot),
        out_(a.outputs.out),
        lse_(a.outputs.lse),
        wave_begin_(position.item.block * Types::tile.queries + arch::wave() * Types::wave_queries),
        in_use_(wave_begin_ + query() < position.sq),
        overflow_(products_overflow(a.problem)) {}
  void reduce_row_sum() { sum_ = column_sum(softmax_.sum); }
  void normalize() {
    normalizer_ = SoftmaxFinalizer<spec.variant, typename Types::Domain>(
        a_.problem, position_.item.head, Types::generic)(softmax_.row_max, sum_);
  }
  void find_out_rows() {
    if constexpr (!Types::generic) {
      first_row_ = arch::uniform(bh_row<spec.dtype>(
          out_, position_.item.batch, position_.q_row + wave_begin_, position_.item.head));
      bytes_ = extent_bytes<spec.dtype, Types::wave_queries>(
          out_, arch::uniform(position_.q_rows - wave_begin_));
    }
  }
  void store_lse() const {
    if (!lse_) return;
    const WorkTile& item = position_.item;
    float* const first = arch::uniform(&lse_.at(static_cast<std::uint32_t>(item.batch),
                                                static_cast<std::uint32_t>(item.head),
                                                position_.q_row + wave_begin_));
    if (Types::Scores::lane_row() == 0 && wave_begin_ + query() < position_.q_rows)
      arch::store(first + query() * lse_.query_stride, in_use_ ? normalizer_.lse : infinity);
  }

  bool all_queries_in_use() const { return !arch::any(!in_use_); }

  // Two normalized outputs in the output dtype.
  std::uint32_t narrow(float low, float high) {
    probe_ = __builtin_fmaf(low, 0.0f, probe_);
    probe_ = __builtin_fmaf(high, 0.0f, probe_);
    return narrow_pair_no_nan<spec.dtype>(low * normalizer_.factor, high * normalizer_.factor);
  }
  // Results i to i + 3 of a row block, to the LDS slot or to global memory.
  void put(Words2 words, int block, int i) const {
    const int column = block * Mma::rows + Quads<Mma>::row(i) + Quads<Mma>::lane_row();
    if constexpr (Types::pingpong) {
      const int in_line = column % Lines::columns;
      ((SharedWords2*)slot_)[2 * Lines::Tile::offset(query(), in_line / 8) + in_line / 4 % 2] =
          words;
    } else {
      out_block().store4(words, Block::offset(out_, query(), column));
    }
  }
  // The lines that row block `block` completes: from LDS, then to global memory.
  void read_lines(Words4 (&lines)[Lines::rounds]) const {
    arch::wave_fence();
    ROCFLASH_UNROLL
    for (int n = 0; n < Lines::rounds; ++n) lines[n] = slot_[typename Lines::Chunk(n).offset()];
    arch::wave_fence();
  }
  void store_lines(const Words4 (&lines)[Lines::rounds], int block) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < Lines::rounds; ++n) {
      const typename Lines::Chunk at(n);
      const int column = block / line_blocks * Lines::columns + 8 * at.chunk;
      out_block().store8(lines[n], Block::offset(out_, at.row, column));
    }
  }

  // A row block of Oᵀ. With `all_in_use` no query of the wave is past the sequence.
  void finish_block(const typename Mma::Result& result, int block, bool all_in_use) {
    float o[Mma::results];
    ROCFLASH_UNROLL
    for (int i = 0; i < Mma::results; ++i) o[i] = result[i];
    if (!all_in_use) {
      ROCFLASH_UNROLL
      for (int i = 0; i < Mma::results; ++i) o[i] = in_use_ ? o[i] : 0;
    }
    Quads<Mma>::arrange(o);
    ROCFLASH_UNROLL
    for (int i = 0; i < Mma::results; i += 4)
      put({narrow(o[i], o[i + 1]), narrow(o[i + 2], o[i + 3])}, block, i);
    if constexpr (Types::pingpong) {
      if (block % line_blocks < line_blocks - 1 && block < Types::Outputs::row_parts - 1) return;
      Words4 lines[Lines::rounds];
      read_lines(lines);
      store_lines(lines, block);
    }
  }

  NonFiniteQueries non_finite() const {
    constexpr std::uint64_t one_lane_per_query = (std::uint64_t{1} << Types::wave_queries) - 1;
    const float probe = __builtin_fmaf(normalizer_.factor, 0.0f, column_sum(probe_));
    return {arch::ballot(in_use_ && (probe != 0 || overflow_)) & one_lane_per_query};
  }

 private:
  static int query() { return Types::Scores::lane_column(); }
  Block out_block() const {
    if constexpr (Types::generic) {
      return Block(out_, 0, position_.item.batch, position_.q_row + wave_begin_,
                   position_.q_rows - wave_begin_, position_.item.head);
    } else {
      return Block(first_row_, bytes_);
    }
  }

  const ForwardArguments& a_;
  const OutputPosition& position_;
  const typename Types::Softmax& softmax_;
  SharedWords4* const slot_;
  const typename Argument<Rows, Types::pingpong>::Type out_;
  const typename Argument<RowStatistic, Types::pingpong>::Type lse_;
  const std::int32_t wave_begin_;
  const bool in_use_, overflow_;
  float sum_ = 0;
  Normalizer normalizer_ = {};
  const std::byte* first_row_ = nullptr;
  std::int32_t bytes_ = 0;
  float probe_ = 0;  // NaN once an output is not finite
};

// The whole epilogue, stage by stage.
template <KernelSpec spec>
NonFiniteQueries store_outputs(const ForwardArguments& a, const OutputPosition& position,
                               const typename ForwardTypes<spec>::Softmax& softmax,
                               const typename ForwardTypes<spec>::Outputs& out,
                               SharedWords4* slot = nullptr) {
  Epilogue<spec> epilogue(a, position, softmax, slot);
  epilogue.reduce_row_sum();
  epilogue.normalize();
  epilogue.find_out_rows();
  epilogue.store_lse();
  const bool all_in_use = epilogue.all_queries_in_use();
  ROCFLASH_UNROLL
  for (int block = 0; block < out.row_parts; ++block)
    epilogue.finish_block(out.part[block][0], block, all_in_use);
  return epilogue.non_finite();
}

// Recomputes the rows that have a non-finite output.
template <KernelSpec spec>
void recompute_rows(const ForwardArguments& a, const OutputPosition& position,
                    NonFiniteQueries queries) {
  using Types = ForwardTypes<spec>;
  std::uint64_t non_finite = queries.lanes;
  if (non_finite == 0) return;
  const Problem& p = a.problem;
  const WorkTile& item = position.item;
  const std::int32_t wave_begin =
      item.block * Types::tile.queries + arch::wave() * Types::wave_queries;
  const SequenceView sequence(p, item.batch);
  while (non_finite != 0) {
    const int lane = __builtin_ctzll(non_finite);
    non_finite &= non_finite - 1;
    recompute_row(ExactScores<spec.dtype>{p, sequence, item.head, a.caches},
                  QueryView(p.visibility, sequence, wave_begin + lane), a.outputs);
  }
}

}  // namespace rocflash::kernel
