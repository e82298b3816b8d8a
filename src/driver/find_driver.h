#pragma once

// Finds the real NVIDIA driver libraries as the dynamic loader would, passing over our own
// stand-ins.
//
// Freestanding (no libstdc++, no allocation of its own): the client library links it, and so does
// the agent for NVML. Thread-safe; every call looks again.
//
// Where it looks, first hit wins:
//   0. /run/prorata/driver/NAME.real (libcuda.so.real, …), where a container has it, whatever its
//      environment says; where that is there, nowhere else
//   A. the folder that PRORATA_DRIVER_DIR names, and then nowhere else
//   B. each entry of LD_LIBRARY_PATH
//   C. /etc/ld.so.cache (glibc's "glibc-ld.so.cache1.1", x86-64 entries)
//   D. the distributions' folders, the NVIDIA container toolkit's, WSL's
// A candidate that is the same file (st_dev, st_ino) as `skip` is ourselves under another name.

#include <cstddef>
#include <cstdint>

namespace prorata::driver {

inline constexpr char kCudaName[] = "libcuda.so.1";
inline constexpr char kNvmlName[] = "libnvidia-ml.so.1";
inline constexpr size_t kMaxPathBytes = 4096;

struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;
  bool known = false;
  bool operator==(const FileIdentity&) const = default;
};

// The identity of a file; `known` is false if there is no such file.
FileIdentity Identify(const char* path);

// The shared object that contains `address` (a function of the caller).
FileIdentity IdentifyObjectOf(const void* address);

struct Search {
  const char* name;          // kCudaName or kNvmlName
  FileIdentity skip;         // our own file, or unknown
  const char* driver_dir;    // PRORATA_DRIVER_DIR, or nullptr: as the loader would
  const char* library_path;  // LD_LIBRARY_PATH, or nullptr
  const char* cache_path = "/etc/ld.so.cache";
  // What a container's CDI specification mounts (agent/containers/cdi.h). Under names that nobody
  // asks the loader for, so that this folder in LD_LIBRARY_PATH is no way past us.
  const char* mounted_folder = "/run/prorata/driver";

  char path[kMaxPathBytes];  // out: the library that was loaded, or ""
  char tried[1024];          // out: what was looked at, and dlopen's complaint, for a person
};

// Fills `name` and the two variables from the environment.
void StartSearch(Search* search, const char* name, FileIdentity skip);

// dlopen(RTLD_NOW | RTLD_LOCAL) of the first candidate that loads; nullptr: none, see `tried`. The
// handle is never closed: a driver does not survive being unloaded.
void* OpenDriver(Search* search);

// Calls `visit(path, context)` for every x86-64 entry `name` in the text of an ld.so.cache until it
// answers true; true if one did. Bounds-checked: the bytes may be anything. For tests.
bool ScanLoaderCache(const uint8_t* bytes, size_t size, const char* name,
                     bool (*visit)(const char* path, void* context), void* context);

}  // namespace prorata::driver
