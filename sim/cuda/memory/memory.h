#pragma once

#include "sim/cuda/state.h"

namespace prorata::simgpu::driver {

// Device memory of a context from its heap, with a Memory record. When the device is full, unused
// memory of this process's pools is given back and it is tried once more. D().mutex held.
CUresult AllocateDevice(Context* ctx, uint64_t bytes, Memory::Kind kind, uint64_t* address,
                        unsigned flags = 0);
// Gives it back, with its record. D().mutex held.
CUresult ReleaseDevice(uint64_t address);

// Adds a record for memory that is not of a heap. D().mutex held.
Memory& AddMemory(Memory memory);

// Whether synchronous operations on this memory wait for the device even where others do not
// (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, CU_CTX_SYNC_MEMOPS). D().mutex held.
bool SynchronousMemops(const Context& ctx, uint64_t address);

inline uint64_t AddressOf(CUdeviceptr address) { return address; }
inline uint64_t AddressOf(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

}  // namespace prorata::simgpu::driver
