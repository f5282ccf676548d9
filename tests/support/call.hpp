// One attention call with all its tensors. It is built valid; tests change it.
#pragma once

#include <rocflash/rocflash.h>

#include <cstdint>
#include <vector>

#include "support/tensor.hpp"

namespace rocflash::test {

struct Size {
  std::int64_t b = 1, sq = 3, sk = 5, h = 2, hk = 1, d = 4, dv = 4;
};

// The structs point to the tensors that are present; `set_pointers` updates them after one was
// added.
class Call {
 public:
  explicit Call(Size size = {}, DType dtype = DType::f32, std::uint64_t seed = 1);
  // Varlen sequences of these lengths.
  Call(Size size, std::vector<std::int64_t> lengths_q, std::vector<std::int64_t> lengths_k,
       DType dtype = DType::f32, std::uint64_t seed = 1);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Adds the named optional tensor, with the values of a typical model.
  Call& with_mask();
  Call& with_alibi(bool per_batch = false);
  Call& with_bias(std::vector<std::int64_t> shape = {});  // empty: (b, h, sq, sk)
  // Requests the gradients of the bias and of the ALiBi slopes, if these are present.
  Call& with_option_gradients();
  Call& with_sinks();
  Call& with_window(std::int64_t left, std::int64_t right);
  Call& with_scale(float scale);
  Call& with_dropout(float p, std::uint64_t seed = 42, std::uint64_t offset = 7);
  Call& with_s_dmask();
  Call& with_delta();
  // The gradient of lse: normal numbers.
  Call& with_dlse();
  Call& with_used_q(std::initializer_list<double> lengths) { return with_lengths(used_q, lengths); }
  Call& with_used_k(std::initializer_list<double> lengths) { return with_lengths(used_k, lengths); }
  Call& with_leftpad(std::initializer_list<double> lengths) {
    return with_lengths(leftpad, lengths);
  }
  Call& backend(rocflash_backend which, int threads = 1);
  void set_pointers();

  // Query the workspace, allocate it and run the call. `expect_*` fail the test if it is rejected.
  rocflash_status forward();
  rocflash_status backward();
  void expect_forward();
  void expect_backward();

  bool packed() const { return static_cast<bool>(cu_q); }
  std::vector<const HostTensor*> outputs() const;

  Size size;
  DType dtype;
  std::mt19937_64 random;
  HostTensor q, k, v, cu_q, cu_k, used_q, used_k, leftpad, mask, alibi, bias, sinks;
  HostTensor out, lse, s_dmask, dout, dq, dk, dv, dsinks, dbias, dalibi, delta, dlse;
  std::int64_t window[2] = {-1, -1};
  float scale = 1;
  std::vector<std::byte> workspace;

  rocflash_problem problem{};
  rocflash_forward_outputs forward_outputs{};
  rocflash_backward_tensors backward_tensors{};
  rocflash_execution execution{};

 private:
  template <class Tensors>
  using Function = rocflash_status (*)(const rocflash_problem*, const Tensors*,
                                       const rocflash_execution*);
  template <class Tensors>
  using WorkspaceFunction = rocflash_status (*)(const rocflash_problem*, const Tensors*,
                                                const rocflash_execution*, std::size_t*);
  template <class Tensors>
  rocflash_status run(WorkspaceFunction<Tensors> workspace_of, Function<Tensors> function,
                      const Tensors& tensors);
  void build(std::vector<std::int64_t> q_rows, std::vector<std::int64_t> k_rows);
  Call& with_lengths(HostTensor& tensor, std::initializer_list<double> lengths);
  void* allocate_workspace(std::size_t bytes);
};

}  // namespace rocflash::test
