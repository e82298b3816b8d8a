#include "driver/find_driver.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace prorata::driver {
namespace {

constexpr const char* kFolders[] = {
    "/lib/x86_64-linux-gnu",   "/usr/lib/x86_64-linux-gnu", "/usr/lib64",
    "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib",
};

struct Opening {
  Search* search;
  void* handle = nullptr;
};

void Note(Search* search, const char* text) {
  const size_t used = std::strlen(search->tried);
  const size_t room = sizeof search->tried - used - 1;
  const size_t bytes = std::strlen(text);
  std::memcpy(search->tried + used, text, bytes < room ? bytes : room);
  search->tried[used + (bytes < room ? bytes : room)] = 0;
}

// True if the file was loaded. A file that is not there is no news; one that does not load is.
bool TryFile(const char* path, void* context) {
  auto* opening = static_cast<Opening*>(context);
  Search* search = opening->search;
  const FileIdentity identity = Identify(path);
  if (!identity.known || identity == search->skip) return false;
  opening->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (opening->handle == nullptr) {
    const char* why = dlerror();
    Note(search, search->tried[0] == 0 ? "" : "; ");
    Note(search, why != nullptr ? why : path);
    return false;
  }
  std::strncpy(search->path, path, sizeof search->path - 1);
  return true;
}

// "libcuda.so.real" for libcuda.so.1. False: there is no such file.
bool TryMounted(Opening* opening) {
  const Search& search = *opening->search;
  const size_t stem = std::strlen(search.name) - 2;  // ".1"
  char path[kMaxPathBytes];
  constexpr char kEnd[] = ".real";
  const size_t folder_bytes = std::strlen(search.mounted_folder);
  if (folder_bytes + 1 + stem + sizeof kEnd > sizeof path) return false;
  char* end = std::copy_n(search.mounted_folder, folder_bytes, path);
  *end++ = '/';
  end = std::copy_n(search.name, stem, end);
  std::copy_n(kEnd, sizeof kEnd, end);
  if (!Identify(path).known) return false;
  TryFile(path, opening);
  return true;
}

bool TryFolder(const char* folder, size_t folder_bytes, Opening* opening) {
  const char* name = opening->search->name;
  const size_t name_bytes = std::strlen(name);
  char path[kMaxPathBytes];
  if (folder_bytes == 0 || folder_bytes + 1 + name_bytes + 1 > sizeof path) return false;
  std::memcpy(path, folder, folder_bytes);
  path[folder_bytes] = '/';
  std::memcpy(path + folder_bytes + 1, name, name_bytes + 1);
  return TryFile(path, opening);
}

// The loader also splits at ';'. An empty entry means the working directory there; a driver is
// never looked for in it.
bool TryLibraryPath(const char* entries, Opening* opening) {
  while (*entries != 0) {
    const size_t bytes = std::strcspn(entries, ":;");
    if (TryFolder(entries, bytes, opening)) return true;
    entries += bytes;
    if (*entries != 0) ++entries;
  }
  return false;
}

bool TryLoaderCache(const char* cache_path, Opening* opening) {
  const int fd = open(cache_path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const off_t size = lseek(fd, 0, SEEK_END);
  void* bytes = size <= 0 ? MAP_FAILED
                          : mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_PRIVATE, fd, 0);
  close(fd);
  if (bytes == MAP_FAILED) return false;
  const bool found = ScanLoaderCache(static_cast<const uint8_t*>(bytes), static_cast<size_t>(size),
                                     opening->search->name, TryFile, opening);
  munmap(bytes, static_cast<size_t>(size));
  return found;
}

}  // namespace

FileIdentity Identify(const char* path) {
  // By system call: stat() is a new symbol in glibc 2.33, and the client library must run on older.
  struct stat status;
  if (syscall(SYS_stat, path, &status) != 0 || !S_ISREG(status.st_mode)) return {};
  return {status.st_dev, status.st_ino, true};
}

FileIdentity IdentifyObjectOf(const void* address) {
  Dl_info info;
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return {};
  return Identify(info.dli_fname);
}

void StartSearch(Search* search, const char* name, FileIdentity skip) {
  search->name = name;
  search->skip = skip;
  search->driver_dir = getenv("PRORATA_DRIVER_DIR");
  search->library_path = getenv("LD_LIBRARY_PATH");
  if (search->driver_dir != nullptr && search->driver_dir[0] == 0) search->driver_dir = nullptr;
}

void* OpenDriver(Search* search) {
  search->path[0] = 0;
  search->tried[0] = 0;
  Opening opening{search};
  if (TryMounted(&opening)) return opening.handle;
  if (search->driver_dir != nullptr) {
    if (TryFolder(search->driver_dir, std::strlen(search->driver_dir), &opening)) {
      return opening.handle;
    }
    if (search->tried[0] == 0) {
      Note(search, "no such file in PRORATA_DRIVER_DIR=");
      Note(search, search->driver_dir);
    }
    return nullptr;
  }
  if (search->library_path != nullptr && TryLibraryPath(search->library_path, &opening)) {
    return opening.handle;
  }
  if (TryLoaderCache(search->cache_path, &opening)) return opening.handle;
  for (const char* folder : kFolders) {
    if (TryFolder(folder, std::strlen(folder), &opening)) return opening.handle;
  }
  if (search->tried[0] == 0) {
    Note(search, "not in LD_LIBRARY_PATH, /etc/ld.so.cache or the usual folders");
  }
  return nullptr;
}

}  // namespace prorata::driver
