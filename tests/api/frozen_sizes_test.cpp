// Programs built against version 0.1.0 keep working: their struct sizes are always accepted. These
// numbers never change. A struct that grows gets another line here with its new size, and keeps the
// old one.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "support/call.hpp"

namespace rocflash::test {
namespace {

constexpr std::size_t largest_size = 4096;

// A call that reads or writes one of the structs in memory of the caller's size.
struct Frozen {
  const char* name;
  std::size_t size;
  std::vector<std::byte> content;  // a valid struct
  std::function<rocflash_status(void*)> call;
  bool read = true;  // by the library; otherwise written
};

std::size_t align(std::size_t n) { return n + (8 - n % 8) % 8; }

template <class Struct>
std::vector<std::byte> bytes_of(const Struct& s) {
  std::vector<std::byte> bytes(sizeof s);
  std::memcpy(bytes.data(), &s, sizeof s);
  return bytes;
}

rocflash_status call_with(const Frozen& f, std::size_t size, std::byte tail = {}) {
  std::vector<std::uint64_t> memory(align(largest_size + 64) / 8);
  auto* bytes = reinterpret_cast<std::byte*>(memory.data());
  std::memcpy(bytes, f.content.data(), std::min(size, f.content.size()));
  std::memcpy(bytes, &size, sizeof size);
  if (size > f.content.size() && size <= largest_size) bytes[size - 1] = tail;
  return f.call(bytes);
}

class FrozenSizes : public testing::Test {
 protected:
  FrozenSizes() {
    c.backend(ROCFLASH_BACKEND_REFERENCE).expect_forward();
    append.struct_size = sizeof append;
    create_plan();
    const auto add_read = [&](const char* name, std::size_t size, auto& given, auto call) {
      using Struct = std::remove_reference_t<decltype(given)>;
      all.push_back({name, size, bytes_of(given),
                     [call](void* s) { return call(static_cast<const Struct*>(s)); }});
    };
    const auto add_written = [&](const char* name, std::size_t size, auto given, auto call) {
      using Struct = decltype(given);
      all.push_back({name, size, bytes_of(given),
                     [call](void* s) { return call(static_cast<Struct*>(s)); }, false});
    };
    const auto* p = &c.problem;
    const auto* o = &c.forward_outputs;
    const auto* t = &c.backward_tensors;
    const auto* e = &c.execution;
    add_read("problem", 208, c.problem, [=, this](const rocflash_problem* s) {
      return rocflash_forward_workspace(s, o, e, &bytes);
    });
    add_read("outputs", 32, c.forward_outputs, [=, this](const rocflash_forward_outputs* s) {
      return rocflash_forward_workspace(p, s, e, &bytes);
    });
    add_read("tensors", 80, c.backward_tensors, [=, this](const rocflash_backward_tensors* s) {
      return rocflash_backward_workspace(p, s, e, &bytes);
    });
    add_read("append", 64, append, [=, this](const rocflash_append* s) {
      return rocflash_decode_workspace(p, s, o, e, &bytes);
    });
    add_read("execution", 40, c.execution, [=, this](const rocflash_execution* s) {
      return rocflash_backward_workspace(p, t, s, &bytes);
    });
    add_read("arguments", 304, arguments,
             [this](const rocflash_plan_arguments* s) { return rocflash_plan_run(plan, s); });
    add_written("limits", 24, rocflash_limits{}, rocflash_query_limits);
    add_written("device", 48, rocflash_device{},
                [](rocflash_device* s) { return rocflash_query_device(0, s); });
    add_written("driver", 40, rocflash_driver{},
                [](rocflash_driver* s) { return rocflash_query_driver(0, s); });
  }

  ~FrozenSizes() override { rocflash_plan_destroy(plan); }

  void create_plan() {
    EXPECT_EQ(rocflash_plan_create_forward(&c.problem, &c.forward_outputs, &c.execution, &plan),
              ROCFLASH_OK)
        << rocflash_last_error();
    EXPECT_EQ(rocflash_plan_workspace(plan, &bytes), ROCFLASH_OK);
    workspace.resize(bytes);
    arguments.q = c.problem.q->data;
    arguments.k = c.problem.k->data;
    arguments.v = c.problem.v->data;
    arguments.out = c.out.dl.data;
    arguments.lse = c.lse.dl.data;
    arguments.workspace = workspace.data();
    arguments.workspace_size = bytes;
  }

  Call c;
  rocflash_append append{};
  rocflash_plan* plan = nullptr;
  rocflash_plan_arguments arguments{};
  std::vector<std::byte> workspace;
  std::size_t bytes = 0;
  std::vector<Frozen> all;
};

TEST_F(FrozenSizes, AreAccepted) {
  for (const Frozen& f : all)
    EXPECT_EQ(call_with(f, f.size), ROCFLASH_OK) << f.name << ": " << rocflash_last_error();
}

TEST_F(FrozenSizes, LargerSizesWithAZeroTailAreAccepted) {
  for (const Frozen& f : all) {
    for (const std::size_t size : {f.content.size() + 8, f.content.size() + 64, largest_size})
      EXPECT_EQ(call_with(f, size), ROCFLASH_OK) << f.name << " " << size;
  }
}

TEST_F(FrozenSizes, AnUnknownOptionIsRejectedByName) {
  for (const Frozen& f : all) {
    if (!f.read) continue;
    EXPECT_EQ(call_with(f, f.content.size() + 8, std::byte{1}), ROCFLASH_UNSUPPORTED) << f.name;
    EXPECT_EQ(std::string(rocflash_last_error()).find(std::string(f.name) + " has a nonzero byte "),
              0u)
        << rocflash_last_error();
  }
}

TEST_F(FrozenSizes, OtherSizesAreRejectedByName) {
  for (const Frozen& f : all) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{8}, f.size - 8, f.size - 1,
                                   f.size + 1, f.content.size() + 4, largest_size + 8}) {
      EXPECT_EQ(call_with(f, size), ROCFLASH_INVALID_ARGUMENT) << f.name << " " << size;
      EXPECT_EQ(std::string(rocflash_last_error())
                    .find(std::string(f.name) + ".struct_size is " + std::to_string(size)),
                0u)
          << rocflash_last_error();
    }
  }
}

// A library without GPU kernels has no target, but the size is checked first.
TEST_F(FrozenSizes, Target) {
  rocflash_target target{};
  static_assert(sizeof target >= 32);
  target.struct_size = 32;
  const rocflash_status status = rocflash_query_target(0, &target);
  EXPECT_EQ(std::string(rocflash_last_error()).find("target.struct_size"), std::string::npos);
  EXPECT_TRUE(status == ROCFLASH_OK || status == ROCFLASH_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace rocflash::test
