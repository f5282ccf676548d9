// The OpenMP runtime that the process has loaded, if any. After a torch operator its threads spin
// for milliseconds, and another thread pool would compete with them for the CPUs. Work on the
// runtime's own threads does not. The runtime is looked up, never linked or loaded.
#pragma once

namespace rocflash {

// libgomp's compiler interface, which LLVM's libomp and Intel's libiomp5 export too.
struct OpenMp {
  // Calls function(data) on each thread of a team, including the caller, and waits for all. The
  // team has at most `threads` threads; 0: as many as the program's own parallel regions.
  void (*parallel)(void (*function)(void*), void* data, unsigned threads, unsigned flags);
  int (*max_threads)();  // team size of the calling thread for threads = 0
  int (*in_parallel)();  // whether the calling thread is in a team
};

// The runtime of torch's operators, or the only one loaded; null if there is none. New libraries
// are detected within `scan_interval` of the last scan, or immediately with `now`. Must not be
// called in a forked child, where the loader's lock may be held by a thread that does not exist.
enum class Look { spin_until, now };
const OpenMp* loaded_openmp(Look look);

// fork handlers: between openmp_before_fork and one of the others, no thread holds the loader's
// lock on behalf of loaded_openmp.
void openmp_before_fork();
void openmp_after_fork();
void openmp_in_child();

}  // namespace rocflash
