#include "api/call_tensors.hpp"

#include <algorithm>
#include <string>

namespace rocflash {

void check_dtype(const Tensor& t, std::initializer_list<DType> allowed) {
  if (std::find(allowed.begin(), allowed.end(), t.dtype) != allowed.end()) return;
  std::string names;
  for (auto it = allowed.begin(); it != allowed.end(); ++it) {
    if (std::find(allowed.begin(), it, *it) == it)
      names += text(names.empty() ? "" : " or ", name_of(*it));
  }
  refuse(t.name, " has dtype ", name_of(t.dtype), "; it must be ", names);
}

void check_ndim(const Tensor& t, int ndim, const char* dims) {
  if (t.ndim != ndim)
    refuse(t.name, " has shape ", t.shape_text(), " with ", t.ndim, " dimensions; it must be ",
           dims);
}

void check_shape(const Tensor& t, std::initializer_list<std::int64_t> shape, const char* dims) {
  check_ndim(t, static_cast<int>(shape.size()), dims);
  if (!std::equal(shape.begin(), shape.end(), t.shape))
    refuse(t.name, " has shape ", t.shape_text(), "; it must be ", dims, " = ", shape_text(shape));
}

bool is_column_prefix(const Tensor& t, const Tensor& whole) {
  const int last = t.ndim - 1;
  return t.data == whole.data && t.dtype == whole.dtype && t.ndim == whole.ndim &&
         t.shape[last] <= whole.shape[last] && std::equal(t.shape, t.shape + last, whole.shape) &&
         std::equal(t.stride, t.stride + last, whole.stride);
}

Rows rows_of(const Tensor& t, bool packed) {
  const int last = t.ndim - 1;
  if (t.shape[last] > 1 && t.stride[last] != 1)
    refuse(t.name, " has stride ", t.stride[last], " in its last dimension; it must be 1");
  return {t.data,
          t.dtype,
          packed ? 0 : t.stride[0],
          t.stride[last - 2],
          t.stride[last - 1],
          static_cast<int>(t.shape[last])};
}

const std::int32_t* int_values(const std::optional<Tensor>& t, std::int64_t count,
                               const char* dims) {
  if (!t) return nullptr;
  check_dtype(*t, {DType::i32});
  check_shape(*t, {count}, dims);
  if (count > 1 && t->stride[0] != 1)
    refuse(t->name, " has stride ", t->stride[0], "; it must be 1");
  return reinterpret_cast<const std::int32_t*>(t->data);
}

void check_cumulative(const char* name, const std::int32_t* cu, std::int64_t batch,
                      std::int64_t rows) {
  if (!cu) return;
  if (cu[0] < 0) refuse(name, " begins with ", cu[0], "; it must not be negative");
  for (std::int64_t b = 0; b < batch; ++b) {
    if (cu[b + 1] < cu[b])
      refuse(name, " decreases from ", cu[b], " to ", cu[b + 1], " at sequence ", b,
             "; it must not decrease");
  }
  if (cu[batch] > rows)
    refuse(name, " ends with ", cu[batch], "; it must be at most ", rows,
           ", the number of rows of the packed tensor");
}

bool flag(const char* name, std::int32_t value) {
  if (value != 0 && value != 1) refuse(name, " is ", value, "; it must be 0 or 1");
  return value == 1;
}

}  // namespace rocflash
