#pragma once

#include "sim/cuda/state.h"

// Device memory that no call asks for by its size, beyond what a context takes anyhow
// (context_memory, with heaps and stacks of their default sizes):
//
//   code     module_memory for each module, and for each library in each context that uses it, and
//            the variables of both, from loading on; a library that is loaded lazily, from its
//            first launch in a context on
//   heaps    what the printf buffer and malloc's heap are larger than by default, from the next
//            module loaded on (CUDA C++ Programming Guide, Heap Memory Allocation)
//   stacks   what CU_LIMIT_STACK_SIZE is more than by default, for every thread that the device
//            holds, at once
//   launches what CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT is more than by default, at once (CUDA
//            C++ Programming Guide, CUDA Dynamic Parallelism; how much a launch takes is assumed)
//
// All need D().mutex. CUDA_ERROR_OUT_OF_MEMORY when the device is full; nothing has changed then.

namespace prorata::simgpu::driver {

inline constexpr size_t kDefaultStackBytes = 1024;
inline constexpr size_t kDefaultPrintfBytes = size_t{1} << 20;
inline constexpr size_t kDefaultHeapBytes = size_t{8} << 20;
inline constexpr size_t kDefaultPendingLaunches = 2048;
inline constexpr uint64_t kPendingLaunchBytes = 4096;
inline constexpr uint64_t kThreadsPerSm = 2048;

// Whether code is loaded with its module, and not at its first use (CUDA_MODULE_LOADING).
bool LoadsEagerly();

CUresult TakeCode(Module* module, Context* ctx);
void GiveCode(Module* module);
// The context is gone, and with it its memory.
void ForgetCode(Module* module, Context* ctx);

CUresult SizeHeaps(Context* ctx);
CUresult SizeStacks(Context* ctx, size_t bytes_of_each);
CUresult SizePendingLaunches(Context* ctx, size_t count);

}  // namespace prorata::simgpu::driver
