#include "verify/gpu.hpp"

#include <algorithm>
#include <charconv>

#include "gpu/driver/symbols.hpp"
#include "platform/shared_library.hpp"

namespace rocflash::verify {
namespace {

namespace symbols = gpu::symbols;

// A function of the driver's library that returns 0 on success.
template <class... Arguments>
struct Entry {
  const char* name = nullptr;
  int (*function)(Arguments...) = nullptr;
};

// Resolves functions of the driver's library by name.
class Functions {
 public:
  explicit Functions(const std::string& library) : library_(library) {
    std::string error;
    handle_ = platform::open_library(library.c_str(), error);
    if (!handle_) throw Error(Status::device_error, library + ": " + error);
  }
  template <class Function>
  void get(Function*& function, const char* name) const {
    optional(function, name);
    if (!function) throw Error(Status::device_error, library_ + " lacks " + name);
  }
  // A function of the table that the library opens drivers with.
  template <class Symbol>
  void get(typename Symbol::Type*& function) const {
    get(function, Symbol::symbol);
  }
  template <class Symbol, class... Arguments>
  void get(Entry<Arguments...>& entry) const {
    entry.name = Symbol::symbol;
    get<Symbol>(entry.function);
  }
  template <class Function>
  void optional(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(platform::symbol_of(handle_, name));
  }

 private:
  void* handle_ = nullptr;
  std::string library_;
};

[[noreturn]] void fail(const char* call, int error, const char* message) {
  throw Error(Status::device_error, std::string(call) + ": error " + std::to_string(error) + ", " +
                                        (message ? message : "unknown"));
}

// Streams and events: the functions of both drivers differ only in their names.
class DriverGpu : public Gpu {
 public:
  Stream make_stream() override {
    Stream stream = nullptr;
    call(stream_create, &stream, non_blocking);
    return stream;
  }
  void destroy_stream(Stream stream) noexcept override { stream_destroy(stream); }
  void wait(Stream stream) override { call(stream_synchronize, stream); }
  Event make_event() override {
    Event event = nullptr;
    call(event_create, &event, 0u);
    return event;
  }
  void destroy_event(Event event) noexcept override { event_destroy(event); }
  void record(Event event, Stream stream) override { call(event_record, event, stream); }
  double seconds(Event begin, Event end) override {
    float milliseconds = 0;
    call(event_synchronize, end);
    call(event_elapsed, &milliseconds, begin, end);
    return static_cast<double>(milliseconds) * 1e-3;
  }

 protected:
  virtual void make_current() const = 0;  // selects this device for the calling thread
  virtual void check(const char* call, int error) const = 0;

  Entry<Stream*, unsigned> stream_create;
  int (*stream_destroy)(Stream) = nullptr;
  Entry<Stream> stream_synchronize;
  Entry<Event*, unsigned> event_create;
  int (*event_destroy)(Event) = nullptr;
  Entry<Event, Stream> event_record;
  Entry<Event> event_synchronize;
  Entry<float*, Event, Event> event_elapsed;

 private:
  static constexpr unsigned non_blocking = 1;

  template <class... Arguments, class... Passed>
  void call(const Entry<Arguments...>& entry, Passed... passed) const {
    make_current();
    check(entry.name, entry.function(passed...));
  }
};

class HipGpu final : public DriverGpu {
 public:
  HipGpu(const std::string& library, const rocflash_device& about) {
    about_ = about;
    const Functions f(library);
    f.get<symbols::hipGetErrorString>(error_string);
    f.get<symbols::hipSetDevice>(set_device);
    f.get<symbols::hipMalloc>(malloc);
    f.get<symbols::hipFree>(free);
    f.get<symbols::hipMemcpy>(memcpy);
    f.get<symbols::hipMemcpyAsync>(memcpy_async);
    f.get<symbols::hipMemset>(memset);
    f.get<symbols::hipDeviceSynchronize>(device_synchronize);
    f.get<symbols::hipStreamCreateWithFlags>(stream_create);
    f.get<symbols::hipStreamDestroy>(stream_destroy);
    f.get<symbols::hipStreamSynchronize>(stream_synchronize);
    f.get<symbols::hipEventCreateWithFlags>(event_create);
    f.get<symbols::hipEventDestroy>(event_destroy);
    f.get<symbols::hipEventRecord>(event_record);
    f.get<symbols::hipEventSynchronize>(event_synchronize);
    f.get<symbols::hipEventElapsedTime>(event_elapsed);
    f.optional(sim_counters, "rocflashSimLastCounters");
    f.optional(sim_count, "rocflashSimCountLaunches");
    f.optional(sim_predict, "rocflashSimTimeLaunches");
    f.optional(sim_predicted, "rocflashSimPredictedMicroseconds");
    f.optional(sim_last_time, "rocflashSimLastTime");
  }

  void* allocate(std::size_t bytes) override {
    make_current();
    void* memory = nullptr;
    check("hipMalloc", malloc(&memory, bytes));
    return memory;
  }
  void release(void* memory) noexcept override { free(memory); }
  void upload(void* to, const void* from, std::size_t bytes) override {
    make_current();
    check("hipMemcpy", memcpy(to, from, bytes, 1));
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    make_current();
    check("hipMemcpy", memcpy(to, from, bytes, 2));
  }
  void fill(void* to, unsigned char value, std::size_t bytes) override {
    make_current();
    check("hipMemset", memset(to, value, bytes));
    check("hipDeviceSynchronize", device_synchronize());
  }
  void copy(void* to, const void* from, std::size_t bytes, Stream stream) override {
    make_current();
    check("hipMemcpyAsync", memcpy_async(to, from, bytes, 3, stream));
  }
  std::string counters() override { return sim_counters ? sim_counters() : ""; }
  void count_launches(bool on) override {
    if (sim_count) sim_count(on ? 1 : 0);
  }
  void predict(bool on) override {
    constexpr int from_environment = -1;
    if (sim_predict) sim_predict(on ? 1 : from_environment);
  }
  double predicted_seconds() override { return sim_predicted ? sim_predicted() * 1e-6 : 0; }
  std::string prediction() override { return sim_last_time ? sim_last_time() : ""; }

 private:
  void make_current() const override { check("hipSetDevice", set_device(about_.device.device_id)); }
  void check(const char* call, int error) const override {
    if (error != 0) fail(call, error, error_string(error));
  }

  symbols::hipGetErrorString::Type* error_string = nullptr;
  symbols::hipSetDevice::Type* set_device = nullptr;
  symbols::hipMalloc::Type* malloc = nullptr;
  symbols::hipFree::Type* free = nullptr;
  symbols::hipMemcpy::Type* memcpy = nullptr;
  symbols::hipMemcpyAsync::Type* memcpy_async = nullptr;
  symbols::hipMemset::Type* memset = nullptr;
  symbols::hipDeviceSynchronize::Type* device_synchronize = nullptr;
  const char* (*sim_counters)();
  void (*sim_count)(int);
  void (*sim_predict)(int);
  double (*sim_predicted)();
  const char* (*sim_last_time)();
};

class CudaGpu final : public DriverGpu {
 public:
  CudaGpu(const std::string& library, const rocflash_device& about) {
    about_ = about;
    const Functions f(library);
    f.get<symbols::cuGetErrorString>(error_string);
    f.get<symbols::cuDevicePrimaryCtxRetain>(retain);
    f.get<symbols::cuCtxSetCurrent>(set_current);
    f.get<symbols::cuMemAlloc>(malloc);
    f.get<symbols::cuMemFree>(free);
    f.get<symbols::cuMemcpyHtoD>(upload_);
    f.get<symbols::cuMemcpyDtoH>(download_);
    f.get<symbols::cuMemcpyDtoDAsync>(copy_);
    f.get<symbols::cuMemsetD8>(memset);
    f.get<symbols::cuCtxSynchronize>(synchronize);
    f.get<symbols::cuStreamCreate>(stream_create);
    f.get<symbols::cuStreamDestroy>(stream_destroy);
    f.get<symbols::cuStreamSynchronize>(stream_synchronize);
    f.get<symbols::cuEventCreate>(event_create);
    f.get<symbols::cuEventDestroy>(event_destroy);
    f.get<symbols::cuEventRecord>(event_record);
    f.get<symbols::cuEventSynchronize>(event_synchronize);
    f.get<symbols::cuEventElapsedTime>(event_elapsed);
    check("cuDevicePrimaryCtxRetain", retain(&context_, about_.device.device_id));
  }

  void* allocate(std::size_t bytes) override {
    make_current();
    Address memory = 0;
    check("cuMemAlloc", malloc(&memory, bytes));
    return reinterpret_cast<void*>(memory);
  }
  void release(void* memory) noexcept override {
    set_current(context_);
    free(address(memory));
  }
  void upload(void* to, const void* from, std::size_t bytes) override {
    make_current();
    check("cuMemcpyHtoD", upload_(address(to), from, bytes));
    check("cuCtxSynchronize", synchronize());  // small copies from pageable memory return early
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    make_current();
    check("cuMemcpyDtoH", download_(to, address(from), bytes));
  }
  void fill(void* to, unsigned char value, std::size_t bytes) override {
    make_current();
    check("cuMemsetD8", memset(address(to), value, bytes));
    check("cuCtxSynchronize", synchronize());
  }
  void copy(void* to, const void* from, std::size_t bytes, Stream stream) override {
    make_current();
    check("cuMemcpyDtoDAsync", copy_(address(to), address(from), bytes, stream));
  }

 private:
  using Address = unsigned long long;
  static Address address(const void* p) { return reinterpret_cast<Address>(p); }

  void make_current() const override { check("cuCtxSetCurrent", set_current(context_)); }
  void check(const char* call, int error) const override {
    const char* message = nullptr;
    if (error != 0) error_string(error, &message), fail(call, error, message);
  }

  void* context_ = nullptr;
  symbols::cuGetErrorString::Type* error_string = nullptr;
  symbols::cuDevicePrimaryCtxRetain::Type* retain = nullptr;
  symbols::cuCtxSetCurrent::Type* set_current = nullptr;
  symbols::cuMemAlloc::Type* malloc = nullptr;
  symbols::cuMemFree::Type* free = nullptr;
  symbols::cuMemcpyHtoD::Type* upload_ = nullptr;
  symbols::cuMemcpyDtoH::Type* download_ = nullptr;
  symbols::cuMemcpyDtoDAsync::Type* copy_ = nullptr;
  symbols::cuMemsetD8::Type* memset = nullptr;
  symbols::cuCtxSynchronize::Type* synchronize = nullptr;
};

}  // namespace

DeviceName::DeviceName(const std::string& text) {
  if (text == "cpu") return;
  const std::size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  const char* end = text.data() + text.size();
  if (name == "hip" || name == "rocm" || name == "cuda") {
    driver = name == "cuda" ? "cuda" : "hip";
    if (colon == std::string::npos) return;
    const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, index);
    if (error == std::errc() && rest == end && index >= 0) return;
  }
  if (text.starts_with("sim:gfx")) {  // the simulator knows its architectures
    driver = "hip";
    simulated = text.substr(colon + 1);
    return;
  }
  throw Error(Status::invalid_argument,
              "device: '" + text +
                  "'; it must be auto, cpu, hip:N (or rocm:N), cuda:N or sim:ARCH, such as hip:0 "
                  "or sim:gfx942");
}

std::shared_ptr<Gpu> Gpu::open(const DeviceName& name) {
  const auto all = drivers();
  const auto driver = std::find_if(all.begin(), all.end(),
                                   [&](const rocflash_driver& d) { return name.driver == d.name; });
  if (driver == all.end() || !driver->in_use)
    throw Error(Status::unsupported, "the " + name.driver + " driver is not in use: " +
                                         (driver == all.end() ? "unknown driver" : driver->reason));
  for (const rocflash_device& d : devices()) {
    if (d.device.device_type != name.dlpack().device_type || d.device.device_id != name.index)
      continue;
    if (name.driver == "hip") return std::make_shared<HipGpu>(driver->library, d);
    return std::make_shared<CudaGpu>(driver->library, d);
  }
  throw Error(Status::unsupported, name.driver + ":" + std::to_string(name.index) +
                                       ": no such device, or no kernels for it (" + driver->reason +
                                       ")");
}

}  // namespace rocflash::verify
