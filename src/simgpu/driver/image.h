#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "generated/cuda_abi.h"

namespace prorata::simgpu::driver {

struct ImageKernel {
  std::string name;
  // From .nv.info of a cubin; empty and not known for PTX.
  struct Parameter {
    uint32_t offset = 0;
    uint32_t bytes = 0;
  };
  std::vector<Parameter> parameters;
  bool parameters_known = false;
};

struct ImageGlobal {
  std::string name;
  uint64_t bytes = 0;
};

// What can be read of a module image without a GPU: who it is and what it lists.
struct Image {
  enum class Kind { kHostElf, kCubin, kPtx, kFatbin };
  Kind kind = Kind::kCubin;
  uint64_t bytes = 0;  // of a host ELF: its length in memory
  std::vector<ImageKernel> kernels;
  std::vector<ImageGlobal> globals;
  // The image (or a part of it) is compressed: what it contains cannot be listed, so any name that
  // is asked for is taken to exist.
  bool opaque = false;
};

// Reads `data`, as cuModuleLoadData gets it: a host ELF object, a cubin, a fatbin, a fatbin wrapper
// or PTX text. There is no length, as in the driver; the formats carry their own. Anything else is
// CUDA_ERROR_INVALID_IMAGE. The memory must be readable as far as the format says.
CUresult ParseImage(const void* data, Image* image);

}  // namespace prorata::simgpu::driver
