// Causal attention of 8 query heads and 2 KV heads, forward and backward, from C++20.
#include <cstdio>
#include <rocflash/rocflash.hpp>
#include <vector>

int main() try {
  const rocflash::Dims q_shape{1, 128, 8, 64};  // batch, queries, heads, head dim
  const rocflash::Dims k_shape{1, 128, 2, 64};
  std::vector<float> q(1 * 128 * 8 * 64), out(q.size()), dout(q.size(), 1.0f), dq(q.size());
  std::vector<float> k(1 * 128 * 2 * 64), v(k.size()), dk(k.size()), dv(k.size());
  std::vector<float> lse(1 * 8 * 128);
  for (std::size_t n = 0; n < q.size(); ++n) q[n] = static_cast<float>(n % 7) - 3;
  for (std::size_t n = 0; n < k.size(); ++n) k[n] = static_cast<float>(n % 5) - 2;
  for (std::size_t n = 0; n < v.size(); ++n) v[n] = static_cast<float>(n / 64);

  const rocflash::Problem problem{
      .q = {q, q_shape}, .k = {k, k_shape}, .v = {v, k_shape}, .causal = true};
  const rocflash::Tensor lse_tensor{lse, {1, 8, 128}};
  rocflash::forward(problem, {.out = {out, q_shape}, .lse = lse_tensor});

  // The first query attends to the first key only; the last one attends to all keys.
  std::printf("rocflash %s\nfirst query: %.3f\nlast query:  %.3f\n", rocflash::version().c_str(),
              out.front(), out[127 * 8 * 64]);

  rocflash::backward(problem, {.dout = {dout, q_shape},
                               .out = {out, q_shape},
                               .lse = lse_tensor,
                               .dq = rocflash::Tensor{dq, q_shape},
                               .dk = rocflash::Tensor{dk, k_shape},
                               .dv = rocflash::Tensor{dv, k_shape}});
  // Only the last query attends to the last key, so this is its weight, summed over the 4 query
  // heads that share the KV head.
  std::printf("gradient of the last value: %.6f\n", dv.back());
  return 0;
} catch (const rocflash::Error& error) {
  std::fprintf(stderr, "rocflash: %s\n", error.what());
  return 1;
}
