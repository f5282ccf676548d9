// The CPU fast path from Python, with a fake interpreter.
#include "api/python.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <tuple>
#include <vector>

#include "support/interpreter.hpp"

namespace {

using namespace rocflash::test;

TEST(Python, IncompatibleInterpretersAreRejected) {
  rocflash_exchange exchange = table();
  rocflash_interpreter good = interpreter(&exchange);
  EXPECT_EQ(rocflash_python_start(&good), ROCFLASH_OK) << rocflash_last_error();
  EXPECT_EQ(rocflash_python_start(nullptr), ROCFLASH_INVALID_ARGUMENT);
  rocflash_interpreter other = good;
  other.struct_size = 8;
  EXPECT_EQ(rocflash_python_start(&other), ROCFLASH_INVALID_ARGUMENT);
  other = good;
  --other.prepared_size;
  EXPECT_EQ(rocflash_python_start(&other), ROCFLASH_INVALID_ARGUMENT);
  EXPECT_NE(std::string(rocflash_last_error()).find("prepared_size is "), std::string::npos);
  other = good;
  other.exchange = nullptr;
  EXPECT_EQ(rocflash_python_start(&other), ROCFLASH_UNSUPPORTED);
}

TEST(Python, ExchangeTableVersions) {
  const auto started = [](std::uint32_t major, std::uint32_t minor,
                          const rocflash_exchange* older) {
    rocflash_exchange exchange = table();
    exchange.major = major;
    exchange.minor = minor;
    exchange.older = older;
    const rocflash_interpreter given = interpreter(&exchange);
    return rocflash_python_start(&given);
  };
  const rocflash_exchange known = table();
  EXPECT_EQ(started(1, 2, nullptr), ROCFLASH_OK);
  EXPECT_EQ(started(1, 9, nullptr), ROCFLASH_OK);
  EXPECT_EQ(started(1, 1, nullptr), ROCFLASH_UNSUPPORTED);
  EXPECT_EQ(started(0, 9, nullptr), ROCFLASH_UNSUPPORTED);
  EXPECT_EQ(started(2, 0, nullptr), ROCFLASH_UNSUPPORTED);
  EXPECT_EQ(started(2, 0, &known), ROCFLASH_OK);  // `older` points to a known version
  rocflash_exchange incomplete = table();
  incomplete.describe = nullptr;
  const rocflash_interpreter given = interpreter(&incomplete);
  EXPECT_EQ(rocflash_python_start(&given), ROCFLASH_UNSUPPORTED);
}

// Two keys, one head of size 4: the result is the mean of the values where all scores are equal.
class PythonCall : public testing::Test {
 protected:
  void SetUp() override {
    exchange_ = table();
    const rocflash_interpreter i = interpreter(&exchange_);
    ASSERT_EQ(rocflash_python_start(&i), ROCFLASH_OK);
    error = gil_released = gil_was_released = false;
    gil_held_while_reading = true;
    yes.references = no.references = none.references = 0;
    for (auto [object, data, shape] : {std::tuple{&q_, q_data_, one_},
                                       {&k_, k_data_, two_},
                                       {&v_, v_data_, two_},
                                       {&out_, out_data_, one_}}) {
      object->kind = Object::tensor;
      object->described = {.data = data,
                           .device = {kDLCPU, 0},
                           .ndim = 4,
                           .dtype = {kDLFloat, 32, 1},
                           .shape = shape,
                           .strides = nullptr,
                           .byte_offset = 0};
    }
    causal_.kind = scale_.kind = Object::number;
    scale_.value = 0.5;
    options_.kind = Object::tuple;
    options_.items = {&none, &none, &causal_, &scale_};  // two tensors, two numbers
    rocflash_prepared& p = self_.prepared;
    p.structs.problem.struct_size = sizeof p.structs.problem;
    p.structs.outputs.struct_size = sizeof p.structs.outputs;
    p.structs.execution.struct_size = sizeof p.structs.execution;
    p.structs.execution.num_threads = 1;
    p.number[0] = &causal_;
    p.number[1] = &scale_;
    p.operation = ROCFLASH_PREPARED_INFER;
    p.numbers = p.options = 2;
    p.count = 6;
    const std::size_t outputs = offsetof(rocflash_prepared_structs, outputs);
    const std::size_t offsets[] = {offsetof(rocflash_problem, q),
                                   offsetof(rocflash_problem, k),
                                   offsetof(rocflash_problem, v),
                                   offsetof(rocflash_problem, mask),
                                   0,
                                   outputs + offsetof(rocflash_forward_outputs, out)};
    for (int n = 0; n < 6; ++n)
      p.field_offset[n] = n == 4 ? -1 : static_cast<std::int32_t>(offsets[n]);
  }

  Object* call(std::vector<void*> arguments) {
    void* found = rocflash_python_call(&self_, arguments.data(),
                                       static_cast<std::ptrdiff_t>(arguments.size()));
    EXPECT_FALSE(gil_released);
    EXPECT_TRUE(gil_held_while_reading);
    return as_object(found);
  }
  Object* call() { return call({&q_, &k_, &v_, &options_, &out_}); }

  rocflash_exchange exchange_;
  std::int64_t one_[4] = {1, 1, 1, 4}, two_[4] = {1, 2, 1, 4};
  alignas(64) float q_data_[4] = {1, 2, 3, 4}, k_data_[8] = {},
                    v_data_[8] = {1, 2, 3, 4, 5, 6, 7, 8}, out_data_[4] = {};
  Object q_, k_, v_, out_, options_, causal_, scale_, self_;
};

TEST_F(PythonCall, ReleasesTheGilWhileItComputes) {
  EXPECT_EQ(call(), &yes);
  EXPECT_EQ(yes.references, 1);
  EXPECT_TRUE(gil_was_released);
  for (int n = 0; n < 4; ++n) EXPECT_EQ(out_data_[n], static_cast<float>(n + 3));
}

TEST_F(PythonCall, ChangedNumbersReturnNone) {
  Object same_value, other_value, no_float;
  same_value.kind = other_value.kind = Object::number;
  same_value.value = 0.5;
  other_value.value = 0.25;
  no_float.value = 0.5;
  options_.items[3] = &same_value;
  EXPECT_EQ(call(), &yes);
  for (Object* number : {&other_value, &no_float}) {
    options_.items[3] = number;
    EXPECT_EQ(call(), &none);
  }
  EXPECT_EQ(none.references, 2);
}

TEST_F(PythonCall, DeclinesBeforeItWritesAnything) {
  const auto declined = [&](Object* answer) {
    EXPECT_EQ(answer, &no);
    EXPECT_EQ(out_data_[0], 0);
    EXPECT_FALSE(gil_was_released);
  };
  declined(call({&q_, &k_, &v_, &options_}));
  declined(call({}));
  options_.items[1] = &q_;  // must be None
  declined(call());
  options_.items[1] = &none;
  k_.described.device.device_type = kDLCUDA;
  declined(call());
  k_.described.device.device_type = kDLCPU;
  two_[3] = 3;  // rejected by validation
  declined(call());
  two_[3] = 4;
  self_.prepared.operation = 7;
  declined(call());
  EXPECT_EQ(no.references, 6);
}

TEST_F(PythonCall, ErrorsPropagate) {
  EXPECT_EQ(call({&q_, &options_, &v_, &options_, &out_}), nullptr);  // k is not a tensor
  EXPECT_TRUE(error);
  error = false;
  options_.items.pop_back();  // the tuple is too short
  EXPECT_EQ(call(), nullptr);
  EXPECT_TRUE(error);
  EXPECT_EQ(yes.references + no.references + none.references, 0);
}

}  // namespace
