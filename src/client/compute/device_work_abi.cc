#include "client/compute/device_work.h"

#include "client/session/share.h"

namespace prorata::client {
namespace {

// Addresses known to lie on a device. What a driver maps to one lies in a range of addresses that
// it keeps to itself, so that an entry is not likely to become the host's.
struct KnownAddress {
  uint64_t slab_plus_1;
  uint32_t device;
  uint32_t generation;  // as the stream cache's
};
constexpr uint32_t kKnownAddresses = 8;
constexpr uint32_t kAddressSlabShift = 21;  // 2 MiB: what the driver maps memory in
__thread KnownAddress t_known[kKnownAddresses] __attribute__((tls_model("initial-exec")));

constexpr char kCopies = 0;

bool SameDevice(uint64_t dst, uint64_t src) {
  const uint32_t to = DeviceOfAddress(dst);
  return to != kNoDevice && to == DeviceOfAddress(src);
}

bool EndOnDevice(const CUmemcpy3DOperand& end) {
  return end.type == CU_MEMCPY_OPERAND_TYPE_ARRAY || DeviceOfAddress(end.op.ptr.ptr) != kNoDevice;
}

}  // namespace

uint32_t DeviceOfAddress(uint64_t address) {
  const uint64_t slab = address >> kAddressSlabShift;
  KnownAddress& known = t_known[slab % kKnownAddresses];
  const uint32_t generation = g_stream_generation.load(std::memory_order_acquire);
  if (known.slab_plus_1 == slab + 1 && known.generation == generation) return known.device;
  const OwnCalls own;
  const auto ask = PRORATA_REAL(cuPointerGetAttribute);
  uint32_t type = 0;  // CUmemorytype, as the driver writes it
  if (ask(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) != CUDA_SUCCESS ||
      type != CU_MEMORYTYPE_DEVICE) {
    return kNoDevice;
  }
  int ordinal = 0;
  if (g_share.ordinals != 1 &&
      ask(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) != CUDA_SUCCESS) {
    return kNoDevice;
  }
  known = {slab + 1, IndexOf(ordinal), generation};
  return known.device;
}

uint32_t DeviceOfContext(CUcontext context) {
  if (g_share.ordinals == 1) return IndexOf(0);
  const OwnCalls own;
  CUcontext popped;
  if (PRORATA_REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS) return kNoDevice;
  const uint32_t device = DeviceOfCurrent(context);
  PRORATA_REAL(cuCtxPopCurrent_v2)(&popped);
  return device;
}

StreamWork Copy(uint64_t dst, uint64_t src, uint64_t bytes) {
  return SameDevice(dst, src) ? DeviceCopy(bytes) : HostCopy(bytes);
}

StreamWork PeerCopy(CUcontext dst, CUcontext src, uint64_t bytes) {
  const bool on_device = dst == src || DeviceOfContext(dst) == DeviceOfContext(src);
  return on_device ? DeviceCopy(bytes) : HostCopy(bytes);
}

StreamWork PeerCopyRegion(const CUDA_MEMCPY3D_PEER* box) {
  const StreamWork work = Box3D(box);
  if (!work.on_device) return work;
  return PeerCopy(box->dstContext, box->srcContext, work.bytes);
}

// A batch of which any copy runs on the device does so as a whole.
StreamWork CopyBatch(const CUdeviceptr* dsts, const CUdeviceptr* srcs, const size_t* sizes,
                     size_t count) {
  if (dsts == nullptr || srcs == nullptr || sizes == nullptr) return {};
  uint64_t on_device = 0, elsewhere = 0;
  for (size_t i = 0; i < count; ++i) {
    (SameDevice(dsts[i], srcs[i]) ? on_device : elsewhere) += sizes[i];
  }
  return on_device != 0 ? DeviceCopy(on_device) : HostCopy(elsewhere);
}

StreamWork BoxBatch(const CUDA_MEMCPY3D_BATCH_OP* boxes, size_t count) {
  if (boxes == nullptr) return {};
  uint64_t on_device = 0, elsewhere = 0;
  for (size_t i = 0; i < count; ++i) {
    const CUDA_MEMCPY3D_BATCH_OP& box = boxes[i];
    const bool here = EndOnDevice(box.dst) && EndOnDevice(box.src);
    (here ? on_device : elsewhere) +=
        uint64_t{box.extent.width} * box.extent.height * box.extent.depth;
  }
  return on_device != 0 ? DeviceCopy(on_device) : HostCopy(elsewhere);
}

StreamWork Decompression(const CUmemDecompressParams* params, size_t count) {
  StreamWork all{.on_device = true};
  for (size_t i = 0; params != nullptr && i < count; ++i) all.bytes += params[i].dstNumBytes;
  return all;
}

uint64_t CopyKey(uint64_t bytes) { return LaunchKey(&kCopies, bytes); }

void BeforeWait(CUstream stream, bool per_thread) {
  StreamRecord* const record = FindStream(stream, per_thread);
  if (record == nullptr) return;
  const StreamRecord* legacy = record->work->legacy.load(std::memory_order_acquire);
  if (legacy == nullptr && !HasOpen(*record)) return;
  const InContextOf here(record);
  if (record->legacy) return Tracker().FenceOpen(record->work);
  Tracker().EndLegacy(record);
  Tracker().EndBeforeWait(record);
}

// The next batch begins behind it. A launch of another thread in between is measured with the wait
// in it, as any that races with the putting of a wait in its own stream.
void AfterWait(CUstream stream, bool per_thread) {
  StreamRecord* const record = FindStream(stream, per_thread);
  if (record != nullptr) NoteWait(record);
}

}  // namespace prorata::client

using namespace prorata::client;

#include "generated/device_work.inc"
