#pragma once

// What the programs of these tests have in common: options, a device with a kernel that takes as
// long as it is asked to, and the word that the kernels count in.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <string>

#include "tests/promises/driver.h"

namespace prorata::shapes {

inline constexpr unsigned kBlocking = 0;     // CU_STREAM_DEFAULT
inline constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING
inline constexpr unsigned kGeq = 0;          // CU_STREAM_WAIT_VALUE_GEQ
// Blocks of 1024 threads that fill the simulated device's 132 SMs: kernels follow each other.
inline constexpr unsigned kBlocks = 264;
inline constexpr unsigned kThreads = 1024;

struct Options {
  std::string mode;
  std::map<std::string, std::string> text;

  std::string Text(const std::string& key) const {
    const auto found = text.find(key);
    return found == text.end() ? std::string() : found->second;
  }
  int64_t Number(const std::string& key, int64_t otherwise) const {
    const auto found = text.find(key);
    return found == text.end() ? otherwise : std::atoll(found->second.c_str());
  }
};

inline Options Parse(int argc, char** argv) {
  Options options;
  if (argc > 1) options.mode = argv[1];
  for (int i = 2; i + 1 < argc; i += 2) options.text[argv[i] + 2] = argv[i + 1];
  return options;
}

// A device's primary context with the kernel `step`, which takes as long as it is asked to.
struct Device {
  Device(int index, const std::string& image) {
    CUdevice device = 0;
    SHAPES_CALL(cuDeviceGet, &device, index);
    SHAPES_CALL(cuDevicePrimaryCtxRetain, &context, device);
    Use();
    CUmodule module = nullptr;
    SHAPES_CALL(cuModuleLoad, &module, image.c_str());
    SHAPES_CALL(cuModuleGetFunction, &step, module, "step");
  }
  void Use() const { SHAPES_CALL(cuCtxSetCurrent, context); }
  // Its context is current; so for all that follows.
  CUstream Stream(unsigned flags = kNonBlocking) const {
    CUstream stream = nullptr;
    SHAPES_CALL(cuStreamCreate, &stream, flags);
    return stream;
  }
  void Launch(uint64_t* progress, CUstream stream, uint64_t ns, unsigned blocks = kBlocks) const {
    uint64_t values[] = {reinterpret_cast<uint64_t>(progress), 1, ns, ns};
    void* params[] = {&values[0], &values[1], &values[2], &values[3]};
    SHAPES_CALL(cuLaunchKernel, step, blocks, 1, 1, kThreads, 1, 1, 0, stream, params, nullptr);
  }

  CUcontext context = nullptr;
  CUfunction step = nullptr;
};

// One word in a file, to which each kernel adds its nanoseconds when it is done.
inline uint64_t* MapProgress(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0 || ::ftruncate(file, 4096) != 0) {
    std::perror(path.c_str());
    std::exit(1);
  }
  void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) std::exit(1);
  return static_cast<uint64_t*>(memory);
}

}  // namespace prorata::shapes
