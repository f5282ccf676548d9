#include "verify/gpu.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <charconv>

namespace rocflash::verify {
namespace {

// A function of the driver's library that tells success by 0.
template <class... Arguments>
struct Entry {
  const char* name = nullptr;
  int (*function)(Arguments...) = nullptr;
};

// Functions of the driver's library, by name.
class Functions {
 public:
  explicit Functions(const std::string& library)
      : handle_(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)), library_(library) {
    if (!handle_) throw Error(Status::device_error, library + ": " + dlerror());
  }
  template <class Function>
  void get(Function*& function, const char* name) const {
    optional(function, name);
    if (!function) throw Error(Status::device_error, library_ + " lacks " + name);
  }
  template <class... Arguments>
  void get(Entry<Arguments...>& entry, const char* name) const {
    entry.name = name;
    get(entry.function, name);
  }
  template <class Function>
  void optional(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(dlsym(handle_, name));
  }

 private:
  void* handle_;
  std::string library_;
};

[[noreturn]] void fail(const char* call, int error, const char* message) {
  throw Error(Status::device_error, std::string(call) + ": error " + std::to_string(error) + ", " +
                                        (message ? message : "unknown"));
}

// Streams and events, which both drivers have alike but for their names.
class DriverGpu : public Gpu {
 public:
  Stream make_stream() override {
    Stream stream = nullptr;
    call(stream_create, &stream, non_blocking);
    return stream;
  }
  void drop_stream(Stream stream) noexcept override { stream_destroy(stream); }
  void wait(Stream stream) override { call(stream_synchronize, stream); }
  Event make_event() override {
    Event event = nullptr;
    call(event_create, &event, 0u);
    return event;
  }
  void drop_event(Event event) noexcept override { event_destroy(event); }
  void record(Event event, Stream stream) override { call(event_record, event, stream); }
  double seconds(Event begin, Event end) override {
    float milliseconds = 0;
    call(event_synchronize, end);
    call(event_elapsed, &milliseconds, begin, end);
    return static_cast<double>(milliseconds) * 1e-3;
  }

 protected:
  virtual void enter() const = 0;  // makes this thread's calls go to this device
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

  template <class... Arguments, class... Given>
  void call(const Entry<Arguments...>& entry, Given... given) const {
    enter();
    check(entry.name, entry.function(given...));
  }
};

class HipGpu final : public DriverGpu {
 public:
  HipGpu(const std::string& library, const rocflash_device& about) {
    about_ = about;
    const Functions f(library);
    f.get(error_string, "hipGetErrorString");
    f.get(set_device, "hipSetDevice");
    f.get(malloc, "hipMalloc");
    f.get(free, "hipFree");
    f.get(memcpy, "hipMemcpy");
    f.get(memcpy_async, "hipMemcpyAsync");
    f.get(memset, "hipMemset");
    f.get(device_synchronize, "hipDeviceSynchronize");
    f.get(stream_create, "hipStreamCreateWithFlags");
    f.get(stream_destroy, "hipStreamDestroy");
    f.get(stream_synchronize, "hipStreamSynchronize");
    f.get(event_create, "hipEventCreateWithFlags");
    f.get(event_destroy, "hipEventDestroy");
    f.get(event_record, "hipEventRecord");
    f.get(event_synchronize, "hipEventSynchronize");
    f.get(event_elapsed, "hipEventElapsedTime");
    f.optional(sim_counters, "rocflashSimLastCounters");
    f.optional(sim_count, "rocflashSimCountLaunches");
    f.optional(sim_predict, "rocflashSimTimeLaunches");
    f.optional(sim_predicted, "rocflashSimPredictedMicroseconds");
    f.optional(sim_last_time, "rocflashSimLastTime");
  }

  void* allocate(std::size_t bytes) override {
    enter();
    void* memory = nullptr;
    check("hipMalloc", malloc(&memory, bytes));
    return memory;
  }
  void release(void* memory) noexcept override { free(memory); }
  void upload(void* to, const void* from, std::size_t bytes) override {
    enter();
    check("hipMemcpy", memcpy(to, from, bytes, 1));
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    enter();
    check("hipMemcpy", memcpy(to, from, bytes, 2));
  }
  void fill(void* to, unsigned char value, std::size_t bytes) override {
    enter();
    check("hipMemset", memset(to, value, bytes));
    check("hipDeviceSynchronize", device_synchronize());
  }
  void copy(void* to, const void* from, std::size_t bytes, Stream stream) override {
    enter();
    check("hipMemcpyAsync", memcpy_async(to, from, bytes, 3, stream));
  }
  std::string counters() override { return sim_counters ? sim_counters() : ""; }
  void count_launches(bool on) override {
    if (sim_count) sim_count(on ? 1 : 0);
  }
  void predict(bool on) override {
    constexpr int as_environment_says = -1;
    if (sim_predict) sim_predict(on ? 1 : as_environment_says);
  }
  double predicted_seconds() override { return sim_predicted ? sim_predicted() * 1e-6 : 0; }
  std::string prediction() override { return sim_last_time ? sim_last_time() : ""; }

 private:
  void enter() const override { check("hipSetDevice", set_device(about_.device.device_id)); }
  void check(const char* call, int error) const override {
    if (error != 0) fail(call, error, error_string(error));
  }

  const char* (*error_string)(int);
  int (*set_device)(int);
  int (*malloc)(void**, std::size_t);
  int (*free)(void*);
  int (*memcpy)(void*, const void*, std::size_t, int);
  int (*memcpy_async)(void*, const void*, std::size_t, int, Stream);
  int (*memset)(void*, int, std::size_t);
  int (*device_synchronize)();
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
    f.get(error_string, "cuGetErrorString");
    f.get(retain, "cuDevicePrimaryCtxRetain");
    f.get(set_current, "cuCtxSetCurrent");
    f.get(malloc, "cuMemAlloc_v2");
    f.get(free, "cuMemFree_v2");
    f.get(upload_, "cuMemcpyHtoD_v2");
    f.get(download_, "cuMemcpyDtoH_v2");
    f.get(copy_, "cuMemcpyDtoDAsync_v2");
    f.get(memset, "cuMemsetD8_v2");
    f.get(synchronize, "cuCtxSynchronize");
    f.get(stream_create, "cuStreamCreate");
    f.get(stream_destroy, "cuStreamDestroy_v2");
    f.get(stream_synchronize, "cuStreamSynchronize");
    f.get(event_create, "cuEventCreate");
    f.get(event_destroy, "cuEventDestroy_v2");
    f.get(event_record, "cuEventRecord");
    f.get(event_synchronize, "cuEventSynchronize");
    f.get(event_elapsed, "cuEventElapsedTime");
    check("cuDevicePrimaryCtxRetain", retain(&context_, about_.device.device_id));
  }

  void* allocate(std::size_t bytes) override {
    enter();
    Address memory = 0;
    check("cuMemAlloc", malloc(&memory, bytes));
    return reinterpret_cast<void*>(memory);
  }
  void release(void* memory) noexcept override {
    set_current(context_);
    free(address(memory));
  }
  void upload(void* to, const void* from, std::size_t bytes) override {
    enter();
    check("cuMemcpyHtoD", upload_(address(to), from, bytes));
    check("cuCtxSynchronize", synchronize());  // small copies from pageable memory return early
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    enter();
    check("cuMemcpyDtoH", download_(to, address(from), bytes));
  }
  void fill(void* to, unsigned char value, std::size_t bytes) override {
    enter();
    check("cuMemsetD8", memset(address(to), value, bytes));
    check("cuCtxSynchronize", synchronize());
  }
  void copy(void* to, const void* from, std::size_t bytes, Stream stream) override {
    enter();
    check("cuMemcpyDtoDAsync", copy_(address(to), address(from), bytes, stream));
  }

 private:
  using Address = unsigned long long;
  static Address address(const void* p) { return reinterpret_cast<Address>(p); }

  void enter() const override { check("cuCtxSetCurrent", set_current(context_)); }
  void check(const char* call, int error) const override {
    const char* message = nullptr;
    if (error != 0) error_string(error, &message), fail(call, error, message);
  }

  void* context_ = nullptr;
  int (*error_string)(int, const char**);
  int (*retain)(void**, int);
  int (*set_current)(void*);
  int (*malloc)(Address*, std::size_t);
  int (*free)(Address);
  int (*upload_)(Address, const void*, std::size_t);
  int (*download_)(void*, Address, std::size_t);
  int (*copy_)(Address, Address, std::size_t, Stream);
  int (*memset)(Address, unsigned char, std::size_t);
  int (*synchronize)();
};

}  // namespace

DeviceName::DeviceName(const std::string& text) {
  if (text == "cpu") return;
  const std::size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  const char* end = text.data() + text.size();
  if (name == "hip" || name == "cuda") {
    driver = name;
    if (colon == std::string::npos) return;
    const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, index);
    if (error == std::errc() && rest == end && index >= 0) return;
  }
  throw Error(Status::invalid_argument,
              "device: '" + text + "'; it must be cpu, or hip or cuda with a number, as in hip:0");
}

std::shared_ptr<Gpu> Gpu::open(const DeviceName& name) {
  const auto all = drivers();
  const auto driver = std::find_if(all.begin(), all.end(),
                                   [&](const rocflash_driver& d) { return name.driver == d.name; });
  if (driver == all.end() || !driver->in_use)
    throw Error(Status::unsupported,
                "the " + name.driver + " driver is not in use: " +
                    (driver == all.end() ? "there is no such driver" : driver->reason));
  for (const rocflash_device& d : devices()) {
    if (d.device.device_type != name.dlpack().device_type || d.device.device_id != name.index)
      continue;
    if (name.driver == "hip") return std::make_shared<HipGpu>(driver->library, d);
    return std::make_shared<CudaGpu>(driver->library, d);
  }
  throw Error(Status::unsupported, name.driver + ":" + std::to_string(name.index) +
                                       ": no such device, or none that there are kernels for (" +
                                       driver->reason + ")");
}

}  // namespace rocflash::verify
