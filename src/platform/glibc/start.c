/* Startup of a program that is linked on glibc 2.34 or newer and must also run on older versions.
 * Before 2.34, __libc_start_main calls a function of the program that runs its constructors; the
 * start files of 2.34 pass null. Current versions still call that function if it is given. Linked
 * into programs with --wrap=__libc_start_main.
 * The names are those of glibc and the linker. NOLINTBEGIN(bugprone-reserved-identifier) */
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

static void run_constructors(int count, char** arguments, char** environment) {
  _init();
  for (Constructor* c = __init_array_start; c < __init_array_end; ++c)
    (*c)(count, arguments, environment);
}

int __wrap___libc_start_main(Main* main, int count, char** arguments, Constructor init,
                             void (*fini)(void), void (*loader_fini)(void), void* stack_end) {
  return __real___libc_start_main(main, count, arguments, init != NULL ? init : run_constructors,
                                  fini, loader_fini, stack_end);
}
/* NOLINTEND(bugprone-reserved-identifier) */
