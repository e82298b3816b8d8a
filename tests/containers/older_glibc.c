// What programs that were compiled with a newer glibc's headers ask for, and an older glibc has
// not, or has under names of before: with it gpuload and the simulated GPU's driver are linked
// against an older userland's own C library (userlands.py). Not part of prorata: its client library
// needs nothing newer than glibc 2.27 as it is.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

char __libc_single_threaded = 0;  // 2.32; libstdc++ looks at it

uint32_t arc4random(void) {  // 2.36
  uint32_t value = 0;
  syscall(SYS_getrandom, &value, sizeof value, 0);
  return value;
}

// Functions since 2.33.
int __xstat(int version, const char* path, struct stat* out);
int __lxstat(int version, const char* path, struct stat* out);
int __fxstat(int version, int fd, struct stat* out);
int __fxstatat(int version, int fd, const char* path, struct stat* out, int flags);
int stat(const char* path, struct stat* out) { return __xstat(1, path, out); }
int lstat(const char* path, struct stat* out) { return __lxstat(1, path, out); }
int fstat(int fd, struct stat* out) { return __fxstat(1, fd, out); }
int fstatat(int fd, const char* path, struct stat* out, int flags) {
  return __fxstatat(1, fd, path, out, flags);
}
int stat64(const char* path, struct stat64* out) { return __xstat(1, path, (struct stat*)out); }
int lstat64(const char* path, struct stat64* out) { return __lxstat(1, path, (struct stat*)out); }
int fstat64(int fd, struct stat64* out) { return __fxstat(1, fd, (struct stat*)out); }

// 2.35; how GCC 12 finds the unwind tables of an object.
struct Search {
  uintptr_t address;
  struct dl_find_object* out;
};

static int visit(struct dl_phdr_info* info, size_t size, void* data) {
  (void)size;
  struct Search* search = data;
  uintptr_t begin = 0;
  uintptr_t end = 0;
  void* tables = NULL;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* part = &info->dlpi_phdr[i];
    const uintptr_t at = info->dlpi_addr + part->p_vaddr;
    if (part->p_type == PT_GNU_EH_FRAME) tables = (void*)at;
    if (part->p_type != PT_LOAD) continue;
    if (search->address >= at && search->address < at + part->p_memsz) {
      begin = at;
      end = at + part->p_memsz;
    }
  }
  if (begin == 0 || tables == NULL) return 0;
  search->out->dlfo_map_start = (void*)begin;
  search->out->dlfo_map_end = (void*)end;
  search->out->dlfo_eh_frame = tables;
  return 1;
}

int _dl_find_object(void* address, struct dl_find_object* out) {
  struct Search search = {(uintptr_t)address, out};
  return dl_iterate_phdr(visit, &search) == 1 ? 0 : -1;
}

#ifdef PROGRAM
// Before 2.34 a program's start handed over what calls its constructors.
typedef void (*Constructor)(int, char**, char**);
extern Constructor __init_array_start[] __attribute__((visibility("hidden")));
extern Constructor __init_array_end[] __attribute__((visibility("hidden")));

static void construct(int argc, char** argv, char** environment) {
  for (Constructor* one = __init_array_start; one < __init_array_end; ++one) {
    (*one)(argc, argv, environment);
  }
}

typedef int (*Main)(int, char**, char**);
typedef int (*Start)(Main, int, char**, Constructor, void (*)(void), void (*)(void), void*);

int __libc_start_main(Main main, int argc, char** argv, Constructor init, void (*fini)(void),
                      void (*loader_fini)(void), void* stack_end) {
  (void)init;
  const Start start = (Start)dlsym(RTLD_NEXT, "__libc_start_main");
  return start(main, argc, argv, construct, fini, loader_fini, stack_end);
}
#endif
