// Attention over KV caches: paged caches, cache_batch_idx, append, rotary embedding, split-KV and
// combine. Each is compared with the equivalent contiguous problem, computed by the reference
// implementation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>

#include "support/call.hpp"

namespace rocflash::test {
namespace {

constexpr DType dtypes[] = {DType::f32, DType::f16, DType::bf16};

double unit(DType t) { return t == DType::f32 ? 0x1p-24 : t == DType::f16 ? 0x1p-11 : 0x1p-8; }
double tolerance(DType t) { return t == DType::f32 ? 64 * unit(t) : 4 * unit(t); }

void expect_near(const HostTensor& got, const HostTensor& wanted, double bound) {
  ASSERT_EQ(got.size(), wanted.size());
  for (std::int64_t n = 0; n < got.size(); ++n) {
    if (got.flat(n) == wanted.flat(n)) continue;                          // also infinities
    if (std::isnan(got.flat(n)) && std::isnan(wanted.flat(n))) continue;  // unwritten rows
    EXPECT_NEAR(got.flat(n), wanted.flat(n), bound) << n;
  }
}

// A random permutation of 0 to count - 1.
std::vector<std::int64_t> shuffled(std::int64_t count) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), std::mt19937(3));
  return all;
}

// A call of rocflash_decode with keys to append and rotary tables.
struct Decode {
  explicit Decode(Call& call) : c(call) { append.struct_size = sizeof append; }

  void add_new(std::int64_t rows) {
    k_new = HostTensor(c.k.dtype(), {c.size.b, rows, c.size.hk, c.size.d});
    v_new = HostTensor(c.v.dtype(), {c.size.b, rows, c.size.hk, c.size.dv});
    k_new.fill_normal(c.random);
    v_new.fill_normal(c.random);
    append.k_new = &k_new.dl;
    append.v_new = &v_new.dl;
  }
  void add_rotary(std::int64_t positions, std::int64_t columns, bool interleaved) {
    cos = HostTensor(DType::f32, {positions, columns / 2});
    sin = HostTensor(DType::f32, {positions, columns / 2});
    for (std::int64_t p = 0; p < positions; ++p)
      for (std::int64_t n = 0; n < columns / 2; ++n) {
        const double angle =
            static_cast<double>(p) *
            std::pow(100.0, -2.0 * static_cast<double>(n) / static_cast<double>(columns));
        cos.set({p, n}, std::cos(angle));
        sin.set({p, n}, std::sin(angle));
      }
    append.rotary_cos = &cos.dl;
    append.rotary_sin = &sin.dl;
    append.rotary_interleaved = interleaved;
  }
  rocflash_status run() {
    std::size_t bytes = 0;
    const rocflash_status status =
        rocflash_decode_workspace(&c.problem, &append, &c.forward_outputs, &c.execution, &bytes);
    if (status != ROCFLASH_OK) return status;
    Memory workspace(bytes);
    std::memset(workspace.data, 0xff, bytes);
    c.execution.workspace = workspace.data;
    c.execution.workspace_size = bytes;
    return rocflash_decode(&c.problem, &append, &c.forward_outputs, &c.execution);
  }
  void expect_run() { ASSERT_EQ(run(), ROCFLASH_OK) << rocflash_last_error(); }

  // An element of row x with rotary embedding for a position, by definition.
  double rotated(const HostTensor& x, std::initializer_list<std::int64_t> row, std::int64_t column,
                 std::int64_t position) const {
    const std::int64_t half = cos ? cos.shape()[1] : 0;
    const auto at = [&](std::int64_t col) {
      const auto* r = row.begin();
      return x.get({r[0], r[1], r[2], col});
    };
    if (column >= 2 * half) return at(column);
    const bool interleaved = append.rotary_interleaved == 1;
    const std::int64_t pair = interleaved ? column / 2 : column % half;
    const bool second = interleaved ? column % 2 == 1 : column >= half;
    const double a = at(interleaved ? 2 * pair : pair),
                 b = at(interleaved ? 2 * pair + 1 : pair + half);
    const double cosine = cos.get({position, pair}), sine = sin.get({position, pair});
    return second ? a * sine + b * cosine : a * cosine - b * sine;
  }

  Call& c;
  HostTensor k_new, v_new, cos, sin;
  rocflash_append append{};
};

struct AppendCase {
  bool rotary, interleaved, causal;
  std::int64_t sq, rows;
};

// New rows are appended after the used ones with rotary embedding, the rest of the cache is
// unchanged, and queries attend to the appended keys.
TEST(Decode, AppendsRotatesAndAttends) {
  for (const DType dtype : dtypes) {
    for (const AppendCase& a : {AppendCase{false, false, false, 1, 1},
                                {true, false, true, 3, 3},
                                {true, true, false, 2, 1},
                                {true, true, true, 1, 4},
                                {false, false, true, 70, 70}}) {
      const Size size{.b = 3, .sq = a.sq, .sk = 150, .h = 4, .hk = 2, .d = 12, .dv = 7};
      Call c(size, dtype), expected(size, dtype);
      const std::int64_t used[] = {0, 33, 80};
      c.with_used_k({0, 33, 80}).problem.causal = a.causal;
      c.backend(ROCFLASH_BACKEND_CPU, 2);
      Decode decode(c);
      decode.add_new(a.rows);
      if (a.rotary) decode.add_rotary(160, 8, a.interleaved);
      const auto k_before = c.k.values(), v_before = c.v.values();
      decode.expect_run();

      // The equivalent problem: rotated queries, and a cache with the new rows.
      std::vector<double> lengths;
      for (std::int64_t b = 0; b < 3; ++b) {
        for (std::int64_t j = 0; j < 150; ++j)
          for (std::int64_t h = 0; h < 2; ++h) {
            const std::int64_t new_row = j - used[b];
            const bool is_new = new_row >= 0 && new_row < a.rows;
            for (std::int64_t x = 0; x < 12; ++x) {
              const double before =
                  k_before[static_cast<std::size_t>(((b * 150 + j) * 2 + h) * 12 + x)];
              const double wanted =
                  is_new ? decode.rotated(decode.k_new, {b, new_row, h}, x, j) : before;
              EXPECT_NEAR(c.k.get({b, j, h, x}), wanted,
                          is_new && a.rotary ? 2 * unit(dtype) * 8 : 0);
              expected.k.set({b, j, h, x}, c.k.get({b, j, h, x}));
            }
            for (std::int64_t x = 0; x < 7; ++x) {
              const double before =
                  v_before[static_cast<std::size_t>(((b * 150 + j) * 2 + h) * 7 + x)];
              const double wanted = is_new ? decode.v_new.get({b, new_row, h, x}) : before;
              EXPECT_EQ(c.v.get({b, j, h, x}), wanted);
              expected.v.set({b, j, h, x}, wanted);
            }
          }
        for (std::int64_t i = 0; i < a.sq; ++i)
          for (std::int64_t h = 0; h < 4; ++h)
            for (std::int64_t x = 0; x < 12; ++x)
              expected.q.set({b, i, h, x}, a.rotary ? decode.rotated(c.q, {b, i, h}, x,
                                                                     used[b] + (a.causal ? i : 0))
                                                    : c.q.get({b, i, h, x}));
        lengths.push_back(static_cast<double>(used[b] + a.rows));
      }
      expected.with_used_k({lengths[0], lengths[1], lengths[2]}).problem.causal = a.causal;
      expected.backend(ROCFLASH_BACKEND_REFERENCE).expect_forward();
      expect_near(c.out, expected.out, 4 * tolerance(dtype));
      expect_near(c.lse, expected.lse, dtype == DType::f32 ? 1e-5 : 4 * unit(dtype));
    }
  }
}

// A paged cache with shuffled pages gives the results of a contiguous one.
TEST(Decode, PagedCacheEqualsContiguousCache) {
  for (const DType dtype : dtypes) {
    for (const std::int64_t page : {1, 7, 16, 37, 64, 256}) {
      for (const std::int64_t sq : {1, 5, 70}) {
        const std::int64_t pages = (148 + page - 1) / page, all = 3 * pages + 2;
        const Size size{.b = 3, .sq = sq, .sk = pages * page, .h = 4, .hk = 2, .d = 20, .dv = 20};
        Call dense(size, dtype), paged(size, dtype);
        HostTensor k(dtype, {all, page, 2, 20}), v(dtype, {all, page, 2, 20});
        k.fill(NAN);  // pages that belong to no sequence
        v.fill(NAN);
        const std::vector<std::int64_t> ids = shuffled(all);
        HostTensor table(DType::i32, {3, pages});
        for (std::int64_t b = 0; b < 3; ++b)
          for (std::int64_t n = 0; n < pages; ++n) {
            const std::int64_t id = ids[static_cast<std::size_t>(b * pages + n)];
            table.set({b, n}, static_cast<double>(id));
            for (std::int64_t r = 0; r < page; ++r)
              for (std::int64_t h = 0; h < 2; ++h)
                for (std::int64_t x = 0; x < 20; ++x) {
                  k.set({id, r, h, x}, dense.k.get({b, n * page + r, h, x}));
                  v.set({id, r, h, x}, dense.v.get({b, n * page + r, h, x}));
                }
          }
        paged.k = std::move(k);
        paged.v = std::move(v);
        for (Call* c : {&dense, &paged}) {
          c->with_used_k({131, 0, 64}).with_alibi().problem.causal = 1;
          c->backend(ROCFLASH_BACKEND_CPU, 2);
        }
        paged.problem.block_table = &table.dl;
        dense.expect_forward();
        paged.expect_forward();
        EXPECT_TRUE(dense.out.bytes() == paged.out.bytes()) << page << " " << sq;
        EXPECT_TRUE(dense.lse.bytes() == paged.lse.bytes());
        dense.backend(ROCFLASH_BACKEND_REFERENCE).expect_forward();
        paged.backend(ROCFLASH_BACKEND_REFERENCE).expect_forward();
        EXPECT_TRUE(dense.out.bytes() == paged.out.bytes()) << "reference";
      }
    }
  }
}

// A KV cache of one sequence, contiguous or in shuffled pages, to which tokens are appended.
struct Cache {
  Cache(DType dtype, std::int64_t page, std::int64_t tokens) {
    const std::int64_t pages = page > 0 ? (tokens + page - 1) / page : 1,
                       rows = page > 0 ? page : tokens;
    k = HostTensor(dtype, {pages, rows, 2, 32});
    v = HostTensor(dtype, {pages, rows, 2, 32});
    k.fill(NAN);
    v.fill(NAN);
    if (page == 0) return;
    table = HostTensor(DType::i32, {1, pages});
    const std::vector<std::int64_t> ids = shuffled(pages);
    for (std::int64_t n = 0; n < pages; ++n)
      table.set({0, n}, static_cast<double>(ids[static_cast<std::size_t>(n)]));
  }
  HostTensor k, v, table;
};

// Appends keys [begin, end) of `whole` and computes attention of its queries [begin, end).
void decode_rows(Call& whole, const HostTensor& k_new, const HostTensor& v_new, Cache& cache,
                 std::int64_t begin, std::int64_t end, HostTensor& out) {
  const DType dtype = whole.dtype;
  const std::int64_t rows = end - begin;
  Call c({.b = 1, .sq = rows, .sk = 1, .h = 4, .hk = 2, .d = 32, .dv = 32}, dtype);
  Decode decode(c);
  decode.add_new(rows);
  decode.add_rotary(400, 16, false);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t x = 0; x < 32; ++x) {
      for (std::int64_t h = 0; h < 4; ++h) c.q.set({0, i, h, x}, whole.q.get({0, begin + i, h, x}));
      for (std::int64_t h = 0; h < 2; ++h) {
        decode.k_new.set({0, i, h, x}, k_new.get({0, begin + i, h, x}));
        decode.v_new.set({0, i, h, x}, v_new.get({0, begin + i, h, x}));
      }
    }
  c.with_used_k({static_cast<double>(begin)}).problem.causal = 1;
  c.problem.k = &cache.k.dl;
  c.problem.v = &cache.v.dl;
  if (cache.table) c.problem.block_table = &cache.table.dl;
  c.backend(ROCFLASH_BACKEND_CPU, 2);
  decode.expect_run();
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t h = 0; h < 4; ++h)
      for (std::int64_t x = 0; x < 32; ++x) out.set({0, begin + i, h, x}, c.out.get({0, i, h, x}));
}

// Decoding 300 tokens one by one gives the same cache and the same results as one prefill.
TEST(Decode, TokenByTokenEqualsOnePrefill) {
  constexpr std::int64_t tokens = 300;
  for (const DType dtype : dtypes) {
    for (const std::int64_t page : {0, 7, 64}) {
      Call whole({.b = 1, .sq = tokens, .sk = tokens, .h = 4, .hk = 2, .d = 32, .dv = 32}, dtype);
      Cache at_once(dtype, page, tokens), one_by_one(dtype, page, tokens);
      HostTensor all(dtype, {1, tokens, 4, 32}), each(dtype, {1, tokens, 4, 32});
      decode_rows(whole, whole.k, whole.v, at_once, 0, tokens, all);
      for (std::int64_t n = 0; n < tokens; ++n)
        decode_rows(whole, whole.k, whole.v, one_by_one, n, n + 1, each);
      expect_near(each, all, tolerance(dtype));
      expect_near(one_by_one.k, at_once.k, 1e-3);
      EXPECT_TRUE(one_by_one.v.bytes() == at_once.v.bytes());
    }
  }
}

TEST(Decode, CacheBatchIdxSelectsCaches) {
  const Size size{.b = 2, .sq = 3, .sk = 40, .h = 2, .hk = 1, .d = 8, .dv = 8};
  Call dense(size), indexed(size);
  HostTensor k(DType::f32, {5, 40, 1, 8}), v(DType::f32, {5, 40, 1, 8}), index(DType::i32, {2});
  k.fill(NAN);
  v.fill(NAN);
  index.assign({4, 1});
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t j = 0; j < 40; ++j)
      for (std::int64_t x = 0; x < 8; ++x) {
        k.set({b == 0 ? 4 : 1, j, 0, x}, dense.k.get({b, j, 0, x}));
        v.set({b == 0 ? 4 : 1, j, 0, x}, dense.v.get({b, j, 0, x}));
      }
  indexed.k = std::move(k);
  indexed.v = std::move(v);
  indexed.problem.cache_batch_idx = &index.dl;
  dense.backend(ROCFLASH_BACKEND_CPU, 2).expect_forward();
  indexed.backend(ROCFLASH_BACKEND_CPU, 2).expect_forward();
  EXPECT_TRUE(dense.out.bytes() == indexed.out.bytes());
}

// Results for different numbers of splits differ only by rounding, and are bitwise equal for all
// numbers of threads.
TEST(Decode, SplitsAndThreads) {
  for (const DType dtype : dtypes) {
    const Size size{.b = 2, .sq = 1, .sk = 1000, .h = 4, .hk = 2, .d = 32, .dv = 32};
    Call reference(size, dtype);
    reference.with_sinks().backend(ROCFLASH_BACKEND_REFERENCE).expect_forward();
    for (const int splits : {0, 1, 2, 7, 1000}) {
      std::vector<std::byte> first;
      for (const int threads : {1, 2, 3, 8}) {
        Call c(size, dtype);
        c.with_sinks().problem.num_splits = splits;
        c.backend(ROCFLASH_BACKEND_CPU, threads).expect_forward();
        expect_near(c.out, reference.out, tolerance(dtype));
        expect_near(c.lse, reference.lse, 1e-5);
        if (first.empty()) first = c.out.bytes();
        EXPECT_TRUE(c.out.bytes() == first) << splits << " splits, " << threads << " threads";
      }
    }
  }
}

// A 16-bit cache with f32 queries.
TEST(Decode, SixteenBitCache) {
  for (const DType cache : {DType::f16, DType::bf16}) {
    for (const std::int64_t sq : {1, 66}) {
      const Size size{.b = 2, .sq = sq, .sk = 70, .h = 4, .hk = 2, .d = 19, .dv = 33};
      Call c(size), reference(size);
      HostTensor k(cache, c.k.shape()), v(cache, c.v.shape());
      k.fill_normal(c.random);
      v.fill_normal(c.random);
      for (std::int64_t n = 0; n < k.size(); ++n) reference.k.set_flat(n, k.flat(n));
      for (std::int64_t n = 0; n < v.size(); ++n) reference.v.set_flat(n, v.flat(n));
      c.k = std::move(k);
      c.v = std::move(v);
      c.backend(ROCFLASH_BACKEND_CPU, 2).expect_forward();
      reference.backend(ROCFLASH_BACKEND_REFERENCE).expect_forward();
      expect_near(c.out, reference.out, tolerance(DType::f32));
    }
  }
}

TEST(Combine, MergesSplits) {
  const Size size{.b = 2, .sq = 3, .sk = 30, .h = 2, .hk = 1, .d = 8, .dv = 70};
  Call whole(size);
  whole.backend(ROCFLASH_BACKEND_REFERENCE).expect_forward();
  const std::int64_t cuts[] = {0, 0, 11, 30, 30};  // four splits, the first and the last one empty
  HostTensor out_partial(DType::f32, {4, 2, 3, 2, 70}), lse_partial(DType::f32, {4, 2, 2, 3});
  for (std::int64_t split = 0; split < 4; ++split) {
    Size s = size;
    s.sk = cuts[split + 1] - cuts[split];
    Call c(s);
    for (std::int64_t n = 0; n < c.q.size(); ++n) c.q.set_flat(n, whole.q.flat(n));
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t j = 0; j < s.sk; ++j) {
        for (std::int64_t x = 0; x < 8; ++x)
          c.k.set({b, j, 0, x}, whole.k.get({b, cuts[split] + j, 0, x}));
        for (std::int64_t x = 0; x < 70; ++x)
          c.v.set({b, j, 0, x}, whole.v.get({b, cuts[split] + j, 0, x}));
      }
    c.backend(ROCFLASH_BACKEND_REFERENCE).expect_forward();
    for (std::int64_t n = 0; n < c.out.size(); ++n)
      out_partial.set_flat(split * c.out.size() + n, c.out.flat(n));
    for (std::int64_t n = 0; n < c.lse.size(); ++n) {
      // The lse of an empty split may be an infinity of either sign.
      const double lse = c.lse.flat(n);
      lse_partial.set_flat(split * c.lse.size() + n, split == 3 ? -lse : lse);
    }
  }
  for (const DType dtype : dtypes) {
    HostTensor out(dtype, {2, 3, 2, 70}, {2, 0, 1, 3}, 3), lse(DType::f32, {2, 2, 3});
    ASSERT_EQ(rocflash_combine(&out_partial.dl, &lse_partial.dl, &out.dl, &lse.dl, nullptr),
              ROCFLASH_OK)
        << rocflash_last_error();
    expect_near(out, whole.out, tolerance(dtype));
    expect_near(lse, whole.lse, 1e-6);
    ASSERT_EQ(rocflash_combine(&out_partial.dl, &lse_partial.dl, &out.dl, nullptr, nullptr),
              ROCFLASH_OK);
  }
  lse_partial.fill(INFINITY);
  HostTensor out(DType::f32, {2, 3, 2, 70}), lse(DType::f32, {2, 2, 3});
  ASSERT_EQ(rocflash_combine(&out_partial.dl, &lse_partial.dl, &out.dl, &lse.dl, nullptr),
            ROCFLASH_OK);
  for (const double x : out.values()) EXPECT_EQ(x, 0);
  for (const double x : lse.values()) EXPECT_EQ(x, INFINITY);
}

}  // namespace
}  // namespace rocflash::test
