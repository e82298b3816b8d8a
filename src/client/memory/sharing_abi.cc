// Memory that crosses process boundaries by handles of 64 bytes: cuIpc* and pointers of pools.
// Descriptors and fabric handles of physical memory are in vmm_abi.cc.

#include "client/memory/charge.h"
#include "client/memory/memory.h"
#include "client/memory/pools.h"
#include "client/memory/sharing.h"
#include "client/session/share.h"

namespace prorata::client {
namespace {

// A handle of the allocation at `address` was made. `bytes` of it are what another would be charged
// if it had to pay.
void NoteHandle(const wire::MemoryName& name, uint64_t address, uint64_t bytes) {
  const uint64_t key = KeyOf(Space::kPointer, address);
  Allocation allocation;
  if (!FindAllocation(key, &allocation) || allocation.kind == Kind::kOpened) return;
  uint64_t number = NumberOfAllocation(key);
  const bool known = number != 0;
  NoteShared(name, allocation.device, bytes, &number);
  if (known || number == 0 || SetNumberOfAllocation(key, number)) return;
  ReferenceGone(number, allocation.device, 0);  // freed meanwhile
  SettleReferences();
}

void NoteIpcHandle(CUdeviceptr address, const CUipcMemHandle& handle) {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  {
    const OwnCalls own;
    if (PRORATA_REAL(cuMemGetAddressRange_v2)(&base, &bytes, address) != CUDA_SUCCESS) return;
  }
  // Whoever opens it gets whole slabs.
  const uint64_t start = base / kSlabBytes * kSlabBytes;
  NoteHandle(NameOfHandle(HandleKind::kIpc, handle.reserved, sizeof handle.reserved), base,
             RoundUp(base + bytes, kSlabBytes) - start);
}

// What was opened at `address` is nobody's in this share: its bytes, in whole `unit`s, and device.
void MeasureOpened(CUdeviceptr address, uint64_t unit, uint64_t* bytes, Place* place) {
  CUdeviceptr base = 0;
  size_t size = 0;
  int ordinal = -1;
  const OwnCalls own;
  if (PRORATA_REAL(cuMemGetAddressRange_v2)(&base, &size, address) != CUDA_SUCCESS) size = unit;
  *bytes = RoundUp(size, unit);
  if (PRORATA_REAL(cuPointerGetAttribute)(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) ==
          CUDA_SUCCESS &&
      IndexOf(ordinal) != kNoDevice) {
    place->device = IndexOf(ordinal);
  }
}

// call() makes the driver open what `name` names, to *address; close() undoes it.
template <typename Call, typename Close>
CUresult Open(const wire::MemoryName& name, uint64_t unit, const CUdeviceptr* address, Call&& call,
              Close&& close) {
  Place place = CurrentPlace();
  if (place.context == nullptr) return call();
  if (place.device == kNoDevice || Live() != kGoverned) return CUDA_ERROR_OUT_OF_MEMORY;
  const InFlightEpoch moving;
  uint64_t number = 0;
  const Opening opening = BeginOpening(name, &number);
  if (opening == Opening::kRefused) return CUDA_ERROR_NOT_PERMITTED;
  const CUresult result = call();
  if (opening == Opening::kOwn) return result;
  if (result != CUDA_SUCCESS) {
    if (opening == Opening::kHeld) {
      ReferenceGone(number, place.device, 0);
      SettleReferences();
    }
    return result;
  }
  uint64_t bytes = 0;
  const uint64_t key = KeyOf(Space::kPointer, *address);
  Allocation known;
  const bool again = FindAllocation(key, &known) && known.kind == Kind::kOpened;
  if (opening == Opening::kUnknown) {
    number = 0;
    if (!again) MeasureOpened(*address, unit, &bytes, &place);
    if (bytes != 0 && !ChargeOrTrim(place.device, bytes)) {
      close();
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  if (AccountOpened(place, key, bytes, number)) return CUDA_SUCCESS;
  close();
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult OpenIpc(CUdeviceptr* address, const CUipcMemHandle& handle, unsigned int flags,
                 decltype(&cuIpcOpenMemHandle_v2) real) {
  const auto call = [&] { return real(address, handle, flags); };
  if (!Governed() || address == nullptr) return call();
  return Open(NameOfHandle(HandleKind::kIpc, handle.reserved, sizeof handle.reserved), kSlabBytes,
              address, call, [&] { return PRORATA_REAL(cuIpcCloseMemHandle)(*address); });
}

}  // namespace
}  // namespace prorata::client

using namespace prorata::client;

CUresult cuIpcGetMemHandle(CUipcMemHandle* pHandle, CUdeviceptr dptr) {
  const CUresult result = PRORATA_REAL(cuIpcGetMemHandle)(pHandle, dptr);
  if (result == CUDA_SUCCESS && Governed() && pHandle != nullptr) NoteIpcHandle(dptr, *pHandle);
  return result;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* pdptr, CUipcMemHandle handle, unsigned int Flags) {
  return OpenIpc(pdptr, handle, Flags, PRORATA_REAL(cuIpcOpenMemHandle_v2));
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* pdptr, CUipcMemHandle handle, unsigned int Flags) {
  return OpenIpc(pdptr, handle, Flags, PRORATA_REAL(cuIpcOpenMemHandle));
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr) {
  const auto call = [&] { return PRORATA_REAL(cuIpcCloseMemHandle)(dptr); };
  if (!Governed()) return call();
  const InFlightEpoch moving;
  const uint64_t key = KeyOf(Space::kPointer, dptr);
  const Allocation allocation = ForgetForFree(key);
  const CUresult result = call();
  AfterClose(key, allocation, result);
  return result;
}

// The pool's memory is its maker's charge; another process that opens a pointer holds the whole
// chunk that the pointer is in.
CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData* shareData_out, CUdeviceptr ptr) {
  const CUresult result = PRORATA_REAL(cuMemPoolExportPointer)(shareData_out, ptr);
  if (result != CUDA_SUCCESS || !Governed() || shareData_out == nullptr) return result;
  CUdeviceptr base = 0;
  size_t bytes = 0;
  {
    const OwnCalls own;
    if (PRORATA_REAL(cuMemGetAddressRange_v2)(&base, &bytes, ptr) != CUDA_SUCCESS) return result;
  }
  NoteHandle(NameOfHandle(HandleKind::kPoolPointer, shareData_out->reserved,
                          sizeof shareData_out->reserved),
             ptr, RoundUp(bytes, kPoolChunkBytes));
  return result;
}

CUresult cuMemPoolImportPointer(CUdeviceptr* ptr_out, CUmemoryPool pool,
                                CUmemPoolPtrExportData* shareData) {
  const auto call = [&] { return PRORATA_REAL(cuMemPoolImportPointer)(ptr_out, pool, shareData); };
  if (!Governed() || ptr_out == nullptr || shareData == nullptr) return call();
  return Open(
      NameOfHandle(HandleKind::kPoolPointer, shareData->reserved, sizeof shareData->reserved),
      kPoolChunkBytes, ptr_out, call, [&] { return PRORATA_REAL(cuMemFree_v2)(*ptr_out); });
}
