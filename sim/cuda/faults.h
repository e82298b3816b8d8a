#pragma once

#include <cstdint>

#include "generated/cuda_abi.h"
#include "sim/core/types.h"
#include "sim/cuda/state.h"

// The faults of the machine's file (core/faults.h) as this process meets them: which of them are
// meant for it, and which of its calls and launches bring them on.
//
// An error of a kernel stays, as the driver documents it for each (CUresult): after
// CUDA_ERROR_ASSERT the context cannot be used any more and another may be made; after all others
// "any further CUDA work will return the same error" until the process ends. So what enters a
// context or waits for one asks ErrorOf. Destroying is allowed, and frees.

namespace prorata::simgpu::driver {

// In cuInit, with the machine attached: finds the faults that are meant for this process. An error
// when cuInit is to fail, or when the file names an error that a kernel cannot have (said on
// standard error).
CUresult MeetFaults(Machine& machine);

// The allocation is to be refused with CUDA_ERROR_OUT_OF_MEMORY.
bool RefusesAllocation(int ordinal, uint64_t bytes);

// What is wrong with the next kernel on the device, which this counts.
struct LaunchFault {
  double factor = 1;              // of its duration
  CUresult error = CUDA_SUCCESS;  // it ends so
  bool loses_device = false;      // it ends with the device
  bool harms() const { return error != CUDA_SUCCESS || loses_device; }
};
LaunchFault CountLaunch(int ordinal);
// How many times as long copies take.
double CopyFactor(int ordinal);

// At the end of such a kernel, on the executor's thread.
void Harm(Context* ctx, const LaunchFault& fault);

// What every call on the context answers; CUDA_SUCCESS while it is whole.
CUresult ErrorOf(const Context& ctx);
// The same for contexts still to be made.
CUresult ErrorOfProcess();

}  // namespace prorata::simgpu::driver
