// The handler of XLA's ROCm platform, with a fake XLA and a fake driver: stream, device,
// workspace and errors. tests/python/test_jax.py runs the CPU's handler in XLA itself.
#include "xla/handlers.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace rocflash::xla {
namespace {

struct ErrorText {
  ErrorCode code;
  std::string message;
};

// What XLA's API was called with, and what it answers.
struct FakeXla {
  std::size_t allocated = 0, freed = 0;
  bool has_memory = true;
  std::int32_t ordinal = 0;
  int errors = 0;  // that exist
} xla;

constexpr std::uintptr_t workspace_address = 0x7000000;

Error* make_error(ErrorCreateArgs* args) {
  ++xla.errors;
  return reinterpret_cast<Error*>(new ErrorText{args->code, args->message});
}
void error_message(ErrorArgs* args) {
  args->message = reinterpret_cast<ErrorText*>(args->error)->message.c_str();
}
void destroy_error(ErrorArgs* args) {
  --xla.errors;
  delete reinterpret_cast<ErrorText*>(args->error);
}
Error* get_stream(StreamGetArgs* args) {
  args->stream = reinterpret_cast<void*>(77);
  return nullptr;
}
Error* allocate(AllocateArgs* args) {
  if (!xla.has_memory) {
    ErrorCreateArgs error{};
    error.message = "fake memory is full";
    error.code = ErrorCode::resource_exhausted;
    return make_error(&error);
  }
  xla.allocated += args->size;
  EXPECT_GE(args->alignment, 64u);
  args->data = reinterpret_cast<void*>(workspace_address);
  return nullptr;
}
Error* release(FreeArgs* args) {
  EXPECT_EQ(args->data, reinterpret_cast<void*>(workspace_address));
  xla.freed += args->size;
  return nullptr;
}
Error* get_ordinal(DeviceOrdinalGetArgs* args) {
  args->ordinal = xla.ordinal;
  return nullptr;
}

Api api() {
  Api a{};
  a.header.struct_size = sizeof a;
  a.version.minor = 1;
  a.error_create = make_error;
  a.error_message = error_message;
  a.error_destroy = destroy_error;
  a.stream_get = get_stream;
  a.allocate = allocate;
  a.free = release;
  a.device_ordinal_get = get_ordinal;
  return a;
}

// One call: buffers and attributes in XLA's form.
class Frame {
 public:
  Frame() {
    frame.header.struct_size = sizeof frame;
    frame.api = &table;
    frame.stage = Stage::execute;
  }
  void text(const char* name, const char* value) {
    add(name, AttributeType::string, new Text{value, std::strlen(value)});
  }
  void number(const char* name, std::int64_t value) {
    add(name, AttributeType::scalar, new Scalar{DataType::i64, new std::int64_t(value)});
  }
  void argument(std::uintptr_t at, DataType type, std::vector<std::int64_t> shape) {
    arguments_.push_back(buffer(at, type, std::move(shape)));
  }
  void result(std::uintptr_t at, DataType type, std::vector<std::int64_t> shape) {
    results_.push_back(buffer(at, type, std::move(shape)));
  }
  // "" or the error.
  std::string run(ErrorCode expected = {}) {
    types_.assign(arguments_.size() + results_.size(), buffer_type);
    frame.arguments = {{}, size(arguments_), types_.data(), arguments_.data()};
    frame.results = {{}, size(results_), types_.data(), results_.data()};
    frame.attributes = {{}, size(names_), kinds_.data(), names_.data(), values_.data()};
    Error* error = rocflash_xla_rocm(&frame);
    if (!error) return "";
    auto* text = reinterpret_cast<ErrorText*>(error);
    EXPECT_EQ(text->code, expected) << text->message;
    const std::string message = text->message;
    --xla.errors;
    delete text;
    return message;
  }

  Api table = api();
  CallFrame frame{};

 private:
  template <class Type>
  static std::int64_t size(const std::vector<Type>& v) {
    return static_cast<std::int64_t>(v.size());
  }
  // Objects live as long as the process.
  static Buffer* buffer(std::uintptr_t at, DataType type, std::vector<std::int64_t> shape) {
    auto* dims = new std::vector<std::int64_t>(std::move(shape));
    return new Buffer{{sizeof(Buffer), nullptr},
                      type,
                      reinterpret_cast<void*>(at),
                      static_cast<std::int64_t>(dims->size()),
                      dims->data()};
  }
  void add(const char* name, AttributeType kind, void* value) {
    names_.push_back(new Text{name, std::strlen(name)});
    kinds_.push_back(kind);
    values_.push_back(value);
  }

  std::vector<int> types_;
  std::vector<Buffer*> arguments_, results_;
  std::vector<Text*> names_;
  std::vector<AttributeType> kinds_;
  std::vector<void*> values_;
};

Frame decode(std::int64_t keys = 8192) {
  xla = {};
  Frame f;
  f.text("operation", "infer");
  f.text("arguments", "q k v");
  f.text("results", "out");
  f.argument(0x100000, DataType::f16, {1, 1, 8, 64});
  f.argument(0x1000000, DataType::f16, {1, keys, 2, 64});
  f.argument(0x2000000, DataType::f16, {1, keys, 2, 64});
  f.result(0x400000, DataType::f16, {1, 1, 8, 64});
  return f;
}

std::string driver_log() {
  static void* fake = dlopen(std::getenv("ROCFLASH_HIP_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
  const std::string log = reinterpret_cast<const char* (*)()>(dlsym(fake, "fake_log"))();
  reinterpret_cast<void (*)()>(dlsym(fake, "fake_clear"))();
  return log;
}

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

TEST(Xla, LaunchesOnItsStreamWithAWorkspaceThatItReturns) {
  Frame f = decode();
  EXPECT_EQ(f.run(), "");
  const std::string log = driver_log();
  EXPECT_TRUE(contains(log, "on device 0 stream 77")) << log;
  EXPECT_GT(xla.allocated, 0u) << "split-KV decode needs a workspace";
  EXPECT_EQ(xla.freed, xla.allocated);
}

TEST(Xla, ReportsErrorsOfTheAllocatorTheDeviceAndTheCall) {
  Frame full = decode();
  xla.has_memory = false;
  std::string message = full.run(ErrorCode::resource_exhausted);
  EXPECT_TRUE(contains(message, "fake memory is full")) << message;

  Frame elsewhere = decode();
  xla.ordinal = 1;  // without kernels
  message = elsewhere.run(ErrorCode::unimplemented);
  EXPECT_TRUE(contains(message, "gfx803")) << message;

  Frame odd = decode();
  odd.number("num_splits", -1);
  message = odd.run(ErrorCode::invalid_argument);
  EXPECT_TRUE(contains(message, "num_splits is -1")) << message;

  Frame unknown = decode();
  unknown.number("tiles", 1);
  EXPECT_TRUE(contains(unknown.run(ErrorCode::invalid_argument), "attribute tiles is unknown"));

  Frame missing = decode();
  missing.argument(0x500000, DataType::i32, {1});
  EXPECT_TRUE(contains(missing.run(ErrorCode::invalid_argument), "arguments names fewer than 4"));

  Frame old = decode();
  old.table.header.struct_size = offsetof(Api, device_ordinal_get);
  EXPECT_TRUE(contains(old.run(ErrorCode::unimplemented), "a newer jaxlib is needed"));
  EXPECT_EQ(xla.errors, 0);
  EXPECT_FALSE(contains(driver_log(), "launch"));
}

TEST(Xla, WritesACacheInPlaceOnlyIfItIsAliased) {
  for (const bool aliased : {true, false}) {
    xla = {};
    Frame f;
    f.text("operation", "decode");
    f.text("arguments", "q k v seqused_k k_new v_new");
    f.text("results", "out k v");
    f.argument(0x100000, DataType::f16, {1, 1, 8, 64});
    f.argument(0x1000000, DataType::f16, {1, 512, 2, 64});
    f.argument(0x2000000, DataType::f16, {1, 512, 2, 64});
    f.argument(0x500000, DataType::i32, {1});
    f.argument(0x600000, DataType::f16, {1, 1, 2, 64});
    f.argument(0x700000, DataType::f16, {1, 1, 2, 64});
    f.result(0x400000, DataType::f16, {1, 1, 8, 64});
    f.result(aliased ? 0x1000000 : 0x3000000, DataType::f16, {1, 512, 2, 64});
    f.result(0x2000000, DataType::f16, {1, 512, 2, 64});
    const std::string message = f.run(ErrorCode::invalid_argument);
    EXPECT_EQ(message, aliased ? "" : "result k is not aliased with argument k; it must be");
  }
}

TEST(Xla, GivesItsVersionAndNoTraits) {
  Frame f;
  Metadata metadata{};
  metadata.traits = 1;
  MetadataExtension extension{{sizeof extension, metadata_extension, nullptr}, &metadata};
  f.frame.header.extensions = &extension.extension;
  EXPECT_EQ(f.run(), "");
  EXPECT_EQ(metadata.version.major, api_major);
  EXPECT_EQ(metadata.version.minor, api_minor);
  EXPECT_EQ(metadata.traits, 0u);
}

}  // namespace
}  // namespace rocflash::xla
