// The used part of XLA's FFI: the C ABI through which JAX calls custom calls. XLA ships it as the
// header xla/ffi/api/c_api.h; the layouts below are those of its versions 0.1 to 0.3, so the build
// needs no XLA. tests/python/test_jax_abi.py compares them with the header of the installed jaxlib.
//
// XLA's structs begin with their size and grow at the end. A field is read only if the size covers
// it (`has_field`).
#pragma once

#include <cstddef>
#include <cstdint>

namespace rocflash::xla {

inline constexpr int api_major = 0;
inline constexpr int api_minor = 1;

struct Error;    // owned by XLA
struct Context;  // of one execution

struct Extension {
  std::size_t struct_size;
  int type;
  Extension* next;
};
inline constexpr int metadata_extension = 1;

// The common beginning of structs.
struct Header {
  std::size_t struct_size;
  Extension* extensions;
};

struct ApiVersion {
  Header header;
  int major, minor;
};

enum class ErrorCode : int {
  unknown = 2,
  invalid_argument = 3,
  resource_exhausted = 8,
  unimplemented = 12,
  internal = 13,
};

struct ErrorCreateArgs {
  Header header;
  const char* message;
  ErrorCode code;
};

struct StreamGetArgs {
  Header header;
  Context* context;
  void* stream;  // out
};

struct AllocateArgs {
  Header header;
  Context* context;
  std::size_t size, alignment;
  void* data;  // out
};

struct FreeArgs {
  Header header;
  Context* context;
  std::size_t size;
  void* data;
};

struct DeviceOrdinalGetArgs {
  Header header;
  Context* context;
  std::int32_t ordinal;  // out
};

struct ErrorArgs {
  Header header;
  Error* error;
  const char* message;  // out; absent in the arguments of error_destroy
};

struct Api {
  Header header;
  ApiVersion version;
  const void* internal;
  Error* (*error_create)(ErrorCreateArgs*);
  void (*error_message)(ErrorArgs*);
  void (*error_destroy)(ErrorArgs*);
  void (*handler_register)();
  Error* (*stream_get)(StreamGetArgs*);
  void (*type_register)();
  void (*context_get)();
  void (*state_set)();
  void (*state_get)();
  Error* (*allocate)(AllocateArgs*);
  Error* (*free)(FreeArgs*);
  void (*thread_pool_schedule)();
  void (*thread_pool_size)();
  void (*future_create)();
  void (*future_set_available)();
  void (*future_set_error)();
  void (*run_id_get)();
  Error* (*device_ordinal_get)(DeviceOrdinalGetArgs*);
};

enum class DataType : int {
  boolean = 1,
  i8 = 2,
  i16 = 3,
  i32 = 4,
  i64 = 5,
  u8 = 6,
  u16 = 7,
  u32 = 8,
  u64 = 9,
  f16 = 10,
  f32 = 11,
  f64 = 12,
  bf16 = 16,
};

// A dense array in row-major order.
struct Buffer {
  Header header;
  DataType dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* shape;
};
inline constexpr int buffer_type = 1;  // of arguments and results

struct Buffers {
  Header header;
  std::int64_t size;
  int* types;
  Buffer** buffers;
};

struct Text {
  const char* data;
  std::size_t size;
};

struct Scalar {
  DataType dtype;
  void* value;
};

enum class AttributeType : int { array = 1, dictionary = 2, scalar = 3, string = 4 };

struct Attributes {
  Header header;
  std::int64_t size;
  AttributeType* types;
  Text** names;
  void** values;  // Scalar* or Text*, by type
};

enum class Stage : int { instantiate = 0, prepare = 1, initialize = 2, execute = 3 };

struct CallFrame {
  Header header;
  const Api* api;
  Context* context;
  Stage stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
};

struct Metadata {
  std::size_t struct_size;
  ApiVersion version;
  std::uint32_t traits;
};

struct MetadataExtension {
  Extension extension;
  Metadata* metadata;
};

// Whether a struct from XLA is new enough to have a field.
template <class Struct, class Field>
bool has_field(const Struct& s, const Field& field) {
  const auto begin = reinterpret_cast<std::uintptr_t>(&s);
  return reinterpret_cast<std::uintptr_t>(&field + 1) - begin <= s.header.struct_size;
}

}  // namespace rocflash::xla
