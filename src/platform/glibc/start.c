/* The start of a program that was linked on glibc 2.34 or newer and runs on an older one too. There the C library expects the program to
 * run its own constructors, by a function that it is handed; the start files of 2.34 hand over none. A glibc of today still calls such a
 * function where it is given one. Linked into programs with --wrap=__libc_start_main. */
#include <stddef.h>

typedef void (*Constructor)(int, char**, char**);
extern Constructor __init_array_start[] __attribute__((visibility("hidden")));
extern Constructor __init_array_end[] __attribute__((visibility("hidden")));
extern void _init(void);

typedef int Main(int, char**, char**);
int __real___libc_start_main(Main*, int, char**, Constructor, void (*)(void), void (*)(void),
                             void*);
int __wrap___libc_start_main(Main*, int, char**, Constructor, void (*)(void), void (*)(void),
                             void*);

static void run_constructors(int count, char** words, char** environment) {
  _init();
  for (Constructor* c = __init_array_start; c < __init_array_end; ++c)
    (*c)(count, words, environment);
}

int __wrap___libc_start_main(Main* main, int count, char** words, Constructor init,
                             void (*fini)(void), void (*loader_fini)(void), void* stack_end) {
  return __real___libc_start_main(main, count, words, init != NULL ? init : run_constructors, fini,
                                  loader_fini, stack_end);
}
