// amdhip64_7.dll for Wine: a library of Wine's kind that passes HIP's calls on to the simulator of
// this Linux, which ROCFLASH_WINE_SIMULATOR names. All arguments are integers or pointers, so that
// one signature with the most of them serves every function; only the calling conventions differ.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef uint64_t Word;
typedef Word Function(Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word);

static void* find(const char* name) {
  static void* simulator;
  const char* const path = getenv("ROCFLASH_WINE_SIMULATOR");
  if (!simulator && path) simulator = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  void* const function = simulator ? dlsym(simulator, name) : NULL;
  if (!function) {
    fprintf(stderr, "ROCFLASH_WINE_SIMULATOR: %s: %s\n", name, path ? dlerror() : "is not set");
    abort();
  }
  return function;
}

#define PASS_ON(name)                                                                              \
  __attribute__((ms_abi)) Word wine_##name(Word a, Word b, Word c, Word d, Word e, Word f, Word g, \
                                           Word h, Word i, Word j, Word k) {                       \
    static Function* function;                                                                     \
    if (!function) function = (Function*)find(#name);                                              \
    return function(a, b, c, d, e, f, g, h, i, j, k);                                              \
  }
#define ROCFLASH_HIP_LAUNCH(need, name, symbol, ...) PASS_ON(symbol)
#define ROCFLASH_CUDA_LAUNCH(...)
#define ROCFLASH_DRIVER_MEMORY(need, name, symbol, ...) PASS_ON(symbol)
#include "gpu/driver/symbols.inc"
