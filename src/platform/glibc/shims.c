/* Functions that current compilers, headers and the static C++ runtime reference and an old glibc
 * lacks, implemented with functions that it has. They are linked into binaries that are linked
 * against the stub libraries of stubs.sh, and have hidden visibility.
 * They have the names that glibc reserved. NOLINTBEGIN(bugprone-reserved-identifier) */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <features.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>

/* glibc 2.32: whether the process never had a second thread. If so, libstdc++ counts references
 * without atomics. 0 is always correct. */
char __libc_single_threaded = 0;

/* glibc 2.33. Before, inline functions in the headers called these with the struct's version. */
struct stat;
int __xstat(int, const char*, struct stat*);
int __lxstat(int, const char*, struct stat*);
int __fxstat(int, int, struct stat*);
int __fxstatat(int, int, const char*, struct stat*, int);
#if defined(__aarch64__)
enum { stat_version = 0 };
#else
enum { stat_version = 1 };
#endif
int stat(const char* path, struct stat* out) { return __xstat(stat_version, path, out); }
int lstat(const char* path, struct stat* out) { return __lxstat(stat_version, path, out); }
int fstat(int file, struct stat* out) { return __fxstat(stat_version, file, out); }
int fstatat(int directory, const char* path, struct stat* out, int flags) {
  return __fxstatat(stat_version, directory, path, out, flags);
}
/* On 64-bit systems struct stat64 equals struct stat. */
int stat64(const char* path, struct stat* out) { return stat(path, out); }
int lstat64(const char* path, struct stat* out) { return lstat(path, out); }
int fstat64(int file, struct stat* out) { return fstat(file, out); }
int fstatat64(int directory, const char* path, struct stat* out, int flags) {
  return fstatat(directory, path, out, flags);
}

/* glibc 2.38: C++ programs call these. They also parse the "0b" prefix, which no input here has. */
long strtol(const char*, char**, int);
long long strtoll(const char*, char**, int);
unsigned long strtoul(const char*, char**, int);
unsigned long long strtoull(const char*, char**, int);
long __isoc23_strtol(const char* text, char** end, int base) { return strtol(text, end, base); }
long long __isoc23_strtoll(const char* text, char** end, int base) {
  return strtoll(text, end, base);
}
unsigned long __isoc23_strtoul(const char* text, char** end, int base) {
  return strtoul(text, end, base);
}
unsigned long long __isoc23_strtoull(const char* text, char** end, int base) {
  return strtoull(text, end, base);
}

#if __GLIBC_PREREQ(2, 35)
/* glibc 2.35, which libgcc uses to unwind: the module that contains an address, and its unwind
 * table. */
struct Search {
  uintptr_t address;
  struct dl_find_object* found;
};

static int visit_module(struct dl_phdr_info* module, size_t size, void* data) {
  struct Search* search = data;
  uintptr_t first = UINTPTR_MAX, end = 0, eh_frame = 0;
  int contains = 0;
  (void)size;
  for (int n = 0; n < module->dlpi_phnum; ++n) {
    const ElfW(Phdr)* segment = &module->dlpi_phdr[n];
    const uintptr_t start = module->dlpi_addr + segment->p_vaddr;
    if (segment->p_type == PT_GNU_EH_FRAME) eh_frame = start;
    if (segment->p_type != PT_LOAD) continue;
    if (start < first) first = start;
    if (start + segment->p_memsz > end) end = start + segment->p_memsz;
    contains |= search->address >= start && search->address < start + segment->p_memsz;
  }
  if (!contains || eh_frame == 0) return 0;
  *search->found = (struct dl_find_object){
      .dlfo_map_start = (void*)first, .dlfo_map_end = (void*)end, .dlfo_eh_frame = (void*)eh_frame};
  return 1;
}

int _dl_find_object(void* address, struct dl_find_object* found) {
  struct Search search = {(uintptr_t)address, found};
  return dl_iterate_phdr(visit_module, &search) == 1 ? 0 : -1;
}
#endif
/* NOLINTEND(bugprone-reserved-identifier) */
