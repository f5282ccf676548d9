// Invalid calls: options and execution.
#include <cmath>
#include <cstdlib>

#include "api/refusals.hpp"

namespace rocflash::test {
namespace {

HostTensor f32(std::vector<std::int64_t> shape) { return HostTensor(DType::f32, std::move(shape)); }

alignas(64) std::byte some_memory[1 << 16];

// The library reads the variable at every call, so it is set for this call only.
rocflash_status with_threads_variable(Call& c, const char* value) {
  setenv("ROCFLASH_NUM_THREADS", value, 1);
  const rocflash_status status = forward(c);
  unsetenv("ROCFLASH_NUM_THREADS");
  return status;
}

}  // namespace

std::vector<BadCall> bad_options() {
  return {
      {"causal_flag", "causal is 2; it must be 0 or 1", [](Call& c) { c.problem.causal = 2; }},
      {"causal_negative", "causal is -1; it must be 0 or 1",
       [](Call& c) { c.problem.causal = -1; }},
      {"deterministic_flag", "deterministic is 3; it must be 0 or 1",
       [](Call& c) { c.problem.deterministic = 3; }, backward},
      {"window_left", "window has left bound -2; it must be -1 (none) or more",
       [](Call& c) { c.with_window(-2, 0); }},
      {"window_right", "window has right bound -9223372036854775808; it must be -1 (none) or more",
       [](Call& c) { c.with_window(3, INT64_MIN); }},
      {"chunk_negative", "attention_chunk is -4; it must not be negative",
       [](Call& c) { c.problem.attention_chunk = -4; }},
      {"mask_dtype", "mask has dtype f32; it must be bool",
       [](Call& c) { c.with_mask().mask = f32({1, 2, 3, 5}); }},
      {"mask_dimensions",
       "mask has shape (3, 5) with 2 dimensions; it must be (b or 1, h or 1, sq or 1, sk or 1)",
       [](Call& c) { c.with_mask().mask = HostTensor(DType::boolean, {3, 5}); }},
      {"mask_shape", "mask has shape (1, 2, 3, 4); size 4 in dimension 3 must be 1 or 5",
       [](Call& c) { c.with_mask().mask = HostTensor(DType::boolean, {1, 2, 3, 4}); }},
      {"scale_nan", "softmax_scale is nan; it must be finite",
       [](Call& c) { c.with_scale(std::nanf("")); }},
      {"scale_infinite", "softmax_scale is -inf; it must be finite",
       [](Call& c) { c.with_scale(-INFINITY); }},
      {"softcap_negative", "softcap is -1; it must be 0 (none) or positive and finite",
       [](Call& c) { c.problem.softcap = -1; }},
      {"softcap_nan", "softcap is nan; it must be 0 (none) or positive and finite",
       [](Call& c) { c.problem.softcap = std::nanf(""); }, backward},
      {"softcap_infinite", "softcap is inf; it must be 0 (none) or positive and finite",
       [](Call& c) { c.problem.softcap = INFINITY; }},
      {"alibi_dtype", "alibi_slopes has dtype f16; it must be f32",
       [](Call& c) { c.with_alibi().alibi = HostTensor(DType::f16, {2}); }},
      {"alibi_heads", "alibi_slopes has shape (3,); it must be (h,) = (2,)",
       [](Call& c) { c.with_alibi().alibi = f32({3}); }},
      {"alibi_batch", "alibi_slopes has shape (2, 2); it must be (b, h) = (1, 2)",
       [](Call& c) { c.with_alibi().alibi = f32({2, 2}); }},
      {"alibi_dimensions", "alibi_slopes has shape (1, 1, 2) with 3 dimensions; it must be (h,)",
       [](Call& c) { c.with_alibi().alibi = f32({1, 1, 2}); }},
      {"bias_dtype", "bias has dtype f16; it must be f32",
       [](Call& c) { c.with_bias().bias = HostTensor(DType::f16, {1, 2, 3, 5}); }},
      {"bias_heads", "bias has shape (1, 3, 3, 5); size 3 in dimension 1 must be 1 or 2",
       [](Call& c) { c.with_bias().bias = f32({1, 3, 3, 5}); }},
      {"bias_of_packed", "bias has shape (2, 2, 5, 9); size 5 in dimension 2 must be 1 or 3",
       [](Call& c) { c.with_bias().bias = f32({2, 2, 5, 9}); }, forward, ROCFLASH_INVALID_ARGUMENT,
       true},
      {"bias_no_data", "bias has null data; with shape (1, 2, 3, 5) it must point to memory",
       [](Call& c) { c.with_bias().bias.dl.data = nullptr; }},
      {"sinks_dtype", "sinks has dtype bf16; it must be f32",
       [](Call& c) { c.with_sinks().sinks = HostTensor(DType::bf16, {2}); }},
      {"sinks_heads", "sinks has shape (1,); it must be (h,) = (2,)",
       [](Call& c) { c.with_sinks().sinks = f32({1}); }},
      {"dropout_negative", "dropout_p is -0.25; it must be in [0, 1)",
       [](Call& c) { c.problem.dropout_p = -0.25f; }},
      {"dropout_one", "dropout_p is 1; it must be in [0, 1)",
       [](Call& c) { c.problem.dropout_p = 1; }},
      {"dropout_nan", "dropout_p is nan; it must be in [0, 1)",
       [](Call& c) { c.problem.dropout_p = std::nanf(""); }, backward},

      {"backend_unknown",
       "backend is 9; it must be 0 (auto), 1 (cpu), 2 (reference), 3 (naive) or 4 (standard)",
       [](Call& c) { c.execution.backend = 9; }},
      {"backend_negative",
       "backend is -1; it must be 0 (auto), 1 (cpu), 2 (reference), 3 (naive) or 4 (standard)",
       [](Call& c) { c.execution.backend = -1; }, backward},
      {"threads_negative", "num_threads is -1; it must be 0 (automatic) to 1024",
       [](Call& c) { c.execution.num_threads = -1; }},
      {"threads_many", "num_threads is 1025; it must be 0 (automatic) to 1024",
       [](Call& c) { c.execution.num_threads = 1025; }},
      {"threads_variable_word",
       "ROCFLASH_NUM_THREADS is 'many'; it must be a number from 1 to 1024",
       [](Call& c) { c.execution.num_threads = 0; },
       [](Call& c) { return with_threads_variable(c, "many"); }},
      {"threads_variable_zero", "ROCFLASH_NUM_THREADS is '0'; it must be a number from 1 to 1024",
       [](Call& c) { c.execution.num_threads = 0; },
       [](Call& c) { return with_threads_variable(c, "0"); }},
      {"threads_variable_huge",
       "ROCFLASH_NUM_THREADS is '99999999999999999999'; it must be a number from 1 to 1024",
       [](Call& c) { c.execution.num_threads = 0; },
       [](Call& c) { return with_threads_variable(c, "99999999999999999999"); }},
      {"threads_variable_tail",
       "ROCFLASH_NUM_THREADS is '4 or so'; it must be a number from 1 to 1024",
       [](Call& c) { c.execution.num_threads = 0; },
       [](Call& c) { return with_threads_variable(c, "4 or so"); }},
      {"stream_on_cpu", "stream is given; for CPU tensors it must be null",
       [](Call& c) { c.execution.stream = some_memory; }},
  };
}

}  // namespace rocflash::test
