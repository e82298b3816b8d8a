// Physical memory, its handles and its mappings: charged from cuMemCreate until the driver holds it
// no more. vmm.h says what is counted, and why in this order.

#include "client/charge.h"
#include "client/memory.h"
#include "client/share.h"
#include "client/vmm.h"

namespace prorata::client {
namespace {

constinit PhysicalBooks g_books;

void GiveBack(const PhysicalBooks::Gone& gone) {
  if (gone.bytes > 0) Uncharge(gone.device, gone.bytes);
}

void Drop(uint64_t record) {
  PhysicalBooks::Gone gone;
  g_books.Drop(record, 1, &gone);
  GiveBack(gone);
}

bool PutHandle(uint64_t handle, uint64_t record) {
  PhysicalBooks::Gone gone;
  const bool put = g_books.PutHandle(handle, record, &gone);
  GiveBack(gone);
  return put;
}

bool PutMapping(uint64_t address, uint64_t bytes, uint64_t record) {
  PhysicalBooks::Gone gone;
  const bool put = g_books.PutMapping(address, bytes, record, &gone);
  GiveBack(gone);
  return put;
}

// The driver gave a handle that the books have no room for: it takes it back. Should it refuse
// that, the hold stays, since the memory does.
CUresult RefuseHandle(CUmemGenericAllocationHandle handle, uint64_t record) {
  if (Within([&] { return PRORATA_REAL(cuMemRelease)(handle); }) == CUDA_SUCCESS) Drop(record);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace
}  // namespace prorata::client

using namespace prorata::client;

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                     const CUmemAllocationProp* prop, unsigned long long flags) {
  const auto call = [&] { return PRORATA_REAL(cuMemCreate)(handle, size, prop, flags); };
  if (!Governed() || handle == nullptr || prop == nullptr || size == 0 ||
      prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return Within(call);  // memory of the host is not the share's
  }
  const uint32_t device = IndexOf(prop->location.id);
  if (device == kNoDevice) return Within(call);  // not a device; the driver says so
  const uint64_t bytes = ReserveFor(size);
  if (!ChargeOrTrim(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t record = g_books.Make(device, bytes);
  if (record == 0) {
    Uncharge(device, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const CUresult result = Within(call);
  if (result != CUDA_SUCCESS) {
    Drop(record);
    return result;
  }
  return PutHandle(*handle, record) ? CUDA_SUCCESS : RefuseHandle(*handle, record);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const auto call = [&] { return PRORATA_REAL(cuMemRelease)(handle); };
  if (!Governed()) return Within(call);
  const uint64_t stamp = g_books.Stamp();
  const CUresult result = Within(call);
  if (result != CUDA_SUCCESS) return result;
  PhysicalBooks::Gone gone;
  g_books.Released(handle, stamp, &gone);
  GiveBack(gone);
  return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* addr) {
  const auto call = [&] { return PRORATA_REAL(cuMemRetainAllocationHandle)(handle, addr); };
  if (!Governed() || handle == nullptr) return Within(call);
  const uint64_t record = g_books.HoldMapped(reinterpret_cast<uint64_t>(addr));
  if (record == 0) return Within(call);
  const CUresult result = Within(call);
  if (result != CUDA_SUCCESS) {
    Drop(record);
    return result;
  }
  return PutHandle(*handle, record) ? CUDA_SUCCESS : RefuseHandle(*handle, record);
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  const auto call = [&] { return PRORATA_REAL(cuMemMap)(ptr, size, offset, handle, flags); };
  if (!Governed() || ptr == 0 || size == 0) return Within(call);
  const uint64_t record = g_books.HoldHandle(handle);
  if (record == 0) return Within(call);
  const CUresult result = Within(call);
  if (result != CUDA_SUCCESS) {
    Drop(record);
    return result;
  }
  if (PutMapping(ptr, size, record)) return CUDA_SUCCESS;
  if (Within([&] { return PRORATA_REAL(cuMemUnmap)(ptr, size); }) == CUDA_SUCCESS) Drop(record);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
  const auto call = [&] { return PRORATA_REAL(cuMemUnmap)(ptr, size); };
  if (!Governed()) return Within(call);
  const uint64_t stamp = g_books.Stamp();
  const CUresult result = Within(call);
  if (result == CUDA_SUCCESS) g_books.Unmapped(ptr, size, stamp, GiveBack);
  return result;
}
