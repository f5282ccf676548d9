// The tensors of one call. All must be on one device, and outputs must not alias other tensors.
// Checks of single tensors follow the class.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

#include "api/tensor.hpp"
#include "core/error.hpp"
#include "core/problem.hpp"

namespace rocflash {

// Whether a tensor is a view of the first columns of `whole`.
bool is_column_prefix(const Tensor& t, const Tensor& whole);

// What a plan keeps of a tensor of the call that it is created from.
struct RecordedTensor {
  Tensor tensor;
  Access access;
  bool is_null;  // without data
};
using TensorRecord = std::vector<RecordedTensor>;

class CallTensors {
 public:
  // `record`, if given, receives each tensor.
  CallTensors(Device device, Data data, TensorRecord* record = nullptr)
      : device_(device), data_(data), record_(record) {}

  std::optional<Tensor> optional(const char* name, const DLTensor* in, Access access) {
    auto t = on_device(read_tensor(name, in, access, data_), in, access);
    if (t && data_ == Data::required) check_aliasing(*t, access);
    return t;
  }
  Tensor required(const char* name, const DLTensor* in, Access access) {
    if (!in) refuse(name, " is null; it is required");
    return *optional(name, in, access);
  }
  // As `required`, for a tensor that may alias the first columns of `whole` even if both are
  // written: the values of an MLA cache.
  Tensor required_within(const Tensor& whole, const char* name, const DLTensor* in, Access access) {
    if (!in) refuse(name, " is null; it is required");
    const Tensor t = *on_device(read_tensor(name, in, access, data_), in, access);
    if (data_ == Data::required && !is_column_prefix(t, whole)) check_aliasing(t, access);
    return t;
  }
  // On the host the lengths determine the workspace, so a workspace query needs their data too.
  std::optional<Tensor> lengths(const char* name, const DLTensor* in) {
    auto t = on_device(read_tensor(name, in, Access::read, on_host() ? Data::required : data_), in,
                       Access::read);
    if (t && (on_host() || data_ == Data::required)) check_aliasing(*t, Access::read);
    return t;
  }
  // Whether lengths can be read. Reading those of a GPU would synchronize with its stream.
  bool on_host() const { return device_.type == kDLCPU; }

 private:
  std::optional<Tensor> on_device(std::optional<Tensor> t, const DLTensor* in, Access access) {
    if (t && t->device != device_) {
      refuse(t->name, " is on ", device_text(t->device), "; it must be on ", device_text(device_),
             ", the device of q");
    }
    // There is no `t` without `in`.
    if (t && record_)
      record_->push_back({*t, access, in->data == nullptr});  // NOLINT(clang-analyzer-core.*)
    return t;
  }

  // Tensors that share memory must both be inputs.
  void check_aliasing(const Tensor& t, Access access) {
    const Extent extent(t);
    for (std::size_t n = 0; n < known_count_; ++n) {
      if ((access == Access::write || known_[n].access == Access::write) &&
          overlap(known_[n].extent, extent))
        refuse(t.name, " overlaps ", known_[n].name,
               " in memory; an output must not overlap another tensor");
    }
    if (known_count_ < known_.size()) known_[known_count_++] = {t.name, extent, access};
  }

  struct Known {
    const char* name;
    Extent extent;
    Access access;
  };

  Device device_;
  Data data_;
  TensorRecord* record_;
  std::array<Known, 32> known_;  // more than any call has
  std::size_t known_count_ = 0;
};

void check_dtype(const Tensor&, std::initializer_list<DType> allowed);
void check_ndim(const Tensor&, int ndim, const char* dims);
void check_shape(const Tensor&, std::initializer_list<std::int64_t> shape, const char* dims);

// The last three dimensions are (row, head, column); dense tensors have a batch dimension first.
Rows rows_of(const Tensor&, bool packed);

// The data of an i32 tensor of shape (count,), or null.
const std::int32_t* int_values(const std::optional<Tensor>&, std::int64_t count, const char* dims);

// Cumulative sequence lengths must not decrease and must end within the packed tensor.
void check_cumulative(const char* name, const std::int32_t* cu, std::int64_t batch,
                      std::int64_t rows);

bool flag(const char* name, std::int32_t value);

}  // namespace rocflash
