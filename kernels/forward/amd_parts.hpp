// What the forward schedules of AMD GPUs have in common: the types of a kernel, the way of its tiles of
// k and v to LDS, and the end of a wave's work.
//
// Everything is computed transposed: scores = K·Qᵀ and out += Vᵀ·Pᵀ, with keys, then columns of v,
// as the rows of the product and queries as its columns. All scores of a lane then belong to one
// query, and, rounded, they are the operand Pᵀ as they stand (tile/order.hpp).
#pragma once

#include "arch/arch.hpp"
#include "attention/epilogue.hpp"
#include "attention/exact.hpp"
#include "attention/outside.hpp"
#include "attention/rows.hpp"
#include "attention/score.hpp"
#include "attention/sequence.hpp"
#include "attention/softmax.hpp"
#include "attention/work.hpp"
#include "attention/work_by_plane.hpp"
#include "table/forward.hpp"
#include "tile/amd.hpp"
#include "tile/staging.hpp"

namespace rocflash::kernel {

// The types of one kernel.
template <KernelSpec spec>
struct ForwardTypes {
  static constexpr DType dtype = spec.dtype;
  static constexpr int bucket = spec.bucket;
  static constexpr bool full = spec.variant == Variant::full;
  static constexpr ForwardTile tile = forward_tile(this_family, spec);

  using Mma = arch::Mma<dtype>;
  static constexpr int wave_queries = Mma::columns, waves = tile.threads / arch::wave_size;
  // Waves n and n + waves / 2, on one SIMD, share their queries: each has half of the keys of every tile.
  static constexpr bool halves = spec.operation == Operation::forward_halves;
  static constexpr int wave_keys = halves ? tile.keys / 2 : tile.keys;
  static constexpr int query_waves = halves ? waves / 2 : waves;
  static_assert(query_waves * wave_queries == tile.queries);
  // Two waves per SIMD whose matrix unit works beside the vector unit: while one multiplies, the other
  // takes exponentials.
  // (CDNA1's registers are too few for that at 96 columns.)
  static constexpr bool in_turns =
      arch::wave_size == 64 && waves == 8 && !(this_family == Family::cdna1 && spec.bucket > 64);

  // Rows in global memory: of k and v, which may lie in pages, and of q and out.
  using Block = RowBlock<dtype, spec.variant>;
  using QueryBlock = RowBlock<dtype, spec.variant, false>;
  using Keys = RowTile<bucket * number_bytes<dtype>, tile.keys>;
  using Values = Transposed<Mma, dtype, bucket, tile.keys>;

  using KeyOperand = SharedLines<Mma, Keys, Side::left>;               // K
  using ValueOperand = typename Values::Operand;                       // Vᵀ
  using Queries = KeptLines<Mma, dtype, bucket, tile.shared_queries>;  // Qᵀ
  using Scores = Elements<Mma, wave_keys, wave_queries>;
  using Outputs = Accumulators<Mma, bucket, wave_queries>;  // of Oᵀ

  // The values of a tile from row `first` on.
  static ValueOperand values_from(const SharedWords4* values, int first) {
    if constexpr (arch::transposing_reads) {
      return {values + first * Values::Tile::row_chunks};
    } else {
      return {.tile = values, .first_chunk = first / chunk_numbers<dtype>};
    }
  }

  // In turns, whole waves share out the staging: where there is less than one task per thread, only the
  // first waves have some, which is a scalar branch.
  static constexpr int staging_threads(int tasks) {
    return in_turns && tasks < tile.threads ? tasks : tile.threads;
  }
  static constexpr int key_threads = staging_threads(tile.keys * bucket / 8),
                       value_threads =
                           staging_threads(tile.keys * bucket / (arch::transposing_reads ? 8 : 16));
  using KeyStaging = RowStaging<Block, Keys, dtype, bucket, tile.keys, key_threads>;
  // In turns, of the first tile: by the waves that have the first turn.
  using FirstStaging = RowStaging<Block, Keys, dtype, bucket, tile.keys, tile.threads / 2>;
  using ValueStaging =
      typename ChooseStaging<arch::transposing_reads, Block, typename Mma::Layout,
                             typename Values::Tile, dtype, bucket, tile.keys, value_threads>::Type;
};

// These arguments of a kernel are fetched here, all at once. Left alone, each is asked for where it is
// used, behind branches and the answers to other questions.
template <class... T>
void fetch(T... arguments) {
  (([](T argument) { asm volatile("" : : "s"(argument)); }(arguments)), ...);
}

// A SequenceView, with fewer questions one after the other where no int tensor has anything to say.
inline SequenceView sequence_view(const Problem& p, std::int64_t batch) {
  const Lengths& l = p.lengths;
  const std::int32_t* const tensors[] = {l.cu_q, l.cu_k, l.used_q, l.used_k, l.leftpad_k};
  std::uintptr_t any = 0;
  for (const std::int32_t* tensor : tensors) any |= reinterpret_cast<std::uintptr_t>(tensor);
  // Numbers of sequences and of their rows are compared in 32 bits, as scalar units can. The longest have
  // less than 2^30 rows here.
  if (__builtin_expect(any != 0, false) ||
      static_cast<std::int32_t>(batch) >= static_cast<std::int32_t>(l.batch))
    return SequenceView(p, batch);
  const auto shorter = [](std::int64_t rows, std::int64_t longest) {
    const auto low = static_cast<std::uint32_t>(rows), most = static_cast<std::uint32_t>(longest);
    const bool longer = arch::renewed(static_cast<int>(rows >> 32)) != 0 || low > most;
    return static_cast<std::int32_t>(longer ? most : low);
  };
  SequenceView view(p, l.batch);  // empty
  view.batch = batch;
  view.q_rows = view.sq = shorter(l.rows_q, p.max_q);
  view.k_rows = view.sk = shorter(l.rows_k, p.max_k);
  return view;
}

// row_address with 32 bits of sequence and head: a third fewer scalar multiplications.
template <DType dtype>
std::byte* plane_row(const Rows& rows, std::int64_t batch, std::int64_t row, std::int64_t head) {
  return row_address<dtype>(rows, static_cast<std::uint32_t>(batch), row,
                            static_cast<std::uint32_t>(head));
}
// Bytes of up to `most` rows where `left` are left, by scalar instructions.
template <DType dtype, int most>
std::int32_t bytes_of_rows(const Rows& rows, std::int32_t left) {
  // Renewed: the compiler would take the median of three, which only vector instructions have.
  const std::int32_t some = arch::renewed(left > 0 ? left : 0);
  return (some < most ? some : most) *
         static_cast<std::int32_t>(rows.row_stride * number_bytes<dtype>);
}

// Rows of k or v, one tile after the other.
template <KernelSpec spec>
class TileRows {
  using Types = ForwardTypes<spec>;
  using Block = typename Types::Block;

 public:
  TileRows(const Rows& rows, const ForwardArguments& a, const SequenceView& sequence,
           std::int64_t kv_head, std::int32_t first_key)
      : rows_(rows), a_(a), sequence_(sequence), kv_head_(kv_head), key_(first_key) {
    if constexpr (!Types::full) {
      // Addresses are computed once: per tile it would take dozens of scalar instructions, in which
      // the matrix unit has nothing to do.
      row_bytes_ =
          arch::uniform(static_cast<std::int32_t>(rows.row_stride * number_bytes<spec.dtype>));
      next_ = arch::uniform(
          plane_row<spec.dtype>(rows, sequence.batch, sequence.k_row + first_key, kv_head));
      left_ = arch::uniform(sequence.sk - first_key);
    }
  }

  // Goes to the next tile; the first time, to the first one.
  void find() {
    if constexpr (!Types::full) {
      here_ = next_;
      // Renewed as above. Uniform: the compiler does not see that it is in every loop.
      const std::int32_t left = arch::renewed(arch::uniform(left_ > 0 ? left_ : 0));
      bytes_ = (left < Types::tile.keys ? left : Types::tile.keys) * row_bytes_;
      left_ -= Types::tile.keys;
      next_ += std::int64_t{Types::tile.keys} * row_bytes_;
    }
  }
  Block block() {
    if constexpr (Types::full) {
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

// The tiles of k and v of a workgroup on their way to LDS.
template <KernelSpec spec>
class KeyTiles {
  using Types = ForwardTypes<spec>;

 public:
  KeyTiles(const ForwardArguments& a, const SequenceView& sequence, std::int64_t kv_head,
           std::int32_t first_key)
      : k_rows_(a.problem.k, a, sequence, kv_head, first_key),
        v_rows_(a.problem.v, a, sequence, kv_head, first_key),
        k_(a.problem.k),
        v_(a.problem.v) {}

  // Where the next tile is; then, its loads.
  void find_keys() { k_rows_.find(); }
  void find_values() { v_rows_.find(); }
  void load_keys() {
    if (has_keys()) k_.load(k_rows_.block());
  }
  void load_values() {
    if (has_values()) v_.load(v_rows_.block());
  }
  void store_keys(SharedWords4* keys) const {
    if (has_keys()) k_.store(keys);
  }
  void store_values(SharedWords4* values) const {
    if (has_values()) v_.store(values);
  }
  // Both, in parts.
  static constexpr int stores = Types::KeyStaging::stores + Types::ValueStaging::stores;
  void store_one(int n, SharedWords4* keys, SharedWords4* values) const {
    if (n < Types::KeyStaging::stores) {
      if (has_keys()) k_.store_one(n, keys);
    } else {
      if (has_values()) v_.store_one(n - Types::KeyStaging::stores, values);
    }
  }

 private:
  static bool has_keys() {
    return Types::key_threads == Types::tile.threads ||
           arch::wave() < Types::key_threads / arch::wave_size;
  }
  static bool has_values() {
    return Types::value_threads == Types::tile.threads ||
           arch::wave() < Types::value_threads / arch::wave_size;
  }

  TileRows<spec> k_rows_, v_rows_;
  typename Types::KeyStaging k_;
  typename Types::ValueStaging v_;
};

// What the end of a wave's work needs to know. A schedule that can spare the registers keeps it during
// the loop.
struct Position {
  WorkItem item;
  std::int64_t q_row;       // the sequence's first query
  std::int32_t q_rows, sq;  // rows that are its own, and those in use
  Position(const WorkItem& work_item, const SequenceView& sequence)
      : item(work_item), q_row(sequence.q_row), q_rows(sequence.q_rows), sq(sequence.sq) {}
  explicit Position(const ForwardArguments& a)
      : Position(WorkItem(a.work, static_cast<std::int32_t>(a.problem.heads), arch::group()),
                 a.problem) {}

 private:
  Position(const WorkItem& work_item, const Problem& p)
      : Position(work_item, SequenceView(p, work_item.batch)) {}
};

// Blocks of 32 rows and 128 bytes of q or out, which each wave has room for in LDS: there lanes exchange
// what they load or store along rows, line by line of memory, for what they have of columns.
template <class Mma>
struct WaveRows {
  static constexpr int columns = 64;
  using Tile = RowTile<columns * 2, Mma::columns>;
  static constexpr int rounds = Tile::chunks / arch::wave_size;
  struct Place {
    int row, chunk;
    explicit Place(int n) {
      const int id = n * arch::wave_size + arch::lane();
      row = id / Tile::row_chunks;
      chunk = id % Tile::row_chunks;
    }
    int room() const { return Tile::offset(row, chunk); }
  };
};

// To the nearest, ties to even. Not for NaN, which becomes any number: rows that have one are computed
// again. Without an instruction for bf16 that takes five operations per pair instead of eleven.
template <DType dtype>
std::uint32_t narrow_numbers(float low, float high) {
#if !defined(__gfx950__)
  if constexpr (dtype == DType::bf16) {
    const auto rounded = [](float x) {
      const auto bits = __builtin_bit_cast(std::uint32_t, x);
      return bits + 0x7fffu + (bits >> 16 & 1);
    };
    return arch::high_halves(rounded(low), rounded(high));
  }
#endif
  return narrow_pair<dtype>(low, high);
}

// Arguments that are kept in registers, or fetched where they are used.
template <class T, bool in_registers>
struct Kept {
  using Type = T;
};
template <class T>
struct Kept<T, false> {
  using Type = const T&;
};

// What is left at the end: queries, by lane, one of whose outputs is not finite, and the lane's factor.
struct Finished {
  std::uint64_t broken;
  float factor;
};

// The end of a wave's work: sums over the lanes of each query, the sink, one division, and the
// stores. With room in LDS (WaveRows) they are of whole lines.
template <KernelSpec spec>
class Ending {
  using Types = ForwardTypes<spec>;
  using Mma = typename Types::Mma;
  using Block = typename Types::QueryBlock;
  using Lines = WaveRows<Mma>;

 public:
  // Parts of the outputs whose columns make whole lines.
  static constexpr int line_parts = Lines::columns / Mma::rows;

  // In steps, which a schedule may place beside other work. First what is needed from the arguments; stores
  // would else have it fetched again.
  Ending(const ForwardArguments& a, const Position& position, const OnlineSoftmax& softmax,
         SharedWords4* room)
      : a_(a),
        position_(position),
        softmax_(softmax),
        room_(room),
        out_(a.outputs.out),
        lse_(a.outputs.lse),
        wave_begin_(position.item.block * Types::tile.queries + arch::wave() * Types::wave_queries),
        in_use_(wave_begin_ + own() < position.sq),
        overflow_(products_overflow(a.problem)) {}
  // With the last weights known.
  void sum_up() { sum_ = column_sum(softmax_.sum); }
  void normalise() {
    normaliser_ = Finish<spec.variant>(a_.problem, position_.item.head)(softmax_.reference, sum_);
  }
  void find_rows() {
    if constexpr (!Types::full) {
      first_row_ = arch::uniform(plane_row<spec.dtype>(
          out_, position_.item.batch, position_.q_row + wave_begin_, position_.item.head));
      bytes_ = bytes_of_rows<spec.dtype, Types::wave_queries>(
          out_, arch::uniform(position_.q_rows - wave_begin_));
    }
  }
  void store_lse() const {
    if (!lse_) return;
    const WorkItem& item = position_.item;
    float* const first = arch::uniform(&lse_.at(static_cast<std::uint32_t>(item.batch),
                                                static_cast<std::uint32_t>(item.head),
                                                position_.q_row + wave_begin_));
    if (Types::Scores::lane_row() == 0 && wave_begin_ + own() < position_.q_rows)
      arch::store(first + own() * lse_.query_stride, in_use_ ? normaliser_.lse : infinity);
  }

  bool all_in_use() const { return !arch::any(!in_use_); }

  // Two outputs of a query in use, as they are stored.
  std::uint32_t narrow(float low, float high) {
    probe_ = __builtin_fmaf(low, 0.0f, probe_);
    probe_ = __builtin_fmaf(high, 0.0f, probe_);
    return narrow_numbers<spec.dtype>(low * normaliser_.factor, high * normaliser_.factor);
  }
  // Results i to i + 3 of a part, to their place in LDS or in memory.
  void put(Words2 words, int part, int i) const {
    const int column = part * Mma::rows + Quads<Mma>::row(i) + Quads<Mma>::lane_row();
    if constexpr (Types::in_turns) {
      const int there = column % Lines::columns;
      ((SharedWords2*)room_)[2 * Lines::Tile::offset(own(), there / 8) + there / 4 % 2] = words;
    } else {
      block().store4(words, Block::offset(out_, own(), column));
    }
  }
  // Lines of memory whose last part is this one: from LDS, then to memory.
  void read_lines(Words4 (&lines)[Lines::rounds]) const {
    arch::wave_fence();
    ROCFLASH_UNROLL
    for (int n = 0; n < Lines::rounds; ++n) lines[n] = room_[typename Lines::Place(n).room()];
    arch::wave_fence();
  }
  void store_lines(const Words4 (&lines)[Lines::rounds], int part) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < Lines::rounds; ++n) {
      const typename Lines::Place place(n);
      const int column = part / line_parts * Lines::columns + 8 * place.chunk;
      block().store8(lines[n], Block::offset(out_, place.row, column));
    }
  }

  // All of a part.
  void finish_part(const typename Mma::Result& result, int part, bool whole) {
    float o[Mma::results];
    ROCFLASH_UNROLL
    for (int i = 0; i < Mma::results; ++i) o[i] = result[i];
    if (!whole) {
      ROCFLASH_UNROLL
      for (int i = 0; i < Mma::results; ++i) o[i] = in_use_ ? o[i] : 0;
    }
    Quads<Mma>::arrange(o);
    ROCFLASH_UNROLL
    for (int i = 0; i < Mma::results; i += 4)
      put({narrow(o[i], o[i + 1]), narrow(o[i + 2], o[i + 3])}, part, i);
    if constexpr (Types::in_turns) {
      if (part % line_parts < line_parts - 1 && part < Types::Outputs::row_parts - 1) return;
      Words4 lines[Lines::rounds];
      read_lines(lines);
      store_lines(lines, part);
    }
  }

  Finished finished() const {
    constexpr std::uint64_t one_lane_per_query = (std::uint64_t{1} << Types::wave_queries) - 1;
    return {arch::ballot(in_use_ && (column_sum(probe_) != 0 || overflow_)) & one_lane_per_query,
            normaliser_.factor};
  }

 private:
  static int own() { return Types::Scores::lane_column(); }
  Block block() const {
    if constexpr (Types::full) {
      return Block(out_, 0, position_.item.batch, position_.q_row + wave_begin_,
                   position_.q_rows - wave_begin_, position_.item.head);
    } else {
      return Block(first_row_, bytes_);
    }
  }

  const ForwardArguments& a_;
  const Position& position_;
  const OnlineSoftmax& softmax_;
  SharedWords4* const room_;
  const typename Kept<Rows, Types::in_turns>::Type out_;
  const typename Kept<RowStatistic, Types::in_turns>::Type lse_;
  const std::int32_t wave_begin_;
  const bool in_use_, overflow_;
  float sum_ = 0;
  Normaliser normaliser_ = {};
  const std::byte* first_row_ = nullptr;
  std::int32_t bytes_ = 0;
  float probe_ = 0;  // NaN once an output is not finite
};

template <KernelSpec spec>
Finished finish_outputs(const ForwardArguments& a, const Position& position,
                        const OnlineSoftmax& softmax,
                        const typename ForwardTypes<spec>::Outputs& out,
                        SharedWords4* room = nullptr) {
  Ending<spec> ending(a, position, softmax, room);
  ending.sum_up();
  ending.normalise();
  ending.find_rows();
  ending.store_lse();
  const bool whole = ending.all_in_use();
  ROCFLASH_UNROLL
  for (int part = 0; part < out.row_parts; ++part)
    ending.finish_part(out.part[part][0], part, whole);
  return ending.finished();
}

// Rows with an output that is not finite are computed again.
template <KernelSpec spec>
void repair_rows(const ForwardArguments& a, const Position& position, const OnlineSoftmax& softmax,
                 Finished finished) {
  using Types = ForwardTypes<spec>;
  std::uint64_t broken = finished.broken;
  if (broken == 0) return;
  const Problem& p = a.problem;
  const WorkItem& item = position.item;
  const std::int32_t wave_begin =
      item.block * Types::tile.queries + arch::wave() * Types::wave_queries;
  const SequenceView sequence(p, item.batch);
  while (broken != 0) {
    const int lane = __builtin_ctzll(broken);
    broken &= broken - 1;
    repair(ExactScores<spec.dtype>{p, sequence, item.head, a.caches},
           QueryView(p.visibility, sequence, wave_begin + lane),
           arch::from_lane(softmax.base(), lane), arch::from_lane(finished.factor, lane),
           a.outputs);
  }
}

}  // namespace rocflash::kernel
