#include "verify/buffer.hpp"

#include <algorithm>

#include "verify/scalar.hpp"

namespace rocflash::verify {
namespace {

// Repeated: NaN in f16, bf16, f32, f64, e4m3fn and e5m2, -1 in integers; NaN in the fnuz formats.
constexpr std::byte poison_of(DType t) {
  return t == DType::e4m3fnuz || t == DType::e5m2fnuz ? std::byte{0x80} : std::byte{0xFF};
}
constexpr std::int64_t guard_bytes = 256;
constexpr std::int64_t gap = 3;

std::string index_text(const Dims& index) {
  std::string s = "(";
  for (std::size_t n = 0; n < index.size(); ++n)
    s += (n > 0 ? ", " : "") + std::to_string(index[n]);
  return s + ")";
}

}  // namespace

Placement lay_out(const Dims& shape, Layout layout, Axes axes, Role role) {
  std::array<std::size_t, Dims::max_count> outermost_first{};
  for (std::size_t n = 0; n < shape.size(); ++n) outermost_first[n] = n;
  if (layout == Layout::swapped) std::swap(outermost_first[axes.row], outermost_first[axes.head]);

  Placement p{shape, shape};
  std::int64_t stride = 1;
  for (std::size_t n = shape.size(); n-- > 0;) {
    const std::size_t dim = outermost_first[n];
    const bool broadcasts =
        layout == Layout::broadcast && role == Role::input && dim == axes.broadcast;
    p.strides[dim] = broadcasts ? 0 : stride;
    if (!broadcasts) stride *= std::max<std::int64_t>(shape[dim], 1);
    if (layout == Layout::gapped) stride += gap;
  }
  if (layout == Layout::reversed) p.strides[axes.row] = -p.strides[axes.row];
  if (layout == Layout::gapped) p.shift = 1;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return p;
  p.highest = 1;
  for (std::size_t n = 0; n < shape.size(); ++n)
    (p.strides[n] < 0 ? p.lowest : p.highest) += (shape[n] - 1) * p.strides[n];
  return p;
}

Buffer::Buffer(DType dtype, Placement placement) : dtype_(dtype), placement_(placement) {
  const auto elements =
      static_cast<std::size_t>(placement_.shift + placement_.highest - placement_.lowest);
  bytes_.assign(elements * size_of(dtype) + 2 * guard_bytes, poison_of(dtype));
}

std::byte* Buffer::first() const {
  return bytes_.data() + guard_bytes +
         (placement_.shift - placement_.lowest) * static_cast<std::int64_t>(size_of(dtype_));
}

std::byte* Buffer::address(const Dims& index) const {
  std::int64_t element = 0;
  for (std::size_t n = 0; n < index.size(); ++n) element += index[n] * placement_.strides[n];
  return first() + element * static_cast<std::int64_t>(size_of(dtype_));
}

// Calls visit(index, address) for the first element of each row in row-major order, until it
// returns false.
template <class Visit>
void Buffer::for_each_row(Visit visit) const {
  const Dims& shape = placement_.shape;
  if (size() == 0) return;
  Dims index = shape;
  for (std::size_t n = 0; n < index.size(); ++n) index[n] = 0;
  while (visit(index, address(index))) {
    std::size_t n = shape.size() - 1;
    while (n > 0 && ++index[n - 1] == shape[n - 1]) index[--n] = 0;
    if (n == 0) return;
  }
}

std::int64_t Buffer::size() const {
  std::int64_t product = 1;
  for (const std::int64_t n : placement_.shape) product *= n;
  return product;
}

std::vector<double> Buffer::values() const {
  std::vector<double> all;
  all.reserve(static_cast<std::size_t>(size()));
  for_each_row([&](const Dims&, const std::byte* at) {
    for (std::int64_t c = 0; c < columns(); ++c) all.push_back(load(at + c * step(), dtype_));
    return true;
  });
  return all;
}

void Buffer::fill(const std::function<double(const Dims&)>& next) {
  for_each_row([&](Dims& index, std::byte* at) {
    std::int64_t& column = index[index.size() - 1];
    for (; column < columns(); ++column) store(at + column * step(), dtype_, next(index));
    column = 0;
    return true;
  });
}

void Buffer::set(const Dims& index, double value) { store(address(index), dtype_, value); }

double Buffer::get(const Dims& index) const { return load(address(index), dtype_); }

std::string Buffer::out_of_bounds_write() const {
  const std::byte poison = poison_of(dtype_);
  std::vector<std::byte> rest = bytes_;  // only writes outside the elements remain in it
  for_each_row([&](const Dims&, const std::byte* at) {
    std::byte* to = rest.data() + (at - bytes_.data());
    for (std::int64_t c = 0; c < columns(); ++c)
      std::fill_n(to + c * step(), size_of(dtype_), poison);
    return true;
  });
  const auto written =
      std::find_if(rest.begin(), rest.end(), [&](std::byte b) { return b != poison; });
  if (written == rest.end()) return {};
  const std::int64_t distance = (written - rest.begin()) - (first() - bytes_.data());
  return "out-of-bounds write " + std::to_string(distance) + " bytes from the first element";
}

std::string Buffer::unwritten() const {
  const std::byte poison = poison_of(dtype_);
  std::string found;
  for_each_row([&](Dims& index, const std::byte* at) {
    std::int64_t& column = index[index.size() - 1];
    for (; column < columns() && found.empty(); ++column, at += step()) {
      if (std::all_of(at, at + size_of(dtype_), [&](std::byte b) { return b == poison; }))
        found = "element " + index_text(index) + " was not written";
    }
    column = 0;
    return found.empty();
  });
  return found;
}

}  // namespace rocflash::verify
