#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "generated/cuda_abi.h"

namespace prorata::simgpu::driver {

struct ImageKernel {
  std::string name;
  struct Parameter {
    uint32_t offset = 0;
    uint32_t bytes = 0;
  };
  std::vector<Parameter> parameters;
  bool parameters_known = false;
  // What a cubin says of it; PTX is not compiled, so a plausible small kernel.
  int registers = 32;
  int shared_bytes = 0;  // static, of a block
  int local_bytes = 0;   // of a thread
  int max_threads = 1024;
};

struct ImageGlobal {
  std::string name;
  uint64_t bytes = 0;
  bool managed = true;  // or not known: only PTX says it
};

// What can be read of a module image without a GPU: who it is and what it lists.
struct Image {
  enum class Kind { kHostElf, kCubin, kPtx, kFatbin };
  Kind kind = Kind::kCubin;
  uint64_t bytes = 0;  // of a host ELF: its length in memory
  std::vector<ImageKernel> kernels;
  std::vector<ImageGlobal> globals;

  // Null when there is none of that name.
  ImageKernel* FindKernel(std::string_view name);
  const ImageKernel* FindKernel(std::string_view name) const;
  // Null when there is one of that name.
  ImageKernel* AddKernel(std::string_view name);

 private:
  std::unordered_map<std::string, size_t> places_;  // in `kernels`; cuBLAS has thousands
};

// Reads `data`, as cuModuleLoadData gets it: a host ELF object, a cubin, a fatbin, a fatbin wrapper
// or PTX text. There is no length, as in the driver; the formats carry their own. The memory must
// be readable as far as the format says.
//
// Of a fatbin, what the driver would take for a device of compute capability `arch` (90 for 9.0):
// the cubins of the nearest architecture that runs there, else the newest PTX that can be compiled
// for it. CUDA_ERROR_NO_BINARY_FOR_GPU when there is neither, CUDA_ERROR_INVALID_IMAGE for anything
// that is not such an image.
CUresult ParseImage(const void* data, int arch, Image* image);

}  // namespace prorata::simgpu::driver
