// The tensors of one call: each read by its name, all of them held to one device, and those that
// are written to memory of their own. What is said of single tensors follows.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>

#include "api/tensor.hpp"
#include "core/error.hpp"
#include "core/problem.hpp"

namespace rocflash {

// Whether a tensor is the first columns of another one.
bool is_first_columns(const Tensor& t, const Tensor& whole);

class CallTensors {
 public:
  CallTensors(Device device, Data data) : device_(device), data_(data) {}

  std::optional<Tensor> optional(const char* name, const DLTensor* in, Access access) {
    auto t = on_device(read_tensor(name, in, access, data_));
    if (t && data_ == Data::required) apart(*t, access);
    return t;
  }
  Tensor required(const char* name, const DLTensor* in, Access access) {
    if (!in) refuse(name, ": is null, but it is needed");
    return *optional(name, in, access);
  }
  // The same for a tensor that may be the first columns of `whole`, in the same memory, even where both are
  // written.
  Tensor required_within(const Tensor& whole, const char* name, const DLTensor* in, Access access) {
    if (!in) refuse(name, ": is null, but it is needed");
    const Tensor t = *on_device(read_tensor(name, in, access, data_));
    if (data_ == Data::required && !is_first_columns(t, whole)) apart(t, access);
    return t;
  }
  // On the host lengths shape the call, so their values are needed even where no other data is.
  std::optional<Tensor> lengths(const char* name, const DLTensor* in) {
    auto t = on_device(read_tensor(name, in, Access::read, on_host() ? Data::required : data_));
    if (t && (on_host() || data_ == Data::required)) apart(*t, Access::read);
    return t;
  }
  // Whether the values of int tensors can be looked at: a GPU's cannot, without waiting for it.
  bool on_host() const { return device_.type == kDLCPU; }

 private:
  std::optional<Tensor> on_device(std::optional<Tensor> t) const {
    if (t && t->device != device_) {
      refuse(t->name, ": is on ", device_text(t->device), "; all tensors must be on ",
             device_text(device_), ", where q is");
    }
    return t;
  }

  // Of two tensors that share memory, neither may be written.
  void apart(const Tensor& t, Access access) {
    const Outline outline(t);
    for (std::size_t n = 0; n < seen_count_; ++n) {
      if ((access == Access::write || seen_[n].access == Access::write) &&
          share_memory(seen_[n].outline, outline))
        refuse(t.name, ": shares memory with ", seen_[n].name,
               "; an output needs memory of its own");
    }
    if (seen_count_ < seen_.size()) seen_[seen_count_++] = {t.name, outline, access};
  }

  struct Seen {
    const char* name;
    Outline outline;
    Access access;
  };

  Device device_;
  Data data_;
  std::array<Seen, 32> seen_;  // more than any call has
  std::size_t seen_count_ = 0;
};

void check_dtype(const Tensor&, std::initializer_list<DType> allowed);
void check_ndim(const Tensor&, int ndim, const char* dims);
void check_shape(const Tensor&, std::initializer_list<std::int64_t> shape, const char* dims);

// The tensor's last three dimensions are (row, head, column); a dense one has the batch before
// them.
Rows rows_of(const Tensor&, bool packed);

// The values of an int tensor of `count`, or null.
const std::int32_t* int_values(const std::optional<Tensor>&, std::int64_t count, const char* dims);

// Begins of packed sequences: they must not decrease, nor leave the tensor.
void check_cumulative(const char* name, const std::int32_t* cu, std::int64_t batch,
                      std::int64_t rows);

bool flag(const char* name, std::int32_t value);

}  // namespace rocflash
