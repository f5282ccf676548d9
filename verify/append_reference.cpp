#include "verify/append_reference.hpp"

#include "verify/geometry.hpp"
#include "verify/scalar.hpp"

namespace rocflash::verify {
namespace {

double rounded(double x, DType dtype) {
  std::byte memory[sizeof(double)];
  store(memory, dtype, x);
  return load(memory, dtype);
}

// Computes one element of a rotated row from the elements at(column).
class Rotation {
 public:
  Rotation(const Inputs& in, Arithmetic arithmetic)
      : in_(in), exact_(arithmetic == Arithmetic::exact) {}

  template <class At>
  double operator()(std::int64_t position, std::int64_t column, At at) const {
    const std::int64_t dim = in_.what.rotary_dim, half = dim / 2;
    if (column >= dim) return at(column);
    const bool interleaved = in_.what.rotary_interleaved;
    const std::int64_t pair = interleaved ? column / 2 : column % half;
    const bool second = interleaved ? column % 2 == 1 : column >= half;
    const double x = at(interleaved ? 2 * pair : pair),
                 y = at(interleaved ? 2 * pair + 1 : pair + half);
    const double cosine = in_.rotary_cos->get({position, pair}),
                 sine = in_.rotary_sin->get({position, pair});
    const auto step = [&](double value) { return exact_ ? value : rounded(value, in_.what.dtype); };
    return second ? step(step(x * sine) + step(y * cosine))
                  : step(step(x * cosine) - step(y * sine));
  }

 private:
  const Inputs& in_;
  bool exact_;
};

// Calls visit(sequence, index of the new key, head) for all new keys.
template <class Visit>
void for_each_new_row(const Case& c, Visit visit) {
  if (c.appended.empty()) return;
  for (std::size_t n = 0; n < static_cast<std::size_t>(c.sequences()); ++n)
    for (std::int64_t row = 0; row < c.appended[n]; ++row)
      for (std::int64_t h = 0; h < c.kv_heads; ++h) visit(n, row, h);
}

// The index in the cache of new key `row`.
Dims index_in_cache(const Geometry& g, std::size_t n, std::int64_t row, std::int64_t head,
                    std::int64_t column) {
  return g.key_index(n, g.used_keys(n).second + row, head, column);
}

// What the cache stores of an element x of new key `row`, which may be stored already.
double stored_new(const Inputs& in, const std::optional<Buffer>& descale, std::size_t n,
                  std::int64_t row, std::int64_t head, double x) {
  if (in.what.quantized_new) return x;
  return stored_value(in.what, descale, n, Geometry(in.what).used_keys(n).second + row, head, x);
}

Buffer zero_new_rows(const Buffer& cache, const Case& c, int columns) {
  Buffer copy = cache;
  const Geometry g(c);
  for_each_new_row(c, [&](std::size_t n, std::int64_t row, std::int64_t h) {
    for (int x = 0; x < columns; ++x) copy.set(index_in_cache(g, n, row, h, x), 0);
  });
  return copy;
}

}  // namespace

Inputs after_append(const Inputs& before, Arithmetic arithmetic) {
  const Case& c = before.what;
  const Geometry g(c);
  const Rotation rotate(before, arithmetic);
  Inputs after = before;
  for_each_new_row(c, [&](std::size_t n, std::int64_t row, std::int64_t h) {
    const auto key = [&](std::int64_t column) {
      return before.k_new->get(g.new_index(n, row, h, column));
    };
    for (int x = 0; x < c.head_dim; ++x)
      after.k.set(index_in_cache(g, n, row, h, x),
                  stored_new(before, before.k_descale, n, row, h,
                             rotate(g.first_position(n) + row, x, key)));
    for (int x = 0; x < c.value_dim; ++x)
      after.v.set(index_in_cache(g, n, row, h, x),
                  stored_new(before, before.v_descale, n, row, h,
                             before.v_new->get(g.new_index(n, row, h, x))));
  });
  for (std::size_t n = 0; n < static_cast<std::size_t>(c.sequences()) && c.rotary_dim > 0; ++n) {
    for (std::int64_t i = 0; i < g.used_queries(n).second; ++i) {
      for (std::int64_t h = 0; h < c.heads; ++h) {
        const auto query = [&](std::int64_t column) {
          return before.q.get(g.query_index(n, i, h, column));
        };
        for (int x = 0; x < c.head_dim; ++x)
          after.q.set(g.query_index(n, i, h, x), rotate(g.query_position(n, i), x, query));
      }
    }
  }
  for (std::size_t n = 0; n < c.appended.size(); ++n)
    after.seqused_k->set({static_cast<std::int64_t>(n)},
                         static_cast<double>(g.used_keys(n).second + c.appended[n]));
  after.what.decode = false;
  after.what.appended.clear();
  after.what.rotary_dim = 0;
  return after;
}

std::string cache_mismatch(const Inputs& before, const Inputs& found) {
  const Case& c = before.what;
  const Geometry g(c);
  if (zero_new_rows(before.k, c, c.head_dim).bytes() !=
      zero_new_rows(found.k, c, c.head_dim).bytes())
    return "k: changed outside the appended rows";
  if (c.mla) return "";
  Buffer expected = before.v;
  for_each_new_row(c, [&](std::size_t n, std::int64_t row, std::int64_t h) {
    for (int x = 0; x < c.value_dim; ++x)
      expected.set(index_in_cache(g, n, row, h, x),
                   stored_new(before, before.v_descale, n, row, h,
                              before.v_new->get(g.new_index(n, row, h, x))));
  });
  return expected.bytes() == found.v.bytes()
             ? ""
             : "v: differs from its former contents with v_new appended";
}

Comparison compare_appended_keys(const Inputs& exact, const Inputs& naive, const Inputs& found) {
  const Case& c = found.what;
  const Geometry g(c);
  ComparedTensor keys;
  for_each_new_row(c, [&](std::size_t n, std::int64_t row, std::int64_t h) {
    for (int x = 0; x < c.head_dim; ++x) {
      const Dims at = index_in_cache(g, n, row, h, x);
      keys.reference.push_back(exact.k.get(at));
      keys.naive.push_back(naive.k.get(at));
      keys.device.push_back(found.k.get(at));
    }
  });
  return compare("k", keys, {.rounding = found.k.dtype()});
}

}  // namespace rocflash::verify
