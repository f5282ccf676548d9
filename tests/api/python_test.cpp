// The way in from Python, with a make-believe interpreter: what it asks of one, and what it
// answers.
#include "api/python.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <tuple>
#include <vector>

namespace {

struct Object {
  enum Kind { other, tensor, number, tuple, memory } kind = other;
  DLTensor described{};
  double value = 0;
  std::vector<Object*> items;
  rocflash_prepared prepared{};
  int references = 0;
};

Object none, yes, no, float_type;
bool error = false, unlocked = false, unlocked_once = false, locked_while_reading = true;

Object* as_object(void* object) { return static_cast<Object*>(object); }

int describe(void* object, DLTensor* tensor) {
  locked_while_reading &= !unlocked;
  error |= as_object(object)->kind != Object::tensor;
  *tensor = as_object(object)->described;
  return error ? -1 : 0;
}

rocflash_exchange table() {
  return {.major = 1,
          .minor = 3,
          .older = nullptr,
          .allocate = nullptr,
          .export_tensor = nullptr,
          .import_tensor = nullptr,
          .describe = describe};
}

rocflash_interpreter interpreter(const rocflash_exchange* exchange) {
  rocflash_interpreter i{};
  i.struct_size = sizeof i;
  i.prepared_size = sizeof(rocflash_prepared);
  i.exchange = exchange;
  i.none = &none;
  i.done = &yes;
  i.declined = &no;
  i.retain = [](void* object) { ++as_object(object)->references; };
  i.let_others_run = []() -> void* {
    unlocked = unlocked_once = true;
    return &none;
  };
  i.go_on = [](void* state) { unlocked = state != &none; };
  i.bytes_of = [](void* object) { return reinterpret_cast<char*>(&as_object(object)->prepared); };
  i.item_of = [](void* object, std::ptrdiff_t n) -> void* {
    const auto at = static_cast<std::size_t>(n);
    error |= at >= as_object(object)->items.size();
    return error ? nullptr : as_object(object)->items[at];
  };
  i.is_instance = [](void* object, void* type) {
    return type == &float_type && as_object(object)->kind == Object::number ? 1 : 0;
  };
  i.double_of = [](void* object) { return as_object(object)->value; };
  i.float_type = &float_type;
  return i;
}

TEST(Python, AnInterpreterThatDoesNotFitIsRefused) {
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
  EXPECT_NE(std::string(rocflash_last_error()).find("prepared_size: "), std::string::npos);
  other = good;
  other.exchange = nullptr;
  EXPECT_EQ(rocflash_python_start(&other), ROCFLASH_UNSUPPORTED);
}

TEST(Python, TablesOfOtherVersions) {
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
  EXPECT_EQ(started(2, 0, &known), ROCFLASH_OK);  // the chain leads to what is known
  rocflash_exchange silent = table();
  silent.describe = nullptr;
  const rocflash_interpreter given = interpreter(&silent);
  EXPECT_EQ(rocflash_python_start(&given), ROCFLASH_UNSUPPORTED);
}

// Two keys, one head of size 4: the result is the mean of the values where all scores are equal.
class PythonCall : public testing::Test {
 protected:
  void SetUp() override {
    exchange_ = table();
    const rocflash_interpreter i = interpreter(&exchange_);
    ASSERT_EQ(rocflash_python_start(&i), ROCFLASH_OK);
    error = unlocked = unlocked_once = false;
    locked_while_reading = true;
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
    EXPECT_FALSE(unlocked);
    EXPECT_TRUE(locked_while_reading);
    return as_object(found);
  }
  Object* call() { return call({&q_, &k_, &v_, &options_, &out_}); }

  rocflash_exchange exchange_;
  std::int64_t one_[4] = {1, 1, 1, 4}, two_[4] = {1, 2, 1, 4};
  alignas(64) float q_data_[4] = {1, 2, 3, 4}, k_data_[8] = {},
                    v_data_[8] = {1, 2, 3, 4, 5, 6, 7, 8}, out_data_[4] = {};
  Object q_, k_, v_, out_, options_, causal_, scale_, self_;
};

TEST_F(PythonCall, ComputesWhileOthersRun) {
  EXPECT_EQ(call(), &yes);
  EXPECT_EQ(yes.references, 1);
  EXPECT_TRUE(unlocked_once);
  for (int n = 0; n < 4; ++n) EXPECT_EQ(out_data_[n], static_cast<float>(n + 3));
}

TEST_F(PythonCall, OtherNumbersAreSaidToBeOther) {
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

TEST_F(PythonCall, DeclinesBeforeAnythingIsWritten) {
  const auto declined = [&](Object* answer) {
    EXPECT_EQ(answer, &no);
    EXPECT_EQ(out_data_[0], 0);
    EXPECT_FALSE(unlocked_once);
  };
  declined(call({&q_, &k_, &v_, &options_}));
  declined(call({}));
  options_.items[1] = &q_;  // must be None
  declined(call());
  options_.items[1] = &none;
  k_.described.device.device_type = kDLCUDA;
  declined(call());
  k_.described.device.device_type = kDLCPU;
  two_[3] = 3;  // what the checks refuse
  declined(call());
  two_[3] = 4;
  self_.prepared.operation = 7;
  declined(call());
  EXPECT_EQ(no.references, 6);
}

TEST_F(PythonCall, ErrorsArePassedOn) {
  EXPECT_EQ(call({&q_, &options_, &v_, &options_, &out_}), nullptr);  // k is no tensor
  EXPECT_TRUE(error);
  error = false;
  options_.items.pop_back();  // too short a tuple
  EXPECT_EQ(call(), nullptr);
  EXPECT_TRUE(error);
  EXPECT_EQ(yes.references + no.references + none.references, 0);
}

}  // namespace
