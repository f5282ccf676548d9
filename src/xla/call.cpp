#include "xla/call.hpp"

#include <cstddef>
#include <cstring>
#include <limits>

#include "core/error.hpp"

namespace rocflash::xla {
namespace {

struct TensorField {
  std::string_view name;
  std::size_t offset;  // in Structs
};

// Tensors by the names that the C ABI gives them.
#define FIELD(part, name) \
  TensorField { #name, offsetof(Structs, part.name) }
constexpr TensorField arguments[] = {
    FIELD(problem, q),
    FIELD(problem, k),
    FIELD(problem, v),
    FIELD(problem, cu_seqlens_q),
    FIELD(problem, cu_seqlens_k),
    FIELD(problem, seqused_q),
    FIELD(problem, seqused_k),
    FIELD(problem, leftpad_k),
    FIELD(problem, mask),
    FIELD(problem, alibi_slopes),
    FIELD(problem, bias),
    FIELD(problem, sinks),
    FIELD(problem, block_table),
    FIELD(problem, cache_batch_idx),
    FIELD(gradients, dout),
    FIELD(gradients, dlse),
    FIELD(append, k_new),
    FIELD(append, v_new),
    FIELD(append, cu_seqlens_k_new),
    FIELD(append, rotary_cos),
    FIELD(append, rotary_sin),
    FIELD(append, rotary_seqlens),
};
constexpr TensorField forward_results[] = {FIELD(outputs, out), FIELD(outputs, lse)};
// Forward's outputs are backward's arguments.
constexpr TensorField saved[] = {FIELD(gradients, out), FIELD(gradients, lse)};
constexpr TensorField backward_results[] = {
    FIELD(gradients, dq),     FIELD(gradients, dk),    FIELD(gradients, dv),
    FIELD(gradients, dsinks), FIELD(gradients, dbias), FIELD(gradients, dalibi_slopes),
};
#undef FIELD

const TensorField* find(std::span<const TensorField> fields, std::string_view name) {
  for (const TensorField& field : fields) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

DLDataType dtype_of(std::string_view name, DataType type) {
  switch (type) {
    case DataType::boolean:
      return {ROCFLASH_DL_BOOL, 8, 1};
    case DataType::u8:
      return {kDLUInt, 8, 1};
    case DataType::i32:
      return {kDLInt, 32, 1};
    case DataType::f16:
      return {kDLFloat, 16, 1};
    case DataType::bf16:
      return {kDLBfloat, 16, 1};
    case DataType::f32:
      return {kDLFloat, 32, 1};
    case DataType::f64:
      return {kDLFloat, 64, 1};
    default:
      refuse(name, " has XLA's dtype ", static_cast<int>(type),
             "; supported are f32, f16, bf16, f64, i32, bool and uint8");
  }
}

template <class Number>
Number scalar(std::string_view name, AttributeType type, const void* value, DataType expected) {
  const auto* scalar = static_cast<const Scalar*>(value);
  if (type != AttributeType::scalar || scalar->dtype != expected)
    refuse("attribute ", name, " is not a scalar of type ",
           expected == DataType::f32 ? "f32" : "i64", "; it must be");
  Number number;
  std::memcpy(&number, scalar->value, sizeof number);
  return number;
}

float real(std::string_view name, AttributeType type, const void* value) {
  return scalar<float>(name, type, value, DataType::f32);
}

std::int64_t whole(std::string_view name, AttributeType type, const void* value) {
  return scalar<std::int64_t>(name, type, value, DataType::i64);
}

std::int32_t narrow(std::string_view name, AttributeType type, const void* value) {
  const std::int64_t number = whole(name, type, value);
  if (number < std::numeric_limits<std::int32_t>::min() ||
      number > std::numeric_limits<std::int32_t>::max())
    refuse("attribute ", name, " is ", number, "; it must fit into 32 bits");
  return static_cast<std::int32_t>(number);
}

std::string_view string(std::string_view name, AttributeType type, const void* value) {
  if (type != AttributeType::string) refuse("attribute ", name, " is not a string; it must be");
  const auto* text = static_cast<const Text*>(value);
  return {text->data, text->size};
}

Operation operation_of(std::string_view name) {
  if (name == "forward") return Operation::forward;
  if (name == "infer") return Operation::infer;
  if (name == "backward") return Operation::backward;
  if (name == "decode") return Operation::decode;
  refuse("attribute operation is \"", name, "\"; it must be forward, infer, backward or decode");
}

}  // namespace

Call::Call(const CallFrame& frame, DLDevice device) : device_(device) {
  structs.problem.struct_size = sizeof structs.problem;
  structs.outputs.struct_size = sizeof structs.outputs;
  structs.gradients.struct_size = sizeof structs.gradients;
  structs.append.struct_size = sizeof structs.append;
  structs.execution.struct_size = sizeof structs.execution;
  const Attributes& attributes = frame.attributes;
  for (std::int64_t n = 0; n < attributes.size; ++n) {
    const Text& name = *attributes.names[n];
    read_attribute({name.data, name.size}, attributes.types[n], attributes.values[n]);
  }
  read_buffers("argument", frame.arguments, argument_names_);
  read_buffers("result", frame.results, result_names_);
}

void Call::read_attribute(std::string_view name, AttributeType type, const void* value) {
  rocflash_problem& p = structs.problem;
  if (name == "operation") {
    operation = operation_of(string(name, type, value));
  } else if (name == "arguments") {
    argument_names_ = string(name, type, value);
  } else if (name == "results") {
    result_names_ = string(name, type, value);
  } else if (name == "softmax_scale") {
    scale_ = real(name, type, value);
    p.softmax_scale = &scale_;
  } else if (name == "softcap") {
    p.softcap = real(name, type, value);
  } else if (name == "window_left" || name == "window_right") {
    window_[name == "window_right"] = whole(name, type, value);
    p.window = window_;
  } else if (name == "attention_chunk") {
    p.attention_chunk = whole(name, type, value);
  } else if (name == "max_seqlen_q") {
    p.max_seqlen_q = whole(name, type, value);
  } else if (name == "max_seqlen_k") {
    p.max_seqlen_k = whole(name, type, value);
  } else if (name == "causal") {
    p.causal = narrow(name, type, value);
  } else if (name == "deterministic") {
    p.deterministic = narrow(name, type, value);
  } else if (name == "num_splits") {
    p.num_splits = narrow(name, type, value);
  } else if (name == "rotary_interleaved") {
    structs.append.rotary_interleaved = narrow(name, type, value);
  } else if (name == "num_threads") {
    structs.execution.num_threads = narrow(name, type, value);
  } else if (name == "backend") {
    structs.execution.backend = narrow(name, type, value);
  } else {
    refuse("attribute ", name, " is unknown; the Python package must be as old as the library");
  }
}

// `names` has one name per buffer, separated by spaces.
void Call::read_buffers(const char* kind, const Buffers& buffers, std::string_view names) {
  for (std::int64_t n = 0; n < buffers.size; ++n) {
    const std::size_t end = names.find(' ');
    const std::string_view name = names.substr(0, end);
    if (name.empty()) refuse("attribute ", kind, "s names fewer than ", buffers.size, " buffers");
    if (buffers.types[n] != buffer_type) refuse(kind, " ", name, " is not a buffer; it must be");
    set_tensor(name, *buffers.buffers[n], kind[0] == 'r');
    names = end == names.npos ? std::string_view() : names.substr(end + 1);
  }
  if (!names.empty()) refuse("attribute ", kind, "s names more than ", buffers.size, " buffers");
}

void Call::set_tensor(std::string_view name, const Buffer& buffer, bool is_result) {
  const bool backward = operation == Operation::backward;
  const TensorField* field = find(arguments, name);
  const auto tensor_at = [&](const TensorField& f) {
    return reinterpret_cast<const DLTensor**>(reinterpret_cast<std::byte*>(&structs) + f.offset);
  };
  if (is_result && operation == Operation::decode && (name == "k" || name == "v")) {
    // The cache is written in place: XLA aliases the result with the argument.
    const DLTensor* cache = *tensor_at(*field);
    if (!cache || cache->data != buffer.data)
      refuse("result ", name, " is not aliased with argument ", name, "; it must be");
    return;
  }
  if (is_result || !field) {
    if (is_result) {
      field =
          find(backward ? std::span<const TensorField>(backward_results) : forward_results, name);
    } else if (backward) {
      field = find(saved, name);
    }
  }
  if (!field) refuse(is_result ? "result " : "argument ", name, " is unknown");
  if (count_ == tensors_.size() || *tensor_at(*field))
    refuse(is_result ? "result " : "argument ", name, " is given twice; it must be given once");
  if (buffer.rank > std::numeric_limits<int>::max())
    refuse(name, " has ", buffer.rank, " dimensions; it must have at most 4");
  DLTensor& tensor = tensors_[count_++];
  tensor.data = buffer.data;
  tensor.device = device_;
  tensor.ndim = static_cast<int>(buffer.rank);
  tensor.dtype = dtype_of(name, buffer.dtype);
  tensor.shape = buffer.shape;
  *tensor_at(*field) = &tensor;
}

}  // namespace rocflash::xla
