// Forward for few queries, as when a model writes one token at a time: bound by reading the cache,
// so each key and value is read once, for all query heads that share it, straight from the tensor's
// dtype.
//
// Lanes run along the head's columns here: with a handful of rows there are no 64 queries to put
// into them. A row is one query of one head; rows of a group come head by head.
#include "cpu/isa/gemm.hpp"
#include "cpu/isa/kernels.hpp"
#include "cpu/isa/score.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {
namespace {

constexpr int vectors = most_vectors;
constexpr int tile_keys = vectors * width;  // scores of a row are whole vectors
static_assert(decode_keys % tile_keys == 0);

// Sums of `width` vectors, one in each lane: pairs of neighbours are added until one vector is
// left.
template <int count>
ROCFLASH_INLINE Float sum_each(const Float (&v)[count]) {
  if constexpr (count == 1) {
    return v[0];
  } else {
    Float half[count / 2];
    for (int n = 0; n < count / 2; ++n) {
      const Float a = v[2 * n], b = v[2 * n + 1];
#if defined(ROCFLASH_ISA_avx512)
      half[n] =
          __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
          __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#elif defined(ROCFLASH_ISA_avx2)
      half[n] = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14) +
                __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
#else
      half[n] =
          __builtin_shufflevector(a, b, 0, 2, 4, 6) + __builtin_shufflevector(a, b, 1, 3, 5, 7);
#endif
    }
    return sum_each(half);
  }
}

// The last, partial vector of a row, filled up with zeros.
template <class Element>
ROCFLASH_INLINE Float load_tail(const Element* from, int count) {
  Element padded_row[width] = {};
  for (int n = 0; n < count; ++n) padded_row[n] = from[n];
  return load_vector(padded_row);
}

// Rows of the cache that a tile of keys names, resolved once for all columns.
template <class Element>
struct KeyRows {
  const Element* row[tile_keys];
  int count;

  ROCFLASH_INLINE void find(const RowBlock& block) {
    count = block.count;
    for (int n = 0; n < count; ++n) row[n] = reinterpret_cast<const Element*>(block.row(n));
  }
  // Rows of different keys lie far apart, which the hardware does not foresee. Asking for a row
  // while another is at work keeps just enough requests under way; asking for a whole tile at once
  // would stall. Into the second-level cache: the tile is too large for the first, and would drive
  // out what is in use (half the speed).
  ROCFLASH_INLINE void prefetch(int n, int columns) const {
    constexpr int line = 64 / static_cast<int>(sizeof(Element));
    for (int c = 0; n < count && c < columns; c += line) __builtin_prefetch(row[n] + c, 0, 2);
  }
};

// scores[row][key] = q[row] . k[key], for `rows` of q; as many keys at a time as make the sums fill
// one vector.
template <int rows, class Element>
ROCFLASH_INLINE void scores_of(const float* q, std::int64_t q_stride, const KeyRows<Element>& k,
                               const KeyRows<Element>& next, int columns, float* scores) {
  constexpr int keys = width / rows;
  const int whole = columns / width * width;
  for (int j = 0; j < k.count; j += keys) {
    Float sum[width] = {};
    const Element* row[keys];
    for (int n = 0; n < keys; ++n) {
      row[n] = k.row[j + n < k.count ? j + n : k.count - 1];
      next.prefetch(j + n, columns);
    }
    const auto add = [&](int c, const auto& load_key) {
      Float left[rows];
      for (int r = 0; r < rows; ++r) left[r] = load(q + r * q_stride + c);
      for (int n = 0; n < keys; ++n) {
        const Float right = load_key(row[n] + c);
        for (int r = 0; r < rows; ++r) sum[n * rows + r] += left[r] * right;
      }
    };
    for (int c = 0; c < whole; c += width)
      add(c, [](const Element* at) { return load_vector(at); });
    if (whole < columns)
      add(whole, [&](const Element* at) { return load_tail(at, columns - whole); });
    const Float sums = sum_each(sum);
    for (int n = 0; n < keys && j + n < k.count; ++n)
      for (int r = 0; r < rows; ++r) scores[r * tile_keys + j + n] = sums[n * rows + r];
  }
}

// out[row][column] = out * factor[row] + sum over keys of weights[row][key] * v[key][column].
// `careful` lets weights of exactly 0 contribute nothing even to infinite values.
template <int rows, bool careful, class Element>
ROCFLASH_INLINE void weigh_values(const float* weights, const float* factor,
                                  const KeyRows<Element>& v, const KeyRows<Element>& next,
                                  int columns, float* out, std::int64_t out_stride) {
  const auto run = [&]<int count>(int c, const auto& load_value) {
    Float sum[rows][count];
    for (int r = 0; r < rows; ++r)
      for (int m = 0; m < count; ++m)
        sum[r][m] = load(out + r * out_stride + c + m * width) * factor[r];
    for (int j = 0; j < v.count; ++j) {
      if (c == 0) next.prefetch(j, columns);
      Float value[count];
      for (int m = 0; m < count; ++m) value[m] = load_value(v.row[j] + c + m * width);
      for (int r = 0; r < rows; ++r) {
        const float weight = weights[r * tile_keys + j];
        if (careful && weight == 0) continue;
        for (int m = 0; m < count; ++m) sum[r][m] += weight * value[m];
      }
    }
    for (int r = 0; r < rows; ++r)
      for (int m = 0; m < count; ++m) store(out + r * out_stride + c + m * width, sum[r][m]);
  };
  const auto whole = [](const Element* at) { return load_vector(at); };
  int c = 0;
  for (; c + vectors * width <= columns; c += vectors * width)
    run.template operator()<vectors>(c, whole);
  for (; c + width <= columns; c += width) run.template operator()<1>(c, whole);
  if (c < columns)
    run.template operator()<1>(c, [&](const Element* at) { return load_tail(at, columns - c); });
}

// Runs body for all rows, four at a time and the rest in twos and ones.
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

// A row of a part: its values, and behind them the state of its online softmax.
struct RowState {
  float highest, sum;
};
ROCFLASH_INLINE RowState& state_of(float* row, std::int64_t stride) {
  return *reinterpret_cast<RowState*>(row + stride - 2);
}

// Scores of one row become weights; returns the factor for what was accumulated before.
ROCFLASH_INLINE float absorb(float* scores, const Exponential& exponential, RowState& state) {
  Float top = splat(state.highest);
  for (int n = 0; n < tile_keys; n += width) top = larger(load(scores + n), top);
  float highest = state.highest;
  for (int n = 0; n < width; ++n) highest = top[n] > highest ? top[n] : highest;
  const float base = highest == -infinity ? 0.0f : highest;
  Float total{};
  for (int n = 0; n < tile_keys; n += width) {
    const Float weight = exponential(load(scores + n) - base);
    total += weight;
    store(scores + n, weight);
  }
  const float factor = exponential(state.highest - base);
  float sum = 0;
  for (int n = 0; n < width; ++n) sum += total[n];
  state = {highest, state.sum * factor + sum};
  return factor;
}

// One key head: its rows of q (as floats), where their part of the result goes, and the rows of
// this tile's and the next tile's keys and values.
template <class Element>
struct KeyHead {
  float *q, *out;
  KeyRows<Element> k[2], v[2];
};

// What a tile needs while it is computed.
struct TileScratch {
  float *scores, *bias, *keep, *factor;
};

// All rows of one key head against one tile of keys.
template <bool careful, class Element>
ROCFLASH_INLINE void run_tile(const Problem& p, const Head& first, Range keys,
                              const KeyHead<Element>& at, int slot, std::int64_t out_stride,
                              const TileScratch& t) {
  const auto queries = static_cast<int>(first.sequence.sq),
             rows = static_cast<int>(p.group()) * queries;
  const std::int64_t q_stride = padded(p.head_dim);
  const KeyRows<Element> none{{}, 0};  // only the first group of rows asks for the next tile
  in_groups(rows, [&]<int count>(int r) {
    scores_of<count>(at.q + r * q_stride, q_stride, at.k[slot], r == 0 ? at.k[!slot] : none,
                     p.head_dim, t.scores + r * tile_keys);
  });
  for (std::int64_t h = 0; h < p.group(); ++h) {
    const Head head(p, first.b, first.h + h);
    const Tile tile{{0, queries}, keys};
    float* of_head = t.scores + h * queries * tile_keys;
    finish_scores<Lanes::keys, vectors>(head, tile, of_head, t.bias, nullptr);
    if (p.dropout.on()) draw_dropout<Lanes::keys, vectors>(head, tile, t.keep);
    for (int i = 0; i < queries; ++i) {
      const std::int64_t r = h * queries + i;
      float* row = of_head + i * tile_keys;
      for (auto n = static_cast<int>(keys.size()); n < tile_keys; ++n) row[n] = -infinity;
      t.factor[r] =
          absorb(row, Exponential(head.exponent), state_of(at.out + r * out_stride, out_stride));
      for (int n = 0; n < tile_keys && p.dropout.on(); ++n) {
        if (t.keep[i * tile_keys + n] == 0) row[n] = 0;
      }
    }
  }
  in_groups(rows, [&]<int count>(int r) {
    weigh_values<count, careful>(t.scores + r * tile_keys, t.factor + r, at.v[slot],
                                 r == 0 ? at.v[!slot] : none, p.value_dim, at.out + r * out_stride,
                                 out_stride);
  });
}

// Some key heads of a sequence against one range of keys. Heads take turns on each tile, because
// their rows of one key lie side by side in memory. Returns whether all results are finite.
template <bool careful, class Element>
bool run(const Problem& p, const DecodeParts& parts, const WorkItem& item, Range keys,
         float* memory) {
  const std::int64_t begin = item.head * decode_heads(p),
                     end = smaller(p.kv_heads, begin + decode_heads(p));
  const Sequence s = p.lengths.sequence(item.batch);
  const std::int64_t q_stride = padded(p.head_dim), rows = p.group() * s.sq;
  Scratch scratch(memory);
  const TileScratch tile{
      scratch.take(most_decode_rows * tile_keys), scratch.take(most_decode_rows * tile_keys),
      scratch.take(most_decode_rows * tile_keys), scratch.take(most_decode_rows)};
  KeyHead<Element> heads[most_decode_heads];
  for (std::int64_t g = begin; g < end; ++g) {
    KeyHead<Element>& at = heads[g - begin];
    at.q = scratch.take(rows * q_stride);
    at.out = parts.part(p, item.batch, g, item.block);
    __builtin_memset(at.q, 0, sizeof(float) * static_cast<std::size_t>(rows * q_stride));
    __builtin_memset(at.out, 0, sizeof(float) * static_cast<std::size_t>(rows * parts.row_stride));
    for (std::int64_t r = 0; r < rows; ++r)
      state_of(at.out + r * parts.row_stride, parts.row_stride).highest = -infinity;
    for (std::int64_t h = 0; h < p.group(); ++h) {
      const Head head(p, item.batch, g * p.group() + h);
      load_rows(at.q + h * s.sq * q_stride, q_stride, head.queries_of(p.q, {0, s.sq}));
    }
  }
  const auto find = [&](std::int64_t j, int slot) {
    const Range here{j, smaller(keys.end, j + tile_keys)};
    for (std::int64_t g = begin; g < end; ++g) {
      const Head head(p, item.batch, g * p.group());
      heads[g - begin].k[slot].find(head.keys_of(p.k, here));
      heads[g - begin].v[slot].find(head.keys_of(p.v, here));
    }
    return here;
  };
  int slot = 0;
  for (Range here = find(keys.begin, slot); !here.empty();) {
    const Range after = find(here.end, !slot);
    for (std::int64_t g = begin; g < end; ++g) {
      run_tile<careful>(p, Head(p, item.batch, g * p.group()), here, heads[g - begin], slot,
                        parts.row_stride, tile);
    }
    here = after;
    slot = !slot;
  }
  Float taint{};
  for (std::int64_t g = begin; g < end; ++g)
    for (std::int64_t r = 0; r < rows; ++r)
      for (int c = 0; c < p.value_dim; c += width)
        taint += load(heads[g - begin].out + r * parts.row_stride + c) * 0.0f;
  return !any_nan(taint);
}

}  // namespace

void decode(const Problem& p, const DecodeParts& parts, WorkItem item, float* scratch) {
  const Sequence s = p.lengths.sequence(item.batch);
  if (s.sq == 0) return;
  Range keys = visible_keys(p.visibility, Range{0, s.sq}, s.sq, s.sk);
  keys.begin = floor_to(keys.begin, dropout_keys_per_call);
  const Range here = split_of(keys, static_cast<int>(item.block), parts.splits);
  with_elements(p.k.dtype, static_cast<const std::byte*>(nullptr),
                [&]<class Element>(const Element*) {
                  // A weight of 0 times an infinite value is NaN: only then, once more with care.
                  if (!run<false, Element>(p, parts, item, here, scratch))
                    run<true, Element>(p, parts, item, here, scratch);
                });
}

void merge(const Problem& p, const ForwardOutputs& o, const DecodeParts& parts, WorkItem item,
           float* sum) {
  const std::int64_t sq = p.lengths.sequence(item.batch).sq;
  for (std::int64_t r = 0; r < p.group() * sq; ++r) {
    const Head head(p, item.batch, item.head * p.group() + r / sq);
    const auto row_of = [&](int n) {
      return parts.part(p, item.batch, item.head, n) + r * parts.row_stride;
    };
    const auto state = [&](int n) { return state_of(row_of(n), parts.row_stride); };
    // The sink is a part of its own, with weight but no value.
    const Exponential exponential(head.exponent);
    float highest = head.sink;
    for (int n = 0; n < parts.splits; ++n)
      highest = state(n).highest > highest ? state(n).highest : highest;
    const float base = highest == -infinity ? 0.0f : highest;
    float total = exponential(head.sink - base);
    __builtin_memset(sum, 0, sizeof(float) * static_cast<std::size_t>(padded(p.value_dim)));
    for (int n = 0; n < parts.splits; ++n) {
      const RowState part = state(n);
      if (part.sum == 0) continue;  // this part saw nothing
      const float share = exponential(part.highest - base);
      total += part.sum * share;
      for (int c = 0; c < p.value_dim; c += width)
        store(sum + c, load(sum + c) + load(row_of(n) + c) * share);
    }
    const float over = total == 0 ? 0.0f : p.dropout.scale() / total;
    for (int c = 0; c < p.value_dim; c += width) store(sum + c, load(sum + c) * over);
    const std::int64_t row = head.sequence.q_row + r % sq;
    store_row(o.out.row(head.b, row, head.h), o.out.dtype, sum, p.value_dim);
    if (o.lse) o.lse.at(head.b, head.h, row) = head.lse(highest, total);
  }
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
