#pragma once

#include <memory>

#include "sim/cuda/state.h"

// Memory that another interface (Vulkan) allocated, imported by a file descriptor; what is mapped
// of it keeps it until it is freed, though the import was destroyed.

namespace prorata::simgpu::driver {

// A piece of imported memory at an address of this process.
class ExternalView {
 public:
  virtual ~ExternalView() = default;  // unmaps it
};

// The buffer that was mapped at exactly this address goes. False: there is none. D().mutex held.
bool FreeExternalBuffer(uint64_t address);
bool IsExternalBuffer(uint64_t address);

// The context goes: what it imported, and what is mapped of it. D().mutex held.
void DropExternal(Context* ctx);

// In array_abi.cc: a mipmapped array in `room` bytes of memory at `address`, which it keeps alive.
// CUDA_ERROR_INVALID_VALUE where it does not fit. D().mutex held.
CUresult MapMipmap(Context* ctx, const CUDA_ARRAY3D_DESCRIPTOR& shape, unsigned levels,
                   uint64_t address, uint64_t room, std::shared_ptr<ExternalView> memory,
                   CUmipmappedArray* out);

}  // namespace prorata::simgpu::driver
