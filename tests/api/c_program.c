/* A minimal C program: the header must be valid C11, and a call must need only the documented
 * fields. */
#include <math.h>
#include <rocflash/rocflash.h>
#include <string.h>

int c_program_works(void);

int c_program_works(void) {
  /* Two keys with equal scores: the output is the mean of their values. */
  float q[2] = {0, 0}, k[4] = {1, 2, 3, 4}, v[4] = {1, 10, 3, 30}, out[2] = {9, 9}, lse[1] = {9};
  int64_t q_shape[4] = {1, 1, 1, 2}, k_shape[4] = {1, 2, 1, 2}, lse_shape[3] = {1, 1, 1};
  DLTensor tq = {q, {kDLCPU, 0}, 4, {kDLFloat, 32, 1}, q_shape, NULL, 0};
  DLTensor tk = {k, {kDLCPU, 0}, 4, {kDLFloat, 32, 1}, k_shape, NULL, 0};
  DLTensor tv = {v, {kDLCPU, 0}, 4, {kDLFloat, 32, 1}, k_shape, NULL, 0};
  DLTensor tout = {out, {kDLCPU, 0}, 4, {kDLFloat, 32, 1}, q_shape, NULL, 0};
  DLTensor tlse = {lse, {kDLCPU, 0}, 3, {kDLFloat, 32, 1}, lse_shape, NULL, 0};
  rocflash_problem problem = {.struct_size = sizeof problem, .q = &tq, .k = &tk, .v = &tv};
  rocflash_forward_outputs outputs = {.struct_size = sizeof outputs, .out = &tout, .lse = &tlse};
  rocflash_execution execution = {.struct_size = sizeof execution,
                                  .backend = ROCFLASH_BACKEND_REFERENCE};
  size_t bytes = 1;
  if (rocflash_forward_workspace(&problem, &outputs, &execution, &bytes) != ROCFLASH_OK) return 1;
  if (bytes != 0) return 2;
  if (rocflash_forward(&problem, &outputs, &execution) != ROCFLASH_OK) return 3;
  if (out[0] != 2 || out[1] != 20) return 4;
  if (fabsf(lse[0] - logf(2)) > 1e-6f) return 5;
  if (strcmp(rocflash_status_name(ROCFLASH_UNSUPPORTED), "ROCFLASH_UNSUPPORTED") != 0) return 6;
  if (strcmp(rocflash_version(), ROCFLASH_VERSION_TEXT) != 0) return 7;
  if (rocflash_version_number() !=
      10000 * ROCFLASH_VERSION_MAJOR + 100 * ROCFLASH_VERSION_MINOR + ROCFLASH_VERSION_PATCH)
    return 7;
  return 0;
}
