// CUDA arrays and mipmapped arrays. Each is charged by itself, rounded up to whole slabs: the
// driver pads arrays to 64 KiB tiles, and what it packs together is its own affair. Sparse ones
// cost nothing, but keep the memory that is mapped behind them (vmm.h) while they and their context
// last.

#include "client/memory/arrays.h"
#include "client/memory/charge.h"
#include "client/memory/memory.h"
#include "client/session/share.h"

namespace prorata::client {
namespace {

template <typename Handle, typename Call, typename GiveBack>
CUresult AllocateArray(Space space, Kind kind, uint64_t bytes, Handle* handle, Call&& call,
                       GiveBack&& give_back) {
  const Place place = CurrentPlace();
  if (place.context == nullptr) return call();
  const InFlightEpoch moving;
  Allocation allocation;
  allocation.context = reinterpret_cast<uint64_t>(place.context);
  allocation.bytes = RoundUp(bytes, kSlabBytes);
  allocation.device = static_cast<uint8_t>(place.device);
  allocation.kind = bytes == 0 ? Kind::kSparse : kind;
  if (bytes != 0 && !ChargeOrTrim(place.device, allocation.bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = call();
  if (result != CUDA_SUCCESS) {
    Uncharge(place.device, allocation.bytes);
    return result;
  }
  const uint64_t key = KeyOf(space, reinterpret_cast<uint64_t>(*handle));
  if (AccountWhole(key, allocation)) return CUDA_SUCCESS;
  give_back();
  return CUDA_ERROR_OUT_OF_MEMORY;
}

template <typename Call>
CUresult CreateArray(CUarray* handle, const CUDA_ARRAY3D_DESCRIPTOR& shape, Call&& call) {
  return AllocateArray(Space::kArray, Kind::kArray, ArrayBytes(shape, 1), handle, call,
                       [&] { return PRORATA_REAL(cuArrayDestroy)(*handle); });
}

template <typename Call>
CUresult DestroyArray(uint64_t key, Call&& call) {
  const InFlightEpoch moving;
  const Allocation allocation = ForgetForFree(key);
  const CUresult result = call();
  AfterFree(key, allocation, result);
  return result;
}

}  // namespace
}  // namespace prorata::client

using namespace prorata::client;

CUresult cuArrayCreate_v2(CUarray* pHandle, const CUDA_ARRAY_DESCRIPTOR* pAllocateArray) {
  const auto call = [&] { return PRORATA_REAL(cuArrayCreate_v2)(pHandle, pAllocateArray); };
  if (!Governed() || pHandle == nullptr || pAllocateArray == nullptr) return call();
  const CUDA_ARRAY_DESCRIPTOR& a = *pAllocateArray;
  return CreateArray(pHandle, {a.Width, a.Height, 0, a.Format, a.NumChannels, 0}, call);
}

CUresult cuArrayCreate(CUarray* pHandle, const CUDA_ARRAY_DESCRIPTOR_v1* pAllocateArray) {
  const auto call = [&] { return PRORATA_REAL(cuArrayCreate)(pHandle, pAllocateArray); };
  if (!Governed() || pHandle == nullptr || pAllocateArray == nullptr) return call();
  const CUDA_ARRAY_DESCRIPTOR_v1& a = *pAllocateArray;
  return CreateArray(pHandle, {a.Width, a.Height, 0, a.Format, a.NumChannels, 0}, call);
}

CUresult cuArray3DCreate_v2(CUarray* pHandle, const CUDA_ARRAY3D_DESCRIPTOR* pAllocateArray) {
  const auto call = [&] { return PRORATA_REAL(cuArray3DCreate_v2)(pHandle, pAllocateArray); };
  if (!Governed() || pHandle == nullptr || pAllocateArray == nullptr) return call();
  return CreateArray(pHandle, *pAllocateArray, call);
}

CUresult cuArray3DCreate(CUarray* pHandle, const CUDA_ARRAY3D_DESCRIPTOR_v1* pAllocateArray) {
  const auto call = [&] { return PRORATA_REAL(cuArray3DCreate)(pHandle, pAllocateArray); };
  if (!Governed() || pHandle == nullptr || pAllocateArray == nullptr) return call();
  const CUDA_ARRAY3D_DESCRIPTOR_v1& a = *pAllocateArray;
  return CreateArray(pHandle, {a.Width, a.Height, a.Depth, a.Format, a.NumChannels, a.Flags}, call);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray* pHandle,
                                const CUDA_ARRAY3D_DESCRIPTOR* pMipmappedArrayDesc,
                                unsigned int numMipmapLevels) {
  const auto call = [&] {
    return PRORATA_REAL(cuMipmappedArrayCreate)(pHandle, pMipmappedArrayDesc, numMipmapLevels);
  };
  if (!Governed() || pHandle == nullptr || pMipmappedArrayDesc == nullptr) return call();
  return AllocateArray(Space::kMipmap, Kind::kMipmap,
                       ArrayBytes(*pMipmappedArrayDesc, numMipmapLevels), pHandle, call,
                       [&] { return PRORATA_REAL(cuMipmappedArrayDestroy)(*pHandle); });
}

CUresult cuArrayDestroy(CUarray hArray) {
  const auto call = [&] { return PRORATA_REAL(cuArrayDestroy)(hArray); };
  if (!Governed()) return call();
  return DestroyArray(KeyOf(Space::kArray, reinterpret_cast<uint64_t>(hArray)), call);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray) {
  const auto call = [&] { return PRORATA_REAL(cuMipmappedArrayDestroy)(hMipmappedArray); };
  if (!Governed()) return call();
  return DestroyArray(KeyOf(Space::kMipmap, reinterpret_cast<uint64_t>(hMipmappedArray)), call);
}
