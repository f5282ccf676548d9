// Decode without matrix instructions, in f32 arithmetic: f32 queries over f32, f16 or bf16 caches. Serves every GPU and
// option. As in decode/amd.hpp each wave has a part of the keys to itself and writes a result of its own.
//
//   registers   q and outputs, eight columns of all rows in each lane; a tile of k and v, the next one on its way
//   shared      for each wave the lanes' sums, then weights
//
// `line` lanes read a row of the cache, so that a wave reads `lines` rows at once, and does so `turns` times per tile. Each
// lane multiplies its columns with those of all queries. The sums go through shared memory to the lane that owns their row
// and key, which makes a weight of them, and the weights go back to all lanes. Lines never meet before the end: each has
// a softmax of its own.
#pragma once

#include "arch/arch.hpp"
#include "attention/exact.hpp"
#include "attention/packed.hpp"
#include "attention/score.hpp"
#include "attention/softmax.hpp"
#include "table/decode.hpp"
#include "wide/products.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
struct WideDecodeTypes {
  static constexpr DecodeTile tile = decode_tile(this_family, spec);
  static constexpr int waves = tile.waves(arch::wave_size), rows = tile.rows;
  static constexpr int lane_columns = 8, line = spec.bucket / lane_columns,
                       lines = arch::wave_size / line, turns = tile.keys / lines;
  static constexpr int owners = 16;  // lanes of a line that own a row and a key; others do as these
  static_assert(rows * turns == owners && line % owners == 0 && rows == 4);
  using Unit = NaturalPowers;
  using Softmax = SoftmaxOf<Unit>;

  // In shared memory, in numbers: `owners` sums of each lane, spaced so that eight lanes store into different banks, and
  // so that lines load from different ones.
  static constexpr int lane_sums = owners + 4, line_sums = line * lane_sums + owners;
  static constexpr int weights = lines * line_sums, numbers = weights + lines * owners;

  static int own_line() { return arch::lane() / line; }
  static int own_column() { return arch::lane() % line * lane_columns; }
  static int own_row() { return arch::lane() % rows; }
  static int own_turn() { return arch::lane() % owners / rows; }
  static bool is_owner() { return arch::lane() % line < owners; }
  // Which key of a tile a line has.
  static int key(int turn) { return turn * lines + own_line(); }
};

// A lane's eight columns of one row of the cache.
template <DType dtype>
struct WideChunk {
  static constexpr int vectors = number_bytes<dtype> / 2;
  Words4 words[vectors];

  void load(const std::byte* from) {
    ROCFLASH_UNROLL
    for (int n = 0; n < vectors; ++n)
      words[n] = arch::load(reinterpret_cast<const Words4*>(from) + n);
  }
  void clear() {
    ROCFLASH_UNROLL
    for (int n = 0; n < vectors; ++n) words[n] = Words4{};
  }
  // Four columns.
  Float4 widened(int half) const {
    if constexpr (dtype == DType::f32) {
      return __builtin_bit_cast(Float4, words[half]);
    } else {
      const std::uint32_t low = words[0][2 * half], high = words[0][2 * half + 1];
      const auto number = [](std::uint32_t bits) {
        return widen<dtype>(static_cast<std::uint16_t>(bits));
      };
      return {number(low), number(low >> 16), number(high), number(high >> 16)};
    }
  }
};

// The rows of k and v of a wave's next tile on their way. A row that is not there is replaced by the part's first one, and
// columns past the last by the first ones: what comes of them is not used.
template <KernelSpec spec>
class WideStream {
  using Types = WideDecodeTypes<spec>;
  static constexpr int bytes = number_bytes<spec.dtype>;

 public:
  WideChunk<spec.dtype> k[Types::turns], v[Types::turns];

  WideStream(const DecodeArguments& a, const SequenceView& s, const DecodePart& part,
             std::int32_t kv_head)
      : a_(a),
        batch_(static_cast<std::int32_t>(s.batch)),
        first_(arch::in_lanes(static_cast<std::int32_t>(s.k_row))),
        begin_(part.begin),
        end_(part.end),
        head_(arch::in_lanes(kv_head)) {
    const int column = Types::own_column();
    k_column_ = column < a.problem.k.columns ? bytes * column : 0;
    v_column_ = column < a.problem.v.columns ? bytes * column : 0;
  }

  // Where the tile from `begin` on lies, and k on its way from there.
  void load_keys(std::int32_t begin) {
    const DecodeArguments& a = arch::again(a_);
    ROCFLASH_UNROLL
    for (int n = 0; n < Types::turns; ++n) {
      const std::int32_t key = begin + Types::key(n);
      std::int64_t batch = batch_, row = first_ + (key < end_ ? key : begin_);
      find_page(a.problem.k, a.caches, batch, row);
      k[n].load(row_address<spec.dtype>(a.problem.k, batch, row, head_) + k_column_);
      v_[n] = row_address<spec.dtype>(a.problem.v, batch, row, head_) + v_column_;
    }
  }
  // v of the same tile. Rows that are not there are 0: a weight of 0 times what lies there may be NaN.
  void load_values(std::int32_t begin) {
    ROCFLASH_UNROLL
    for (int n = 0; n < Types::turns; ++n) v[n].load(v_[n]);
    if (begin + Types::tile.keys <= end_) return;
    ROCFLASH_UNROLL
    for (int n = 0; n < Types::turns; ++n)
      if (begin + Types::key(n) >= end_) v[n].clear();
  }

 private:
  const DecodeArguments& a_;
  std::int32_t batch_, first_, begin_, end_, head_;
  int k_column_, v_column_;
  const std::byte* v_[Types::turns];
};

// The lanes' products with one tile, added up: the score of the row and key that this lane owns.
template <KernelSpec spec>
float wide_score(const WideChunk<spec.dtype>* k, const Float4 (*q)[2], bool has_columns,
                 SharedFloat* memory) {
  using Types = WideDecodeTypes<spec>;
  SharedFloat* own = memory + arch::lane() * Types::lane_sums + Types::own_line() * Types::owners;
  ROCFLASH_UNROLL
  for (int n = 0; n < Types::turns; ++n) {
    const Float4 low = k[n].widened(0), high = k[n].widened(1);
    Float4 sums;
    ROCFLASH_UNROLL
    for (int r = 0; r < Types::rows; ++r) {
      float sum = 0;
      ROCFLASH_UNROLL
      for (int e = 0; e < 4; ++e) sum = __builtin_fmaf(q[r][0][e], low[e], sum);
      ROCFLASH_UNROLL
      for (int e = 0; e < 4; ++e) sum = __builtin_fmaf(q[r][1][e], high[e], sum);
      sums[r] = has_columns ? sum : 0.0f;
    }
    *(SharedFloat4*)(own + n * Types::rows) = sums;
  }
  arch::wave_fence();
  const SharedFloat* of_line =
      memory + Types::own_line() * Types::line_sums + arch::lane() % Types::owners;
  float score = 0;
  ROCFLASH_UNROLL
  for (int n = 0; n < Types::line; ++n) score += of_line[n * Types::lane_sums];
  return score;
}

// What the lanes that own a row have, over all turns.
template <class Combine>
float of_turns(float x, Combine combine) {
  x = combine(x, arch::rotated<8>(x));
  return combine(x, arch::rotated<4>(x));
}

// A row's softmax over all lines, from what they have left in shared memory.
template <KernelSpec spec>
struct WideRow {
  using Types = WideDecodeTypes<spec>;
  typename Types::Softmax whole;
  float own_share = 0;  // that of this lane's line in what it has summed up
  Normaliser normaliser;

  WideRow(const Problem& p, const SharedFloat* statistics, int row) {
    ROCFLASH_UNROLL
    for (int n = 0; n < Types::lines; ++n)
      whole.reference = __builtin_fmaxf(whole.reference, statistics[n * Types::owners + row]);
    ROCFLASH_UNROLL
    for (int n = 0; n < Types::lines; ++n) {
      const SharedFloat* of_line = statistics + n * Types::owners + row;
      const float share = Types::Unit::exp(of_line[0] - whole.base());
      whole.sum = __builtin_fmaf(of_line[Types::rows], share, whole.sum);
      own_share = n == Types::own_line() ? share : own_share;
    }
    normaliser = normalise<typename Types::Unit>(whole.reference, whole.sum, false, 0.0f);
    if (p.dropout.on()) normaliser.factor *= p.dropout.scale();
  }
};

// The end of a wave's work: its lines merged, each row divided by its sum, and its lse. Rows that are not finite are computed
// again. It computes its position again rather than keep it in registers during the loop.
template <KernelSpec spec>
void finish_wide(const DecodeArguments& a, const typename WideDecodeTypes<spec>::Softmax& softmax,
                 const Float4 (*out)[2], SharedFloat* memory) {
  using Types = WideDecodeTypes<spec>;
  constexpr int rows = Types::rows, lines = Types::lines;
  const Problem& p = a.problem;
  const DecodeItem item(a, arch::group());
  const SequenceView sequence(p, item.batch);
  const std::int32_t number = item.split * Types::waves + arch::wave();
  const DecodePart part(a, sequence, item.block, rows, number, a.splits * Types::waves,
                        Types::tile.keys);
  const PartRows to{a, sequence, number};

  SharedFloat* statistics = memory + Types::weights;
  const float sum = of_turns(softmax.sum, [](float x, float y) { return x + y; });
  arch::wave_fence();  // weights have been read
  if (Types::is_owner() && Types::own_turn() == 0) {
    SharedFloat* of_line = statistics + Types::own_line() * Types::owners + Types::own_row();
    of_line[0] = softmax.reference;
    of_line[rows] = sum;
  }
  arch::wave_fence();
  const int column = Types::own_column();
  const bool has_columns = column < p.value_dim, all_again = products_overflow(p);
  std::uint32_t broken = 0;
  ROCFLASH_UNROLL
  for (int r = 0; r < rows; ++r) {
    const WideRow<spec> row(p, statistics, r);
    Float4 own[2] = {out[r][0] * row.own_share, out[r][1] * row.own_share};
    if constexpr (lines > 1) {
      SharedFloat* mine = memory + arch::lane() * Types::lane_sums;
      *(SharedFloat4*)mine = own[0];
      *(SharedFloat4*)(mine + 4) = own[1];
      arch::wave_fence();
      const SharedFloat* of_first = memory + arch::lane() % Types::line * Types::lane_sums;
      ROCFLASH_UNROLL
      for (int half = 0; half < 2; ++half) {
        own[half] = Float4{};
        ROCFLASH_UNROLL
        for (int n = 0; n < lines; ++n)
          own[half] +=
              *(const SharedFloat4*)(of_first + n * Types::line * Types::lane_sums + 4 * half);
      }
      arch::wave_fence();
    }
    float probe = row.normaliser.factor * 0.0f;  // NaN once something is not finite
    ROCFLASH_UNROLL
    for (int e = 0; e < 8; ++e) probe = __builtin_fmaf(own[e / 4][e % 4], 0.0f, probe);
    if (arch::any(r < part.rows && has_columns && (probe != 0 || all_again))) broken |= 1u << r;
    const PackedRow packed(part.row_begin + r, static_cast<std::uint32_t>(a.group), item.kv_head);
    if (r < part.rows && has_columns && Types::own_line() == 0) {
      if (column == 0) to.store_lse(packed, row.normaliser.lse);
      ROCFLASH_UNROLL
      for (int half = 0; half < 2; ++half)
        to.store(packed, column + 4 * half, own[half] * row.normaliser.factor);
    }
  }
  while (broken != 0) {
    const int r = __builtin_ctz(broken);
    broken &= broken - 1;
    const DecodeArguments& again = arch::again(a);
    const Problem& problem = again.problem;
    const WideRow<spec> row(problem, statistics, r);
    const PackedRow packed(part.row_begin + r, static_cast<std::uint32_t>(again.group),
                           item.kv_head);
    const PartRows results{again, sequence, number};
    repair(
        ExactScores<DType::f32, typename Types::Unit, true>{problem, sequence, packed.head,
                                                            again.caches},
        part.view(problem, sequence, packed.query), row.whole.base(), row.normaliser.factor, 0,
        problem.value_dim, [&](float lse) { results.store_lse(packed, lse); },
        [&](int c, float x) { results.store(packed, c, x); });
  }
}

template <KernelSpec spec>
void decode_wide(const DecodeArguments& a) {
  using Types = WideDecodeTypes<spec>;
  using Unit = typename Types::Unit;
  constexpr DecodeTile tile = Types::tile;
  constexpr int rows = Types::rows;

  ROCFLASH_SHARED_ARRAY Float4 shared[Types::waves][Types::numbers / 4];
  SharedFloat* const memory = (SharedFloat*)shared[arch::wave()];

  // The wave's rows, its part of the keys, and the row that the lane owns.
  const Problem& p = a.problem;
  const DecodeItem item(a, arch::group());
  const SequenceView sequence(p, item.batch);
  const std::int32_t number = item.split * Types::waves + arch::wave();
  const DecodePart part(a, sequence, item.block, rows, number, a.splits * Types::waves, tile.keys);
  if (part.rows == 0) return;
  const auto group = static_cast<std::uint32_t>(a.group);
  const PackedRow packed(part.row_begin + Types::own_row(), group, item.kv_head);
  if (part.empty()) {
    if (arch::lane() < part.rows) PartRows{a, sequence, number}.store_lse(packed, infinity);
    return;
  }
  const bool in_use = Types::own_row() < part.rows;
  const QueryView query = in_use ? part.view(p, sequence, packed.query) : QueryView{};

  WideStream<spec> stream(a, sequence, part, item.kv_head);
  stream.load_keys(part.begin);
  stream.load_values(part.begin);
  Float4 q[rows][2], out[rows][2] = {};
  ROCFLASH_UNROLL
  for (int r = 0; r < rows; ++r) {
    ROCFLASH_UNROLL
    for (int half = 0; half < 2; ++half)
      q[r][half] = __builtin_bit_cast(
          Float4, query_chunk<DType::f32>(p.q, sequence, part, group, item.kv_head, r,
                                          Types::own_column() / 4 + half));
  }
  const bool has_columns = Types::own_column() < p.head_dim;

  typename Types::Softmax softmax;
  for (std::int32_t begin = part.begin; begin < part.end; begin += tile.keys) {
    const std::int32_t next = begin + tile.keys;
    float score = wide_score<spec>(stream.k, q, has_columns, memory);
    if (next < part.end) stream.load_keys(next);

    const std::int32_t key = begin + Types::key(Types::own_turn());
    const auto at = [&](int) -> float& { return score; };
    const auto key_at = [&](int) { return key; };
    const DecodeArguments& again = arch::again(a);
    const ScoreShape shape(again.problem, sequence, in_use ? packed.head : 0);
    shape.template shape<1, Unit>(query, at, key_at, again.problem.scale);
    if (!query.sees(key)) score = -infinity;
    const float largest = of_turns(score, [](float x, float y) { return __builtin_fmaxf(x, y); });
    SharedFloat* weights = memory + Types::weights + Types::own_line() * Types::owners;
    if (arch::any(softmax.behind(largest))) {
      const float factor = softmax.behind(largest) ? softmax.follow(largest) : 1.0f;
      if (Types::is_owner() && Types::own_turn() == 0) weights[Types::own_row()] = factor;
      arch::wave_fence();
      const Float4 factors = *(const SharedFloat4*)weights;
      arch::wave_fence();
      ROCFLASH_UNROLL
      for (int r = 0; r < rows; ++r) {
        out[r][0] *= factors[r];
        out[r][1] *= factors[r];
      }
    }
    float weight = Unit::exp(score - softmax.base());
    softmax.sum += weight;
    if (again.problem.dropout.on() && !shape.keeps(query, key)) weight = 0;
    if (Types::is_owner()) weights[arch::lane() % Types::owners] = weight;
    arch::wave_fence();

    ROCFLASH_UNROLL
    for (int n = 0; n < Types::turns; ++n) {
      const Float4 weight_of = *(const SharedFloat4*)(weights + n * rows);
      ROCFLASH_UNROLL
      for (int half = 0; half < 2; ++half) {
        const Float4 v = stream.v[n].widened(half);
        ROCFLASH_UNROLL
        for (int r = 0; r < rows; ++r)
          out[r][half] = __builtin_elementwise_fma(Float4(weight_of[r]), v, out[r][half]);
      }
    }
    if (next < part.end) stream.load_values(next);
  }
  finish_wide<spec>(arch::again(a), softmax, out, memory);
}

}  // namespace rocflash::kernel
