#include "verify/buffer.hpp"

#include <algorithm>

#include "verify/scalar.hpp"

namespace rocflash::verify {
namespace {

constexpr std::byte poison{0xFF};  // in every byte: NaN in f16, bf16, f32 and f64, -1 in i32
constexpr std::int64_t guard_bytes = 256;
constexpr std::int64_t gap = 3;

std::string index_text(const Dims& index) {
  std::string s = "(";
  for (std::size_t n = 0; n < index.size(); ++n)
    s += (n > 0 ? ", " : "") + std::to_string(index[n]);
  return s + ")";
}

}  // namespace

Placement place(const Dims& shape, Layout layout, Axes axes, Role role) {
  std::array<std::size_t, Dims::max_count> outermost_first{};
  for (std::size_t n = 0; n < shape.size(); ++n) outermost_first[n] = n;
  if (layout == Layout::swapped) std::swap(outermost_first[axes.row], outermost_first[axes.head]);

  Placement p{shape, shape};
  std::int64_t stride = 1;
  for (std::size_t n = shape.size(); n-- > 0;) {
    const std::size_t dim = outermost_first[n];
    const bool repeats = layout == Layout::repeated && role == Role::input && dim == axes.repeat;
    p.strides[dim] = repeats ? 0 : stride;
    if (!repeats) stride *= std::max<std::int64_t>(shape[dim], 1);
    if (layout == Layout::gapped) stride += gap;
  }
  if (layout == Layout::backward) p.strides[axes.row] = -p.strides[axes.row];
  if (layout == Layout::gapped) p.shift = 1;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return p;
  p.highest = 1;
  for (std::size_t n = 0; n < shape.size(); ++n)
    (p.strides[n] < 0 ? p.lowest : p.highest) += (shape[n] - 1) * p.strides[n];
  return p;
}

Buffer::Buffer(DType dtype, Placement placement) : dtype_(dtype), place_(placement) {
  const auto elements = static_cast<std::size_t>(place_.shift + place_.highest - place_.lowest);
  bytes_.assign(elements * size_of(dtype) + 2 * guard_bytes, poison);
}

std::byte* Buffer::first() const {
  return bytes_.data() + guard_bytes +
         (place_.shift - place_.lowest) * static_cast<std::int64_t>(size_of(dtype_));
}

std::byte* Buffer::address(const Dims& index) const {
  std::int64_t element = 0;
  for (std::size_t n = 0; n < index.size(); ++n) element += index[n] * place_.strides[n];
  return first() + element * static_cast<std::int64_t>(size_of(dtype_));
}

// Calls visit(index) for all indices, the last dimension fastest, until it returns false.
template <class Visit>
void Buffer::for_each(Visit visit) const {
  const Dims& shape = place_.shape;
  Dims index = shape;
  for (std::size_t n = 0; n < shape.size(); ++n) {
    if (shape[n] == 0) return;
    index[n] = 0;
  }
  while (visit(std::as_const(index))) {
    std::size_t n = shape.size();
    while (n > 0 && ++index[n - 1] == shape[n - 1]) index[--n] = 0;
    if (n == 0) return;
  }
}

std::int64_t Buffer::size() const {
  std::int64_t product = 1;
  for (const std::int64_t n : place_.shape) product *= n;
  return product;
}

std::vector<double> Buffer::values() const {
  std::vector<double> all;
  all.reserve(static_cast<std::size_t>(size()));
  for_each([&](const Dims& index) {
    all.push_back(load(address(index), dtype_));
    return true;
  });
  return all;
}

void Buffer::fill(const std::function<double(const Dims&)>& next) {
  for_each([&](const Dims& index) {
    set(index, next(index));
    return true;
  });
}

void Buffer::set(const Dims& index, double value) { store(address(index), dtype_, value); }

double Buffer::get(const Dims& index) const { return load(address(index), dtype_); }

std::string Buffer::trespass() const {
  std::vector<bool> element(bytes_.size(), false);
  for_each([&](const Dims& index) {
    const auto at = address(index) - bytes_.data();
    std::fill_n(element.begin() + at, size_of(dtype_), true);
    return true;
  });
  for (std::size_t n = 0; n < bytes_.size(); ++n) {
    if (!element[n] && bytes_[n] != poison) {
      const auto distance = static_cast<std::int64_t>(n) - (first() - bytes_.data());
      return "memory was written " + std::to_string(distance) +
             " bytes from the first element, where no element is";
    }
  }
  return {};
}

std::string Buffer::unwritten() const {
  std::string found;
  for_each([&](const Dims& index) {
    const std::byte* at = address(index);
    if (std::all_of(at, at + size_of(dtype_), [](std::byte b) { return b == poison; }))
      found = "element " + index_text(index) + " was not written";
    return found.empty();
  });
  return found;
}

}  // namespace rocflash::verify
