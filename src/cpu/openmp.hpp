// The OpenMP runtime that the process has loaded, if any. After an operator of torch the runtime's
// threads spin for milliseconds; threads of another pool would have to share the CPUs with them.
// Work that runs on those very threads does not. The runtime is looked up, never linked or loaded.
#pragma once

namespace rocflash {

// libgomp's interface to compilers. LLVM's libomp and Intel's libiomp5 export it too.
struct OpenMp {
  // Calls function(data) on each thread of a team, the caller among them, and waits for all. The
  // team has `threads` threads or fewer; with 0 as many as the program's own parallel regions.
  void (*parallel)(void (*function)(void*), void* data, unsigned threads, unsigned flags);
  int (*max_threads)();  // of a team that the calling thread starts with 0
  int (*in_parallel)();  // whether the calling thread is one of a team already
};

// The runtime that torch's operators use, or the only one; null if there is none. Libraries that
// were loaded meanwhile are noticed within `patience` of the last look, or at once if `now`. Must
// not be called in a forked child, where the loader's own lock may be held by no living thread.
enum class Look { soon, now };
const OpenMp* loaded_openmp(Look look);

// No thread is inside the loader's lock on behalf of loaded_openmp between the first and one of the
// others: fork is to happen there.
void openmp_before_fork();
void openmp_after_fork();
void openmp_in_child();

}  // namespace rocflash
