/* Causal attention of 8 query heads and 2 KV heads, from C. */
#include <rocflash/rocflash.h>
#include <stdio.h>
#include <stdlib.h>

enum { batch = 1, queries = 128, keys = 128, heads = 8, key_heads = 2, head_dim = 64 };

static DLTensor tensor(float* data, int64_t shape[4]) {
  DLTensor t = {0}; /* no strides: contiguous */
  t.data = data;
  t.device.device_type = kDLCPU;
  t.dtype.code = kDLFloat;
  t.dtype.bits = 32;
  t.dtype.lanes = 1;
  t.ndim = 4;
  t.shape = shape;
  return t;
}

static float q_data[batch * queries * heads * head_dim];
static float k_data[batch * keys * key_heads * head_dim];
static float v_data[batch * keys * key_heads * head_dim];
static float out_data[batch * queries * heads * head_dim];

int main(void) {
  int64_t q_shape[4] = {batch, queries, heads, head_dim};
  int64_t k_shape[4] = {batch, keys, key_heads, head_dim};
  DLTensor q = tensor(q_data, q_shape), k = tensor(k_data, k_shape);
  DLTensor v = tensor(v_data, k_shape), out = tensor(out_data, q_shape);
  for (size_t n = 0; n < sizeof q_data / sizeof *q_data; ++n) q_data[n] = (float)(n % 7) - 3;
  for (size_t n = 0; n < sizeof k_data / sizeof *k_data; ++n) k_data[n] = (float)(n % 5) - 2;
  for (size_t n = 0; n < sizeof v_data / sizeof *v_data; ++n) v_data[n] = (float)(n / head_dim);

  rocflash_problem problem = {
      .struct_size = sizeof problem, .q = &q, .k = &k, .v = &v, .causal = 1};
  rocflash_forward_outputs outputs = {.struct_size = sizeof outputs, .out = &out};
  rocflash_execution execution = {.struct_size = sizeof execution};

  /* The caller owns all memory: query the workspace size, allocate, run. */
  rocflash_status status =
      rocflash_forward_workspace(&problem, &outputs, &execution, &execution.workspace_size);
  if (status == ROCFLASH_OK) {
    size_t rounded = (execution.workspace_size + 63) / 64 * 64;
    execution.workspace = aligned_alloc(64, rounded ? rounded : 64);
    status = rocflash_forward(&problem, &outputs, &execution);
    free(execution.workspace);
  }
  if (status != ROCFLASH_OK) {
    fprintf(stderr, "%s: %s\n", rocflash_status_name(status), rocflash_last_error());
    return 1;
  }
  /* The first query attends to the first key only; the last one attends to all keys. */
  printf("rocflash %s\nfirst query: %.3f\nlast query:  %.3f\n", rocflash_version(), out_data[0],
         out_data[(size_t)(queries - 1) * heads * head_dim]);
  return 0;
}
