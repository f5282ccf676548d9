// cp.async loads of Q, K and V rows from global to shared memory (sm_80 and later). Rows and
// columns out of bounds are zero-filled.
#pragma once

#include "attention/rows.hpp"
#include "tile/swizzled.hpp"

namespace rocflash::kernel {

// Loads a tensor to shared memory, `count` rows at a time. Specialized variant: 16-byte aligned
// rows with one stride.
template <DType dtype, int bucket, int count, int threads, Variant variant>
class CpAsyncTile {
 public:
  CpAsyncTile(const Rows& rows, std::int32_t, std::int64_t batch, std::int64_t first,
              std::int64_t head)
      : rows_(rows) {
    const Task task(arch::thread());
    from_ = row_address<dtype>(rows, batch, first + task.row, head) + 16 * task.chunk;
  }

  // Issues the loads of the next `count` rows, of which `left` exist.
  void next(SharedAddress tile, std::int32_t left) {
    const Task task(arch::opaque_thread());
    if (left >= count) {
      copy(task, tile, [](int) { return true; });
    } else {
      copy(task, tile, [left = left - task.row](int row) { return row < left; });
    }
    from_ += count * rows_.row_stride * element_bytes<dtype>;
  }

 private:
  using Task = CopyTask<bucket * element_bytes<dtype>, count, threads>;
  static constexpr int chunk_columns = 16 / element_bytes<dtype>;
  template <class InBounds>
  void copy(const Task& task, SharedAddress tile, InBounds in_bounds) const {
    if (task.idle()) return;
    const SharedAddress to = task.first(tile);
    const bool column_in_bounds = chunk_columns * task.chunk < rows_.columns;
    // The launch plan guarantees that 256 rows are less than 2^31 bytes.
    const std::uint32_t stride = arch::opaque_vgpr(
        static_cast<std::uint32_t>(Task::step * rows_.row_stride * element_bytes<dtype>));
    const std::byte* from = from_;
    ROCFLASH_UNROLL
    for (int n = 0; n < Task::rounds; ++n) {
      arch::cp_async(Task::next(to, n), from, column_in_bounds && in_bounds(n * Task::step));
      from += stride;
    }
  }

  const Rows& rows_;
  const std::byte* from_;
};

// Generic variant: any strides, alignment and number of columns, and a paged KV cache.
template <DType dtype, int bucket, int count, int threads>
class CpAsyncTile<dtype, bucket, count, threads, Variant::generic> {
 public:
  CpAsyncTile(const Rows& rows, std::int32_t caches, std::int64_t batch, std::int64_t first,
              std::int64_t head)
      : specialized_(rows, caches, batch, first, head),
        rows_(rows),
        batch_(batch),
        first_(first),
        head_(head),
        caches_(caches) {
    const auto bits = reinterpret_cast<std::uintptr_t>(rows.data) |
                      static_cast<std::uintptr_t>(rows.batch_stride * element_bytes<dtype>) |
                      static_cast<std::uintptr_t>(rows.row_stride * element_bytes<dtype>) |
                      static_cast<std::uintptr_t>(rows.head_stride * element_bytes<dtype>) |
                      static_cast<std::uintptr_t>(rows.columns * element_bytes<dtype>);
    aligned_chunks_ = bits % 16 == 0;
    is_specialized_ =
        aligned_chunks_ && !rows.blocks && rows.row_stride >= 0 && rows.row_stride < (1 << 22);
  }

  void next(SharedAddress tile, std::int32_t left) {
    if (is_specialized_) return specialized_.next(tile, left);
    const Task task(arch::opaque_thread());
    const SharedAddress to = task.first(tile);
    const int column = chunk_columns * task.chunk;
    if (task.idle()) {
    } else if (aligned_chunks_) {
      // All addresses before the first cp.async: the block table lookups overlap.
      const std::byte* from[Task::rounds];
      ROCFLASH_UNROLL
      for (int n = 0; n < Task::rounds; ++n) {
        const int row = task.row + n * Task::step;
        from[n] = key_row<dtype>(rows_, caches_, batch_, first_ + (row < left ? row : 0), head_) +
                  element_bytes<dtype> * column;
      }
      ROCFLASH_UNROLL
      for (int n = 0; n < Task::rounds; ++n)
        arch::cp_async(Task::next(to, n), from[n],
                       task.row + n * Task::step < left && column < rows_.columns);
    } else {
      const RowBlock<dtype, Variant::generic> block(rows_, caches_, batch_, first_, left, head_);
      _Pragma("nounroll") for (int n = 0; n < Task::rounds; ++n)
          arch::store_shared(Task::next(to, n), block.load8({task.row + n * Task::step, column}));
    }
    first_ += count;
  }

 private:
  using Task = CopyTask<bucket * element_bytes<dtype>, count, threads>;
  static constexpr int chunk_columns = 16 / element_bytes<dtype>;
  CpAsyncTile<dtype, bucket, count, threads, Variant::specialized> specialized_;
  const Rows& rows_;
  std::int64_t batch_, first_, head_;
  std::int32_t caches_;
  bool aligned_chunks_, is_specialized_;
};

// Negates the elements that this thread has loaded.
template <DType dtype, int bucket, int count, int threads>
void negate_tile(SharedAddress tile) {
  using Task = CopyTask<bucket * element_bytes<dtype>, count, threads>;
  const Task task(arch::thread());
  const SharedAddress begin = task.first(tile);
  for (int n = 0; n < Task::rounds && !task.idle(); ++n)
    arch::store_shared(Task::next(begin, n),
                       negated<dtype>(arch::load_shared(Task::next(begin, n))));
}

}  // namespace rocflash::kernel
