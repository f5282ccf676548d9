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
  // Rows of different keys lie far apart, which the hardware does not foresee.
  ROCFLASH_INLINE void prefetch(int columns) const {
    constexpr int line = 64 / static_cast<int>(sizeof(Element));
    for (int n = 0; n < count; ++n)
      for (int c = 0; c < columns; c += line) __builtin_prefetch(row[n] + c);
  }
};

// scores[row][key] = q[row] . k[key], for `rows` of q; as many keys at a time as make the sums fill
// one vector.
template <int rows, class Element>
ROCFLASH_INLINE void dot_products(const float* q, std::int64_t q_stride, const KeyRows<Element>& k,
                                  int columns, float* scores) {
  constexpr int keys = width / rows;
  const int whole = columns / width * width;
  for (int j = 0; j < k.count; j += keys) {
    Float sum[width] = {};
    const Element* row[keys];
    for (int n = 0; n < keys; ++n) row[n] = k.row[j + n < k.count ? j + n : k.count - 1];
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
                                  const KeyRows<Element>& v, int columns, float* out,
                                  std::int64_t out_stride) {
  const auto run = [&]<int count>(int c, const auto& load_value) {
    Float sum[rows][count];
    for (int r = 0; r < rows; ++r)
      for (int m = 0; m < count; ++m)
        sum[r][m] = load(out + r * out_stride + c + m * width) * factor[r];
    for (int j = 0; j < v.count; ++j) {
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

struct RowState {
  float highest, sum;
};

// Scores of one row become weights; returns the factor for what was accumulated before.
ROCFLASH_INLINE float absorb(float* scores, float exponent, RowState& state) {
  Float top = splat(-infinity);
  for (int n = 0; n < tile_keys; n += width) top = larger(load(scores + n), top);
  float highest = state.highest;
  for (int n = 0; n < width; ++n)
    highest = top[n] * exponent > highest ? top[n] * exponent : highest;
  const float base = highest == -infinity ? 0.0f : highest;
  Float total{};
  for (int n = 0; n < tile_keys; n += width) {
    const Float weight = exp2(load(scores + n) * exponent - base);
    total += weight;
    store(scores + n, weight);
  }
  const float factor = exp2(splat(state.highest - base))[0];
  float sum = 0;
  for (int n = 0; n < width; ++n) sum += total[n];
  state = {highest, state.sum * factor + sum};
  return factor;
}

// All rows of a key head against one range of keys. Returns whether all of out is finite.
template <bool careful, class Element>
bool run(const Problem& p, const WorkItem& item, Range keys, float* out, std::int64_t out_stride,
         RowState* states, float* memory) {
  const std::int64_t first_head = item.head * p.group();
  const Head any(p, item.batch, first_head);
  const auto queries = static_cast<int>(any.sequence.sq),
             rows = static_cast<int>(p.group()) * queries;
  const std::int64_t stride = padded(p.head_dim);
  Scratch scratch(memory);
  float* q = scratch.take(most_decode_rows * stride);
  float* scores = scratch.take(most_decode_rows * tile_keys);
  float* bias = scratch.take(most_decode_rows * tile_keys);
  float* keep = scratch.take(most_decode_rows * tile_keys);
  float* factor = scratch.take(most_decode_rows);
  __builtin_memset(q, 0, sizeof(float) * static_cast<std::size_t>(most_decode_rows * stride));
  for (std::int64_t h = 0; h < p.group(); ++h)
    load_rows(q + h * queries * stride, stride,
              Head(p, item.batch, first_head + h).queries_of(p.q, {0, queries}));
  for (int r = 0; r < rows; ++r) {
    states[r] = {-infinity, 0.0f};
    __builtin_memset(out + r * out_stride, 0,
                     sizeof(float) * static_cast<std::size_t>(padded(p.value_dim)));
  }

  KeyRows<Element> k_rows, v_rows;
  const auto tile_at = [&](std::int64_t j) { return Range{j, smaller(keys.end, j + tile_keys)}; };
  for (std::int64_t j = keys.begin; j < keys.end; j += tile_keys) {
    const Range here = tile_at(j);
    if (here.end < keys.end) {
      k_rows.find(any.keys_of(p.k, tile_at(here.end)));
      k_rows.prefetch(p.head_dim);
      v_rows.find(any.keys_of(p.v, tile_at(here.end)));
      v_rows.prefetch(p.value_dim);
    }
    k_rows.find(any.keys_of(p.k, here));
    v_rows.find(any.keys_of(p.v, here));
    in_groups(rows, [&]<int count>(int r) {
      dot_products<count>(q + r * stride, stride, k_rows, p.head_dim, scores + r * tile_keys);
    });
    for (std::int64_t h = 0; h < p.group(); ++h) {
      const Head head(p, item.batch, first_head + h);
      const Tile tile{{0, queries}, here};
      float* of_head = scores + h * queries * tile_keys;
      finish_scores<Lanes::keys, vectors>(head, tile, of_head, bias, nullptr);
      if (p.dropout.on()) draw_dropout<Lanes::keys, vectors>(head, tile, keep);
      for (int i = 0; i < queries; ++i) {
        float* row = of_head + i * tile_keys;
        for (auto n = static_cast<int>(here.size()); n < tile_keys; ++n) row[n] = -infinity;
        factor[h * queries + i] = absorb(row, head.exponent, states[h * queries + i]);
        for (int n = 0; n < tile_keys && p.dropout.on(); ++n) {
          if (keep[i * tile_keys + n] == 0) row[n] = 0;
        }
      }
    }
    in_groups(rows, [&]<int count>(int r) {
      weigh_values<count, careful>(scores + r * tile_keys, factor + r, v_rows, p.value_dim,
                                   out + r * out_stride, out_stride);
    });
  }
  Float taint{};
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < p.value_dim; c += width) taint += load(out + r * out_stride + c) * 0.0f;
  return !any_nan(taint);
}

}  // namespace

void decode(const Problem& p, const DecodeParts& parts, WorkItem item, float* scratch) {
  const Sequence s = p.lengths.sequence(item.batch);
  if (s.sq == 0) return;
  float* part = parts.part(p, item.batch, item.head, item.block);
  RowState states[most_decode_rows];
  Range keys = visible_keys(p.visibility, Range{0, s.sq}, s.sq, s.sk);
  keys.begin = floor_to(keys.begin, dropout_keys_per_call);
  const Range here = split_of(keys, static_cast<int>(item.block), parts.splits);
  with_elements(p.k.dtype, static_cast<const std::byte*>(nullptr),
                [&]<class Element>(const Element*) {
                  // A weight of 0 times an infinite value is NaN: only then, once more with care.
                  if (!run<false, Element>(p, item, here, part, parts.row_stride, states, scratch))
                    run<true, Element>(p, item, here, part, parts.row_stride, states, scratch);
                });
  for (std::int64_t r = 0; r < p.group() * s.sq; ++r) {
    part[r * parts.row_stride + parts.row_stride - 2] = states[r].highest;
    part[r * parts.row_stride + parts.row_stride - 1] = states[r].sum;
  }
}

void merge(const Problem& p, const ForwardOutputs& o, const DecodeParts& parts, WorkItem item,
           float* sum) {
  const std::int64_t sq = p.lengths.sequence(item.batch).sq;
  for (std::int64_t r = 0; r < p.group() * sq; ++r) {
    const Head head(p, item.batch, item.head * p.group() + r / sq);
    const auto row_of = [&](int n) {
      return parts.part(p, item.batch, item.head, n) + r * parts.row_stride;
    };
    const auto state_of = [&](int n) {
      const float* end = row_of(n) + parts.row_stride;
      return RowState{end[-2], end[-1]};
    };
    // The sink is a part of its own, with weight but no value.
    float highest = static_cast<float>(head.sink);
    for (int n = 0; n < parts.splits; ++n)
      highest = state_of(n).highest > highest ? state_of(n).highest : highest;
    const float base = highest == -infinity ? 0.0f : highest;
    float total = exp2(splat(static_cast<float>(head.sink) - base))[0];
    __builtin_memset(sum, 0, sizeof(float) * static_cast<std::size_t>(padded(p.value_dim)));
    for (int n = 0; n < parts.splits; ++n) {
      const RowState state = state_of(n);
      if (state.sum == 0) continue;  // this part saw nothing
      const float share = exp2(splat(state.highest - base))[0];
      total += state.sum * share;
      for (int c = 0; c < p.value_dim; c += width)
        store(sum + c, load(sum + c) + load(row_of(n) + c) * share);
    }
    const float over = total == 0 ? 0.0f : p.dropout.scale() / total;
    for (int c = 0; c < p.value_dim; c += width) store(sum + c, load(sum + c) * over);
    const std::int64_t row = head.sequence.q_row + r % sq;
    store_row(o.out.row(head.b, row, head.h), o.out.dtype, sum, p.value_dim);
    if (o.lse) {
      o.lse.at(head.b, head.h, row) =
          total == 0 ? infinity
                     : static_cast<float>(static_cast<double>(highest) * head.natural +
                                          __builtin_log(static_cast<double>(total)));
    }
  }
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
