/// @file rocflash.hpp
/// @brief C++20 wrapper of the C ABI (rocflash.h): value types, RAII and exceptions.
///
/// The wrapper is header-only. Each function calls its C function, which documents the arguments.
///
/// @code
///   std::vector<float> q(2 * 128 * 8 * 64), k = q, v = q, out = q;  // (b, s, h, d)
///   const rocflash::Dims shape{2, 128, 8, 64};
///   rocflash::forward({.q = {q, shape}, .k = {k, shape}, .v = {v, shape}, .causal = true},
///                     {.out = {out, shape}});
/// @endcode
///
/// Tensors are non-owning views: the memory must outlive the call. A default-initialized option is
/// absent. A rejected call throws rocflash::Error with the library's message.
#ifndef ROCFLASH_ROCFLASH_HPP_
#define ROCFLASH_ROCFLASH_HPP_

#include <rocflash/rocflash.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <optional>
#include <ranges>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace rocflash {
// The inline namespace versions the symbols, so that code built against two versions of this header
// can share a process.
inline namespace v0 {

/// @brief rocflash_status.
enum class Status : std::int32_t {
  ok = ROCFLASH_OK,
  invalid_argument = ROCFLASH_INVALID_ARGUMENT,
  unsupported = ROCFLASH_UNSUPPORTED,
  out_of_memory = ROCFLASH_OUT_OF_MEMORY,
  device_error = ROCFLASH_DEVICE_ERROR,
  internal = ROCFLASH_INTERNAL,
};

/// @brief rocflash_backend.
enum class Backend : std::int32_t {
  automatic = ROCFLASH_BACKEND_AUTO,
  cpu = ROCFLASH_BACKEND_CPU,
  reference = ROCFLASH_BACKEND_REFERENCE,
  naive = ROCFLASH_BACKEND_NAIVE,
  plain = naive,  ///< Former name of naive.
  standard = ROCFLASH_BACKEND_STANDARD,
};

/// @brief Element types of tensors; those from e4m3fn on are for quantized k and v.
enum class DType : std::uint8_t {
  f32,
  f16,
  bf16,
  f64,
  i32,
  boolean,
  e4m3fn,
  e4m3fnuz,
  e5m2,
  e5m2fnuz,
  i8,
};

/// @brief DLPack data type of `t`.
constexpr DLDataType dlpack_type(DType t) {
  switch (t) {
    case DType::f32:
      return {kDLFloat, 32, 1};
    case DType::f16:
      return {kDLFloat, 16, 1};
    case DType::bf16:
      return {kDLBfloat, 16, 1};
    case DType::f64:
      return {kDLFloat, 64, 1};
    case DType::i32:
      return {kDLInt, 32, 1};
    case DType::boolean:
      return {ROCFLASH_DL_BOOL, 8, 1};
    case DType::e4m3fn:
      return {ROCFLASH_DL_FLOAT8_E4M3FN, 8, 1};
    case DType::e4m3fnuz:
      return {ROCFLASH_DL_FLOAT8_E4M3FNUZ, 8, 1};
    case DType::e5m2:
      return {ROCFLASH_DL_FLOAT8_E5M2, 8, 1};
    case DType::e5m2fnuz:
      return {ROCFLASH_DL_FLOAT8_E5M2FNUZ, 8, 1};
    case DType::i8:
      return {kDLInt, 8, 1};
  }
  return {};
}

/// @brief Size of an element in bytes.
constexpr std::size_t size_of(DType t) { return dlpack_type(t).bits / 8; }

/// @brief Exception of a failed call: its status and the library's message.
class Error : public std::runtime_error {
 public:
  Error(Status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  Status status() const noexcept { return status_; }

 private:
  Status status_;
};

/// @brief Throws Error with rocflash_last_error() unless `status` is ROCFLASH_OK.
inline void check(rocflash_status status) {
  if (status != ROCFLASH_OK) throw Error(static_cast<Status>(status), rocflash_last_error());
}

/// @brief Shape or strides of a tensor, up to 8 dimensions.
class Dims {
 public:
  static constexpr std::size_t max_count = 8;

  Dims() = default;
  Dims(std::initializer_list<std::int64_t> values)
      : Dims(std::span(values.begin(), values.size())) {}
  Dims(std::span<const std::int64_t> values) : count_(values.size()) {
    if (count_ > max_count)
      throw Error(Status::invalid_argument,
                  std::to_string(count_) + " dimensions; at most 8 are allowed");
    for (std::size_t n = 0; n < count_; ++n) values_[n] = values[n];
  }

  std::size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  const std::int64_t* data() const { return values_.data(); }
  std::int64_t operator[](std::size_t n) const { return values_[n]; }
  std::int64_t& operator[](std::size_t n) { return values_[n]; }
  const std::int64_t* begin() const { return data(); }
  const std::int64_t* end() const { return data() + count_; }

 private:
  std::array<std::int64_t, max_count> values_{};
  std::size_t count_ = 0;
};

namespace detail {
template <class T>
constexpr DType dtype_of() {
  using Bare = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<Bare, float>) return DType::f32;
  if constexpr (std::is_same_v<Bare, double>) return DType::f64;
  if constexpr (std::is_same_v<Bare, std::int32_t>) return DType::i32;
  return DType::boolean;
}

template <class T>
concept Element =
    std::is_same_v<std::remove_cv_t<T>, float> || std::is_same_v<std::remove_cv_t<T>, double> ||
    std::is_same_v<std::remove_cv_t<T>, std::int32_t> ||
    std::is_same_v<std::remove_cv_t<T>, bool> || std::is_same_v<std::remove_cv_t<T>, std::uint8_t>;

// Contiguous memory that outlives the expression: an lvalue, or a view such as std::span.
template <class R>
concept Memory = std::ranges::contiguous_range<R> && std::ranges::sized_range<R> &&
                 std::ranges::borrowed_range<R>;
}  // namespace detail

/// @brief Non-owning view of a tensor: address, dtype, shape, strides and device.
///
/// Strides count elements; without strides the tensor is contiguous (row-major). DLPack has no
/// const: a call writes only to the tensors that it lists as outputs.
class Tensor {
 public:
  Tensor() = default;

  Tensor(const void* data, DType dtype, Dims shape, Dims strides = {},
         DLDevice device = {kDLCPU, 0})
      : data_(const_cast<void*>(data)),
        dtype_(dtype),
        shape_(shape),
        strides_(strides),
        device_(device) {
    if (!strides_.empty() && strides_.size() != shape_.size())
      throw Error(Status::invalid_argument, std::to_string(strides_.size()) + " strides for " +
                                                std::to_string(shape_.size()) + " dimensions");
  }

  /// @brief View of a vector, array or span. The element type determines the dtype.
  /// @throws Error if the range is shorter than the tensor.
  template <detail::Memory R>
    requires detail::Element<std::ranges::range_value_t<R>>
  Tensor(R&& elements, Dims shape, Dims strides = {})
      : Tensor(elements, detail::dtype_of<std::ranges::range_value_t<R>>(), shape, strides) {}

  /// @brief View with an explicit dtype, for f16, bf16 and the 8-bit dtypes in elements of any type
  /// of their size.
  /// @throws Error if the range is shorter than the tensor or its elements have another size.
  template <detail::Memory R>
  Tensor(R&& elements, DType dtype, Dims shape, Dims strides = {})
      : Tensor(static_cast<const void*>(std::ranges::data(elements)), dtype, shape, strides) {
    using Value = std::ranges::range_value_t<R>;
    if (sizeof(Value) != size_of(dtype))
      throw Error(Status::invalid_argument, "elements of " + std::to_string(sizeof(Value)) +
                                                " bytes for a dtype of " +
                                                std::to_string(size_of(dtype)));
    const auto [lowest, highest] = extent();
    const auto size = static_cast<std::int64_t>(std::ranges::size(elements));
    if (lowest < 0 || highest > size)
      throw Error(Status::invalid_argument,
                  "a tensor that reaches from element " + std::to_string(lowest) + " to " +
                      std::to_string(highest) + " does not fit into " + std::to_string(size));
  }

  void* data() const { return data_; }
  DType dtype() const { return dtype_; }
  const Dims& shape() const { return shape_; }
  DLDevice device() const { return device_; }

  /// @brief Strides in elements; computed from the shape if none were given.
  Dims strides() const {
    if (!strides_.empty()) return strides_;
    Dims compact = shape_;
    std::int64_t stride = 1;
    for (std::size_t n = shape_.size(); n-- > 0;) {
      compact[n] = stride;
      stride *= shape_[n] > 0 ? shape_[n] : 1;
    }
    return compact;
  }

  /// @brief DLPack view, valid for the lifetime of this object.
  DLTensor dlpack() const {
    DLTensor t{};
    t.data = data_;
    t.device = device_;
    t.ndim = static_cast<std::int32_t>(shape_.size());
    t.dtype = dlpack_type(dtype_);
    t.shape = const_cast<std::int64_t*>(shape_.data());
    t.strides = strides_.empty() ? nullptr : const_cast<std::int64_t*>(strides_.data());
    return t;
  }

 private:
  // Range of element offsets relative to data(): the lowest, and one past the highest.
  std::pair<std::int64_t, std::int64_t> extent() const {
    std::int64_t lowest = 0, highest = 0;
    const Dims steps = strides();
    for (std::size_t n = 0; n < shape_.size(); ++n) {
      if (shape_[n] == 0) return {0, 0};
      (steps[n] < 0 ? lowest : highest) += (shape_[n] - 1) * steps[n];
    }
    return {lowest, highest + 1};
  }

  void* data_ = nullptr;
  DType dtype_ = DType::f32;
  Dims shape_, strides_;
  DLDevice device_{kDLCPU, 0};
};

/// @brief Sliding window around the query position.
struct Window {
  std::int64_t left = -1, right = -1;  // -1: no bound
};

/// @brief rocflash_problem, field by field.
struct Problem {
  Tensor q{}, k{}, v{};

  std::optional<Tensor> cu_seqlens_q{}, cu_seqlens_k{};
  std::optional<Tensor> seqused_q{}, seqused_k{}, leftpad_k{};
  std::int64_t max_seqlen_q = 0, max_seqlen_k = 0;

  bool causal = false;
  std::optional<Window> window{};
  std::int64_t attention_chunk = 0;
  std::optional<Tensor> mask{};

  std::optional<float> softmax_scale{};
  float softcap = 0;
  std::optional<Tensor> alibi_slopes{}, bias{}, sinks{};

  float dropout_p = 0;
  std::uint64_t dropout_seed = 0, dropout_offset = 0;

  bool deterministic = false;

  int num_splits = 0;
  std::optional<Tensor> block_table{}, cache_batch_idx{};

  std::optional<Tensor> k_descale{}, v_descale{};
};

/// @brief rocflash_forward_outputs, field by field.
struct ForwardOutputs {
  Tensor out{};
  std::optional<Tensor> lse{}, s_dmask{};
};

/// @brief rocflash_backward_tensors, field by field.
struct BackwardTensors {
  Tensor dout{}, out{}, lse{};
  std::optional<Tensor> dq{}, dk{}, dv{}, dsinks{}, dbias{}, dalibi_slopes{}, delta{}, dlse{};
};

/// @brief rocflash_append, field by field.
struct Append {
  std::optional<Tensor> k_new{}, v_new{}, cu_seqlens_k_new{};
  std::optional<Tensor> rotary_cos{}, rotary_sin{}, rotary_seqlens{};
  bool rotary_interleaved = false;
};

/// @brief rocflash_execution, field by field.
///
/// Without a workspace, a CPU call allocates one and frees it. A GPU call requires `workspace` in
/// device memory whenever workspace_size() is not 0.
struct Execution {
  Backend backend = Backend::automatic;
  int num_threads = 0;
  void* stream = nullptr;
  void* workspace = nullptr;
  std::size_t workspace_size = 0;
};

/// @brief Host workspace with the required alignment. Reuse one object to save allocations.
class Workspace {
 public:
  Workspace() = default;
  explicit Workspace(std::size_t bytes) { reserve(bytes); }
  Workspace(Workspace&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Workspace& operator=(Workspace&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Workspace() { ::operator delete(data_, alignment); }

  /// @brief Grows the workspace to at least `bytes`; growing discards its contents.
  void reserve(std::size_t bytes) {
    if (bytes <= size_) return;
    ::operator delete(std::exchange(data_, nullptr), alignment);
    size_ = 0;
    data_ = ::operator new(bytes, alignment);
    size_ = bytes;
  }
  void* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  static constexpr std::align_val_t alignment{64};
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

namespace detail {
// Storage of the DLTensors that C structs point to; it must not move during the call.
template <std::size_t count>
class TensorList {
 public:
  const DLTensor* add(const Tensor& t) { return &(tensors_[used_++] = t.dlpack()); }
  const DLTensor* add(const std::optional<Tensor>& t) { return t ? add(*t) : nullptr; }

 private:
  std::array<DLTensor, count> tensors_{};
  std::size_t used_ = 0;
};

// A C struct together with the tensors it points to.
template <class Struct, std::size_t count>
struct CTensors {
  CTensors() { c.struct_size = sizeof c; }
  CTensors(const CTensors&) = delete;
  CTensors& operator=(const CTensors&) = delete;

  Struct c{};
  TensorList<count> list;
};

struct CProblem : CTensors<rocflash_problem, 16> {
  explicit CProblem(const Problem& p) {
    c.q = list.add(p.q);
    c.k = list.add(p.k);
    c.v = list.add(p.v);
    c.cu_seqlens_q = list.add(p.cu_seqlens_q);
    c.cu_seqlens_k = list.add(p.cu_seqlens_k);
    c.seqused_q = list.add(p.seqused_q);
    c.seqused_k = list.add(p.seqused_k);
    c.leftpad_k = list.add(p.leftpad_k);
    c.max_seqlen_q = p.max_seqlen_q;
    c.max_seqlen_k = p.max_seqlen_k;
    c.causal = p.causal;
    if (p.window) window = {p.window->left, p.window->right};
    c.window = p.window ? window.data() : nullptr;
    c.attention_chunk = p.attention_chunk;
    c.mask = list.add(p.mask);
    c.softmax_scale = p.softmax_scale ? &*p.softmax_scale : nullptr;
    c.softcap = p.softcap;
    c.alibi_slopes = list.add(p.alibi_slopes);
    c.bias = list.add(p.bias);
    c.sinks = list.add(p.sinks);
    c.dropout_p = p.dropout_p;
    c.dropout_seed = p.dropout_seed;
    c.dropout_offset = p.dropout_offset;
    c.deterministic = p.deterministic;
    c.num_splits = p.num_splits;
    c.block_table = list.add(p.block_table);
    c.cache_batch_idx = list.add(p.cache_batch_idx);
    c.k_descale = list.add(p.k_descale);
    c.v_descale = list.add(p.v_descale);
  }

  std::array<std::int64_t, 2> window{};
};

// A call: its tensors as a C struct, its C function and its workspace query.
template <class Struct, std::size_t count, auto function, auto workspace_function,
          auto create_function>
struct CCall : CTensors<Struct, count> {
  rocflash_status run(const CProblem& p, const rocflash_execution& e) const {
    return function(&p.c, &this->c, &e);
  }
  rocflash_status workspace(const CProblem& p, const rocflash_execution& e,
                            std::size_t* bytes) const {
    return workspace_function(&p.c, &this->c, &e, bytes);
  }
  rocflash_status create(const CProblem& p, const rocflash_execution& e,
                         rocflash_plan** plan) const {
    return create_function(&p.c, &this->c, &e, plan);
  }
};

struct CForward : CCall<rocflash_forward_outputs, 3, rocflash_forward, rocflash_forward_workspace,
                        rocflash_plan_create_forward> {
  explicit CForward(const ForwardOutputs& o) {
    c.out = list.add(o.out);
    c.lse = list.add(o.lse);
    c.s_dmask = list.add(o.s_dmask);
  }
};

struct CBackward : CCall<rocflash_backward_tensors, 11, rocflash_backward,
                         rocflash_backward_workspace, rocflash_plan_create_backward> {
  explicit CBackward(const BackwardTensors& t) {
    c.dout = list.add(t.dout);
    c.out = list.add(t.out);
    c.lse = list.add(t.lse);
    c.dq = list.add(t.dq);
    c.dk = list.add(t.dk);
    c.dv = list.add(t.dv);
    c.dsinks = list.add(t.dsinks);
    c.dbias = list.add(t.dbias);
    c.dalibi_slopes = list.add(t.dalibi_slopes);
    c.delta = list.add(t.delta);
    c.dlse = list.add(t.dlse);
  }
};

struct CDecode : CTensors<rocflash_append, 6> {
  CDecode(const Append& a, const ForwardOutputs& o) : outputs(o) {
    c.k_new = list.add(a.k_new);
    c.v_new = list.add(a.v_new);
    c.cu_seqlens_k_new = list.add(a.cu_seqlens_k_new);
    c.rotary_cos = list.add(a.rotary_cos);
    c.rotary_sin = list.add(a.rotary_sin);
    c.rotary_seqlens = list.add(a.rotary_seqlens);
    c.rotary_interleaved = a.rotary_interleaved;
  }

  rocflash_status run(const CProblem& p, const rocflash_execution& e) const {
    return rocflash_decode(&p.c, &c, &outputs.c, &e);
  }
  rocflash_status workspace(const CProblem& p, const rocflash_execution& e,
                            std::size_t* bytes) const {
    return rocflash_decode_workspace(&p.c, &c, &outputs.c, &e, bytes);
  }
  rocflash_status create(const CProblem& p, const rocflash_execution& e,
                         rocflash_plan** plan) const {
    return rocflash_plan_create_decode(&p.c, &c, &outputs.c, &e, plan);
  }

  CForward outputs;
};

inline rocflash_execution c_execution(const Execution& e) {
  return {sizeof(rocflash_execution),
          static_cast<std::int32_t>(e.backend),
          e.num_threads,
          e.stream,
          e.workspace,
          e.workspace_size};
}

template <class Call>
std::size_t workspace_size(const Problem& problem, const Call& call, const Execution& execution) {
  std::size_t bytes = 0;
  check(call.workspace(CProblem(problem), c_execution(execution), &bytes));
  return bytes;
}

// `workspace` is grown as needed and used; null uses the workspace of the execution unchanged.
template <class Call>
void run(const Problem& problem, const Call& call, const Execution& execution,
         Workspace* workspace) {
  const CProblem p(problem);
  rocflash_execution e = c_execution(execution);
  if (workspace) {
    if (problem.q.device().device_type != kDLCPU)
      throw Error(Status::invalid_argument,
                  "workspace: is memory of the host, but q is on a GPU; give the execution a "
                  "pointer to the GPU's");
    std::size_t bytes = 0;
    check(call.workspace(p, e, &bytes));
    workspace->reserve(bytes);
    e.workspace = workspace->data();
    e.workspace_size = workspace->size();
  }
  check(call.run(p, e));
}

// Without a workspace from the caller: allocates one on the host for the duration of the call.
template <class Call>
void run(const Problem& problem, const Call& call, const Execution& execution) {
  Workspace own;
  const bool on_host = problem.q.device().device_type == kDLCPU;
  run(problem, call, execution, !execution.workspace && on_host ? &own : nullptr);
}
}  // namespace detail

/// @brief Workspace size in bytes of the call with these arguments, validated as the call would.
inline std::size_t workspace_size(const Problem& problem, const ForwardOutputs& outputs,
                                  const Execution& execution = {}) {
  return detail::workspace_size(problem, detail::CForward(outputs), execution);
}
inline std::size_t workspace_size(const Problem& problem, const BackwardTensors& tensors,
                                  const Execution& execution = {}) {
  return detail::workspace_size(problem, detail::CBackward(tensors), execution);
}
inline std::size_t workspace_size(const Problem& problem, const Append& append,
                                  const ForwardOutputs& outputs, const Execution& execution = {}) {
  return detail::workspace_size(problem, detail::CDecode(append, outputs), execution);
}

/// @brief Computes attention (rocflash_forward).
inline void forward(const Problem& problem, const ForwardOutputs& outputs,
                    const Execution& execution, Workspace& workspace) {
  detail::run(problem, detail::CForward(outputs), execution, &workspace);
}
inline void forward(const Problem& problem, const ForwardOutputs& outputs,
                    const Execution& execution = {}) {
  detail::run(problem, detail::CForward(outputs), execution);
}

/// @brief Computes the gradients of attention (rocflash_backward).
inline void backward(const Problem& problem, const BackwardTensors& tensors,
                     const Execution& execution, Workspace& workspace) {
  detail::run(problem, detail::CBackward(tensors), execution, &workspace);
}
inline void backward(const Problem& problem, const BackwardTensors& tensors,
                     const Execution& execution = {}) {
  detail::run(problem, detail::CBackward(tensors), execution);
}

/// @brief Appends to the KV cache problem.k, problem.v and computes attention over it
/// (rocflash_decode).
inline void decode(const Problem& problem, const Append& append, const ForwardOutputs& outputs,
                   const Execution& execution, Workspace& workspace) {
  detail::run(problem, detail::CDecode(append, outputs), execution, &workspace);
}
inline void decode(const Problem& problem, const Append& append, const ForwardOutputs& outputs,
                   const Execution& execution = {}) {
  detail::run(problem, detail::CDecode(append, outputs), execution);
}

/// @brief rocflash_plan_arguments, field by field: addresses of the tensors that a plan was created
/// with, dropout's seed and offset, stream and workspace.
struct PlanArguments {
  const void* q = nullptr;
  void *k = nullptr, *v = nullptr;
  const void *cu_seqlens_q = nullptr, *cu_seqlens_k = nullptr;
  const void *seqused_q = nullptr, *seqused_k = nullptr, *leftpad_k = nullptr;
  const void *mask = nullptr, *alibi_slopes = nullptr, *bias = nullptr, *sinks = nullptr;
  const void *block_table = nullptr, *cache_batch_idx = nullptr;

  const void *k_new = nullptr, *v_new = nullptr, *cu_seqlens_k_new = nullptr;
  const void *rotary_cos = nullptr, *rotary_sin = nullptr, *rotary_seqlens = nullptr;

  void *out = nullptr, *lse = nullptr, *s_dmask = nullptr;

  const void* dout = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  void *dsinks = nullptr, *dbias = nullptr, *dalibi_slopes = nullptr, *delta = nullptr;
  const void* dlse = nullptr;

  std::uint64_t dropout_seed = 0, dropout_offset = 0;

  void *stream = nullptr, *workspace = nullptr;
  std::size_t workspace_size = 0;

  const void *k_descale = nullptr, *v_descale = nullptr;
};

namespace detail {
inline rocflash_plan_arguments c_arguments(const PlanArguments& a) {
  rocflash_plan_arguments c{};
  c.struct_size = sizeof c;
  c.q = a.q;
  c.k = a.k;
  c.v = a.v;
  c.cu_seqlens_q = a.cu_seqlens_q;
  c.cu_seqlens_k = a.cu_seqlens_k;
  c.seqused_q = a.seqused_q;
  c.seqused_k = a.seqused_k;
  c.leftpad_k = a.leftpad_k;
  c.mask = a.mask;
  c.alibi_slopes = a.alibi_slopes;
  c.bias = a.bias;
  c.sinks = a.sinks;
  c.block_table = a.block_table;
  c.cache_batch_idx = a.cache_batch_idx;
  c.k_new = a.k_new;
  c.v_new = a.v_new;
  c.cu_seqlens_k_new = a.cu_seqlens_k_new;
  c.rotary_cos = a.rotary_cos;
  c.rotary_sin = a.rotary_sin;
  c.rotary_seqlens = a.rotary_seqlens;
  c.out = a.out;
  c.lse = a.lse;
  c.s_dmask = a.s_dmask;
  c.dout = a.dout;
  c.dq = a.dq;
  c.dk = a.dk;
  c.dv = a.dv;
  c.dsinks = a.dsinks;
  c.dbias = a.dbias;
  c.dalibi_slopes = a.dalibi_slopes;
  c.delta = a.delta;
  c.dlse = a.dlse;
  c.dropout_seed = a.dropout_seed;
  c.dropout_offset = a.dropout_offset;
  c.stream = a.stream;
  c.workspace = a.workspace;
  c.workspace_size = a.workspace_size;
  c.k_descale = a.k_descale;
  c.v_descale = a.v_descale;
  return c;
}
}  // namespace detail

namespace detail {
inline void* address_of(const Tensor& t) { return t.data(); }
inline void* address_of(const std::optional<Tensor>& t) { return t ? t->data() : nullptr; }

inline PlanArguments arguments_of(const Problem& p, const Execution& e) {
  PlanArguments a;
  a.q = address_of(p.q);
  a.k = address_of(p.k);
  a.v = address_of(p.v);
  a.cu_seqlens_q = address_of(p.cu_seqlens_q);
  a.cu_seqlens_k = address_of(p.cu_seqlens_k);
  a.seqused_q = address_of(p.seqused_q);
  a.seqused_k = address_of(p.seqused_k);
  a.leftpad_k = address_of(p.leftpad_k);
  a.mask = address_of(p.mask);
  a.alibi_slopes = address_of(p.alibi_slopes);
  a.bias = address_of(p.bias);
  a.sinks = address_of(p.sinks);
  a.block_table = address_of(p.block_table);
  a.cache_batch_idx = address_of(p.cache_batch_idx);
  a.k_descale = address_of(p.k_descale);
  a.v_descale = address_of(p.v_descale);
  a.dropout_seed = p.dropout_seed;
  a.dropout_offset = p.dropout_offset;
  a.stream = e.stream;
  a.workspace = e.workspace;
  a.workspace_size = e.workspace_size;
  return a;
}
}  // namespace detail

/// @brief What a run of a plan gets from the tensors of a call.
inline PlanArguments plan_arguments(const Problem& problem, const ForwardOutputs& outputs,
                                    const Execution& execution = {}) {
  PlanArguments a = detail::arguments_of(problem, execution);
  a.out = detail::address_of(outputs.out);
  a.lse = detail::address_of(outputs.lse);
  a.s_dmask = detail::address_of(outputs.s_dmask);
  return a;
}
inline PlanArguments plan_arguments(const Problem& problem, const Append& append,
                                    const ForwardOutputs& outputs,
                                    const Execution& execution = {}) {
  PlanArguments a = plan_arguments(problem, outputs, execution);
  a.k_new = detail::address_of(append.k_new);
  a.v_new = detail::address_of(append.v_new);
  a.cu_seqlens_k_new = detail::address_of(append.cu_seqlens_k_new);
  a.rotary_cos = detail::address_of(append.rotary_cos);
  a.rotary_sin = detail::address_of(append.rotary_sin);
  a.rotary_seqlens = detail::address_of(append.rotary_seqlens);
  return a;
}
inline PlanArguments plan_arguments(const Problem& problem, const BackwardTensors& tensors,
                                    const Execution& execution = {}) {
  PlanArguments a = detail::arguments_of(problem, execution);
  a.dout = detail::address_of(tensors.dout);
  a.out = detail::address_of(tensors.out);
  a.lse = detail::address_of(tensors.lse);
  a.dq = detail::address_of(tensors.dq);
  a.dk = detail::address_of(tensors.dk);
  a.dv = detail::address_of(tensors.dv);
  a.dsinks = detail::address_of(tensors.dsinks);
  a.dbias = detail::address_of(tensors.dbias);
  a.dalibi_slopes = detail::address_of(tensors.dalibi_slopes);
  a.delta = detail::address_of(tensors.delta);
  a.dlse = detail::address_of(tensors.dlse);
  return a;
}

/// @brief A call that is validated and planned once (rocflash_plan): its tensors' shapes, strides
/// and dtypes, its device and options are fixed. Threads may run one plan concurrently.
///
/// The tensors of the problem need no data, except int tensors on the CPU. Unlike forward(), run()
/// allocates no workspace.
class Plan {
 public:
  /// @brief Plans forward(), backward() or decode().
  Plan(const Problem& problem, const ForwardOutputs& outputs, const Execution& execution = {})
      : Plan(problem, detail::CForward(outputs), execution) {}
  Plan(const Problem& problem, const BackwardTensors& tensors, const Execution& execution = {})
      : Plan(problem, detail::CBackward(tensors), execution) {}
  Plan(const Problem& problem, const Append& append, const ForwardOutputs& outputs,
       const Execution& execution = {})
      : Plan(problem, detail::CDecode(append, outputs), execution) {}

  /// @brief Workspace size in bytes of a run.
  std::size_t workspace_size() const {
    std::size_t bytes = 0;
    check(rocflash_plan_workspace(plan_.get(), &bytes));
    return bytes;
  }
  /// @brief Runs the plan (rocflash_plan_run).
  void run(const PlanArguments& arguments) const {
    const rocflash_plan_arguments c = detail::c_arguments(arguments);
    check(rocflash_plan_run(plan_.get(), &c));
  }
  /// @brief The C handle, which this object owns.
  const rocflash_plan* get() const { return plan_.get(); }

 private:
  struct Destroy {
    void operator()(rocflash_plan* plan) const { rocflash_plan_destroy(plan); }
  };

  template <class Call>
  Plan(const Problem& problem, const Call& call, const Execution& execution) {
    rocflash_plan* plan = nullptr;
    check(call.create(detail::CProblem(problem), detail::c_execution(execution), &plan));
    plan_.reset(plan);
  }

  std::unique_ptr<rocflash_plan, Destroy> plan_;
};

/// @brief Combines attention over splits of the keys into `out` and, if given, `lse`.
inline void combine(const Tensor& out_partial, const Tensor& lse_partial, const Tensor& out,
                    const std::optional<Tensor>& lse = {}, const Execution& execution = {}) {
  detail::TensorList<4> list;
  const rocflash_execution e = detail::c_execution(execution);
  check(rocflash_combine(list.add(out_partial), list.add(lse_partial), list.add(out), list.add(lse),
                         &e));
}

/// @brief Applies rotary embedding to `x`, into `out` or in place (rocflash_rotate).
inline void rotate(const Tensor& x, const Tensor& cos, const Tensor& sin, const Tensor& out,
                   bool interleaved = false, const std::optional<Tensor>& cu_seqlens = {},
                   const std::optional<Tensor>& first = {}, const Execution& execution = {}) {
  detail::TensorList<6> list;
  const rocflash_execution e = detail::c_execution(execution);
  check(rocflash_rotate(list.add(x), list.add(cos), list.add(sin), list.add(cu_seqlens),
                        list.add(first), interleaved ? 1 : 0, list.add(out), &e));
}

/// @brief Version of the library at run time.
inline std::string version() { return rocflash_version(); }

/// @brief Limits of the library.
inline rocflash_limits limits() {
  rocflash_limits l{};
  l.struct_size = sizeof l;
  check(rocflash_query_limits(&l));
  return l;
}

namespace detail {
template <class Struct>
std::vector<Struct> query_all(rocflash_status (*query)(std::int32_t, Struct*)) {
  std::vector<Struct> all;
  Struct entry{};
  entry.struct_size = sizeof entry;
  while (query(static_cast<std::int32_t>(all.size()), &entry) == ROCFLASH_OK) all.push_back(entry);
  return all;
}
}  // namespace detail

/// @brief Devices that calls can run on, the CPU first. Strings live as long as the library.
inline std::vector<rocflash_device> devices() { return detail::query_all(rocflash_query_device); }
/// @brief GPU driver libraries and why each is or is not used.
inline std::vector<rocflash_driver> drivers() { return detail::query_all(rocflash_query_driver); }
/// @brief GPU architectures that the library contains kernels for.
inline std::vector<rocflash_target> targets() { return detail::query_all(rocflash_query_target); }

}  // namespace v0
}  // namespace rocflash

#endif  // ROCFLASH_ROCFLASH_HPP_
