// Split-KV decode on the FP32 path (no matrix cores): f32 queries over f32, f16 or bf16 KV caches,
// and f32, f16 or bf16 queries over quantized ones. Supports every GPU and option. As in
// decode/amd.hpp each wave has a split of the keys and writes a partial result.
//
//   registers       Q and O, eight columns of all rows per lane; K and V tiles, the next in flight
//   shared memory   per wave the lanes' partial scores, then P
//
// `line` lanes read one row of the KV cache, so that a wave reads `lines` rows at once, in `passes`
// passes per tile. Each lane multiplies its columns with those of all queries. The partial scores
// go through shared memory to the lane that owns their (row, key), which computes P, and P goes
// back to all lanes. Each line has a softmax of its own until the epilogue.
#pragma once

#include "arch/arch.hpp"
#include "attention/exact_recompute.hpp"
#include "attention/gqa_packing.hpp"
#include "attention/online_softmax.hpp"
#include "attention/score_mod.hpp"
#include "fp32/products.hpp"
#include "table/decode.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
struct Fp32DecodeTypes {
  static constexpr DecodeTile tile = decode_tile(this_family, spec);
  static constexpr bool quantized = spec.dtype == DType::i8;  // any 8-bit dtype
  static constexpr Codes codes = quantized ? Codes::table : Codes::none;
  static constexpr int waves = tile.waves(arch::wave_size), rows = tile.rows;
  static constexpr int lane_columns = 8, line = spec.bucket / lane_columns,
                       lines = arch::wave_size / line, passes = tile.keys / lines;
  static constexpr int owners =
      16;  // lanes of a line that own a (row, key); the others duplicate them
  static_assert(rows * passes == owners && line % owners == 0 && rows == 4);
  using Domain = NaturalLogDomain;
  using Softmax = BasicOnlineSoftmax<Domain>;

  // Shared memory, in floats: `owners` partial scores per lane, padded so that eight lanes store to
  // different banks and lines load from different banks.
  static constexpr int lane_sums = owners + 4, line_sums = line * lane_sums + owners;
  static constexpr int weights = lines * line_sums, floats = weights + lines * owners;

  static int own_line() { return arch::lane() / line; }
  static int own_column() { return arch::lane() % line * lane_columns; }
  static int own_row() { return arch::lane() % rows; }
  static int own_pass() { return arch::lane() % owners / rows; }
  static bool is_owner() { return arch::lane() % line < owners; }
  // Key of the lane's line in a tile.
  static int key(int pass) { return pass * lines + own_line(); }
};

// A lane's eight columns of one row of the KV cache.
template <DType dtype>
struct Fp32Chunk {
  static constexpr int vectors = element_bytes<dtype> / 2;
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
  Float4 widened(int half, CodeValues) const {
    if constexpr (dtype == DType::f32) {
      return __builtin_bit_cast(Float4, words[half]);
    } else {
      const std::uint32_t low = words[0][2 * half], high = words[0][2 * half + 1];
      const auto element = [](std::uint32_t bits) {
        return widen<dtype>(static_cast<std::uint16_t>(bits));
      };
      return {element(low), element(low >> 16), element(high), element(high >> 16)};
    }
  }
};

// The same of a quantized KV cache: codes and the row's scale.
template <>
struct Fp32Chunk<DType::i8> {
  Words2 codes;
  float scale;

  void load(const std::byte* from) { codes = arch::load(reinterpret_cast<const Words2*>(from)); }
  void clear() {
    codes = Words2{};
    scale = 0;
  }
  Float4 widened(int half, CodeValues values) const {
    const std::uint32_t four = codes[half];
    return decode_quad(values, four) * scale;
  }
};

// Register staging of a wave's next K and V tiles. Rows out of bounds are clamped to the first row
// of the split, columns to the first ones: their results are not used.
template <KernelSpec spec>
class Fp32KvStaging {
  using Types = Fp32DecodeTypes<spec>;
  static constexpr bool quantized = Types::quantized;
  static constexpr DType unquantized = quantized ? DType::f32 : spec.dtype;
  static constexpr int bytes = quantized ? 1 : element_bytes<unquantized>;

 public:
  Fp32Chunk<spec.dtype> k[Types::passes], v[Types::passes];

  Fp32KvStaging(const DecodeArguments& a, const SequenceView& s, const KeySplit& split,
                std::int32_t kv_head)
      : a_(a),
        batch_(static_cast<std::int32_t>(s.batch)),
        first_(arch::to_vgpr(static_cast<std::int32_t>(s.k_row))),
        begin_(split.begin),
        end_(split.end),
        head_(arch::to_vgpr(kv_head)) {
    const int column = Types::own_column();
    k_column_ = column < a.problem.k.columns ? bytes * column : 0;
    v_column_ = column < a.problem.v.columns ? bytes * column : 0;
  }

  // Addresses of the tile from `begin` on, and the loads of K.
  void load_keys(std::int32_t begin) {
    const DecodeArguments& a = arch::reload_kernargs(a_);
    ROCFLASH_UNROLL
    for (int n = 0; n < Types::passes; ++n) {
      const std::int32_t key = begin + Types::key(n);
      std::int64_t batch = batch_, row = first_ + (key < end_ ? key : begin_);
      find_page(a.problem.k, a.caches, batch, row);
      k[n].load(address(a.problem.k, batch, row) + k_column_);
      v_[n] = address(a.problem.v, batch, row) + v_column_;
      if constexpr (quantized) {
        rows_[n] = static_cast<std::int32_t>(row);
        batches_[n] = static_cast<std::int32_t>(batch);
      }
    }
    if constexpr (quantized) load_scales();
  }
  // V of the same tile. Rows out of bounds are zeroed: their P is 0, but 0 times NaN is NaN.
  void load_values(std::int32_t begin) {
    ROCFLASH_UNROLL
    for (int n = 0; n < Types::passes; ++n) {
      v[n].load(v_[n]);
      if constexpr (quantized) v[n].scale = v_scale_[n];
    }
    if (begin + Types::tile.keys <= end_) return;
    ROCFLASH_UNROLL
    for (int n = 0; n < Types::passes; ++n)
      if (begin + Types::key(n) >= end_) v[n].clear();
  }

 private:
  const std::byte* address(const Rows& rows, std::int64_t batch, std::int64_t row) const {
    return rows.data +
           (batch * rows.batch_stride + row * rows.row_stride + head_ * rows.head_stride) * bytes;
  }

  // One tensor after the other: the strides of all exceed the SGPR budget.
  void load_scales() {
    const DecodeArguments& of_k = arch::reload_kernargs(a_);
    ROCFLASH_UNROLL
    for (int n = 0; n < Types::passes; ++n) k[n].scale = scale(of_k.problem.k_descale, n);
    const DecodeArguments& of_v = arch::reload_kernargs(a_);
    ROCFLASH_UNROLL
    for (int n = 0; n < Types::passes; ++n) v_scale_[n] = scale(of_v.problem.v_descale, n);
  }
  // Of a row that was found in its page.
  float scale(const Descale& d, int n) const {
    if (!d.data) return 1;
    const std::int64_t batch = d.per_sequence ? batch_ : batches_[n];
    return arch::load(d.data + batch * d.batch_stride + rows_[n] * d.row_stride +
                      head_ * d.head_stride);
  }

  const DecodeArguments& a_;
  std::int32_t batch_, first_, begin_, end_, head_;
  int k_column_, v_column_;
  const std::byte* v_[Types::passes];
  // Of quantized rows.
  [[maybe_unused]] float v_scale_[quantized ? Types::passes : 1];
  [[maybe_unused]] std::int32_t batches_[quantized ? Types::passes : 1],
      rows_[quantized ? Types::passes : 1];
};

// Four columns of Q from `column` on; zeros out of bounds. Rows of Q are 16-byte aligned.
template <bool any_dtype>
Float4 fp32_query_chunk(const Problem& p, const SequenceView& s, const KeySplit& split,
                        std::uint32_t group, std::int32_t kv_head, int row, int column) {
  if constexpr (!any_dtype)
    return __builtin_bit_cast(
        Float4, query_chunk<DType::f32>(p.q, s, split, group, kv_head, row, column / 4));
  if (row >= split.rows || column >= p.q.columns) return Float4{};
  const PackedRow packed(split.row_begin + row, group, kv_head);
  const DType dtype = opaque_dtype(p.dtype);
  const std::byte* from = row_address(p.q, dtype, s.batch, s.q_row + packed.query, packed.head);
  if (dtype == DType::f32) return arch::load(reinterpret_cast<const Float4*>(from) + column / 4);
  const Words2 words = arch::load(reinterpret_cast<const Words2*>(from) + column / 4);
  const std::uint32_t low = words.x, high = words.y;
  const auto half = [&](std::uint32_t bits) {
    return widen(dtype, static_cast<std::uint16_t>(bits));
  };
  return {half(low), half(low >> 16), half(high), half(high >> 16)};
}

// Score of the (row, key) that this lane owns: the partial scores of the lanes of its line, added.
template <KernelSpec spec>
float fp32_score(const Fp32Chunk<spec.dtype>* k, CodeValues values, const Float4 (*q)[2],
                 bool has_columns, SharedFloat* memory) {
  using Types = Fp32DecodeTypes<spec>;
  SharedFloat* own = memory + arch::lane() * Types::lane_sums + Types::own_line() * Types::owners;
  ROCFLASH_UNROLL
  for (int n = 0; n < Types::passes; ++n) {
    const Float4 low = k[n].widened(0, values), high = k[n].widened(1, values);
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

// Reduction over the lanes that own a row, one per pass.
template <class Combine>
float reduce_passes(float x, Combine combine) {
  x = combine(x, arch::row_ror<8>(x));
  return combine(x, arch::row_ror<4>(x));
}

// Softmax state of a row, combined over all lines from shared memory.
template <KernelSpec spec>
struct Fp32Row {
  using Types = Fp32DecodeTypes<spec>;
  typename Types::Softmax combined;
  float line_factor = 0;  // rescale factor of the lane's line
  Normalizer normalizer;

  Fp32Row(const Problem& p, const SharedFloat* statistics, int row) {
    ROCFLASH_UNROLL
    for (int n = 0; n < Types::lines; ++n)
      combined.row_max = __builtin_fmaxf(combined.row_max, statistics[n * Types::owners + row]);
    ROCFLASH_UNROLL
    for (int n = 0; n < Types::lines; ++n) {
      const SharedFloat* of_line = statistics + n * Types::owners + row;
      const float factor = Types::Domain::exp(of_line[0] - combined.base());
      combined.sum = __builtin_fmaf(of_line[Types::rows], factor, combined.sum);
      line_factor = n == Types::own_line() ? factor : line_factor;
    }
    normalizer = normalize<typename Types::Domain>(combined.row_max, combined.sum, false, 0.0f);
    if (p.dropout.on()) normalizer.factor *= p.dropout.scale();
  }
};

// Epilogue of a wave: lines combined, normalization, LSE, stores, recomputation of non-finite rows.
// It computes the work tile again, so that the main loop need not keep it in registers.
template <KernelSpec spec>
void store_split_fp32(const DecodeArguments& a,
                      const typename Fp32DecodeTypes<spec>::Softmax& softmax,
                      const Float4 (*out)[2], SharedFloat* memory, CodeValues values) {
  using Types = Fp32DecodeTypes<spec>;
  constexpr int rows = Types::rows, lines = Types::lines;
  const Problem& p = a.problem;
  const DecodeWorkTile item(a, arch::workgroup_id());
  const SequenceView sequence(p, item.batch);
  const std::int32_t split_index = item.split * Types::waves + arch::wave();
  const KeySplit split(a, sequence, item.block, rows, split_index, a.splits * Types::waves,
                       Types::tile.keys);
  const SplitRows to{a, sequence, split_index};

  SharedFloat* statistics = memory + Types::weights;
  const float sum = reduce_passes(softmax.sum, [](float x, float y) { return x + y; });
  arch::wave_fence();  // P has been read
  if (Types::is_owner() && Types::own_pass() == 0) {
    SharedFloat* of_line = statistics + Types::own_line() * Types::owners + Types::own_row();
    of_line[0] = softmax.row_max;
    of_line[rows] = sum;
  }
  arch::wave_fence();
  const int column = Types::own_column();
  const bool has_columns = column < p.value_dim, recompute_all = products_overflow(p);
  std::uint32_t non_finite = 0;
  ROCFLASH_UNROLL
  for (int r = 0; r < rows; ++r) {
    const Fp32Row<spec> row(p, statistics, r);
    Float4 own[2] = {out[r][0] * row.line_factor, out[r][1] * row.line_factor};
    if constexpr (lines > 1) {
      SharedFloat* lane_out = memory + arch::lane() * Types::lane_sums;
      *(SharedFloat4*)lane_out = own[0];
      *(SharedFloat4*)(lane_out + 4) = own[1];
      arch::wave_fence();
      const SharedFloat* first_line = memory + arch::lane() % Types::line * Types::lane_sums;
      ROCFLASH_UNROLL
      for (int half = 0; half < 2; ++half) {
        own[half] = Float4{};
        ROCFLASH_UNROLL
        for (int n = 0; n < lines; ++n)
          own[half] +=
              *(const SharedFloat4*)(first_line + n * Types::line * Types::lane_sums + 4 * half);
      }
      arch::wave_fence();
    }
    float probe = row.normalizer.factor * 0.0f;  // NaN once something is not finite
    ROCFLASH_UNROLL
    for (int e = 0; e < 8; ++e) probe = __builtin_fmaf(own[e / 4][e % 4], 0.0f, probe);
    if (arch::any(r < split.rows && has_columns && (probe != 0 || recompute_all)))
      non_finite |= 1u << r;
    const PackedRow packed(split.row_begin + r, static_cast<std::uint32_t>(a.gqa_group),
                           item.kv_head);
    if (r < split.rows && has_columns && Types::own_line() == 0) {
      if (column == 0)
        to.store_lse(packed,
                     SplitLse::of(row.combined.row_max, row.combined.sum, row.normalizer.lse));
      ROCFLASH_UNROLL
      for (int half = 0; half < 2; ++half)
        to.store(packed, column + 4 * half, own[half] * row.normalizer.factor);
    }
  }
  while (non_finite != 0) {
    const int r = __builtin_ctz(non_finite);
    non_finite &= non_finite - 1;
    const DecodeArguments& reloaded = arch::reload_kernargs(a);
    const Problem& problem = reloaded.problem;
    const Fp32Row<spec> row(problem, statistics, r);
    // Rows of quantized K and V are located in VGPRs (exact_recompute.hpp), from here on.
    const PackedRow packed(split.row_begin + r, static_cast<std::uint32_t>(reloaded.gqa_group),
                           Types::quantized ? arch::to_vgpr(item.kv_head) : item.kv_head);
    const SplitRows results{reloaded, sequence, split_index};
    using Scores = ExactScores<DType::f32, typename Types::Domain, true, true, Types::codes>;
    recompute_row(
        Scores{problem, sequence, packed.head, reloaded.caches, values},
        split.view(problem, sequence, packed.query), 0, problem.value_dim,
        [&](SplitLse x) { results.store_lse(packed, x); },
        [&](int c, float x) { results.store(packed, c, x); });
  }
}

template <KernelSpec spec>
void decode_fp32(const DecodeArguments& a) {
  using Types = Fp32DecodeTypes<spec>;
  using Domain = typename Types::Domain;
  constexpr DecodeTile tile = Types::tile;
  constexpr int rows = Types::rows;

  ROCFLASH_SHARED_ARRAY Float4 shared[Types::waves][Types::floats / 4];
  SharedFloat* const memory = (SharedFloat*)shared[arch::wave()];
  ROCFLASH_SHARED_ARRAY float code_values[Types::quantized ? code_count : 1];
  const auto* const values = (const SharedFloat*)code_values;
  if constexpr (Types::quantized) {
    fill_code_values((SharedFloat*)code_values, a.problem.k.dtype, tile.threads);
    arch::barrier();
  }

  // Work tile: packed rows, split of the keys, row that the lane owns.
  const Problem& p = a.problem;
  const DecodeWorkTile item(a, arch::workgroup_id());
  const SequenceView sequence(p, item.batch);
  const std::int32_t split_index = item.split * Types::waves + arch::wave();
  const KeySplit split(a, sequence, item.block, rows, split_index, a.splits * Types::waves,
                       tile.keys);
  if (split.rows == 0) return;
  const auto gqa_group = static_cast<std::uint32_t>(a.gqa_group);
  const PackedRow packed(split.row_begin + Types::own_row(), gqa_group, item.kv_head);
  if (split.empty()) {
    if (arch::lane() < split.rows)
      SplitRows{a, sequence, split_index}.store_lse(packed, {infinity, 0});
    return;
  }
  const bool in_use = Types::own_row() < split.rows;
  const QueryView query = in_use ? split.view(p, sequence, packed.query) : QueryView{};

  Fp32KvStaging<spec> staging(a, sequence, split, item.kv_head);
  staging.load_keys(split.begin);
  staging.load_values(split.begin);
  Float4 q[rows][2], out[rows][2] = {};
  ROCFLASH_UNROLL
  for (int r = 0; r < rows; ++r) {
    ROCFLASH_UNROLL
    for (int half = 0; half < 2; ++half)
      q[r][half] = fp32_query_chunk<Types::quantized>(p, sequence, split, gqa_group, item.kv_head,
                                                      r, Types::own_column() + 4 * half);
  }
  const bool has_columns = Types::own_column() < p.head_dim;

  typename Types::Softmax softmax;
  for (std::int32_t begin = split.begin; begin < split.end; begin += tile.keys) {
    const std::int32_t next = begin + tile.keys;
    float score = fp32_score<spec>(staging.k, values, q, has_columns, memory);
    if (next < split.end) staging.load_keys(next);

    const std::int32_t key = begin + Types::key(Types::own_pass());
    const auto at = [&](int) -> float& { return score; };
    const auto key_at = [&](int) { return key; };
    const DecodeArguments& reloaded = arch::reload_kernargs(a);
    const ScoreMod score_mod(reloaded.problem, sequence, in_use ? packed.head : 0);
    score_mod.template apply_scaled<1, Domain>(OneQuery{query.index}, key_at, at,
                                               reloaded.problem.scale);
    if (!query.attends_to(key)) score = -infinity;
    const float largest =
        reduce_passes(score, [](float x, float y) { return __builtin_fmaxf(x, y); });
    SharedFloat* weights = memory + Types::weights + Types::own_line() * Types::owners;
    if (arch::any(softmax.needs_rescale(largest))) {
      const float factor = softmax.needs_rescale(largest) ? softmax.rescale(largest) : 1.0f;
      if (Types::is_owner() && Types::own_pass() == 0) weights[Types::own_row()] = factor;
      arch::wave_fence();
      const Float4 factors = *(const SharedFloat4*)weights;
      arch::wave_fence();
      ROCFLASH_UNROLL
      for (int r = 0; r < rows; ++r) {
        out[r][0] *= factors[r];
        out[r][1] *= factors[r];
      }
    }
    float weight = Domain::exp(score - softmax.base());
    softmax.sum += weight;
    if (reloaded.problem.dropout.on() && !score_mod.keeps(query.index, key)) weight = 0;
    if (Types::is_owner()) weights[arch::lane() % Types::owners] = weight;
    arch::wave_fence();

    ROCFLASH_UNROLL
    for (int n = 0; n < Types::passes; ++n) {
      const Float4 weight_of = *(const SharedFloat4*)(weights + n * rows);
      ROCFLASH_UNROLL
      for (int half = 0; half < 2; ++half) {
        const Float4 v = staging.v[n].widened(half, values);
        ROCFLASH_UNROLL
        for (int r = 0; r < rows; ++r)
          out[r][half] = __builtin_elementwise_fma(Float4(weight_of[r]), v, out[r][half]);
      }
    }
    if (next < split.end) staging.load_values(next);
  }
  store_split_fp32<spec>(arch::reload_kernargs(a), softmax, out, memory, values);
}

}  // namespace rocflash::kernel
