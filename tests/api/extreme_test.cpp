// Shapes near the limits of 64 bits. Inputs have strides of 0, so they take almost no memory and
// sizes computed from their shapes may exceed 64 bits. Query and call reject such a problem with
// the same error; no size wraps around.
#include <gtest/gtest.h>
#include <rocflash/rocflash.h>

#include <random>
#include <string>
#include <vector>

namespace rocflash::test {
namespace {

__extension__ typedef unsigned __int128 UInt128;

// The data of every tensor; it is never accessed. Outputs start above all inputs, so that they
// share no memory at any size.
alignas(64) std::byte memory[4096];
void* const above = reinterpret_cast<void*>(0x7ffffffff000);

struct Extreme {
  DLTensor dl{};
  std::vector<std::int64_t> shape, stride;

  // Inputs repeat one row; outputs are contiguous.
  Extreme& set(std::vector<std::int64_t> dims, bool output = false,
               DLDataType dtype = {kDLFloat, 32, 1}) {
    shape = std::move(dims);
    stride.assign(shape.size(), 0);
    if (!output) stride.back() = 1;
    dl = {output ? above : memory,
          {kDLCPU, 0},
          static_cast<int>(shape.size()),
          dtype,
          shape.data(),
          output ? nullptr : stride.data(),
          0};
    return *this;
  }
};

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}
  std::int64_t of(std::initializer_list<std::int64_t> values) {
    return values.begin()[random_() % values.size()];
  }
  std::int64_t rows() {
    return of({0, 1, 2, 63, 64, 65, 1000, 1 << 20, two(30), two(31) - 1, two(31), two(32) - 1,
               two(32), two(40), two(62)});
  }
  std::int64_t heads() {
    return of({1, 2, 3, 64, 1 << 16, two(24), two(31), two(32) - 1, two(33)});
  }
  std::int64_t batch() { return of({0, 1, 2, 5, 1 << 10, 1 << 20, two(31), two(32), two(61)}); }
  int dim() { return static_cast<int>(of({1, 3, 8, 64, 128, 512})); }
  bool coin() { return random_() % 2 == 0; }
  static std::int64_t two(int power) { return std::int64_t{1} << power; }

 private:
  std::mt19937_64 random_;
};

// The call without a workspace must require exactly the queried size, or fail with the same error.
template <class Query, class Run>
void expect_agreement(UInt128 least, Query query, Run run) {
  std::size_t bytes = 0;
  const rocflash_status queried = query(&bytes);
  const std::string why = rocflash_last_error();
  const rocflash_status ran = run();
  if (queried == ROCFLASH_OK) {
    ASSERT_GE(UInt128{bytes}, least) << "the size wrapped around";
    ASSERT_EQ(ran, ROCFLASH_INVALID_ARGUMENT);
    ASSERT_EQ(rocflash_last_error(),
              "workspace_size is 0; it must be at least " + std::to_string(bytes) +
                  " for this call, the size that the workspace query returns");
  } else {
    ASSERT_EQ(ran, queried);
    ASSERT_EQ(rocflash_last_error(), why);
    ASSERT_TRUE(queried == ROCFLASH_INVALID_ARGUMENT || queried == ROCFLASH_UNSUPPORTED) << why;
  }
}

struct Given {
  explicit Given(Draw& draw, bool few_sequences = false) {
    problem.struct_size = sizeof problem;
    outputs.struct_size = sizeof outputs;
    tensors.struct_size = sizeof tensors;
    execution.struct_size = sizeof execution;
    execution.backend = static_cast<std::int32_t>(
        draw.of({ROCFLASH_BACKEND_AUTO, ROCFLASH_BACKEND_AUTO, ROCFLASH_BACKEND_STANDARD}));
    execution.num_threads = static_cast<std::int32_t>(draw.of({1, 2, 1024}));
    packed = draw.coin();
    b = few_sequences ? draw.of({1, 2, 5}) : draw.batch();
    h = draw.heads();
    hk = draw.coin() ? h : 1;
    d = draw.dim();
    dv = draw.dim();
    rows_q = draw.rows();
    rows_k = draw.rows();
    const auto rows = [&](std::int64_t n, std::int64_t heads, int columns) {
      return packed ? std::vector<std::int64_t>{n, heads, columns}
                    : std::vector<std::int64_t>{b, n, heads, columns};
    };
    if (packed) {
      b = 2;
      problem.cu_seqlens_q = &cu_q.set({3}, true, {kDLInt, 32, 1}).dl;
      problem.cu_seqlens_k = &cu_k.set({3}, true, {kDLInt, 32, 1}).dl;
      cu_q.dl.data = cu_k.dl.data = lengths;
    }
    problem.q = &q.set(rows(rows_q, h, d)).dl;
    problem.k = &k.set(rows(rows_k, hk, d)).dl;
    problem.v = &v.set(rows(rows_k, hk, dv)).dl;
    if (draw.coin()) problem.sinks = &sinks.set({h}).dl;
    outputs.out = &out.set(rows(rows_q, h, dv), true).dl;
    tensors.dout = &dout.set(rows(rows_q, h, dv)).dl;
    tensors.out = &saved.set(rows(rows_q, h, dv)).dl;
    tensors.lse = &lse.set(packed ? std::vector<std::int64_t>{h, rows_q}
                                  : std::vector<std::int64_t>{b, h, rows_q})
                       .dl;
    lse.stride.back() = 0;
    tensors.dk = &dk.set(rows(rows_k, hk, d), true).dl;
  }
  UInt128 query_rows() const { return UInt128(rows_q) * UInt128(h) * UInt128(packed ? 1 : b); }

  alignas(64) std::int32_t lengths[3] = {0, 0, 0};
  bool packed;
  std::int64_t b, h, hk, rows_q, rows_k;
  int d, dv;
  Extreme q, k, v, cu_q, cu_k, sinks, out, dout, saved, lse, dk;
  rocflash_problem problem{};
  rocflash_forward_outputs outputs{};
  rocflash_backward_tensors tensors{};
  rocflash_execution execution{};
};

TEST(Extreme, BackwardWorkspaceOverflow) {
  Draw draw(1);
  Given g(draw);
  g.problem = {};
  g.problem.struct_size = sizeof g.problem;
  g.problem.q = &g.q.dl;
  g.problem.k = &g.k.dl;
  g.problem.v = &g.v.dl;
  g.execution.backend = ROCFLASH_BACKEND_AUTO;
  const std::int64_t n = Draw::two(31);
  for (Extreme* t : {&g.q, &g.dout, &g.saved}) t->set({1, n, n, 1});
  g.k.set({1, 2, 1, 1});
  g.v.set({1, 2, 1, 1});
  g.dk.set({1, 2, 1, 1}, true);
  g.lse.set({1, n, n});
  g.lse.stride.back() = 0;
  std::size_t bytes = 77;
  EXPECT_EQ(rocflash_backward_workspace(&g.problem, &g.tensors, &g.execution, &bytes),
            ROCFLASH_UNSUPPORTED);
  EXPECT_STREQ(rocflash_last_error(),
               "q has 1 sequences in 2147483648 rows of 2147483648 heads, and k has 2 rows; the "
               "workspace of this call must fit in 64-bit addresses");
  EXPECT_EQ(bytes, 77u);
  EXPECT_EQ(rocflash_backward(&g.problem, &g.tensors, &g.execution), ROCFLASH_UNSUPPORTED);
}

TEST(Extreme, ForwardAndBackward) {
  Draw draw(2);
  int accepted = 0;
  for (int n = 0; n < 20000; ++n) {
    Given g(draw);
    SCOPED_TRACE(testing::Message()
                 << "case " << n << (g.packed ? ", packed" : "") << ", b " << g.b << ", rows "
                 << g.rows_q << " and " << g.rows_k << ", h " << g.h);
    expect_agreement(
        0,
        [&](std::size_t* bytes) {
          return rocflash_forward_workspace(&g.problem, &g.outputs, &g.execution, bytes);
        },
        [&] { return rocflash_forward(&g.problem, &g.outputs, &g.execution); });
    expect_agreement(
        g.query_rows() * sizeof(float),
        [&](std::size_t* bytes) {
          const auto status =
              rocflash_backward_workspace(&g.problem, &g.tensors, &g.execution, bytes);
          accepted += status == ROCFLASH_OK;
          return status;
        },
        [&] { return rocflash_backward(&g.problem, &g.tensors, &g.execution); });
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(accepted, 1000);
}

TEST(Extreme, Decode) {
  Draw draw(3);
  for (int n = 0; n < 5000; ++n) {
    Given g(draw, true);
    g.problem.cu_seqlens_k = nullptr;
    const bool appends = draw.coin(), rotates = draw.coin() && g.d > 1;
    // A cache that is appended to is an output.
    if (appends) g.rows_k = draw.of({0, 1, 2, 1000});
    g.k.set({g.b, g.rows_k, g.hk, g.d}, appends);
    g.v.set({g.b, g.rows_k, g.hk, g.dv}, appends);
    if (appends) {
      g.v.dl.data = static_cast<std::byte*>(above) + Draw::two(60);
      g.out.dl.data = static_cast<std::byte*>(above) + Draw::two(62);
    }
    rocflash_append append{};
    append.struct_size = sizeof append;
    Extreme k_new, v_new, cos;
    const std::int64_t added =
        draw.of({0, 1, 2, Draw::two(31), Draw::two(62), (Draw::two(62) - 1) * 2 + 1});
    if (appends) {
      append.k_new = &k_new.set({g.b, added, g.hk, g.d}).dl;
      append.v_new = &v_new.set({g.b, added, g.hk, g.dv}).dl;
    }
    if (rotates) append.rotary_cos = append.rotary_sin = &cos.set({Draw::two(40), g.d / 2}).dl;
    expect_agreement(
        rotates ? g.query_rows() * UInt128(g.d) * sizeof(float) : 0,
        [&](std::size_t* bytes) {
          return rocflash_decode_workspace(&g.problem, &append, &g.outputs, &g.execution, bytes);
        },
        [&] { return rocflash_decode(&g.problem, &append, &g.outputs, &g.execution); });
    if (testing::Test::HasFatalFailure()) {
      ADD_FAILURE() << "case " << n;
      return;
    }
  }
}

// Empty problems whose other sizes have products beyond 64 bits. Their outputs may be rejected.
TEST(Extreme, Combine) {
  Draw draw(4);
  for (int n = 0; n < 5000; ++n) {
    const std::int64_t splits = draw.rows(), b = draw.batch(), rows = draw.rows(), h = draw.heads(),
                       d = draw.rows();
    if (b > 0 && rows > 0 && d > 0) continue;  // not empty
    Extreme out_partial, lse_partial, out;
    out_partial.set({splits, b, rows, h, d});
    lse_partial.set({splits, b, h, rows});
    out.set({b, rows, h, d}, true);
    const rocflash_status status =
        rocflash_combine(&out_partial.dl, &lse_partial.dl, &out.dl, nullptr, nullptr);
    ASSERT_TRUE(status == ROCFLASH_OK || status == ROCFLASH_INVALID_ARGUMENT)
        << rocflash_last_error();
  }
}

}  // namespace
}  // namespace rocflash::test
