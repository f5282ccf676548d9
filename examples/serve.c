/* A server loop over the C ABI: paged KV cache, continuous batching, chunked prefill.
 *
 * Each step packs the next tokens of all running requests, one of each that generates and chunks of
 * prompts, into one call of rocflash_decode. It appends their keys and values to the requests'
 * pages and attends to them. Pages of finished requests are reused at once. The model is arithmetic
 * in place of weights. At the end rocflash_forward over each whole sequence must give the same
 * tokens.
 */
#include <rocflash/rocflash.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { heads = 4, key_heads = 2, head_dim = 32, vocabulary = 50 };
enum { page_size = 16, page_count = 12, pages_per_request = 4, max_tokens = 64 };
enum { max_batch = 4, step_tokens = 24, request_count = 7 };

typedef struct {
  int prompt, wanted, arrival; /* tokens of the prompt, tokens to generate, step */
  int length, cached;          /* tokens known, tokens in the KV cache */
  int tokens[max_tokens];
  int32_t pages[pages_per_request];
  int page_total, running;
} Request;

static float k_cache[page_count * page_size * key_heads * head_dim];
static float v_cache[page_count * page_size * key_heads * head_dim];
static int32_t free_pages[page_count];
static int free_total;

static void check(rocflash_status status) {
  if (status == ROCFLASH_OK) return;
  fprintf(stderr, "%s: %s\n", rocflash_status_name(status), rocflash_last_error());
  exit(1);
}

static DLTensor tensor(void* data, int integers, int ndim, int64_t* shape) {
  DLTensor t = {0};
  t.data = data;
  t.device.device_type = kDLCPU;
  t.dtype.code = integers ? kDLInt : kDLFloat;
  t.dtype.bits = 32;
  t.dtype.lanes = 1;
  t.ndim = ndim;
  t.shape = shape;
  return t;
}

/* One workspace for all calls: a size that was enough once stays so. */
static void* workspace(size_t bytes) {
  static void* memory;
  static size_t size;
  if (bytes > size) {
    free(memory);
    size = (bytes + 63) / 64 * 64;
    memory = aligned_alloc(64, size);
    if (memory == NULL) exit(1);
  }
  return memory;
}

/* The model: row number `row` of the projection `which` (q, k or v) of a token at a position. */
static void project(int token, int position, char which, int rows, float* out) {
  uint32_t state = (uint32_t)(token * 7919 + position * 104729 + which);
  for (int n = 0; n < rows * head_dim; ++n) {
    state = state * 1664525u + 1013904223u;
    out[n] = (float)(state >> 8) / (float)(1 << 23) - 1;
  }
}
static int next_token(const float* out) {
  int best = 0;
  for (int n = 1; n < vocabulary; ++n)
    if (out[n] > out[best]) best = n;
  return best;
}

/* Starts requests that have arrived, as long as there are pages for all of their tokens. */
static void admit(Request* requests, int step) {
  int running = 0;
  for (int n = 0; n < request_count; ++n) running += requests[n].running;
  for (int n = 0; n < request_count && running < max_batch; ++n) {
    Request* r = &requests[n];
    int pages = (r->prompt + r->wanted + page_size - 1) / page_size;
    if (r->running || r->cached > 0 || r->arrival > step) continue;
    if (pages > free_total) return; /* in the order of arrival */
    for (r->page_total = 0; r->page_total < pages; ++r->page_total)
      r->pages[r->page_total] = free_pages[--free_total];
    r->running = 1;
    ++running;
  }
}

/* One step over the running requests; returns the number of tokens computed. */
static int run_step(Request* requests) {
  static float q[step_tokens * heads * head_dim], out[step_tokens * heads * head_dim];
  static float k[step_tokens * key_heads * head_dim], v[step_tokens * key_heads * head_dim];
  int32_t begins[max_batch + 1] = {0}, used[max_batch], table[max_batch][pages_per_request] = {{0}};
  Request* batch[max_batch];
  int size = 0, total = 0, longest = 0;
  for (int n = 0; n < request_count; ++n) {
    Request* r = &requests[n];
    if (!r->running || total == step_tokens) continue;
    int count = r->length - r->cached; /* 1, or what is left of the prompt */
    int waiting = 0;                   /* each later request gets at least one token */
    for (int m = n + 1; m < request_count; ++m) waiting += requests[m].running;
    if (count > step_tokens - total - waiting) count = step_tokens - total - waiting;
    for (int t = 0; t < count; ++t) {
      int position = r->cached + t, token = r->tokens[position], row = total + t;
      project(token, position, 'q', heads, q + (size_t)row * heads * head_dim);
      project(token, position, 'k', key_heads, k + (size_t)row * key_heads * head_dim);
      project(token, position, 'v', key_heads, v + (size_t)row * key_heads * head_dim);
    }
    memcpy(table[size], r->pages, sizeof r->pages);
    used[size] = r->cached;
    batch[size++] = r;
    total += count;
    begins[size] = total;
    if (count > longest) longest = count;
  }

  int64_t q_shape[3] = {total, heads, head_dim}, new_shape[3] = {total, key_heads, head_dim};
  int64_t cache_shape[4] = {page_count, page_size, key_heads, head_dim};
  int64_t begins_shape[1] = {size + 1}, used_shape[1] = {size};
  int64_t table_shape[2] = {size, pages_per_request};
  DLTensor q_tensor = tensor(q, 0, 3, q_shape), out_tensor = tensor(out, 0, 3, q_shape);
  DLTensor k_new = tensor(k, 0, 3, new_shape), v_new = tensor(v, 0, 3, new_shape);
  DLTensor keys = tensor(k_cache, 0, 4, cache_shape), values = tensor(v_cache, 0, 4, cache_shape);
  DLTensor begins_tensor = tensor(begins, 1, 1, begins_shape);
  DLTensor used_tensor = tensor(used, 1, 1, used_shape);
  DLTensor table_tensor = tensor(table, 1, 2, table_shape);
  rocflash_problem problem = {.struct_size = sizeof problem,
                              .q = &q_tensor,
                              .k = &keys,
                              .v = &values,
                              .cu_seqlens_q = &begins_tensor,
                              .seqused_k = &used_tensor,
                              .max_seqlen_q = longest,
                              .causal = 1,
                              .block_table = &table_tensor};
  rocflash_append append = {.struct_size = sizeof append,
                            .k_new = &k_new,
                            .v_new = &v_new,
                            .cu_seqlens_k_new = &begins_tensor};
  rocflash_forward_outputs outputs = {.struct_size = sizeof outputs, .out = &out_tensor};
  rocflash_execution run = {.struct_size = sizeof run};
  check(rocflash_decode_workspace(&problem, &append, &outputs, &run, &run.workspace_size));
  run.workspace = workspace(run.workspace_size);
  check(rocflash_decode(&problem, &append, &outputs, &run));

  for (int n = 0; n < size; ++n) {
    Request* r = batch[n];
    r->cached += begins[n + 1] - begins[n];
    if (r->cached == r->length) /* the last token's output selects the next token */
      r->tokens[r->length++] = next_token(out + (size_t)(begins[n + 1] - 1) * heads * head_dim);
    if (r->length == r->prompt + r->wanted) {
      r->running = 0;
      while (r->page_total > 0) free_pages[free_total++] = r->pages[--r->page_total];
    }
  }
  return total;
}

/* Whether attention over the whole sequence selects the same tokens. */
static int same_tokens(const Request* r) {
  static float q[max_tokens * heads * head_dim], out[max_tokens * heads * head_dim];
  static float k[max_tokens * key_heads * head_dim], v[max_tokens * key_heads * head_dim];
  for (int n = 0; n < r->length; ++n) {
    project(r->tokens[n], n, 'q', heads, q + (size_t)n * heads * head_dim);
    project(r->tokens[n], n, 'k', key_heads, k + (size_t)n * key_heads * head_dim);
    project(r->tokens[n], n, 'v', key_heads, v + (size_t)n * key_heads * head_dim);
  }
  int64_t q_shape[4] = {1, r->length, heads, head_dim};
  int64_t k_shape[4] = {1, r->length, key_heads, head_dim};
  DLTensor q_tensor = tensor(q, 0, 4, q_shape), out_tensor = tensor(out, 0, 4, q_shape);
  DLTensor k_tensor = tensor(k, 0, 4, k_shape), v_tensor = tensor(v, 0, 4, k_shape);
  rocflash_problem problem = {
      .struct_size = sizeof problem, .q = &q_tensor, .k = &k_tensor, .v = &v_tensor, .causal = 1};
  rocflash_forward_outputs outputs = {.struct_size = sizeof outputs, .out = &out_tensor};
  rocflash_execution run = {.struct_size = sizeof run};
  check(rocflash_forward_workspace(&problem, &outputs, &run, &run.workspace_size));
  run.workspace = workspace(run.workspace_size);
  check(rocflash_forward(&problem, &outputs, &run));
  for (int n = r->prompt; n < r->length; ++n)
    if (next_token(out + (size_t)(n - 1) * heads * head_dim) != r->tokens[n]) return 0;
  return 1;
}

int main(void) {
  static Request requests[request_count];
  for (int n = 0; n < request_count; ++n) {
    Request* r = &requests[n];
    r->prompt = 1 + n * 17 % 40;
    r->wanted = 4 + n * 5 % 17;
    r->arrival = n * 2;
    r->length = r->prompt;
    for (int t = 0; t < r->prompt; ++t) r->tokens[t] = (t * 13 + n * 29) % vocabulary;
  }
  for (free_total = 0; free_total < page_count; ++free_total) free_pages[free_total] = free_total;

  int total = 0, step = 0;
  for (int left = request_count; left > 0; ++step) {
    admit(requests, step);
    int running = 0;
    left = 0;
    for (int n = 0; n < request_count; ++n) running += requests[n].running;
    if (running > 0) total += run_step(requests);
    for (int n = 0; n < request_count; ++n)
      left += requests[n].length < requests[n].prompt + requests[n].wanted;
  }
  int wrong = 0;
  for (int n = 0; n < request_count; ++n) wrong += !same_tokens(&requests[n]);
  printf("%d requests, %d tokens in %d steps; %s\n", (int)request_count, total, step,
         wrong ? "WRONG tokens" : "the tokens are those of attention over whole sequences");
  return wrong != 0;
}
