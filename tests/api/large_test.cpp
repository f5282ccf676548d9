// Tensors that span more than 2^31 elements, in reserved address space: only accessed pages are
// committed. Indices truncated to 32 bits would access other rows.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>

#include "support/call.hpp"

namespace rocflash::test {
namespace {

class Reserved {
 public:
  explicit Reserved(std::size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  ~Reserved() {
    if (good()) munmap(data_, bytes_);
  }
  bool good() const { return data_ != MAP_FAILED; }
  void* data() const { return data_; }

 private:
  std::size_t bytes_;
  void* data_;
};

// Copies a tensor to reserved memory with strides of at least `step` in every dimension but the
// last.
class Spread {
 public:
  Spread(HostTensor& t, std::int64_t step) : of_(t) {
    const auto n = t.shape().size();
    stride_.resize(n, 1);
    std::int64_t reach = t.shape()[n - 1];
    for (std::size_t i = 0; i + 1 < n; ++i) {
      stride_[i] = step + reach;
      reach = stride_[i] * std::max<std::int64_t>(1, t.shape()[i]);
    }
    if (t.shape().size() == 1) stride_[0] = step, reach = step * t.shape()[0];
    memory_ = std::make_unique<Reserved>(static_cast<std::size_t>(reach) * size_of(t.dtype()));
    EXPECT_TRUE(memory_->good());
    copy(true);
    t.dl.data = memory_->data();
    t.dl.strides = stride_.data();
  }
  // Copies results back to the compact tensor.
  void collect() { copy(false); }
  std::int64_t span() const { return stride_[0]; }

 private:
  void copy(bool out) {
    for (std::int64_t n = 0; n < of_.size(); ++n) {
      std::int64_t at = 0, rest = n;
      for (std::size_t i = of_.shape().size(); i-- > 0; rest /= of_.shape()[i])
        at += rest % of_.shape()[i] * stride_[i];
      if (out) {
        store_double(memory_->data(), of_.dtype(), at, of_.flat(n));
      } else {
        of_.set_flat(n, load_as_double(memory_->data(), of_.dtype(), at));
      }
    }
  }

  HostTensor& of_;
  std::vector<std::int64_t> stride_;
  std::unique_ptr<Reserved> memory_;
};

void expect_spread_equals_compact(DType dtype, rocflash_backend backend) {
  const Size size{.b = 2, .sq = 5, .sk = 19, .h = 2, .hk = 2, .d = 8, .dv = 24};
  Call c(size, dtype);
  c.with_bias().with_mask().with_sinks().with_alibi(true).backend(backend, 2).expect_forward();
  c.expect_backward();
  std::vector<std::vector<double>> expected;
  for (const HostTensor* t : c.outputs()) expected.push_back(t->values());

  const std::int64_t step = (std::int64_t{1} << 31) + 5;
  std::vector<std::unique_ptr<Spread>> spread;
  for (HostTensor* t : {&c.q, &c.k, &c.v, &c.bias, &c.mask, &c.sinks, &c.alibi, &c.out, &c.lse,
                        &c.dout, &c.dq, &c.dk, &c.dv, &c.dsinks})
    spread.push_back(std::make_unique<Spread>(*t, step));
  c.expect_forward();
  c.expect_backward();
  for (auto& s : spread) s->collect();
  std::size_t n = 0;
  for (const HostTensor* t : c.outputs()) EXPECT_EQ(t->values(), expected[n++]) << n;
}

TEST(Large, StridesBeyond32Bits) {
  expect_spread_equals_compact(DType::f32, ROCFLASH_BACKEND_CPU);
  expect_spread_equals_compact(DType::bf16, ROCFLASH_BACKEND_CPU);
  expect_spread_equals_compact(DType::f32, ROCFLASH_BACKEND_REFERENCE);
  expect_spread_equals_compact(DType::f16, ROCFLASH_BACKEND_STANDARD);
}

// More than 2^31 keys, of which a window leaves the last few visible: a call does not iterate over
// the others.
TEST(Large, KeysBeyond31Bits) {
  const std::int64_t keys = 3 * (std::int64_t{1} << 30) + 11;
  Call c({.sq = 4, .sk = 16, .h = 2, .hk = 1, .d = 4, .dv = 2}, DType::f16);
  c.with_window(5, 0).backend(ROCFLASH_BACKEND_CPU, 2).expect_forward();
  const auto out = c.out.values(), lse = c.lse.values();

  Reserved memory(static_cast<std::size_t>(keys) * 8), values(static_cast<std::size_t>(keys) * 4);
  ASSERT_TRUE(memory.good() && values.good());
  for (std::int64_t j = 0; j < 16; ++j) {
    for (std::int64_t x = 0; x < 4; ++x)
      store_double(memory.data(), DType::f16, (keys - 16 + j) * 4 + x, c.k.get({0, j, 0, x}));
    for (std::int64_t x = 0; x < 2; ++x)
      store_double(values.data(), DType::f16, (keys - 16 + j) * 2 + x, c.v.get({0, j, 0, x}));
  }
  std::int64_t k_shape[] = {1, keys, 1, 4}, v_shape[] = {1, keys, 1, 2};
  c.k.dl.data = memory.data();
  c.k.dl.shape = k_shape;
  c.k.dl.strides = nullptr;
  c.v.dl.data = values.data();
  c.v.dl.shape = v_shape;
  c.v.dl.strides = nullptr;
  c.out.fill(9);
  c.expect_forward();
  for (std::size_t n = 0; n < out.size(); ++n) EXPECT_NEAR(c.out.values()[n], out[n], 2e-3) << n;
  for (std::size_t n = 0; n < lse.size(); ++n) EXPECT_NEAR(c.lse.values()[n], lse[n], 1e-5) << n;
}

}  // namespace
}  // namespace rocflash::test
