#pragma once

// What copies, fills and waits in a stream are to the device.
//
// A copy from the device's memory to its own, a fill and a decompression run on it: they pass the
// gate and are charged as kernels are. What runs elsewhere (a copy from or to the host, or to
// another device, on copy engines; a wait for an event, a word of memory, a host function, a
// semaphore of others) is neither. A wait ends the batch before it, and the next one begins behind
// it: so it is known whether that has begun. A long copy that runs elsewhere is a wait, too.
//
// Which end is where: by the name of the call and the types in a box; where those leave it open, by
// the driver's pointer attributes, once for a slab of addresses (a few are remembered per thread).

#include <cstdint>

#include "client/compute/launch.h"

namespace prorata::client {

struct StreamWork {
  uint64_t bytes = 0;      // moved or filled on the device
  bool on_device = false;  // false: the device has nothing to do with it ...
  bool waits = false;      // ... but the stream waits
};

// The index of the device on which an address lies; kNoDevice: the host's, or unknown.
uint32_t DeviceOfAddress(uint64_t address);
uint32_t DeviceOfContext(CUcontext context);

inline StreamWork Wait() { return {.waits = true}; }
inline StreamWork HostCopy(uint64_t bytes) { return {.waits = bytes >= kLongCopyBytes}; }
inline StreamWork Fill(uint64_t bytes) { return {.bytes = bytes, .on_device = true}; }
inline StreamWork DeviceCopy(uint64_t bytes) { return {.bytes = bytes, .on_device = true}; }
StreamWork Copy(uint64_t dst, uint64_t src, uint64_t bytes);
StreamWork PeerCopy(CUcontext dst, CUcontext src, uint64_t bytes);
StreamWork CopyBatch(const CUdeviceptr* dsts, const CUdeviceptr* srcs, const size_t* sizes,
                     size_t count);
StreamWork BoxBatch(const CUDA_MEMCPY3D_BATCH_OP* boxes, size_t count);
// What is unpacked is written to the device, by an engine of it or by kernels of the driver's.
StreamWork Decompression(const CUmemDecompressParams* params, size_t count);

template <typename Pointer>
bool EndOnDevice(CUmemorytype type, Pointer address) {
  if (type == CU_MEMORYTYPE_UNIFIED) return DeviceOfAddress(address) != kNoDevice;
  return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_ARRAY;
}

template <typename Box>
StreamWork BoxOf(const Box* box, uint64_t rows) {
  if (box == nullptr) return {};
  const uint64_t bytes = uint64_t{box->WidthInBytes} * rows;
  const bool on_device = EndOnDevice(box->dstMemoryType, box->dstDevice) &&
                         EndOnDevice(box->srcMemoryType, box->srcDevice);
  return on_device ? DeviceCopy(bytes) : HostCopy(bytes);
}
template <typename Box>
StreamWork Box2D(const Box* box) {
  return BoxOf(box, box == nullptr ? 0 : box->Height);
}
template <typename Box>
StreamWork Box3D(const Box* box) {
  return BoxOf(box, box == nullptr ? 0 : uint64_t{box->Height} * box->Depth);
}
StreamWork PeerCopyRegion(const CUDA_MEMCPY3D_PEER* box);

// Its estimate is of all that move about as many bytes: an eighth more or less.
uint64_t CopyKey(uint64_t bytes);

// Something that makes the stream wait was put in it, or is about to be.
void BeforeWait(CUstream stream, bool per_thread);
void AfterWait(CUstream stream, bool per_thread);

template <typename Describe, typename Call>
inline CUresult InStream(Describe&& describe, CUstream stream, bool per_thread, Call&& call) {
  if (Live() != kGoverned || IsCaptured(stream, per_thread)) return call();
  const StreamWork work = describe();
  if (work.on_device) return Launch(CopyKey(work.bytes), stream, per_thread, call);
  if (!work.waits) return call();
  BeforeWait(stream, per_thread);
  const CUresult result = call();
  AfterWait(stream, per_thread);
  return result;
}

}  // namespace prorata::client
