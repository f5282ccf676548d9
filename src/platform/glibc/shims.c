/* What today's compilers, headers and static C++ runtime refer to and an old glibc does not have, by means that it has. Linked into what
 * is built against stubs.sh's libraries, and seen by nothing else. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <features.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>

/* From 2.32 on: whether the process never had a second thread. libstdc++ then counts references without atomics; "no" is always right. */
char __libc_single_threaded = 0;

/* From 2.33 on; before that, headers turned these into calls with the version of the struct. */
struct stat;
int __xstat(int, const char*, struct stat*);
int __lxstat(int, const char*, struct stat*);
int __fxstat(int, int, struct stat*);
int __fxstatat(int, int, const char*, struct stat*, int);
enum { stat_version = 1 };
int stat(const char* path, struct stat* out) { return __xstat(stat_version, path, out); }
int lstat(const char* path, struct stat* out) { return __lxstat(stat_version, path, out); }
int fstat(int file, struct stat* out) { return __fxstat(stat_version, file, out); }
int fstatat(int folder, const char* path, struct stat* out, int flags) {
  return __fxstatat(stat_version, folder, path, out, flags);
}
/* On x86-64 both kinds of struct are one. */
int stat64(const char* path, struct stat* out) { return stat(path, out); }
int lstat64(const char* path, struct stat* out) { return lstat(path, out); }
int fstat64(int file, struct stat* out) { return fstat(file, out); }
int fstatat64(int folder, const char* path, struct stat* out, int flags) {
  return fstatat(folder, path, out, flags);
}

/* From 2.38 on, C++ programs get these; they differ from the old ones in "0b" prefixes alone, which nothing here writes. */
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
/* From 2.35 on, and used by that libgcc to unwind: the module that an address lies in, and its table of frames. */
struct Search {
  uintptr_t address;
  struct dl_find_object* found;
};

static int look(struct dl_phdr_info* module, size_t size, void* data) {
  struct Search* search = data;
  uintptr_t first = UINTPTR_MAX, end = 0, frames = 0;
  int inside = 0;
  (void)size;
  for (int n = 0; n < module->dlpi_phnum; ++n) {
    const ElfW(Phdr)* part = &module->dlpi_phdr[n];
    const uintptr_t start = module->dlpi_addr + part->p_vaddr;
    if (part->p_type == PT_GNU_EH_FRAME) frames = start;
    if (part->p_type != PT_LOAD) continue;
    if (start < first) first = start;
    if (start + part->p_memsz > end) end = start + part->p_memsz;
    inside |= search->address >= start && search->address < start + part->p_memsz;
  }
  if (!inside || frames == 0) return 0;
  *search->found = (struct dl_find_object){
      .dlfo_map_start = (void*)first, .dlfo_map_end = (void*)end, .dlfo_eh_frame = (void*)frames};
  return 1;
}

int _dl_find_object(void* address, struct dl_find_object* found) {
  struct Search search = {(uintptr_t)address, found};
  return dl_iterate_phdr(look, &search) == 1 ? 0 : -1;
}
#endif
