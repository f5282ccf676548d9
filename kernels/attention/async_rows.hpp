// Rows of q, k and v copied from global to shared memory past the registers, as NVIDIA GPUs from
// sm_80 on do. Rows and columns outside the tensor become 0.
#pragma once

#include "attention/rows.hpp"
#include "tile/swizzled.hpp"

namespace rocflash::kernel {

// Copies a tensor to shared memory, `count` rows at a time. Plain: rows on 16 bytes and one stride.
template <DType dtype, int bucket, int count, int threads, Variant variant>
class TileCopy {
 public:
  TileCopy(const Rows& rows, std::int32_t, std::int64_t batch, std::int64_t first,
           std::int64_t head)
      : rows_(rows) {
    const Task task(arch::thread());
    from_ = row_address<dtype>(rows, batch, first + task.row, head) + 16 * task.chunk;
  }

  // Starts the copies of the next `count` rows, of which `left` exist.
  void next(SharedAddress tile, std::int32_t left) {
    const Task task(arch::renewed_thread());
    if (left >= count) {
      copy(task, tile, [](int) { return true; });
    } else {
      copy(task, tile, [left = left - task.row](int row) { return row < left; });
    }
    from_ += count * rows_.row_stride * number_bytes<dtype>;
  }

 private:
  using Task = CopyTask<bucket * number_bytes<dtype>, count, threads>;
  static constexpr int chunk_columns = 16 / number_bytes<dtype>;
  template <class There>
  void copy(const Task& task, SharedAddress tile, There there) const {
    if (task.idle()) return;
    const SharedAddress to = task.first(tile);
    const bool column_there = chunk_columns * task.chunk < rows_.columns;
    // The plan keeps 256 rows below 2^31 bytes.
    const std::uint32_t stride = arch::renew(
        static_cast<std::uint32_t>(Task::step * rows_.row_stride * number_bytes<dtype>));
    const std::byte* from = from_;
    ROCFLASH_UNROLL
    for (int n = 0; n < Task::rounds; ++n) {
      arch::copy_async(Task::next(to, n), from, column_there && there(n * Task::step));
      from += stride;
    }
  }

  const Rows& rows_;
  const std::byte* from_;
};

// Full: any strides, alignment and number of columns, and pages.
template <DType dtype, int bucket, int count, int threads>
class TileCopy<dtype, bucket, count, threads, Variant::full> {
 public:
  TileCopy(const Rows& rows, std::int32_t caches, std::int64_t batch, std::int64_t first,
           std::int64_t head)
      : plain_(rows, caches, batch, first, head),
        rows_(rows),
        batch_(batch),
        first_(first),
        head_(head),
        caches_(caches) {
    const auto bits = reinterpret_cast<std::uintptr_t>(rows.data) |
                      static_cast<std::uintptr_t>(rows.batch_stride * number_bytes<dtype>) |
                      static_cast<std::uintptr_t>(rows.row_stride * number_bytes<dtype>) |
                      static_cast<std::uintptr_t>(rows.head_stride * number_bytes<dtype>) |
                      static_cast<std::uintptr_t>(rows.columns * number_bytes<dtype>);
    whole_chunks_ = bits % 16 == 0;
    is_plain_ =
        whole_chunks_ && !rows.blocks && rows.row_stride >= 0 && rows.row_stride < (1 << 22);
  }

  void next(SharedAddress tile, std::int32_t left) {
    if (is_plain_) return plain_.next(tile, left);
    const Task task(arch::renewed_thread());
    const SharedAddress to = task.first(tile);
    const int column = chunk_columns * task.chunk;
    if (task.idle()) {
    } else if (whole_chunks_) {
      // All addresses come before the first copy: finding a row in a page takes a load.
      const std::byte* from[Task::rounds];
      ROCFLASH_UNROLL
      for (int n = 0; n < Task::rounds; ++n) {
        const int row = task.row + n * Task::step;
        from[n] = key_row<dtype>(rows_, caches_, batch_, first_ + (row < left ? row : 0), head_) +
                  number_bytes<dtype> * column;
      }
      ROCFLASH_UNROLL
      for (int n = 0; n < Task::rounds; ++n)
        arch::copy_async(Task::next(to, n), from[n],
                         task.row + n * Task::step < left && column < rows_.columns);
    } else {
      const RowBlock<dtype, Variant::full> block(rows_, caches_, batch_, first_, left, head_);
      _Pragma("nounroll") for (int n = 0; n < Task::rounds; ++n)
          arch::store_shared(Task::next(to, n), block.load8({task.row + n * Task::step, column}));
    }
    first_ += count;
  }

 private:
  using Task = CopyTask<bucket * number_bytes<dtype>, count, threads>;
  static constexpr int chunk_columns = 16 / number_bytes<dtype>;
  TileCopy<dtype, bucket, count, threads, Variant::plain> plain_;
  const Rows& rows_;
  std::int64_t batch_, first_, head_;
  std::int32_t caches_;
  bool whole_chunks_, is_plain_;
};

// Changes the signs of the numbers that this thread has copied.
template <DType dtype, int bucket, int count, int threads>
void turn_signs(SharedAddress tile) {
  using Task = CopyTask<bucket * number_bytes<dtype>, count, threads>;
  const Task task(arch::thread());
  const SharedAddress begin = task.first(tile);
  constexpr std::uint32_t signs = dtype == DType::f32 ? 0x80000000u : 0x80008000u;
  for (int n = 0; n < Task::rounds && !task.idle(); ++n)
    arch::store_shared(Task::next(begin, n), arch::load_shared(Task::next(begin, n)) ^ signs);
}

}  // namespace rocflash::kernel
