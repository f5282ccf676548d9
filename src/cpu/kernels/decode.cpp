// Decode: forward for few queries. It is bound by the bandwidth of the KV cache, so each key and
// value is read once, for all query heads that share it, directly in the cache's dtype.
//
// Lanes run along the columns of a head: there are too few rows to fill lanes with queries. A row
// is one query of one head; the rows of a GQA group are ordered by head.
#include "cpu/kernels/decode_rows.hpp"
#include "cpu/kernels/entries.hpp"
#include ROCFLASH_GEMM
#include "cpu/kernels/score.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {
namespace {

constexpr int vectors = tile_keys / width;  // scores of a row are whole vectors

// Whether a step at this column is the first of its cache line.
template <class Kind>
ROCFLASH_INLINE bool starts_line(int column) {
  constexpr int columns = line / static_cast<int>(sizeof(typename Kind::Stored));
  return Kind::step >= columns || column % columns == 0;
}

// Calls body with the number of columns, as a constant for common head dimensions, so that loops
// are unrolled.
template <int n>
struct Constant {
  ROCFLASH_INLINE constexpr operator int() const { return n; }
};
template <class Body>
ROCFLASH_INLINE void with_columns(int columns, Body body) {
  if (columns == 128) return body(Constant<128>{});
  if (columns == 64) return body(Constant<64>{});
  body(columns);
}

// scores[row][key] = q[row] . k[key] for `rows` rows of q and keys [from, to). Processes as many
// keys at a time as fill one vector with sums.
template <class Kind, int rows, class Columns>
ROCFLASH_INLINE void scores_of(const typename Kind::Query* q, std::int64_t q_stride,
                               const KeyRows<typename Kind::Stored>& k, int from, int to,
                               Columns columns, std::int64_t head, float* scores) {
  constexpr int keys = width / rows;
  const int whole = columns / Kind::step * Kind::step;
  for (int j = from; j < to; j += keys) {
    Float sum[width] = {};  // [row][key]
    const auto* row = k.row + j;
    const std::int64_t offset = head * k.head_stride;
    const auto add = [&](int c, const auto& load_key) {
      typename Kind::Columns left[rows];
      for (int r = 0; r < rows; ++r) left[r] = Kind::load_query(q + r * q_stride + c);
      for (int n = 0; n < keys; ++n) {
        const typename Kind::Columns right = load_key(row[n] + offset + c);
        if (starts_line<Kind>(c)) prefetch_next(row + n, offset + c);
        for (int r = 0; r < rows; ++r)
          sum[r * keys + n] = Kind::add_product(sum[r * keys + n], left[r], right);
      }
    };
    _Pragma("GCC unroll 8") for (int c = 0; c < whole; c += Kind::step) add(c, Kind::load_key);
    if (whole < columns) {
      add(whole, [&](const typename Kind::Stored* at) {
        return Kind::load_key(Tail<Kind>(at, columns - whole).data);
      });
    }
    const Float sums = sum_each(sum);
    float lanes[width];
    store(lanes, sums);
    for (int r = 0; r < rows; ++r)
      __builtin_memcpy(scores + r * tile_keys + j, lanes + r * keys, sizeof(float) * keys);
  }
}

// What happens to earlier output: there is none, it is rescaled by the rows' factors, or it is
// kept.
enum class Before { nothing, scaled, kept };

// out[row][column] = earlier output + sum of weights[row][key] * v[key][column] over half a tile of
// keys from `from` on. With `careful`, weights of exactly 0 contribute nothing even to infinite
// values: non-finite values are accumulated separately, so that the other sums keep their bits.
template <class Kind, int rows, bool careful>
ROCFLASH_INLINE void accumulate_values(const float* scores, const float* factor,
                                       const KeyRows<typename Kind::Stored>& v, int from,
                                       std::int64_t head, float* out, std::int64_t out_stride,
                                       Before before) {
  using Stored = typename Kind::Stored;
  constexpr int sums = Kind::sums;
  const auto* weights = reinterpret_cast<const typename Kind::Weight*>(scores);
  constexpr int weights_stride = tile_keys * sizeof(float) / sizeof(typename Kind::Weight);
  static constexpr KeyOrder<Kind::keys> key_order;
  const int count = static_cast<int>(smaller(half_tile, v.count - from));
  const std::uint8_t* order = count == half_tile ? key_order.scattered : key_order.in_order;
  const auto run = [&]<int steps>(int c, const auto& load_values) {
    Float sum[rows][steps][sums] = {};
    for (int i = 0; i * Kind::keys < count; ++i) {
      const int j = from + order[i];
      typename Kind::Value value[steps][sums];
      for (int m = 0; m < steps; ++m) {
        const std::int64_t offset = head * v.head_stride + c + m * Kind::step;
        const Stored* at[Kind::keys];
        for (int n = 0; n < Kind::keys; ++n) at[n] = v.row[j + n] + offset;
        load_values(at, value[m]);
        for (int n = 0; n < Kind::keys; ++n)
          if (starts_line<Kind>(c + m * Kind::step)) prefetch_next(v.row + j + n, offset);
      }
      [[maybe_unused]] typename Kind::Value apart_from[Kind::keys][steps][sums];
      if constexpr (careful)
        for (int key = 0; key < Kind::keys; ++key)
          for (int m = 0; m < steps; ++m)
            for (int n = 0; n < sums; ++n)
              apart_from[key][m][n] = Kind::take_nonfinite(value[m][n], key);
      for (int r = 0; r < rows; ++r) {
        const auto weight = Kind::load_weight(weights + r * weights_stride + j);
        for (int m = 0; m < steps; ++m)
          for (int n = 0; n < sums; ++n)
            sum[r][m][n] = Kind::add_weighted(sum[r][m][n], weight, value[m][n]);
        if constexpr (careful)
          for (int key = 0; key < Kind::keys; ++key)
            for (int m = 0; m < steps; ++m)
              for (int n = 0; n < sums; ++n)
                if (weights[r * weights_stride + j + key] != 0)
                  sum[r][m][n] = Kind::add_weighted(sum[r][m][n], weight, apart_from[key][m][n]);
      }
    }
    for (int r = 0; r < rows; ++r) {
      for (int m = 0; m < steps; ++m) {
        for (int n = 0; n < sums; ++n) {
          float* at = out + r * out_stride + c + m * Kind::step + n * width;
          Float total = sum[r][m][n];
          // Output without remaining weight contributes nothing, even if it is infinite.
          if (before == Before::scaled && (!careful || factor[r] != 0))
            total += load(at) * factor[r];
          if (before == Before::kept) total += load(at);
          store(at, total);
        }
      }
    }
  };
  const auto whole = [](const auto& at, auto& to) { Kind::load_values(at, to); };
  constexpr int accumulators = registers / 2, fitting = accumulators / (rows * sums),
                most = fitting > 4   ? 4
                       : fitting < 1 ? 1
                                     : fitting;
  int c = 0;
  for (; c + most * Kind::step <= v.columns; c += most * Kind::step)
    run.template operator()<most>(c, whole);
  if constexpr (most > 2) {
    for (; c + 2 * Kind::step <= v.columns; c += 2 * Kind::step)
      run.template operator()<2>(c, whole);
  }
  for (; c + Kind::step <= v.columns; c += Kind::step) run.template operator()<1>(c, whole);
  if (c < v.columns) {
    run.template operator()<1>(c, [&](const auto& at, auto& to) {
      Tail<Kind> tail[Kind::keys];
      const Stored* padded_rows[Kind::keys];
      for (int n = 0; n < Kind::keys; ++n) {
        tail[n] = Tail<Kind>(at[n], v.columns - c);
        padded_rows[n] = tail[n].data;
      }
      Kind::load_values(padded_rows, to);
    });
  }
}

// Keys scored for all heads before the next ones, so that memory is read in order: few, but as many
// as the row blocks below process at a time.
ROCFLASH_INLINE constexpr int decode_block(int rows) {
  const int together = width / (rows % 2 != 0 ? 1 : rows % 4 != 0 ? 2 : 4);
  return together < 4 ? 4 : together;
}

// Runs body for all rows: blocks of four, then two and one.
template <class Body>
ROCFLASH_INLINE void in_groups(int rows, Body body) {
  int r = 0;
  for (; r + 4 <= rows; r += 4) body.template operator()<4>(r);
  if (r + 2 <= rows) {
    body.template operator()<2>(r);
    r += 2;
  }
  if (r < rows) body.template operator()<1>(r);
}

// A row of a partial result: its values, followed by its online softmax state. Unnormalized values
// that would overflow are stored multiplied by `shrink`.
struct RowState {
  float highest, sum, shrink;
};
ROCFLASH_INLINE RowState& state_of(float* row, std::int64_t stride) {
  return *reinterpret_cast<RowState*>(row + stride - 3);
}
constexpr float overflow_scale = 0x1p-48f;

// Online softmax of up to `width` rows: scores become weights in place; `highest` and `sum` are the
// running max and sum, and `factor` receives the rescale factor of earlier output. Per-row scalars
// are held one row per lane.
template <class Kind>
ROCFLASH_INLINE void update(float* scores, int rows, const typename Kind::Exponent& exponential,
                            float* highest, float* sum, float* factor) {
  Float of_row[width];
  for (int r = 0; r < width; ++r) of_row[r] = splat(-infinity);
  for (int r = 0; r < rows; ++r) {
    const float* row = scores + r * tile_keys;
    for (int n = 0; n < tile_keys; n += width) of_row[r] = larger(load(row + n), of_row[r]);
  }
  const Float before = load(highest), top = larger(largest_each(of_row), before);
  const Float base = select(top == -infinity, Float{}, top);
  const Float scale = exponential(before - base);
  float bases[width];
  store(bases, base);
  store(highest, top);
  store(factor, scale);
  for (int r = 0; r < rows; ++r) {
    float* row = scores + r * tile_keys;
    auto* weights = reinterpret_cast<typename Kind::Weight*>(row);
    Float total{};
    for (int n = 0; n < tile_keys; n += width) {
      const Float weight = exponential(load(row + n) - bases[r]);
      total += weight;
      Kind::store_weights(weights + n, weight);  // never past what has been read
    }
    of_row[r] = total;
  }
  store(sum, load(sum) * scale + sum_each(of_row));
}

// The keys of a split.
ROCFLASH_INLINE Range keys_of(const Problem& p, const DecodePartials& parts, const WorkItem& item) {
  const Sequence s = p.lengths.sequence(item.batch);
  if (s.sq == 0) return {0, 0};
  Range keys = visible_keys(p.visibility, Range{0, s.sq}, s.sq, s.sk);
  keys.begin = floor_to(keys.begin, dropout_keys_per_call);
  return split_of(keys, static_cast<int>(item.block), parts.splits);
}

// Some KV heads of a sequence against one split of the keys. Heads are interleaved, because their
// rows of one key are adjacent in memory.
template <class Kind, bool careful>
class DecodeSplit {
 public:
  using Stored = typename Kind::Stored;
  using Query = typename Kind::Query;

  // With `shrinks`, rows with non-finite results are recomputed with scaled values.
  ROCFLASH_INLINE DecodeSplit(const Problem& problem, const DecodePartials& parts,
                              const WorkItem& work, float* memory, bool shrinks = false)
      : p(problem),
        item(work),
        sequence(p.lengths.sequence(item.batch)),
        begin(item.head * decode_heads(p)),
        heads(static_cast<int>(smaller(p.kv_heads - begin, decode_heads(p)))),
        queries(static_cast<int>(sequence.sq)),
        rows(static_cast<int>(p.gqa_group()) * queries),
        block(decode_block(rows)),
        q_stride(decode_columns(p.head_dim)),
        out_stride(parts.row_stride) {
    Scratch scratch(memory);
    scores = scratch.take(std::int64_t{heads} * rows * tile_keys);
    bias = scratch.take(queries * tile_keys);
    keep = scratch.take(queries * tile_keys);
    factor = scratch.take(heads * rows);
    highest = scratch.take(heads * rows);
    sum = scratch.take(heads * rows);
    shrink = scratch.take(heads * rows);
    if (is_8_bit(p.k.dtype))
      dequantized = scratch.take(std::int64_t{heads} * tile_keys * dequantized_row(p));
    for (std::int64_t n = 0; n < heads * rows; n += width) {
      store(highest + n, splat(-infinity));
      store(sum + n, Float{});
    }
    for (int g = 0; g < heads; ++g) {
      q[g] = reinterpret_cast<Query*>(scratch.take(rows * q_stride));
      out[g] = parts.partial(p, item.batch, begin + g, item.block);
      for (int r = 0; r < rows; ++r) {
        load_query(g, r);
        shrink[g * rows + r] =
            shrinks && !is_finite(out[g] + r * out_stride) ? overflow_scale : 1.0f;
      }
    }
  }

  // Returns whether all results are finite.
  ROCFLASH_INLINE bool run(const DecodePartials& parts, const DecodePrefetch& prefetch) {
    // The products share the code of an f32 cache.
    if constexpr (sizeof(Stored) == sizeof(float))
      if (is_8_bit(p.k.dtype)) return run_over<std::uint8_t>(parts, prefetch);
    return run_over<Stored>(parts, prefetch);
  }

 private:
  // Over a cache of these elements: codes, or what the products read.
  template <class Cached>
  ROCFLASH_INLINE bool run_over(const DecodePartials& parts, const DecodePrefetch& prefetch) {
    const Range keys = keys_of(p, parts, item);
    KeyRows<Cached> k, v;
    Range here = first_of(keys, keys.begin);
    resolve_next(k, v, head_of(0), here);
    if (prefetch.first) {
      prefetch_first_rows(k, heads);
      prefetch_first_rows(v, heads);
    }
    while (!here.empty()) {
      k.advance();
      v.advance();
      const Range after = first_of(keys, here.end);
      if (!after.empty() || !prefetch.next) {
        resolve_next(k, v, head_of(0), after);
      } else {
        const Range next_keys = keys_of(p, parts, *prefetch.next);
        resolve_next(
            k, v,
            Head(p, prefetch.next->batch, prefetch.next->head * decode_heads(p) * p.gqa_group()),
            first_of(next_keys, next_keys.begin));
      }
      if constexpr (sizeof(Cached) == 1) {
        KeyRows<float> tile;
        dequantize_tile(tile, k, p.k, p.k_descale, here);
        score(tile);
        apply_softmax(here);
        dequantize_tile(tile, v, p.v, p.v_descale, here);
        accumulate(tile, here.begin == keys.begin);
      } else {
        score(k);
        apply_softmax(here);
        accumulate(v, here.begin == keys.begin);
      }
      here = after;
    }
    return finish();
  }

  ROCFLASH_INLINE static Range first_of(Range keys, std::int64_t from) {
    return {from, smaller(keys.end, from + tile_keys)};
  }
  template <class Cached>
  ROCFLASH_INLINE void resolve_next(KeyRows<Cached>& k, KeyRows<Cached>& v, const Head& head,
                                    Range keys) const {
    k.resolve_next(head.keys(keys));
    v.resolve_next(head.values(keys));
  }
  // Converts a tile to f32 in scratch memory, and prefetches the next one.
  [[gnu::noinline]] void dequantize_tile(KeyRows<float>& tile, const KeyRows<std::uint8_t>& codes,
                                         const Rows& cache, const Descale& descale,
                                         Range keys) const {
    const std::int64_t stride = dequantized_row(p);
    tile.head_stride = tile_keys * stride;
    tile.columns = codes.columns;
    tile.count = codes.count;
    prefetch_pages(codes);
    for (int n = 0; n < codes.count; ++n) {
      for (int g = 0; g < heads; ++g) {
        const std::int64_t offset = g * codes.head_stride;
        for (int c = 0; c < codes.columns; c += line) prefetch_next(codes.row + n, offset + c);
        dequantize_row(dequantized + g * tile.head_stride + n * stride,
                       reinterpret_cast<const std::byte*>(codes.row[n] + offset), cache.dtype,
                       codes.columns,
                       descale.at(cache, item.batch, sequence.k_row + keys.begin + n, begin + g));
      }
    }
    // The products prefetch rows of "the next tile", which is this one again.
    for (int n = 0; n < 2 * tile_keys; ++n)
      tile.row[n] = dequantized + smaller(n % tile_keys, codes.count - 1) * stride;
  }
  // Query head n of KV head g.
  ROCFLASH_INLINE Head head_of(int g, std::int64_t n = 0) const {
    return Head(p, item.batch, (begin + g) * p.gqa_group() + n);
  }
  ROCFLASH_INLINE void load_query(int g, int r) {
    float row[max_head_dim + Kind::step];
    for (int c = 0; c < Kind::step; c += width) store(row + p.head_dim + c, Float{});
    const std::int64_t head = (begin + g) * p.gqa_group() + r / queries;
    convert_row(row, p.q.row(item.batch, sequence.q_row + r % queries, head), p.q.dtype,
                p.head_dim);
    // Rows of the cache are read unscaled, so q takes both powers of two of the scale.
    const SplitScale scale = split_scale(p.scale);
    for (int c = 0; c < p.head_dim; ++c) row[c] = row[c] * scale.lanes * scale.rows;
    for (int c = 0; c < p.head_dim; c += Kind::step)
      Kind::store_query(q[g] + r * q_stride + c, row + c);
  }

  // Separate noinline functions, so that each has all registers.
  [[gnu::noinline]] void score(const KeyRows<Stored>& k) {
    prefetch_pages(k);
    for (int from = 0; from < k.count; from += block) {
      const int to = static_cast<int>(smaller(from + block, k.count));
      in_groups(rows, [&]<int count>(int r) {
        with_columns(k.columns, [&](auto columns) {
          for (int g = 0; g < heads; ++g)
            scores_of<Kind, count>(q[g] + r * q_stride, q_stride, k, from, to, columns, g,
                                   scores + (g * rows + r) * tile_keys);
        });
      });
    }
  }
  [[gnu::noinline]] void apply_softmax(Range keys) {
    const Tile tile{{0, queries}, keys};
    const auto each_head = [&](auto body) {
      for (int g = 0; g < heads; ++g)
        for (int h = 0; h < p.gqa_group(); ++h)
          body(head_of(g, h), scores + (g * rows + h * queries) * tile_keys);
    };
    const Head first = head_of(0);
    if (first.has_score_mod || p.visibility.bounded()) {
      each_head([&](const Head& head, float* of_head) {
        finish_scores<Lanes::keys, vectors>(head, tile, of_head, bias, nullptr);
      });
    }
    const int all = heads * rows;
    if (keys.size() < tile_keys) {
      for (int r = 0; r < all; ++r)
        for (auto n = static_cast<int>(keys.size()); n < tile_keys; ++n)
          scores[r * tile_keys + n] = -infinity;
    }
    const typename Kind::Exponent exponential(first.exponent);
    for (int r = 0; r < all; r += width)
      update<Kind>(scores + r * tile_keys, static_cast<int>(smaller(all - r, width)), exponential,
                   highest + r, sum + r, factor + r);
    if constexpr (careful) {
      for (int r = 0; r < all; ++r) {
        auto* weights = reinterpret_cast<typename Kind::Weight*>(scores + r * tile_keys);
        if (shrink[r] != 1.0f)
          for (int n = 0; n < tile_keys; ++n) weights[n] = Kind::times(weights[n], shrink[r]);
      }
    }
    if (p.dropout.on()) {
      each_head([&](const Head& head, float* of_head) {
        dropout_mask<Lanes::keys, vectors>(head, tile, keep);
        for (int i = 0; i < queries; ++i) {
          auto* weights = reinterpret_cast<typename Kind::Weight*>(of_head + i * tile_keys);
          for (int n = 0; n < tile_keys; ++n)
            if (keep[i * tile_keys + n] == 0) weights[n] = 0;
        }
      });
    }
  }
  [[gnu::noinline]] void accumulate(const KeyRows<Stored>& v, bool first) {
    prefetch_pages(v);
    for (int from = 0; from < v.count; from += half_tile) {
      const Before before = from > 0 ? Before::kept : first ? Before::nothing : Before::scaled;
      for (int g = 0; g < heads; ++g) {
        in_groups(rows, [&]<int count>(int r) {
          accumulate_values<Kind, count, careful>(scores + (g * rows + r) * tile_keys,
                                                  factor + g * rows + r, v, from, g,
                                                  out[g] + r * out_stride, out_stride, before);
        });
      }
    }
  }
  ROCFLASH_INLINE bool finish() {
    Float taint{};
    for (int g = 0; g < heads; ++g) {
      for (int r = 0; r < rows; ++r) {
        state_of(out[g] + r * out_stride, out_stride) = {highest[g * rows + r], sum[g * rows + r],
                                                         shrink[g * rows + r]};
        for (int c = 0; c < p.value_dim; c += Kind::step) {
          float* at = out[g] + r * out_stride + c;
          Float v[Kind::sums];
          for (int n = 0; n < Kind::sums; ++n) {
            v[n] = load(at + n * width);
            taint += v[n] * 0.0f;
          }
          Kind::in_order(v);
          for (int n = 0; n < Kind::sums; ++n) store(at + n * width, v[n]);
        }
      }
    }
    return !any_nan(taint);
  }
  ROCFLASH_INLINE bool is_finite(const float* row) const {
    float taint = 0;
    for (int c = 0; c < p.value_dim; ++c) taint += row[c] - row[c];
    return taint == 0;
  }

  const Problem& p;
  const WorkItem& item;
  const Sequence sequence;
  const std::int64_t begin;  // the first KV head
  const int heads, queries, rows;
  const int block;  // keys scored for all heads before the next ones
  const std::int64_t q_stride, out_stride;
  float* scores;  // [KV head][row][key]; after the softmax, the weights
  float *bias, *keep;
  float *factor, *highest, *sum, *shrink;  // online softmax state, [KV head][row]
  float* dequantized = nullptr;            // a tile of a quantized cache, [KV head][key][column]
  Query* q[max_decode_heads];
  float* out[max_decode_heads];
};

// The partial result of a split without visible keys.
void mark_empty(const Problem& p, const DecodePartials& parts, const WorkItem& item) {
  const std::int64_t begin = item.head * decode_heads(p),
                     end = smaller(p.kv_heads, begin + decode_heads(p));
  for (std::int64_t g = begin; g < end; ++g)
    for (std::int64_t r = 0; r < parts.rows; ++r)
      state_of(parts.partial(p, item.batch, g, item.block) + r * parts.row_stride,
               parts.row_stride) = {-infinity, 0.0f, 1.0f};
}

}  // namespace

void decode(const Problem& p, const DecodePartials& parts, WorkItem item, DecodePrefetch prefetch,
            float* scratch) {
  if (p.lengths.sequence(item.batch).sq == 0) return;
  if (keys_of(p, parts, item).empty()) return mark_empty(p, parts, item);
  with_operands(p.q.dtype, p.k.dtype, [&]<class Kind>() {
    if (DecodeSplit<Kind, false>(p, parts, item, scratch).run(parts, prefetch)) return;
    // A weight of 0 times an infinite value is NaN: only then run the careful path. Results that
    // are still not finite may have overflowed.
    if (DecodeSplit<Kind, true>(p, parts, item, scratch).run(parts, prefetch)) return;
    DecodeSplit<Kind, true>(p, parts, item, scratch, true).run(parts, prefetch);
  });
}

void combine(const Problem& p, const ForwardOutputs& o, const DecodePartials& parts, WorkItem item,
             float* sum) {
  const auto dropout_scale = static_cast<double>(p.dropout.scale());
  const std::int64_t sq = p.lengths.sequence(item.batch).sq;
  for (std::int64_t r = 0; r < p.gqa_group() * sq; ++r) {
    const Head head(p, item.batch, item.head * p.gqa_group() + r / sq);
    const auto row_of = [&](int n) {
      return parts.partial(p, item.batch, item.head, n) + r * parts.row_stride;
    };
    const auto state = [&](int n) { return state_of(row_of(n), parts.row_stride); };
    // The sink is one more split, with weight but no value.
    const Exponential exponential(head.exponent);
    float highest = head.sink;
    for (int n = 0; n < parts.splits; ++n)
      highest = state(n).highest > highest ? state(n).highest : highest;
    const float base = highest == -infinity ? 0.0f : highest;
    float total = head.sink == -infinity ? 0.0f : exponential(head.sink - base);
    const auto share_of = [&](const RowState& part) {
      return part.highest == base ? 1.0f : exponential(part.highest - base);
    };
    bool first = true, whole = true;
    for (int n = 0; n < parts.splits; ++n) {
      const RowState part = state(n);
      if (part.sum == 0) continue;  // no visible key in this split
      const float share = share_of(part);
      total += part.sum * share;
      whole &= part.shrink == 1.0f;
      const float* from = row_of(n);
      for (int c = 0; c < p.value_dim; c += width)
        store(sum + c, first ? load(from + c) * share : load(sum + c) + load(from + c) * share);
      first = false;
    }
    const float over = total == 0 ? 0.0f : p.dropout.scale() / total;
    Float taint{};
    for (int c = 0; c < p.value_dim; c += width) {
      const Float value = (first ? Float{} : load(sum + c)) * over;
      taint += value * 0.0f;
      store(sum + c, value);
    }
    // A partial result or the sum overflowed, or one without weight is infinite. Padding columns
    // may trigger this needlessly.
    if (!whole || any_nan(taint)) {
      for (int c = 0; c < p.value_dim && total == total; ++c) {
        double value = 0;
        for (int n = 0; n < parts.splits; ++n) {
          const RowState part = state(n);
          const double share = part.sum == 0 ? 0.0 : static_cast<double>(share_of(part));
          if (share != 0) value += static_cast<double>(row_of(n)[c]) * share / part.shrink;
        }
        value *= total == 0 ? 0.0 : dropout_scale / static_cast<double>(total);
        if (!whole || sum[c] - sum[c] != 0) sum[c] = static_cast<float>(value);
      }
    }
    const std::int64_t row = head.sequence.q_row + r % sq;
    store_row(o.out.row(head.b, row, head.h), o.out.dtype, sum, p.value_dim);
    if (o.lse) o.lse.at(head.b, head.h, row) = head.lse(highest, total);
  }
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
