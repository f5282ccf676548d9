// Products of Hopper's warpgroups and the rings of buffers that feed them. Nothing here knows about
// attention.
//
//   GroupTile     sums of products, 64 rows by some columns: each of the four warps has 16 rows
//   Fragments     a left operand in registers
//   RowLines, ColumnLines (tile/panels.hpp)   operands in shared memory
//   Products      one group of products, from the fence before it to its commit
//   Ring          buffers in shared memory that one thread has filled and warpgroups empty
//
// Products run on while the warps do something else, and their registers must not be touched until
// then. The compiler holds us to it (-Wconsumed): a tile or fragment that a product got is "in
// flight", and only wait() lets it be read or written again. A group that was not opened, or that
// is committed already, takes no products.
#pragma once

#include "arch/arch.hpp"
#include "tile/panels.hpp"
#include "tile/quads.hpp"

// States of a parameter: settled before and after; in flight afterwards; settled afterwards.
#define ROCFLASH_SETTLED [[clang::param_typestate(unconsumed), clang::return_typestate(unconsumed)]]
#define ROCFLASH_TAKES_OFF [[clang::return_typestate(consumed)]]
#define ROCFLASH_LANDS [[clang::return_typestate(unconsumed)]]

namespace rocflash::kernel {

inline constexpr int group_rows = 64;

template <int columns_>
class [[clang::consumable(unconsumed)]] GroupTile {
 public:
  static constexpr int columns = columns_, sums = columns / 2;
  // A lane has two rows, and two columns of every eight.
  static constexpr int lane_rows = 2, lane_columns = columns / 4;

  [[clang::return_typestate(unconsumed)]] GroupTile() {}  // whatever the registers hold

  // The element in row i and column n of the lane: of the warp's 16 rows, row(lane, i), and column
  // column(n) + lane_column(lane).
  [[clang::callable_when("unconsumed")]] float& at(int i, int n) {
    return sum_[4 * (n / 2) + 2 * i + n % 2];
  }
  [[clang::callable_when("unconsumed")]] float at(int i, int n) const {
    return sum_[4 * (n / 2) + 2 * i + n % 2];
  }
  static constexpr int row(int lane, int i) { return lane / 4 + 8 * i; }
  static constexpr int column(int n) { return 8 * (n / 2) + n % 2; }
  static constexpr int lane_column(int lane) { return 2 * (lane % 4); }

  [[clang::callable_when("unconsumed")]] void clear() {
    ROCFLASH_UNROLL
    for (int n = 0; n < sums; ++n) sum_[n] = 0;
  }
  [[clang::callable_when("unconsumed")]] void scale_row(int i, float factor) {
    ROCFLASH_UNROLL
    for (int n = 0; n < lane_columns; ++n) at(i, n) *= factor;
  }

 private:
  friend class Products;
  template <int open, int columns>
  friend void wait(GroupTile<columns>& tile ROCFLASH_LANDS);
  template <int columns>
  friend void expect(GroupTile<columns>& tile ROCFLASH_TAKES_OFF);

  [[clang::set_typestate(consumed)]] void take_off() {}
  [[clang::set_typestate(unconsumed)]] void land() {}

  float sum_[sums];
};

// A left operand of 64 rows, so many steps of the depth.
template <int steps_>
class [[clang::consumable(unconsumed)]] Fragments {
 public:
  static constexpr int steps = steps_;
  [[clang::return_typestate(unconsumed)]] Fragments() {}

  // Numbers of a tile, rounded: its columns are the depth, from step `first` on.
  template <DType dtype, int columns>
  [[clang::callable_when("unconsumed")]] void round(const GroupTile<columns>& tile ROCFLASH_SETTLED,
                                                    int first = 0) {
    ROCFLASH_UNROLL
    for (int n = 0; n < steps; ++n) {
      const auto two = [&](int row, int column) {
        return arch::narrow_two<dtype>(tile.at(row, 4 * (first + n) + column),
                                       tile.at(row, 4 * (first + n) + column + 1));
      };
      step_[n] = {two(0, 0), two(1, 0), two(0, 2), two(1, 2)};
    }
  }
  // The words of a step: of the warp's first eight rows and eight columns, of the rows below, and of both in
  // the next eight columns.
  [[clang::callable_when("unconsumed")]] Words4 words(int step) const { return step_[step]; }

 private:
  friend class Products;
  template <int open, int columns, int steps>
  friend void wait(GroupTile<columns>& tile ROCFLASH_LANDS, Fragments<steps>& left ROCFLASH_LANDS);
  template <int steps>
  friend void expect(Fragments<steps>& left ROCFLASH_TAKES_OFF);

  [[clang::set_typestate(consumed)]] void take_off() {}
  [[clang::set_typestate(unconsumed)]] void land() {}

  Words4 step_[steps];
};

// A left operand that stays in registers for good, read from 64 rows of a tile in shared memory.
template <int steps_>
class HeldFragments {
 public:
  static constexpr int steps = steps_;
  // Of a warp, whose rows start at first_row.
  template <class Tile>
  void load(SharedAddress tile, int first_row, int lane) {
    ROCFLASH_UNROLL
    for (int n = 0; n < steps; ++n)
      step_[n] = arch::load_matrices(
          tile + static_cast<std::uint32_t>(
                     Tile::offset(first_row + lane % 16, product_depth * n + lane / 16 * 8)));
  }

 private:
  friend class Products;
  Words4 step_[steps];
};

// One group of products of a warpgroup. Sums and fragments that ordinary code has touched since the
// last group are named when it is opened: what was computed for them is in their registers then.
class [[clang::consumable(unconsumed)]] Products {
 public:
  [[clang::return_typestate(unconsumed)]] Products() { arch::products_fence(); }
  template <int columns>
  [[clang::return_typestate(unconsumed)]] explicit Products(
      GroupTile<columns>& c ROCFLASH_SETTLED) {
    arch::Wgmma<columns>::pin(c.sum_);
    arch::products_fence();
    c.land();
  }
  template <int columns, int steps>
  [[clang::return_typestate(unconsumed)]] Products(GroupTile<columns>& c ROCFLASH_SETTLED,
                                                   Fragments<steps>& a ROCFLASH_SETTLED) {
    arch::Wgmma<columns>::pin(c.sum_);
    pin(a);
    arch::products_fence();
    c.land();
    a.land();
  }
  template <int steps>
  [[clang::return_typestate(unconsumed)]] explicit Products(Fragments<steps>& a ROCFLASH_SETTLED) {
    pin(a);
    arch::products_fence();
    a.land();
  }

  // C = A·B, and C += A·B, so many numbers deep; operands in shared memory.
  template <DType dtype, int depth, int columns, class A, class B>
  [[clang::callable_when("unconsumed")]] void multiply(GroupTile<columns>& c ROCFLASH_TAKES_OFF,
                                                       const A& a, const B& b) {
    issue<dtype, true>(c.sum_, a, b, 0);
    ROCFLASH_UNROLL
    for (int n = 1; n < depth / product_depth; ++n) issue<dtype, false>(c.sum_, a, b, n);
    c.take_off();
  }
  template <DType dtype, int depth, int columns, class A, class B>
  [[clang::callable_when("unconsumed")]] void add(GroupTile<columns>& c ROCFLASH_TAKES_OFF,
                                                  const A& a, const B& b) {
    ROCFLASH_UNROLL
    for (int n = 0; n < depth / product_depth; ++n) issue<dtype, false>(c.sum_, a, b, n);
    c.take_off();
  }
  // The same with A in registers.
  template <DType dtype, int columns, int steps, class B>
  [[clang::callable_when("unconsumed")]] void multiply(GroupTile<columns>& c ROCFLASH_TAKES_OFF,
                                                       Fragments<steps>& a ROCFLASH_TAKES_OFF,
                                                       const B& b) {
    issue<dtype, true>(c.sum_, a.step_, b);
    c.take_off();
    a.take_off();
  }
  template <DType dtype, int columns, int steps, class B>
  [[clang::callable_when("unconsumed")]] void multiply(GroupTile<columns>& c ROCFLASH_TAKES_OFF,
                                                       const HeldFragments<steps>& a, const B& b) {
    issue<dtype, true>(c.sum_, a.step_, b);
    c.take_off();
  }
  template <DType dtype, int columns, int steps, class B>
  [[clang::callable_when("unconsumed")]] void add(GroupTile<columns>& c ROCFLASH_TAKES_OFF,
                                                  Fragments<steps>& a ROCFLASH_TAKES_OFF,
                                                  const B& b) {
    issue<dtype, false>(c.sum_, a.step_, b);
    c.take_off();
    a.take_off();
  }

  // C += A·B in some columns of C alone, at which B's lines start: an instruction may have no more registers than
  // a thread had at the launch.
  template <DType dtype, int first, int count, int columns, int steps, class B>
  [[clang::callable_when("unconsumed")]] void add_columns(GroupTile<columns>& c ROCFLASH_TAKES_OFF,
                                                          Fragments<steps>& a ROCFLASH_TAKES_OFF,
                                                          const B& b) {
    static_assert(first + count <= columns && first % 8 == 0);
    auto& part = reinterpret_cast<float (&)[count / 2]>(c.sum_[first / 2]);
    issue<dtype, false>(part, a.step_, b);
    c.take_off();
    a.take_off();
  }

  [[clang::callable_when("unconsumed"), clang::set_typestate(consumed)]] void commit() {
    arch::commit_products();
  }

 private:
  template <DType dtype, bool fresh, int sums, class A, class B>
  static void issue(float (&c)[sums], const A& a, const B& b, int n) {
    arch::Wgmma<2 * sums>::template shared<dtype, fresh, A::transposed, B::transposed>(c, a.step(n),
                                                                                       b.step(n));
  }
  // All steps with A in registers; a `fresh` product starts from 0.
  template <DType dtype, bool fresh, int sums, int steps, class B>
  static void issue(float (&c)[sums], const Words4 (&a)[steps], const B& b) {
    using Unit = arch::Wgmma<2 * sums>;
    Unit::template registers<dtype, fresh, B::transposed>(c, a[0], b.step(0));
    ROCFLASH_UNROLL
    for (int n = 1; n < steps; ++n)
      Unit::template registers<dtype, false, B::transposed>(c, a[n], b.step(n));
  }
  template <int steps>
  static void pin(Fragments<steps>& a ROCFLASH_SETTLED) {
    ROCFLASH_UNROLL
    for (int n = 0; n < steps; ++n) arch::pin(a.step_[n]);
    a.land();
  }
};

// From here on the tile counts as in flight, as a loop needs it whose products are over its end.
template <int columns>
void expect(GroupTile<columns>& tile ROCFLASH_TAKES_OFF) {
  tile.take_off();
}
template <int steps>
void expect(Fragments<steps>& left ROCFLASH_TAKES_OFF) {
  left.take_off();
}

// Waits until at most `open` of the groups committed so far are unfinished. It is for the caller to
// see that the tile's, and the fragments', is not among those.
template <int open, int columns>
void wait(GroupTile<columns>& tile ROCFLASH_LANDS) {
  arch::Wgmma<columns>::template wait<open>(tile.sum_);
  tile.land();
}
template <int open, int columns, int steps>
void wait(GroupTile<columns>& tile ROCFLASH_LANDS, Fragments<steps>& left ROCFLASH_LANDS) {
  wait<open>(tile);
  left.land();
}

// The barriers of a ring of buffers. One thread fills: it waits until a buffer is empty, announces
// the bytes to come, and starts copies that report to the barrier it is given. Or several `fillers`
// store, and each announces its own. Each of the `drainers` waits until a buffer is full, and has one
// thread report that it is done with it.
template <int stages>
class Ring {
 public:
  static constexpr int bytes = 2 * stages * arch::barrier_bytes;
  explicit Ring(SharedAddress barriers) : barriers_(barriers) {}

  // By one thread, before arch::publish_barriers().
  void make(int drainers, int fillers = 1) const {
    for (int n = 0; n < stages; ++n) {
      arch::make_barrier(full(n), fillers);
      arch::make_barrier(empty(n), drainers);
    }
  }

  SharedAddress fill(const FillPlace<stages>& place, int copied) const {
    wait_until_empty(place);
    return announce(place, copied);
  }
  // The two halves of that: whatever the thread stores between them, drainers see.
  void wait_until_empty(const FillPlace<stages>& place) const {
    arch::wait_for_phase(empty(place.stage()), place.parity());
  }
  SharedAddress announce(const FillPlace<stages>& place, int copied) const {
    arch::arrive_and_expect(full(place.stage()), copied);
    return full(place.stage());
  }
  void wait(const DrainPlace<stages>& place) const {
    arch::wait_for_phase(full(place.stage()), place.parity());
  }
  void release(const DrainPlace<stages>& place) const { arch::arrive(empty(place.stage())); }
  // For those who count stages and phases on their own.
  void release_stage(int stage) const { arch::arrive(empty(stage)); }
  void wait_until_empty(int stage, std::uint32_t parity) const {
    arch::wait_for_phase(empty(stage), parity);
  }

 private:
  SharedAddress full(int stage) const {
    return barriers_ + static_cast<std::uint32_t>(stage * arch::barrier_bytes);
  }
  SharedAddress empty(int stage) const {
    return barriers_ + static_cast<std::uint32_t>((stages + stage) * arch::barrier_bytes);
  }
  SharedAddress barriers_;
};

// Row i of a lane's results times `factor`, or zeros where it is not in use, to the columns that exist. Four lanes that
// share a row turn their words so that each stores sixteen bytes. NaN where a result is not finite, else 0.
template <DType dtype, class Tile>
float store_row(const Tile& results ROCFLASH_SETTLED, int i, float factor, bool in_use,
                std::byte* row, bool exists, int columns) {
  const int lane = arch::lane();
  float probe = 0;
  ROCFLASH_UNROLL
  for (int n = 0; n < Tile::lane_columns; n += 2 * row_lanes) {
    Words4 words;
    ROCFLASH_UNROLL
    for (int j = 0; j < row_lanes; ++j) {
      const float x = results.at(i, n + 2 * j), y = results.at(i, n + 2 * j + 1);
      probe = __builtin_fmaf(y, 0.0f, __builtin_fmaf(x, 0.0f, probe));
      words[j] = in_use ? arch::narrow_two<dtype>(x * factor, y * factor) : 0;
    }
    words = turned_in_quad(words);
    const int column = Tile::column(n) + 8 * (lane % row_lanes);
    if (exists && column < columns)
      arch::store(reinterpret_cast<Words4*>(row + column * number_bytes<dtype>), words);
  }
  return probe;
}

// Rows of a tile in shared memory from `rows` on become 0, by so many threads.
template <class Tile>
void clear_rows(SharedAddress tile, std::int32_t rows, int thread, int threads) {
  constexpr int chunks = Tile::row_bytes / 16;  // of a row of a panel
  _Pragma("clang loop unroll(disable)") for (int n = thread; n < Tile::count * Tile::rows * chunks;
                                             n += threads) {
    if (n / chunks % Tile::rows >= rows)
      arch::store_shared(tile + static_cast<std::uint32_t>(16 * n), Words4{});
  }
  arch::publish_shared();
}

// Copies rows of a tile to shared memory, panel by panel. The map's box is one panel.
template <class Tile>
void copy_tile(SharedAddress to, const TensorMap& map, SharedAddress full, int row, int head,
               int batch, arch::Reuse reuse) {
  ROCFLASH_UNROLL
  for (int n = 0; n < Tile::count; ++n)
    arch::copy_box(to + static_cast<std::uint32_t>(n * Tile::panel_bytes), map, full,
                   n * Tile::width, row, head, batch, reuse);
}

}  // namespace rocflash::kernel
