// WGMMA of Hopper's warpgroups, and the TMA pipelines that feed them. Nothing here is specific to
// attention.
//
//   WarpgroupTile       accumulators of 64 rows; each of the four warps has 16 rows
//   Fragments           an A operand in registers
//   KMajorOperand, MnMajorOperand (tile/tma_tile.hpp)   operands in shared memory
//   WgmmaBatch          the WGMMAs from wgmma.fence to wgmma.commit_group
//   Pipeline            stages in shared memory with full and empty mbarriers
//
// WGMMAs are asynchronous: their registers must not be accessed while they are in flight. Clang
// enforces this with typestate analysis (-Wconsumed): an accumulator or fragment that was passed to
// a WGMMA is "in flight", and only wait() makes it accessible again. A batch accepts no WGMMAs
// after its commit.
#pragma once

#include "arch/arch.hpp"
#include "tile/quads.hpp"
#include "tile/tma_tile.hpp"

// Typestates of a parameter: IDLE: accessible before and after the call; BEGIN: in flight after it;
// END: accessible after it.
#define ROCFLASH_ASYNC_IDLE \
  [[clang::param_typestate(unconsumed), clang::return_typestate(unconsumed)]]
#define ROCFLASH_ASYNC_BEGIN [[clang::return_typestate(consumed)]]
#define ROCFLASH_ASYNC_END [[clang::return_typestate(unconsumed)]]

namespace rocflash::kernel {

inline constexpr int warpgroup_rows = 64;

template <int columns_>
class [[clang::consumable(unconsumed)]] WarpgroupTile {
 public:
  static constexpr int columns = columns_, sums = columns / 2;
  // A lane has two rows, and two columns of every eight.
  static constexpr int lane_rows = 2, lane_columns = columns / 4;

  [[clang::return_typestate(unconsumed)]] WarpgroupTile() {}  // uninitialized

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
  friend class WgmmaBatch;
  template <int open, int columns>
  friend void wait(WarpgroupTile<columns>& tile ROCFLASH_ASYNC_END);
  template <int columns>
  friend void assume_in_flight(WarpgroupTile<columns>& tile ROCFLASH_ASYNC_BEGIN);

  [[clang::set_typestate(consumed)]] void begin_async() {}
  [[clang::set_typestate(unconsumed)]] void end_async() {}

  float sum_[sums];
};

// An A operand of 64 rows and `steps` k-steps in registers.
template <int steps_>
class [[clang::consumable(unconsumed)]] Fragments {
 public:
  static constexpr int steps = steps_;
  [[clang::return_typestate(unconsumed)]] Fragments() {}

  // Converts accumulators from k-step `first` on; their columns become the k dimension.
  template <DType dtype, int columns>
  [[clang::callable_when("unconsumed")]] void convert(
      const WarpgroupTile<columns>& tile ROCFLASH_ASYNC_IDLE, int first = 0) {
    ROCFLASH_UNROLL
    for (int n = 0; n < steps; ++n) {
      const auto two = [&](int row, int column) {
        return arch::cvt_pack<dtype>(tile.at(row, 4 * (first + n) + column),
                                     tile.at(row, 4 * (first + n) + column + 1));
      };
      step_[n] = {two(0, 0), two(1, 0), two(0, 2), two(1, 2)};
    }
  }
  // The fragment of a k-step: rows 0-7 and rows 8-15 of the warp in its first eight columns, then
  // in its next eight columns.
  [[clang::callable_when("unconsumed")]] Words4 words(int step) const { return step_[step]; }

 private:
  friend class WgmmaBatch;
  template <int open, int columns, int steps>
  friend void wait(WarpgroupTile<columns>& tile ROCFLASH_ASYNC_END,
                   Fragments<steps>& left ROCFLASH_ASYNC_END);
  template <int steps>
  friend void assume_in_flight(Fragments<steps>& left ROCFLASH_ASYNC_BEGIN);

  [[clang::set_typestate(consumed)]] void begin_async() {}
  [[clang::set_typestate(unconsumed)]] void end_async() {}

  Words4 step_[steps];
};

// An A operand that stays in registers during the main loop, loaded from 64 rows of a shared memory
// tile.
template <int steps_>
class ResidentFragments {
 public:
  static constexpr int steps = steps_;
  // `first_row` is the warp's first row.
  template <class Tile>
  void load(SharedAddress tile, int first_row, int lane) {
    ROCFLASH_UNROLL
    for (int n = 0; n < steps; ++n)
      step_[n] = arch::ldmatrix_x4(tile + static_cast<std::uint32_t>(Tile::offset(
                                              first_row + lane % 16, wgmma_k * n + lane / 16 * 8)));
  }

 private:
  friend class WgmmaBatch;
  Words4 step_[steps];
};

// One batch of WGMMAs (a wgmma-group). Accumulators and fragments that were accessed since the last
// batch are passed to the constructor, which forces pending writes into their registers before the
// fence.
class [[clang::consumable(unconsumed)]] WgmmaBatch {
 public:
  [[clang::return_typestate(unconsumed)]] WgmmaBatch() { arch::wgmma_fence(); }
  template <int columns>
  [[clang::return_typestate(unconsumed)]] explicit WgmmaBatch(
      WarpgroupTile<columns>& c ROCFLASH_ASYNC_IDLE) {
    arch::Wgmma<columns>::pin(c.sum_);
    arch::wgmma_fence();
    c.end_async();
  }
  template <int columns, int steps>
  [[clang::return_typestate(unconsumed)]] WgmmaBatch(WarpgroupTile<columns>& c ROCFLASH_ASYNC_IDLE,
                                                     Fragments<steps>& a ROCFLASH_ASYNC_IDLE) {
    arch::Wgmma<columns>::pin(c.sum_);
    pin(a);
    arch::wgmma_fence();
    c.end_async();
    a.end_async();
  }
  template <int steps>
  [[clang::return_typestate(unconsumed)]] explicit WgmmaBatch(
      Fragments<steps>& a ROCFLASH_ASYNC_IDLE) {
    pin(a);
    arch::wgmma_fence();
    a.end_async();
  }

  // C = A·B and C += A·B with k = `depth`; operands in shared memory.
  template <DType dtype, int depth, int columns, class A, class B>
  [[clang::callable_when("unconsumed")]] void multiply(
      WarpgroupTile<columns>& c ROCFLASH_ASYNC_BEGIN, const A& a, const B& b) {
    issue<dtype, true>(c.sum_, a, b, 0);
    ROCFLASH_UNROLL
    for (int n = 1; n < depth / wgmma_k; ++n) issue<dtype, false>(c.sum_, a, b, n);
    c.begin_async();
  }
  template <DType dtype, int depth, int columns, class A, class B>
  [[clang::callable_when("unconsumed")]] void add(WarpgroupTile<columns>& c ROCFLASH_ASYNC_BEGIN,
                                                  const A& a, const B& b) {
    ROCFLASH_UNROLL
    for (int n = 0; n < depth / wgmma_k; ++n) issue<dtype, false>(c.sum_, a, b, n);
    c.begin_async();
  }
  // The same with A in registers.
  template <DType dtype, int columns, int steps, class B>
  [[clang::callable_when("unconsumed")]] void multiply(
      WarpgroupTile<columns>& c ROCFLASH_ASYNC_BEGIN, Fragments<steps>& a ROCFLASH_ASYNC_BEGIN,
      const B& b) {
    issue<dtype, true>(c.sum_, a.step_, b);
    c.begin_async();
    a.begin_async();
  }
  template <DType dtype, int columns, int steps, class B>
  [[clang::callable_when("unconsumed")]] void multiply(
      WarpgroupTile<columns>& c ROCFLASH_ASYNC_BEGIN, const ResidentFragments<steps>& a,
      const B& b) {
    issue<dtype, true>(c.sum_, a.step_, b);
    c.begin_async();
  }
  template <DType dtype, int columns, int steps, class B>
  [[clang::callable_when("unconsumed")]] void add(WarpgroupTile<columns>& c ROCFLASH_ASYNC_BEGIN,
                                                  Fragments<steps>& a ROCFLASH_ASYNC_BEGIN,
                                                  const B& b) {
    issue<dtype, false>(c.sum_, a.step_, b);
    c.begin_async();
    a.begin_async();
  }

  // C += A·B for columns [first, first + count) of C; B starts at those columns. The accumulators
  // of one WGMMA must not exceed the registers per thread at kernel launch.
  template <DType dtype, int first, int count, int columns, int steps, class B>
  [[clang::callable_when("unconsumed")]] void add_columns(
      WarpgroupTile<columns>& c ROCFLASH_ASYNC_BEGIN, Fragments<steps>& a ROCFLASH_ASYNC_BEGIN,
      const B& b) {
    static_assert(first + count <= columns && first % 8 == 0);
    auto& part = reinterpret_cast<float (&)[count / 2]>(c.sum_[first / 2]);
    issue<dtype, false>(part, a.step_, b);
    c.begin_async();
    a.begin_async();
  }

  [[clang::callable_when("unconsumed"), clang::set_typestate(consumed)]] void commit() {
    arch::wgmma_commit();
  }

 private:
  template <DType dtype, bool fresh, int sums, class A, class B>
  static void issue(float (&c)[sums], const A& a, const B& b, int n) {
    arch::Wgmma<2 * sums>::template shared<dtype, fresh, A::transposed, B::transposed>(c, a.step(n),
                                                                                       b.step(n));
  }
  // All k-steps with A in registers; `fresh`: C = A·B.
  template <DType dtype, bool fresh, int sums, int steps, class B>
  static void issue(float (&c)[sums], const Words4 (&a)[steps], const B& b) {
    using Unit = arch::Wgmma<2 * sums>;
    Unit::template registers<dtype, fresh, B::transposed>(c, a[0], b.step(0));
    ROCFLASH_UNROLL
    for (int n = 1; n < steps; ++n)
      Unit::template registers<dtype, false, B::transposed>(c, a[n], b.step(n));
  }
  template <int steps>
  static void pin(Fragments<steps>& a ROCFLASH_ASYNC_IDLE) {
    ROCFLASH_UNROLL
    for (int n = 0; n < steps; ++n) arch::pin(a.step_[n]);
    a.end_async();
  }
};

// Marks the operand as in flight, for loops whose WGMMAs stay in flight across iterations.
template <int columns>
void assume_in_flight(WarpgroupTile<columns>& tile ROCFLASH_ASYNC_BEGIN) {
  tile.begin_async();
}
template <int steps>
void assume_in_flight(Fragments<steps>& left ROCFLASH_ASYNC_BEGIN) {
  left.begin_async();
}

// Waits until at most `open` committed batches are in flight (wgmma.wait_group). The caller
// guarantees that those of the tile and the fragments are not among them.
template <int open, int columns>
void wait(WarpgroupTile<columns>& tile ROCFLASH_ASYNC_END) {
  arch::Wgmma<columns>::template wait<open>(tile.sum_);
  tile.end_async();
}
template <int open, int columns, int steps>
void wait(WarpgroupTile<columns>& tile ROCFLASH_ASYNC_END,
          Fragments<steps>& left ROCFLASH_ASYNC_END) {
  wait<open>(tile);
  left.end_async();
}

// The full and empty mbarriers of a software pipeline. A TMA producer thread waits until a stage is
// empty, sets the expected transaction bytes, and issues loads that complete on the full mbarrier.
// Alternatively `producers` threads store to the stage, and each arrives for its own stores. Each
// of the `consumers` waits until a stage is full and releases it with one arrival.
template <int stages>
class Pipeline {
 public:
  static constexpr int bytes = 2 * stages * arch::mbarrier_bytes;
  explicit Pipeline(SharedAddress barriers) : barriers_(barriers) {}

  // Called by one thread, before arch::fence_mbarrier_init().
  void init(int consumers, int producers = 1) const {
    for (int n = 0; n < stages; ++n) {
      arch::mbarrier_init(full(n), producers);
      arch::mbarrier_init(empty(n), consumers);
    }
  }

  SharedAddress producer_acquire_expect_tx(const ProducerState<stages>& state, int copied) const {
    producer_acquire(state);
    return producer_expect_tx(state, copied);
  }
  // The two steps separately: stores between them are visible to the consumers.
  void producer_acquire(const ProducerState<stages>& state) const {
    arch::mbarrier_wait_parity(empty(state.stage()), state.parity());
  }
  SharedAddress producer_expect_tx(const ProducerState<stages>& state, int copied) const {
    arch::mbarrier_arrive_expect_tx(full(state.stage()), copied);
    return full(state.stage());
  }
  void consumer_wait(const ConsumerState<stages>& state) const {
    arch::mbarrier_wait_parity(full(state.stage()), state.parity());
  }
  void consumer_release(const ConsumerState<stages>& state) const {
    arch::mbarrier_arrive(empty(state.stage()));
  }
  // For callers with stage and phase counters of their own.
  void consumer_release_stage(int stage) const { arch::mbarrier_arrive(empty(stage)); }
  void producer_acquire(int stage, std::uint32_t parity) const {
    arch::mbarrier_wait_parity(empty(stage), parity);
  }

 private:
  SharedAddress full(int stage) const {
    return barriers_ + static_cast<std::uint32_t>(stage * arch::mbarrier_bytes);
  }
  SharedAddress empty(int stage) const {
    return barriers_ + static_cast<std::uint32_t>((stages + stage) * arch::mbarrier_bytes);
  }
  SharedAddress barriers_;
};

// Stores row i of a lane's accumulators times `factor`, or zeros if the row is not in use. The four
// lanes of a row transpose their words, so that each stores 16 bytes. Returns NaN if an accumulator
// is not finite, else 0.
template <DType dtype, class Tile>
float store_row(const Tile& results ROCFLASH_ASYNC_IDLE, int i, float factor, bool in_use,
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
      words[j] = in_use ? arch::cvt_pack<dtype>(x * factor, y * factor) : 0;
    }
    words = transpose_in_quad(words);
    const int column = Tile::column(n) + 8 * (lane % row_lanes);
    if (exists && column < columns)
      arch::store(reinterpret_cast<Words4*>(row + column * element_bytes<dtype>), words);
  }
  return probe;
}

// Zeroes the rows of a shared memory tile from `rows` on, with `threads` threads.
template <class Tile>
void clear_rows(SharedAddress tile, std::int32_t rows, int thread, int threads) {
  constexpr int chunks = Tile::row_bytes / 16;  // of a row of a column block
  _Pragma("clang loop unroll(disable)") for (int n = thread; n < Tile::count * Tile::rows * chunks;
                                             n += threads) {
    if (n / chunks % Tile::rows >= rows)
      arch::store_shared(tile + static_cast<std::uint32_t>(16 * n), Words4{});
  }
  arch::fence_proxy_async();
}

// Issues the TMA loads of a tile, one box per column block.
template <class Tile>
void tma_load_tile(SharedAddress to, const TensorMap& map, SharedAddress full, int row, int head,
                   int batch, arch::CacheHint reuse) {
  ROCFLASH_UNROLL
  for (int n = 0; n < Tile::count; ++n)
    arch::tma_load(to + static_cast<std::uint32_t>(n * Tile::column_block_bytes), map, full,
                   n * Tile::width, row, head, batch, reuse);
}

}  // namespace rocflash::kernel
