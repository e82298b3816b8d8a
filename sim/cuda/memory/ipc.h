#pragma once

#include <vector>

#include "sim/cuda/state.h"

namespace prorata::simgpu::driver {

// Maps memory of another process that this one holds by now, and gives the address of its first
// byte. 0 when there are no addresses left.
uint64_t MapShared(const SharedMemory& shared);

// The context goes: what it opened of other processes is unmapped. D().mutex held.
void DropIpcMemory(Context* ctx);

// A program's handle of 64 bytes with a name in it. False: nobody's handle, or of another kind.
enum class IpcKind : uint32_t { kMemory = 1, kEvent, kPoolPointer };
void PutName(IpcKind kind, const ShareName& name, void* handle);
bool TakeName(IpcKind kind, const void* handle, ShareName* name);

// CUDA_ERROR_INVALID_CONTEXT for a process's own handle, as the driver answers (openucx/ucx#11603).
CUresult FromImportCode(Code code);

}  // namespace prorata::simgpu::driver
