#include "api/tensor.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/error.hpp"

namespace rocflash {
namespace {

DType read_dtype(const char* name, DLDataType t) {
  const auto is = [&](int code, int bits) {
    return t.code == code && t.bits == bits && t.lanes == 1;
  };
  if (is(kDLFloat, 32)) return DType::f32;
  if (is(kDLFloat, 16)) return DType::f16;
  if (is(kDLBfloat, 16)) return DType::bf16;
  if (is(kDLFloat, 64)) return DType::f64;
  if (is(kDLInt, 32)) return DType::i32;
  if (is(ROCFLASH_DL_BOOL, 8) || is(kDLUInt, 8)) return DType::boolean;
  // DLPack's codes for one-byte floats, newer than the oldest header this builds with.
  constexpr int first_fp8 = 7, last_fp8 = 14;
  if (t.bits == 8 && t.code >= first_fp8 && t.code <= last_fp8)
    refuse_unsupported(name, ": dtype fp8 (DLPack code ", int{t.code},
                       "); allowed are f32, f16 and bf16");
  if (t.lanes == 1 && (t.code == kDLInt || t.code == kDLUInt))
    refuse(name, ": dtype ", t.code == kDLInt ? "i" : "u", int{t.bits},
           "; allowed are f32, f16 and bf16, and i32 where whole numbers are asked for");
  refuse(name, ": DLPack dtype (code ", int{t.code}, ", bits ", int{t.bits}, ", lanes ",
         int{t.lanes},
         "); allowed are f32, f16, bf16, and where they are asked for i32, bool, uint8 and f64");
}

// The distance in bytes between the first and the last element must fit, or addresses would wrap
// around.
void check_extent(const Tensor& t) {
  std::int64_t reach = 0;
  for (int n = 0; n < t.ndim; ++n) {
    std::int64_t span = 0;
    const std::int64_t stride = t.stride[n];
    if (__builtin_mul_overflow(t.shape[n] - 1, stride < 0 ? -stride : stride, &span) ||
        __builtin_add_overflow(reach, span, &reach)) {
      refuse(t.name, ": shape ", t.shape_text(), " with stride ", stride, " in dimension ", n,
             " reaches beyond 64-bit addresses");
    }
  }
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(reach, static_cast<std::int64_t>(size_of(t.dtype)), &bytes))
    refuse(t.name, ": shape ", t.shape_text(), " and its strides reach beyond 64-bit addresses");
}

// The dimensions of more than one element, smallest stride first, as if no stride were negative.
struct Nesting {
  explicit Nesting(const Tensor& t) {
    for (int n = 0; n < t.ndim; ++n) {
      if (t.shape[n] > 1) insert({t.stride[n] < 0 ? -t.stride[n] : t.stride[n], t.shape[n]});
    }
  }
  // Most tensors come with the largest stride first, or nearly so.
  void insert(std::pair<std::int64_t, std::int64_t> one) {
    int at = count++;
    for (; at > 0 && one < dim[at - 1]; --at) dim[at] = dim[at - 1];
    dim[at] = one;
  }
  std::pair<std::int64_t, std::int64_t> dim[max_dims];  // stride, size
  int count = 0;
};

// Two elements of an output at one address would be a race. Dimensions ordered by stride must nest.
void check_no_overlap(const Tensor& t) {
  const Nesting nesting(t);
  std::int64_t reach = 0;
  for (int n = 0; n < nesting.count; ++n) {
    const auto [stride, size] = nesting.dim[n];
    if (stride <= reach)
      refuse(t.name, ": stride ", stride,
             " makes elements of this output overlap; it must be above ", reach);
    reach += stride * (size - 1);
  }
}

std::string join(const std::int64_t* values, std::size_t count) {
  std::string s = "(";
  for (std::size_t n = 0; n < count; ++n) s += (n ? ", " : "") + std::to_string(values[n]);
  return s + (count == 1 ? ",)" : ")");
}

}  // namespace

bool Tensor::empty() const {
  return std::any_of(shape, shape + ndim, [](std::int64_t n) { return n == 0; });
}

std::string Tensor::shape_text() const { return join(shape, static_cast<std::size_t>(ndim)); }

std::string shape_text(std::initializer_list<std::int64_t> shape) {
  return join(shape.begin(), shape.size());
}

std::string device_text(Device d) {
  switch (d.type) {
    case kDLCPU:
      return "cpu";
    case kDLCUDA:
      return text("cuda:", d.id);
    case kDLROCM:
      return text("rocm:", d.id);
    default:
      return text("DLPack device type ", d.type);
  }
}

Outline::Outline(const Tensor& t) : empty(t.empty()) {
  if (empty) return;
  element = static_cast<std::int64_t>(size_of(t.dtype));
  std::int64_t lowest = 0, highest = 0;
  for (int n = 0; n < t.ndim; ++n)
    (t.stride[n] < 0 ? lowest : highest) += (t.shape[n] - 1) * t.stride[n] * element;
  const auto at = reinterpret_cast<std::uintptr_t>(t.data);
  first = at + static_cast<std::uintptr_t>(lowest);
  last = at + static_cast<std::uintptr_t>(highest + (element - 1));
  const Nesting nesting(t);
  std::int64_t reach = 0;
  for (int n = 0; n < nesting.count; ++n) {
    const auto [stride, count] = nesting.dim[n];
    solid = solid && stride <= reach + 1;
    reach += stride * (count - 1);
    step[steps++] = {stride * element, count};
  }
}

namespace {

// Looks for an element of `a` and one of `b` less than an element apart: differences of their indices, one for each
// size of step, whose steps lead from the first byte of `a` to that of `b`. Larger steps come first, since what
// is left must be within reach of the smaller ones; where dimensions nest, that leaves two choices at most.
class Meeting {
 public:
  Meeting(const Outline& a, const Outline& b) : low_(1 - b.element), high_(a.element - 1) {
    int i = a.steps, j = b.steps;
    while (i > 0 || j > 0) {
      const std::int64_t bytes =
          std::max(i > 0 ? a.step[i - 1].bytes : 0, j > 0 ? b.step[j - 1].bytes : 0);
      Term term{bytes, 0, 0};
      while (i > 0 && a.step[i - 1].bytes == bytes) term.most += a.step[--i].count - 1;
      while (j > 0 && b.step[j - 1].bytes == bytes) term.least -= b.step[--j].count - 1;
      if (bytes > 0) term_[count_++] = term;  // elements of a step of 0 are one element
    }
  }

  bool possible(std::int64_t distance) { return from(0, distance); }

 private:
  struct Term {
    std::int64_t bytes, least, most;
  };

  bool from(int n, std::int64_t distance) {
    if (n == count_) return low_ <= distance && distance <= high_;
    std::int64_t low = low_, high = high_;
    for (int m = n + 1; m < count_; ++m) {
      low += term_[m].bytes * term_[m].least;
      high += term_[m].bytes * term_[m].most;
    }
    const auto [bytes, least, most] = term_[n];
    const std::int64_t begin = std::max(least, ceiling(distance - high, bytes));
    const std::int64_t end = std::min(most, floor(distance - low, bytes));
    for (std::int64_t times = begin; times <= end; ++times) {
      if (++tried_ > 1000) return false;
      if (from(n + 1, distance - times * bytes)) return true;
    }
    return false;
  }

  static std::int64_t floor(std::int64_t x, std::int64_t by) { return x / by - (x % by < 0); }
  static std::int64_t ceiling(std::int64_t x, std::int64_t by) { return x / by + (x % by > 0); }

  std::int64_t low_, high_;  // how far apart the first bytes of two elements may be that share one
  Term term_[2 * max_dims];
  int count_ = 0, tried_ = 0;
};

}  // namespace

bool share_memory(const Outline& a, const Outline& b) {
  if (a.empty || b.empty || a.last < b.first || b.last < a.first) return false;
  if (a.first == b.first || (a.solid && b.solid)) return true;
  return Meeting(a, b).possible(static_cast<std::int64_t>(b.first - a.first));
}

std::optional<Tensor> read_tensor(const char* name, const DLTensor* in, Access access, Data data) {
  if (!in) return std::nullopt;
  Tensor t;
  t.name = name;
  t.dtype = read_dtype(name, in->dtype);
  t.device.id = in->device.device_id;
  static_assert(sizeof t.device.type == sizeof in->device.device_type);
  std::memcpy(&t.device.type, &in->device.device_type, sizeof t.device.type);
  // Pinned host memory is host memory, and all of that is one device.
  if (t.device.type == kDLCPU || t.device.type == kDLCUDAHost || t.device.type == kDLROCMHost)
    t.device = {kDLCPU, 0};
  if (in->ndim < 1 || in->ndim > max_dims)
    refuse(name, ": ", in->ndim, " dimensions; allowed are 1 to ", max_dims);
  if (!in->shape) refuse(name, ": shape is null, but it has ", in->ndim, " dimensions");
  t.ndim = in->ndim;
  for (int n = 0; n < t.ndim; ++n) {
    t.shape[n] = in->shape[n];
    if (t.shape[n] < 0)
      refuse(name, ": size ", t.shape[n], " in dimension ", n, "; it must not be negative");
  }
  std::int64_t compact = 1;
  for (int n = t.ndim - 1; n >= 0; --n) {
    t.stride[n] = t.shape[n] == 1 ? 0 : (in->strides ? in->strides[n] : compact);
    if (t.stride[n] == INT64_MIN)
      refuse(name, ": stride ", t.stride[n], " in dimension ", n, "; it must be above that");
    if (__builtin_mul_overflow(compact, std::max<std::int64_t>(t.shape[n], 1), &compact))
      refuse(name, ": shape ", t.shape_text(), " has more elements than 64 bits can count");
  }
  if (!t.empty()) check_extent(t);
  if (access == Access::write && !t.empty()) check_no_overlap(t);

  alignas(64) static std::byte nothing[64];  // stands for memory that will not be touched
  t.data = nothing;
  if (in->data) {
    std::uintptr_t address = 0;
    if (__builtin_add_overflow(reinterpret_cast<std::uintptr_t>(in->data), in->byte_offset,
                               &address))
      refuse(name, ": byte_offset ", in->byte_offset, " reaches beyond 64-bit addresses");
    t.data = reinterpret_cast<std::byte*>(address);
    if (address % size_of(t.dtype) != 0)
      refuse(name, ": data is not aligned to its ", size_of(t.dtype), "-byte elements");
  } else if (data == Data::required && !t.empty()) {
    refuse(name, ": data is null, but its shape is ", t.shape_text());
  }
  return t;
}

}  // namespace rocflash
