// Memory that another interface (Vulkan, Direct3D, NvSci) allocated and the program imports: no
// hook of ours saw it being allocated, so it is charged while it is imported. What is mapped of it
// is free of charge.

#include "client/memory/charge.h"
#include "client/memory/memory.h"
#include "client/session/share.h"

using namespace prorata::client;

CUresult cuImportExternalMemory(CUexternalMemory* extMem_out,
                                const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* memHandleDesc) {
  const auto call = [&] { return PRORATA_REAL(cuImportExternalMemory)(extMem_out, memHandleDesc); };
  if (!Governed() || extMem_out == nullptr || memHandleDesc == nullptr) return call();
  const Place place = CurrentPlace();
  if (place.context == nullptr || memHandleDesc->size == 0) return call();
  const InFlightEpoch moving;
  Allocation allocation;
  allocation.context = reinterpret_cast<uint64_t>(place.context);
  allocation.bytes = ReserveFor(memHandleDesc->size);
  allocation.device = static_cast<uint8_t>(place.device);
  allocation.kind = Kind::kLarge;
  if (!ChargeOrTrim(place.device, allocation.bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = call();
  if (result != CUDA_SUCCESS) {
    Uncharge(place.device, allocation.bytes);
    return result;
  }
  const uint64_t key = KeyOf(Space::kExternal, reinterpret_cast<uint64_t>(*extMem_out));
  if (AccountWhole(key, allocation)) return CUDA_SUCCESS;
  PRORATA_REAL(cuDestroyExternalMemory)(*extMem_out);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuDestroyExternalMemory(CUexternalMemory extMem) {
  const auto call = [&] { return PRORATA_REAL(cuDestroyExternalMemory)(extMem); };
  if (!Governed()) return call();
  const InFlightEpoch moving;
  const uint64_t key = KeyOf(Space::kExternal, reinterpret_cast<uint64_t>(extMem));
  const Allocation allocation = ForgetForFree(key);
  const CUresult result = call();
  AfterFree(key, allocation, result);
  return result;
}
