#include "support/non_finite_propagation.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/philox.hpp"

namespace rocflash::test {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

enum class Masking { none, causal, window, mask, bias, dropout };
enum class Input { q, k, v, dout };
const char* const masking_names[] = {"none", "causal", "window", "mask", "bias", "dropout"};
const char* const input_names[] = {"q", "k", "v", "dout"};

// A non-finite input element.
struct Poison {
  Masking masking;
  Input input;
  double value;
  std::int64_t row;  // query or key
  std::int64_t head, column;
};

std::ostream& operator<<(std::ostream& os, const Poison& p) {
  return os << p.value << " in row " << p.row << " of " << input_names[static_cast<int>(p.input)]
            << ", masking: " << masking_names[static_cast<int>(p.masking)];
}

class Trial {
 public:
  Trial(rocflash_backend backend, DType dtype, int threads, const Size& size, const Poison& poison)
      : c_(size, dtype, 3), poison_(poison) {
    for (HostTensor* t : {&c_.q, &c_.k})
      halve(*t);  // a weight that underflows to 0 would remove the poison
    add_masking();
    c_.backend(backend, threads);
    run(clean_);
    HostTensor& target = poisoned();
    target.set({0, poison.row, poison.head, poison.column}, poison.value);
    run(poisoned_);
  }

  void check() {
    const Size& s = c_.size;
    const std::int64_t group_size = s.h / s.hk;
    for (std::int64_t h = 0; h < s.h; ++h) {
      for (std::int64_t i = 0; i < s.sq; ++i) {
        for (std::int64_t x = 0; x < s.dv; ++x) expect(out, {0, i, h, x}, touches_out(h, i, x));
        expect(lse, {0, h, i}, touches_scores(h, i));
        for (std::int64_t x = 0; x < s.d; ++x) expect(dq, {0, i, h, x}, touches_ds_of_query(h, i));
      }
    }
    for (std::int64_t g = 0; g < s.hk; ++g) {
      for (std::int64_t j = 0; j < s.sk; ++j) {
        bool k_touched = false, v_touched = false, v_column = false;
        for (std::int64_t h = g * group_size; h < (g + 1) * group_size; ++h)
          for (std::int64_t i = 0; i < s.sq; ++i) {
            if (attends_to(h, i, j) && touches_ds_of_query(h, i)) k_touched = true;
            // A NaN in q also reaches dk = ds * q directly, for the keys that q attends to: the
            // same set.
            if (attends_to(h, i, j) && kept(h, i, j) && touches_scores(h, i)) v_touched = true;
            if (attends_to(h, i, j) && kept(h, i, j) && poison_.input == Input::dout &&
                poison_.row == i && poison_.head == h)
              v_column = true;
          }
        for (std::int64_t x = 0; x < s.d; ++x) expect(dk, {0, j, g, x}, k_touched);
        for (std::int64_t x = 0; x < s.dv; ++x)
          expect(dv, {0, j, g, x}, v_touched || (v_column && x == poison_.column));
      }
    }
  }

 private:
  enum Result { out, lse, dq, dk, dv, results };
  using Values = std::vector<HostTensor>;

  static void halve(HostTensor& t) {
    for (std::int64_t n = 0; n < t.size(); ++n) t.set_flat(n, t.flat(n) / 2);
  }

  void add_masking() {
    switch (poison_.masking) {
      case Masking::none:
        break;
      case Masking::causal:
        c_.problem.causal = 1;
        break;
      case Masking::window:
        c_.with_window(4, 3);
        break;
      case Masking::mask:
        c_.with_mask();
        break;
      case Masking::bias:
        c_.with_bias();
        for (std::int64_t n = 0; n < c_.bias.size(); ++n)
          c_.bias.set_flat(n, c_.random() % 3 == 0 ? -infinity : 0.5);
        break;
      case Masking::dropout:
        c_.with_dropout(0.5f);
        break;
    }
  }

  HostTensor& poisoned() {
    switch (poison_.input) {
      case Input::q:
        return c_.q;
      case Input::k:
        return c_.k;
      case Input::v:
        return c_.v;
      case Input::dout:
        break;
    }
    return c_.dout;
  }

  void run(Values& values) {
    for (const HostTensor* t : c_.outputs()) std::memset(t->memory().data, 0x5a, t->memory().size);
    c_.expect_forward();
    c_.expect_backward();
    values.clear();
    for (const HostTensor* t : {&c_.out, &c_.lse, &c_.dq, &c_.dk, &c_.dv}) {
      HostTensor copy(t->dtype(), t->shape());
      std::memcpy(copy.memory().data, t->memory().data, t->memory().size);
      values.push_back(std::move(copy));
    }
  }

  bool attends_to(std::int64_t h, std::int64_t i, std::int64_t j) const {
    const std::int64_t distance = j - (i + c_.size.sk - c_.size.sq);
    switch (poison_.masking) {
      case Masking::causal:
        return distance <= 0;
      case Masking::window:
        return -4 <= distance && distance <= 3;
      case Masking::mask:
        return c_.mask.get({0, h, i, j}) != 0;
      case Masking::bias:
        return c_.bias.get({0, h, i, j}) != -infinity;
      default:
        return true;
    }
  }
  bool kept(std::int64_t h, std::int64_t i, std::int64_t j) const {
    const Dropout pattern{0.5f, dropout_threshold(0.5f), c_.problem.dropout_seed,
                          c_.problem.dropout_offset};
    return poison_.masking != Masking::dropout || pattern.keeps(h, i, j);
  }
  bool same_group(std::int64_t h) const { return h / (c_.size.h / c_.size.hk) == poison_.head; }

  // Whether the poison reaches the scores of query i, and so all its weights.
  bool touches_scores(std::int64_t h, std::int64_t i) const {
    if (poison_.input == Input::q) {
      bool any = false;  // a fully masked row has no scores
      for (std::int64_t j = 0; j < c_.size.sk; ++j) any = any || attends_to(h, i, j);
      return poison_.row == i && poison_.head == h && any;
    }
    return poison_.input == Input::k && same_group(h) && attends_to(h, i, poison_.row);
  }
  bool touches_value(std::int64_t h, std::int64_t i) const {
    return poison_.input == Input::v && same_group(h) && attends_to(h, i, poison_.row) &&
           kept(h, i, poison_.row);
  }
  bool touches_out(std::int64_t h, std::int64_t i, std::int64_t x) const {
    if (touches_scores(h, i)) {
      bool any = false;  // if every weight is dropped, the sum is empty
      for (std::int64_t j = 0; j < c_.size.sk; ++j)
        any = any || (attends_to(h, i, j) && kept(h, i, j));
      return any;
    }
    return touches_value(h, i) && x == poison_.column;
  }
  // Whether it reaches dS of query i: for all keys at once, since delta is a sum over them.
  bool touches_ds_of_query(std::int64_t h, std::int64_t i) const {
    if (poison_.input == Input::dout) {
      bool any = false;
      for (std::int64_t j = 0; j < c_.size.sk; ++j)
        any = any || (attends_to(h, i, j) && kept(h, i, j));
      return poison_.row == i && poison_.head == h && any;
    }
    return touches_scores(h, i) || touches_value(h, i);
  }

  void expect(Result which, std::initializer_list<std::int64_t> at, bool touched) const {
    static const char* const names[] = {"out", "lse", "dq", "dk", "dv"};
    const double before = clean_[which].get(at), after = poisoned_[which].get(at);
    const auto where = [&] {
      std::string s = names[which];
      for (const std::int64_t n : at) s += " " + std::to_string(n);
      return s;
    };
    if (!touched) {
      // A poison may change the summation order of other results, but nothing else.
      const double order = (c_.dtype == DType::bf16  ? 0x1p-6
                            : c_.dtype == DType::f16 ? 0x1p-9
                                                     : 0x1p-18);
      if (before != after) {
        EXPECT_NEAR(before, after, order) << where() << " changed: " << poison_;
      }
    } else if (std::isnan(poison_.value)) {
      EXPECT_TRUE(std::isnan(after)) << where() << " is " << after << "; poison: " << poison_;
    } else if (which == out && poison_.input == Input::v) {
      EXPECT_EQ(after, poison_.value) << where() << ": " << poison_;
    }
  }

  Call c_;
  Poison poison_;
  Values clean_, poisoned_;
};

}  // namespace

void expect_non_finite_propagation(rocflash_backend backend, DType dtype, int threads,
                                   const Size& size) {
  for (const Masking masking : {Masking::none, Masking::causal, Masking::window, Masking::mask,
                                Masking::bias, Masking::dropout}) {
    for (const Input input : {Input::q, Input::k, Input::v, Input::dout}) {
      // The sum of a NaN score and a bias of -inf would be NaN, but backends mask the key: only
      // values are tested.
      if (masking == Masking::bias && input != Input::v) continue;
      const bool of_query = input == Input::q || input == Input::dout;
      for (const double value : {nan, infinity}) {
        for (const bool last : {false, true}) {
          const std::int64_t rows = of_query ? size.sq : size.sk;
          const std::int64_t heads = of_query ? size.h : size.hk;
          const std::int64_t columns = input == Input::q || input == Input::k ? size.d : size.dv;
          const Poison poison{
              masking, input, value, last ? rows - 1 : rows / 2, heads - 1, last ? columns - 1 : 0};
          Trial(backend, dtype, threads, size, poison).check();
          if (testing::Test::HasFailure()) return;  // the first failure is enough
        }
      }
    }
  }
}

}  // namespace rocflash::test
