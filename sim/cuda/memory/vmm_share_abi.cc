// Physical memory of other processes, by file descriptors.

#include <unistd.h>

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/copy/peer.h"
#include "sim/cuda/memory/vmm.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

// The process as the machine knows it: importing needs no context.
CUresult Register() {
  if (D().process != 0) return CUDA_SUCCESS;
  auto process = D().machine->RegisterProcess();
  if (!process) return FromCode(process.error());
  D().process = *process;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuMemExportToShareableHandle(void* shareableHandle, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType handleType,
                                      unsigned long long flags) {
  if (CUresult result = EnterCall()) return result;
  if (!shareableHandle || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  Physical* physical;
  if (CUresult result = FindPhysical(handle, &physical)) return result;
  if (physical->multicast) return CUDA_ERROR_NOT_SUPPORTED;
  // "must match at least one of the types in requestedHandleTypes"
  const bool asked = (physical->prop.requestedHandleTypes & handleType) != 0;
  if (!asked && !Broken(Rule::kShareableMustBeAsked)) return CUDA_ERROR_INVALID_VALUE;
  if (physical->share == 0) {
    const auto shared = D().machine->ShareSlabs(physical->holder->handle, physical->extents);
    if (!shared) return FromCode(shared.error());
    physical->share = shared->share;
    physical->block = shared->block;
  }
  const auto fd = D().machine->ExportDescriptor(physical->share);
  if (!fd) return FromCode(fd.error());
  *static_cast<int*>(shareableHandle) = *fd;
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* osHandle,
                                        CUmemAllocationHandleType shHandleType) {
  if (CUresult result = EnterCall()) return result;
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  if (shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  std::lock_guard lock(D().mutex);
  if (CUresult result = Register()) return result;
  const int fd = static_cast<int>(reinterpret_cast<intptr_t>(osHandle));
  auto shared = D().machine->ImportDescriptor(fd, D().process);
  if (!shared) return FromCode(shared.error());
  // One record for each piece of memory, so that all handles of it are equal.
  for (auto& [known, physical] : V().physical) {
    if (physical->block != shared->block) continue;
    D().machine->DropShare(shared->share);
    ++physical->handles;
    *handle = known;
    return CUDA_SUCCESS;
  }
  const int device = OrdinalOf(shared->device, -1);
  if (device < 0) {
    D().machine->DropShare(shared->share);
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  auto physical = std::make_unique<Physical>();
  physical->device = device;
  physical->prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  physical->prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  physical->prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  physical->bytes = shared->length_bytes;
  physical->extents = std::move(shared->extents);
  physical->share = shared->share;
  physical->block = shared->block;
  *handle = D().next_id++;
  V().physical[*handle] = std::move(physical);
  return CUDA_SUCCESS;
}
