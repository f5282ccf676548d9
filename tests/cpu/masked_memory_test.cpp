// Masked and unused elements have no influence: results are bitwise equal for all their values.
//
// Random small problems are computed twice: with normal numbers, and with NaN, infinities or huge
// numbers in some rows. The test derives from the definition
// (docs/reference/semantics.md) which results may change; all others must be bitwise equal on every
// backend.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "support/call.hpp"

namespace rocflash::test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

double huge(DType t) { return t == DType::f16 ? 65504 : 3e38; }

class RandomProblem {
 public:
  RandomProblem(std::uint64_t seed, DType dtype, rocflash_backend backend)
      : random_(seed), c_(size(), dtype, seed) {
    set_options();
    c_.backend(backend, 2);
    if (backend != ROCFLASH_BACKEND_STANDARD) c_.with_option_gradients();
  }

  void run() {
    const Results clean = compute();
    poison();
    const Results poisoned = compute();
    compare(clean, poisoned);
  }

  std::string text() const { return text_; }

 private:
  struct Results {
    std::vector<double> out, lse, s_dmask, dq, dk, dv, dsinks, dbias, dalibi;
  };

  std::int64_t pick(std::initializer_list<std::int64_t> of) {
    return of.begin()[random_() % of.size()];
  }
  bool chance(int one_in) { return random_() % static_cast<std::uint64_t>(one_in) == 0; }
  void note(const std::string& text) { text_ += text + " "; }

  // Sizes around panels and tiles of 64 and blocks of 256, and few queries, which use decode.
  Size size() {
    Size s;
    s.b = pick({1, 2});
    s.sq = pick({1, 2, 5, 17, 40, 70, 130});
    s.sk = pick({1, 3, 20, 64, 75, 131, 200, 300});
    s.hk = pick({1, 2});
    s.h = s.hk * pick({1, 1, 2});
    s.d = pick({1, 3, 8, 17, 32, 40});
    s.dv = pick({1, 4, 9, 32, 40});
    return s;
  }

  void set_options() {
    const Size& s = c_.size;
    for (const auto& [name, value] : {std::pair{"b", s.b},
                                      {"sq", s.sq},
                                      {"sk", s.sk},
                                      {"h", s.h},
                                      {"hk", s.hk},
                                      {"d", s.d},
                                      {"dv", s.dv}})
      note(std::string(name) + "=" + std::to_string(value));
    switch (random_() % 5) {
      case 0:
        break;
      case 1:
      case 2:
        note("causal");
        c_.problem.causal = 1;
        break;
      case 3:
        c_.with_window(pick({-1, 0, 5, 70}), pick({-1, 0, 3, 50}));
        note("window " + std::to_string(c_.window[0]) + " " + std::to_string(c_.window[1]));
        break;
      default:
        c_.problem.attention_chunk = pick({1, 7, 64});
        note("chunk " + std::to_string(c_.problem.attention_chunk));
    }
    if (chance(4)) c_.with_mask(), note("mask");
    if (chance(4)) {
      c_.with_bias();
      note("bias");
      for (std::int64_t n = 0; n < c_.bias.size(); ++n)
        if (chance(4)) c_.bias.set_flat(n, -infinity);
    }
    if (chance(4)) c_.with_alibi(), note("alibi");
    if (chance(3)) c_.problem.softcap = 2, note("softcap");
    if (chance(4)) c_.with_dropout(0.3f), note("dropout");
    if (chance(4)) c_.with_sinks(), note("sinks");
    if (chance(3)) {
      const auto rows = static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(s.sk + 1));
      s.b == 1 ? c_.with_used_k({static_cast<double>(rows)})
               : c_.with_used_k({static_cast<double>(rows), static_cast<double>(s.sk)});
      used_k_ = {rows, s.sk};
      note("used_k " + std::to_string(rows));
      if (chance(2)) {
        leftpad_ = rows / 3;
        s.b == 1 ? c_.with_leftpad({static_cast<double>(leftpad_)})
                 : c_.with_leftpad({static_cast<double>(leftpad_), static_cast<double>(leftpad_)});
        note("leftpad " + std::to_string(leftpad_));
      }
    }
    if (used_k_.empty()) used_k_ = {s.sk, s.sk};
    used_q_ = {s.sq, s.sq};
    if (chance(4)) {
      used_q_[0] = s.sq / 2;
      s.b == 1 ? c_.with_used_q({static_cast<double>(used_q_[0])})
               : c_.with_used_q({static_cast<double>(used_q_[0]), static_cast<double>(used_q_[1])});
      note("used_q " + std::to_string(used_q_[0]));
    }
    if (chance(2)) c_.with_s_dmask(), note("s_dmask");
    // Without lse, f32 uses decode too.
    if (chance(3)) forward_only_ = true, c_.forward_outputs.lse = nullptr, note("no lse");
  }

  std::int64_t sq(std::int64_t n) const { return used_q_[static_cast<std::size_t>(n)]; }
  std::int64_t sk(std::int64_t n) const { return used_k_[static_cast<std::size_t>(n)] - leftpad_; }

  // The definition of visibility, for key j counted after the left padding.
  bool attends(std::int64_t n, std::int64_t h, std::int64_t i, std::int64_t j) const {
    if (i >= sq(n) || j < 0 || j >= sk(n)) return false;
    const std::int64_t position = i + sk(n) - sq(n);
    if (c_.problem.causal && j > position) return false;
    if (c_.problem.window && c_.window[0] >= 0 && j < position - c_.window[0]) return false;
    if (c_.problem.window && c_.window[1] >= 0 && j > position + c_.window[1]) return false;
    if (const std::int64_t chunk = c_.problem.attention_chunk; chunk > 0) {
      const auto of = [&](std::int64_t x) { return x >= 0 ? x / chunk : (x - chunk + 1) / chunk; };
      if (of(position) != of(j)) return false;
    }
    if (c_.mask && c_.mask.get({n, h, i, j}) == 0) return false;
    return !c_.bias || c_.bias.get({n, h, i, j}) != -infinity;
  }

  // Poisons random rows, all unused rows, and elements of the bias that other masks exclude.
  void poison() {
    const Size& s = c_.size;
    const DType t = c_.dtype;
    const double values[] = {std::nan(""), infinity, -infinity, huge(t), -huge(t)};
    const auto value = [&] { return values[random_() % 5]; };
    const auto fill = [&](HostTensor& to, std::int64_t n, std::int64_t row, std::int64_t h) {
      const double x = value();
      const std::int64_t columns = to.shape()[3];
      if (chance(2)) {
        for (std::int64_t c = 0; c < columns; ++c) to.set({n, row, h, c}, x);
      } else {
        to.set({n, row, h, static_cast<std::int64_t>(random_() % columns)}, x);
      }
    };
    q_poisoned_.assign(at(s.b * s.h * s.sq), false);
    dout_poisoned_ = q_poisoned_;
    k_poisoned_.assign(at(s.b * s.hk * s.sk), false);
    const auto one_in = [&](std::int64_t rows) { return static_cast<int>(2 * rows + 1); };
    for (std::int64_t n = 0; n < s.b; ++n) {
      for (std::int64_t h = 0; h < s.h; ++h)
        for (std::int64_t i = 0; i < s.sq; ++i) {
          const std::size_t row = at((n * s.h + h) * s.sq + i);
          if (i >= sq(n) || chance(one_in(s.sq))) fill(c_.q, n, i, h), q_poisoned_[row] = true;
          if (i >= sq(n) || chance(one_in(s.sq)))
            fill(c_.dout, n, i, h), dout_poisoned_[row] = true;
          for (std::int64_t j = 0; c_.bias && j < s.sk; ++j)
            if (!attends(n, h, i, j) && !(c_.bias.get({n, h, i, j}) == -infinity)) {
              const double before = c_.bias.get({n, h, i, j});
              c_.bias.set({n, h, i, j}, 0);
              const bool otherwise_masked = !attends(n, h, i, j);
              c_.bias.set({n, h, i, j}, otherwise_masked ? value() : before);
            }
        }
      for (std::int64_t g = 0; g < s.hk; ++g)
        for (std::int64_t row = 0; row < s.sk; ++row) {
          bool visible = false;
          for (std::int64_t h = g * (s.h / s.hk); h < (g + 1) * (s.h / s.hk); ++h)
            for (std::int64_t i = 0; i < sq(n); ++i) visible |= attends(n, h, i, row - leftpad_);
          if (visible && !chance(one_in(s.sk))) continue;
          if (!visible || chance(2))
            fill(c_.k, n, row, g), k_poisoned_[at((n * s.hk + g) * s.sk + row)] = true;
          if (!visible || chance(2))
            fill(c_.v, n, row, g), k_poisoned_[at((n * s.hk + g) * s.sk + row)] = true;
        }
    }
    poisoned_ = true;
  }
  static std::size_t at(std::int64_t n) { return static_cast<std::size_t>(n); }

  Results compute() {
    for (const HostTensor* t : c_.outputs()) std::memset(t->memory().data, 0x5a, t->memory().size);
    c_.expect_forward();
    Results r;
    r.out = c_.out.values();
    if (!forward_only_) r.lse = c_.lse.values();
    if (c_.s_dmask) r.s_dmask = c_.s_dmask.values();
    if (forward_only_) return r;
    if (poisoned_) {
      for (std::int64_t n = 0; n < c_.size.b; ++n)
        for (std::int64_t i = sq(n); i < c_.size.sq; ++i)
          for (std::int64_t h = 0; h < c_.size.h; ++h) {
            c_.lse.set({n, h, i}, std::nan(""));
            for (std::int64_t c = 0; c < c_.size.dv; ++c) c_.out.set({n, i, h, c}, std::nan(""));
          }
    }
    c_.expect_backward();
    r.dq = c_.dq.values();
    r.dk = c_.dk.values();
    r.dv = c_.dv.values();
    if (c_.dsinks) r.dsinks = c_.dsinks.values();
    if (c_.dbias) r.dbias = c_.dbias.values();
    if (c_.dalibi) r.dalibi = c_.dalibi.values();
    return r;
  }

  static bool same(double a, double b) {
    return std::memcmp(&a, &b, sizeof a) == 0 || (a == 0 && b == 0);
  }
  static void expect_same(const std::vector<double>& a, const std::vector<double>& b,
                          std::int64_t begin, std::int64_t count, const char* what) {
    for (std::int64_t n = begin; n < begin + count && !a.empty(); ++n)
      ASSERT_TRUE(same(a[at(n)], b[at(n)]))
          << what << "[" << n << "]: " << a[at(n)] << " changed to " << b[at(n)];
  }

  void compare(const Results& clean, const Results& poisoned) const {
    const Size& s = c_.size;
    const std::int64_t group = s.h / s.hk;
    for (std::int64_t n = 0; n < s.b; ++n) {
      for (std::int64_t h = 0; h < s.h; ++h) {
        bool sink_affected = false;
        for (std::int64_t i = 0; i < s.sq; ++i) {
          const std::int64_t row = (n * s.h + h) * s.sq + i;
          const bool out = poisoned_row(n, h, i), gradient = out || poisoned_dout(n, h, i);
          if (!out) {
            expect_same(clean.out, poisoned.out, ((n * s.sq + i) * s.h + h) * s.dv, s.dv, "out");
            expect_same(clean.lse, poisoned.lse, row, 1, "lse");
            expect_same(clean.s_dmask, poisoned.s_dmask, row * s.sk, s.sk, "s_dmask");
          }
          for (std::int64_t j = 0; j < s.sk && !poisoned.s_dmask.empty(); ++j)
            if (!attends(n, h, i, j)) {
              ASSERT_EQ(poisoned.s_dmask[at(row * s.sk + j)], 0) << i << " " << j;
            }
          if (!gradient) {
            expect_same(clean.dq, poisoned.dq, ((n * s.sq + i) * s.h + h) * s.d, s.d, "dq");
            expect_same(clean.dbias, poisoned.dbias, row * s.sk, s.sk, "dbias");
          }
          for (std::int64_t j = 0; j < s.sk && !poisoned.dbias.empty(); ++j)
            if (!attends(n, h, i, j)) {
              ASSERT_EQ(poisoned.dbias[at(row * s.sk + j)], 0) << i << " " << j;
            }
          sink_affected |= gradient;
        }
        if (!sink_affected && s.b == 1 && !poisoned.dsinks.empty())
          expect_same(clean.dsinks, poisoned.dsinks, h, 1, "dsinks");
        if (!sink_affected && s.b == 1 && !poisoned.dalibi.empty())
          expect_same(clean.dalibi, poisoned.dalibi, h, 1, "dalibi_slopes");
      }
      for (std::int64_t g = 0; g < s.hk; ++g)
        for (std::int64_t row = 0; row < s.sk; ++row) {
          bool affected = false;
          for (std::int64_t h = g * group; h < (g + 1) * group; ++h)
            for (std::int64_t i = 0; i < sq(n); ++i)
              affected |= attends(n, h, i, row - leftpad_) &&
                          (poisoned_row(n, h, i) || poisoned_dout(n, h, i));
          if (affected) continue;
          expect_same(clean.dk, poisoned.dk, ((n * s.sk + row) * s.hk + g) * s.d, s.d, "dk");
          expect_same(clean.dv, poisoned.dv, ((n * s.sk + row) * s.hk + g) * s.dv, s.dv, "dv");
        }
    }
  }
  bool poisoned_dout(std::int64_t n, std::int64_t h, std::int64_t i) const {
    return i < sq(n) && dout_poisoned_[at((n * c_.size.h + h) * c_.size.sq + i)];
  }
  // Whether a query, or a key that it attends to, is poisoned.
  bool poisoned_row(std::int64_t n, std::int64_t h, std::int64_t i) const {
    const Size& s = c_.size;
    if (i >= sq(n)) return false;
    if (q_poisoned_[at((n * s.h + h) * s.sq + i)]) return true;
    const std::int64_t g = h / (s.h / s.hk);
    for (std::int64_t row = 0; row < s.sk; ++row)
      if (k_poisoned_[at((n * s.hk + g) * s.sk + row)] && attends(n, h, i, row - leftpad_))
        return true;
    return false;
  }

  std::mt19937_64 random_;
  Call c_;
  std::string text_;
  std::int64_t leftpad_ = 0;
  std::vector<std::int64_t> used_q_, used_k_;
  bool forward_only_ = false, poisoned_ = false;
  std::vector<bool> q_poisoned_, dout_poisoned_, k_poisoned_;
};

void expect_no_influence(rocflash_backend backend, std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t seed = first; seed < first + count; ++seed)
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      RandomProblem problem(seed, dtype, backend);
      problem.run();
      if (::testing::Test::HasFailure()) {
        ADD_FAILURE() << "seed " << seed << ", dtype " << static_cast<int>(dtype) << ": "
                      << problem.text();
        return;
      }
    }
}

// Rows of packed tensors outside all sequences and past the used lengths.
TEST(MaskedMemory, RowsOfPackedTensors) {
  for (const rocflash_backend backend :
       {ROCFLASH_BACKEND_CPU, ROCFLASH_BACKEND_STANDARD, ROCFLASH_BACKEND_REFERENCE})
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
      for (const double value : {std::nan(""), infinity, huge(dtype)}) {
        // Sequences occupy rows 2 to 79. The second one uses 50 of 70 queries and 40 of 60 keys.
        Call c({.h = 2, .hk = 1, .d = 8, .dv = 12}, {5, 70, 9}, {6, 60, 20}, dtype);
        for (HostTensor* cu : {&c.cu_q, &c.cu_k}) {
          cu->set({0}, 2);
          cu->set({3}, cu->get({3}) - 4);
        }
        c.with_used_q({3, 50, 5}).with_used_k({4, 40, 16});
        c.problem.causal = 1;
        c.problem.softcap = 3;
        c.backend(backend, 2).expect_forward();
        c.expect_backward();
        std::vector<std::vector<double>> clean;
        for (const HostTensor* t : c.outputs()) clean.push_back(t->values());
        const auto poison = [&](HostTensor& t, const HostTensor& cu, const HostTensor& used) {
          for (std::int64_t row = 0; row < t.shape()[0]; ++row) {
            bool in_use = false;
            for (std::int64_t n = 0; n < 3; ++n)
              in_use |= static_cast<double>(row) >= cu.get({n}) &&
                        static_cast<double>(row) < cu.get({n}) + used.get({n});
            for (std::int64_t h = 0; h < t.shape()[1] && !in_use; ++h)
              for (std::int64_t x = 0; x < t.shape()[2]; ++x) t.set({row, h, x}, value);
          }
        };
        poison(c.q, c.cu_q, c.used_q);
        poison(c.dout, c.cu_q, c.used_q);
        poison(c.k, c.cu_k, c.used_k);
        poison(c.v, c.cu_k, c.used_k);
        c.expect_forward();
        c.expect_backward();
        std::size_t n = 0;
        for (const HostTensor* t : c.outputs())
          EXPECT_EQ(t->values(), clean[n++]) << backend << " " << value;
      }
}

// Rows of a KV cache after the used keys, and pages that belong to no sequence.
TEST(MaskedMemory, RowsOfCaches) {
  for (const rocflash_backend backend :
       {ROCFLASH_BACKEND_CPU, ROCFLASH_BACKEND_STANDARD, ROCFLASH_BACKEND_REFERENCE})
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
      for (const std::int64_t sq : {1, 3, 70})
        for (const double value : {std::nan(""), -infinity, huge(dtype)}) {
          constexpr std::int64_t page = 16, pages = 12;
          Call c({.b = 2, .sq = sq, .sk = page * pages, .h = 2, .hk = 1, .d = 8, .dv = 12}, dtype);
          c.k = HostTensor(dtype, {2 * pages + 3, page, 1, 8});
          c.v = HostTensor(dtype, {2 * pages + 3, page, 1, 12});
          c.k.fill_normal(c.random);
          c.v.fill_normal(c.random);
          HostTensor table(DType::i32, {2, pages});
          for (std::int64_t n = 0; n < 2 * pages; ++n)
            table.set_flat(n, static_cast<double>((n * 7) % (2 * pages)));
          c.with_used_k({150, 37}).problem.causal = 1;
          c.problem.block_table = &table.dl;
          if (sq == 1) c.forward_outputs.lse = nullptr;
          c.backend(backend, 2).expect_forward();
          const std::vector<double> clean = c.out.values();
          std::vector<bool> in_use(static_cast<std::size_t>((2 * pages + 3) * page), false);
          for (std::int64_t n = 0; n < 2; ++n)
            for (std::int64_t r = 0; r < (n == 0 ? 150 : 37); ++r)
              in_use[static_cast<std::size_t>(
                  static_cast<std::int64_t>(table.get({n, r / page})) * page + r % page)] = true;
          for (std::int64_t r = 0; r < (2 * pages + 3) * page; ++r)
            for (HostTensor* t : {&c.k, &c.v})
              for (std::int64_t x = 0; x < t->shape()[3] && !in_use[static_cast<std::size_t>(r)];
                   ++x)
                t->set({r / page, r % page, 0, x}, value);
          c.expect_forward();
          EXPECT_EQ(c.out.values(), clean) << backend << " " << value << " " << sq;
        }
}

TEST(MaskedMemory, Cpu) { expect_no_influence(ROCFLASH_BACKEND_CPU, 1, 150); }
TEST(MaskedMemory, Standard) { expect_no_influence(ROCFLASH_BACKEND_STANDARD, 1, 60); }
TEST(MaskedMemory, Reference) { expect_no_influence(ROCFLASH_BACKEND_REFERENCE, 1, 20); }
TEST(MaskedMemory, Naive) { expect_no_influence(ROCFLASH_BACKEND_NAIVE, 1, 20); }

}  // namespace
}  // namespace rocflash::test
