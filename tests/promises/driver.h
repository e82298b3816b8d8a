#pragma once

// The functions of the driver API that the programs of these tests call, from the libcuda.so.1 that
// the loader finds: the client library under `prorata run`, the bare driver without.

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "generated/cuda_abi.h"

#define SHAPES_DRIVER_FUNCTIONS(X) \
  X(cuInit)                        \
  X(cuDeviceGet)                   \
  X(cuDevicePrimaryCtxRetain)      \
  X(cuCtxSetCurrent)               \
  X(cuCtxSynchronize)              \
  X(cuCtxCreate_v2)                \
  X(cuCtxDestroy_v2)               \
  X(cuModuleLoad)                  \
  X(cuModuleGetFunction)           \
  X(cuMemAlloc_v2)                 \
  X(cuMemHostAlloc)                \
  X(cuMemsetD8_v2)                 \
  X(cuMemcpyHtoDAsync_v2)          \
  X(cuLaunchKernel)                \
  X(cuLaunchHostFunc)              \
  X(cuStreamCreate)                \
  X(cuStreamDestroy_v2)            \
  X(cuStreamSynchronize)           \
  X(cuStreamWaitValue32_v2)        \
  X(cuStreamWriteValue32_v2)       \
  X(cuStreamWaitEvent)             \
  X(cuStreamBeginCapture_v2)       \
  X(cuStreamEndCapture)            \
  X(cuEventCreate)                 \
  X(cuEventRecord)                 \
  X(cuGraphGetNodes)               \
  X(cuGraphDestroy)                \
  X(cuGraphCreate)                 \
  X(cuGraphAddKernelNode_v2)       \
  X(cuGraphInstantiateWithFlags)   \
  X(cuGraphLaunch)

namespace prorata::shapes {

struct Driver {
#define SHAPES_MEMBER(name) decltype(&::name) name = nullptr;
  SHAPES_DRIVER_FUNCTIONS(SHAPES_MEMBER)
#undef SHAPES_MEMBER
};

// Never unloaded. These are programs of tests: they end where they cannot go on.
inline const Driver& LoadedDriver() {
  static const Driver driver = [] {
    void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
      std::fprintf(stderr, "%s\n", ::dlerror());
      std::exit(1);
    }
    Driver made;
    const auto find = [library](const char* name) {
      void* symbol = ::dlsym(library, name);
      if (symbol != nullptr) return symbol;
      std::fprintf(stderr, "the driver has no %s\n", name);
      std::exit(1);
    };
#define SHAPES_FIND(name) made.name = reinterpret_cast<decltype(made.name)>(find(#name));
    SHAPES_DRIVER_FUNCTIONS(SHAPES_FIND)
#undef SHAPES_FIND
    return made;
  }();
  return driver;
}

inline void Check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s answered %d%s\n", what, static_cast<int>(result),
               result == CUDA_ERROR_OUT_OF_MEMORY ? " (out of memory)" : "");
  std::exit(1);
}

}  // namespace prorata::shapes

#define SHAPES_CALL(function, ...) \
  ::prorata::shapes::Check(::prorata::shapes::LoadedDriver().function(__VA_ARGS__), #function)
