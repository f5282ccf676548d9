#include "api/tensor.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string_view>
#include <utility>

#include "core/error.hpp"

namespace rocflash {
namespace {

// Whether a tensor of this name has lengths or indices, and no values of attention.
bool has_integers(std::string_view name) {
  constexpr std::string_view prefixes[]{"cu_",         "seqused", "leftpad",       "cache_",
                                        "block_table", "first",   "rotary_seqlens"};
  return std::any_of(std::begin(prefixes), std::end(prefixes),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

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
  if (is(ROCFLASH_DL_FLOAT8_E4M3FN, 8)) return DType::e4m3fn;
  if (is(ROCFLASH_DL_FLOAT8_E4M3FNUZ, 8)) return DType::e4m3fnuz;
  if (is(ROCFLASH_DL_FLOAT8_E5M2, 8)) return DType::e5m2;
  if (is(ROCFLASH_DL_FLOAT8_E5M2FNUZ, 8)) return DType::e5m2fnuz;
  if (is(kDLInt, 8) && !has_integers(name)) return DType::i8;
  constexpr int first_fp8 = 7, last_fp8 = 14;
  if (t.bits == 8 && t.code >= first_fp8 && t.code <= last_fp8)
    refuse_unsupported(name, " has dtype fp8 (DLPack code ", int{t.code},
                       "); of 8-bit floats only e4m3fn, e4m3fnuz, e5m2 and e5m2fnuz are supported");
  if (t.lanes == 1 && (t.code == kDLInt || t.code == kDLUInt))
    refuse(name, " has dtype ", t.code == kDLInt ? "i" : "u", int{t.bits},
           has_integers(name) ? "; it must be i32" : "; it must be f32, f16 or bf16");
  refuse(name, " has DLPack dtype (code ", int{t.code}, ", bits ", int{t.bits}, ", lanes ",
         int{t.lanes}, "); supported are f32, f16, bf16, f64, i32, bool and uint8");
}

// The byte distance between the first and the last element must fit in 64 bits: addresses must not
// wrap around.
void check_extent(const Tensor& t) {
  std::int64_t reach = 0;
  for (int n = 0; n < t.ndim; ++n) {
    std::int64_t span = 0;
    const std::int64_t stride = t.stride[n];
    if (__builtin_mul_overflow(t.shape[n] - 1, stride < 0 ? -stride : stride, &span) ||
        __builtin_add_overflow(reach, span, &reach)) {
      refuse(t.name, " has shape ", t.shape_text(), " and stride ", stride, " in dimension ", n,
             "; its extent must fit in 64-bit addresses");
    }
  }
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(reach, static_cast<std::int64_t>(size_of(t.dtype)), &bytes))
    refuse(t.name, " has shape ", t.shape_text(),
           " and large strides; its extent must fit in 64-bit addresses");
}

// Dimensions of more than one element, sorted by absolute stride.
struct SortedDims {
  explicit SortedDims(const Tensor& t) {
    for (int n = 0; n < t.ndim; ++n) {
      if (t.shape[n] > 1) insert({t.stride[n] < 0 ? -t.stride[n] : t.stride[n], t.shape[n]});
    }
  }
  // Insertion sort: most tensors have nearly sorted strides.
  void insert(std::pair<std::int64_t, std::int64_t> one) {
    int at = count++;
    for (; at > 0 && one < dim[at - 1]; --at) dim[at] = dim[at - 1];
    dim[at] = one;
  }
  std::pair<std::int64_t, std::int64_t> dim[max_dims];  // stride, size
  int count = 0;
};

// Two output elements at one address would be a race. Sorted by stride, dimensions must nest.
void check_no_overlap(const Tensor& t) {
  const SortedDims dims(t);
  std::int64_t reach = 0;
  for (int n = 0; n < dims.count; ++n) {
    const auto [stride, size] = dims.dim[n];
    if (stride <= reach)
      refuse(t.name, " has stride ", stride,
             ", which makes elements of this output overlap; it must be above ", reach);
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

Extent::Extent(const Tensor& t) : empty(t.empty()) {
  if (empty) return;
  element = static_cast<std::int64_t>(size_of(t.dtype));
  std::int64_t lowest = 0, highest = 0;
  for (int n = 0; n < t.ndim; ++n)
    (t.stride[n] < 0 ? lowest : highest) += (t.shape[n] - 1) * t.stride[n] * element;
  const auto at = reinterpret_cast<std::uintptr_t>(t.data);
  first = at + static_cast<std::uintptr_t>(lowest);
  last = at + static_cast<std::uintptr_t>(highest + (element - 1));
  const SortedDims dims(t);
  std::int64_t reach = 0;
  for (int n = 0; n < dims.count; ++n) {
    const auto [stride, count] = dims.dim[n];
    contiguous = contiguous && stride <= reach + 1;
    reach += stride * (count - 1);
    step[steps++] = {stride * element, count};
  }
}

namespace {

// Searches for an element of `a` and one of `b` that share a byte: index differences, one per
// stride, that lead from the first byte of `a` to that of `b`. The search starts with the largest
// stride; the remainder must be within reach of the smaller ones. Nested dimensions leave at most
// two choices.
class OverlapSearch {
 public:
  OverlapSearch(const Extent& a, const Extent& b) : low_(1 - b.element), high_(a.element - 1) {
    int i = a.steps, j = b.steps;
    while (i > 0 || j > 0) {
      const std::int64_t bytes =
          std::max(i > 0 ? a.step[i - 1].bytes : 0, j > 0 ? b.step[j - 1].bytes : 0);
      Term term{bytes, 0, 0};
      while (i > 0 && a.step[i - 1].bytes == bytes) term.most += a.step[--i].count - 1;
      while (j > 0 && b.step[j - 1].bytes == bytes) term.least -= b.step[--j].count - 1;
      if (bytes > 0) term_[count_++] = term;  // a stride of 0 is one element
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

  std::int64_t low_, high_;  // distances of two elements that share a byte
  Term term_[2 * max_dims];
  int count_ = 0, tried_ = 0;
};

}  // namespace

bool overlap(const Extent& a, const Extent& b) {
  if (a.empty || b.empty || a.last < b.first || b.last < a.first) return false;
  if (a.first == b.first || (a.contiguous && b.contiguous)) return true;
  return OverlapSearch(a, b).possible(static_cast<std::int64_t>(b.first - a.first));
}

std::optional<Tensor> read_tensor(const char* name, const DLTensor* in, Access access, Data data) {
  if (!in) return std::nullopt;
  Tensor t;
  t.name = name;
  t.dtype = read_dtype(name, in->dtype);
  t.device.id = in->device.device_id;
  static_assert(sizeof t.device.type == sizeof in->device.device_type);
  std::memcpy(&t.device.type, &in->device.device_type, sizeof t.device.type);
  // Pinned host memory counts as CPU memory.
  if (t.device.type == kDLCPU || t.device.type == kDLCUDAHost || t.device.type == kDLROCMHost)
    t.device = {kDLCPU, 0};
  if (in->ndim < 1 || in->ndim > max_dims)
    refuse(name, " has ", in->ndim, " dimensions; it must have 1 to ", max_dims);
  if (!in->shape) refuse(name, " has a null shape; it must point to ", in->ndim, " sizes");
  t.ndim = in->ndim;
  for (int n = 0; n < t.ndim; ++n) {
    t.shape[n] = in->shape[n];
    if (t.shape[n] < 0)
      refuse(name, " has size ", t.shape[n], " in dimension ", n, "; it must not be negative");
  }
  std::int64_t compact = 1;
  for (int n = t.ndim - 1; n >= 0; --n) {
    t.stride[n] = t.shape[n] == 1 ? 0 : (in->strides ? in->strides[n] : compact);
    if (t.stride[n] == INT64_MIN)
      refuse(name, " has stride ", t.stride[n], " in dimension ", n, "; it must be above that");
    if (__builtin_mul_overflow(compact, std::max<std::int64_t>(t.shape[n], 1), &compact))
      refuse(name, " has shape ", t.shape_text(), "; its number of elements must fit in 63 bits");
  }
  if (!t.empty()) check_extent(t);
  if (access == Access::write && !t.empty()) check_no_overlap(t);

  alignas(64) static std::byte placeholder[64];  // for null data that will not be accessed
  t.data = placeholder;
  if (in->data) {
    std::uintptr_t address = 0;
    if (__builtin_add_overflow(reinterpret_cast<std::uintptr_t>(in->data), in->byte_offset,
                               &address))
      refuse(name, " has byte_offset ", in->byte_offset, "; its address must fit in 64 bits");
    t.data = reinterpret_cast<std::byte*>(address);
    if (address % size_of(t.dtype) != 0)
      refuse(name, " has misaligned data; it must be aligned to its ", size_of(t.dtype),
             "-byte elements");
  } else if (data == Data::required && !t.empty()) {
    refuse(name, " has null data; with shape ", t.shape_text(), " it must point to memory");
  }
  return t;
}

}  // namespace rocflash
