// Test harness: compiles kernels at test time with clang 22, device buffers,
// and launches straight into the simulator's core.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "core/launch.h"
#include "core/settings.h"

namespace rocflash::sim::test {

inline constexpr const char* kMainTargets[] = {"gfx906", "gfx908",  "gfx90a",  "gfx942",
                                               "gfx950", "gfx1030", "gfx1100", "gfx1201"};

// Every RDNA target, family by family.
inline constexpr const char* kRdnaMembers[] = {
    "gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035",
    "gfx1036", "gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150",
    "gfx1151", "gfx1152", "gfx1153", "gfx1200", "gfx1201"};

// Code objects, cached by content in the build directory. Throw std::runtime_error with the
// compiler's message.
std::vector<u8> compile_hip(const std::string& path, const std::string& target,
                            const std::string& flags);
// As the library ships RDNA: assembly generated once for the family's generic member, then
// assembled for this one.
std::vector<u8> compile_member(const std::string& path, const std::string& target,
                               const std::string& flags);
std::vector<u8> assemble(const std::string& text, const std::string& target,
                         const std::string& flags = "");

// A whole assembly file around `body`: a kernel "k" whose kernarg pointer is in s[0:1] on targets
// that have it there, with one pointer argument. See wrap_kernel for the registers.
struct AsmKernel {
  std::string target = "gfx942";
  int wave = 64;
  std::string body;
  int lds = 0;
  int scratch = 0;
  int arguments = 4;  // 8-byte arguments
  int vgprs = 256;
  bool debug = false;
};
std::string wrap_kernel(const AsmKernel& kernel);
std::unique_ptr<Module> build(const AsmKernel& kernel);
// Registers wrap_kernel promises: the kernarg pointer, the workgroup id, the work-item id.
std::string group_id_register(const std::string& target);

std::unique_ptr<Module> load(std::span<const u8> code, const std::string& target);

template <typename T>
class Buffer {
 public:
  explicit Buffer(std::size_t count)
      : data_(static_cast<T*>(Memory::instance().allocate(count * sizeof(T), "buffer", true, 0))),
        count_(count) {}
  explicit Buffer(const std::vector<T>& values) : Buffer(values.size()) {
    std::copy(values.begin(), values.end(), data_);
    Memory::instance().mark_defined(data_, values.size() * sizeof(T));
  }
  ~Buffer() { Memory::instance().release(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T* data() { return data_; }
  std::size_t size() const { return count_; }
  T& operator[](std::size_t i) { return data_[i]; }
  std::vector<T> values() const { return {data_, data_ + count_}; }
  void fill(T value) {
    std::fill_n(data_, count_, value);
    Memory::instance().mark_defined(data_, count_ * sizeof(T));
  }

 private:
  T* data_;
  std::size_t count_;
};

// Arguments laid out as the ABI does.
class Arguments {
 public:
  template <typename... A>
  explicit Arguments(A... a) {
    (add(a), ...);
  }
  [[nodiscard]] std::span<const u8> bytes() const { return bytes_; }

 private:
  template <typename T>
  void add(T value) {
    bytes_.resize((bytes_.size() + alignof(T) - 1) / alignof(T) * alignof(T));
    const auto* p = reinterpret_cast<const u8*>(&value);
    bytes_.insert(bytes_.end(), p, p + sizeof value);
  }
  std::vector<u8> bytes_;
};

struct Shape {
  u32 grid[3] = {1, 1, 1};
  u32 block[3] = {64, 1, 1};
  u32 dynamic_lds = 0;
};

LaunchResult launch(Module& module, const std::string& kernel, const Shape& shape,
                    const Arguments& arguments, const Checks& checks = {}, bool count = false);

}  // namespace rocflash::sim::test
