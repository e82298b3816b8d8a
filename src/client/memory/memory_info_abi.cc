// How much memory there is: the share's, never more than the device's.

#include "client/memory/memory.h"
#include "client/session/member_usage.h"
#include "client/session/memory_view.h"
#include "client/session/share.h"

namespace prorata::client {
namespace {

MemoryView View(uint32_t device, uint64_t real_total, uint64_t real_free) {
  const shm::LimitsFile& limits = *g_share.limits.load(std::memory_order_acquire);
  const uint64_t used = UsedByShare(g_share.folder, limits, device,
                                    {g_share.usage, g_share.slot.load(std::memory_order_relaxed)});
  return ViewMemory(limits.devices[device].memory_limit_bytes.load(std::memory_order_relaxed), used,
                    real_total, real_free);
}

constexpr uint64_t kMax32 = 0xffff'ffff;

}  // namespace
}  // namespace prorata::client

using namespace prorata::client;

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  const CUresult result = PRORATA_REAL(cuMemGetInfo_v2)(free, total);
  if (result != CUDA_SUCCESS || !Governed() || free == nullptr || total == nullptr) return result;
  // A successful call had a current context; with one device there is nothing to look up.
  const uint32_t device = g_share.ordinals == 1 ? g_share.index_of_ordinal[0] : CurrentDevice();
  if (device == kNoDevice) return result;
  const MemoryView view = View(device, *total, *free);
  *total = view.total;
  *free = view.free;
  return result;
}

CUresult cuMemGetInfo(unsigned int* free, unsigned int* total) {
  const CUresult result = PRORATA_REAL(cuMemGetInfo)(free, total);
  if (result != CUDA_SUCCESS || !Governed() || free == nullptr || total == nullptr) return result;
  const uint32_t device = CurrentDevice();
  if (device == kNoDevice) return result;
  const MemoryView view = View(device, *total, *free);
  *total = static_cast<unsigned int>(Min(view.total, kMax32));
  *free = static_cast<unsigned int>(Min(view.free, kMax32));
  return result;
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice dev) {
  const CUresult result = PRORATA_REAL(cuDeviceTotalMem_v2)(bytes, dev);
  const uint32_t device = Governed() ? IndexOf(dev) : kNoDevice;
  if (result != CUDA_SUCCESS || device == kNoDevice || bytes == nullptr) return result;
  *bytes = Min<uint64_t>(*bytes, LimitsOf(device).memory_limit_bytes.load());
  return result;
}

CUresult cuDeviceTotalMem(unsigned int* bytes, CUdevice dev) {
  const CUresult result = PRORATA_REAL(cuDeviceTotalMem)(bytes, dev);
  const uint32_t device = Governed() ? IndexOf(dev) : kNoDevice;
  if (result != CUDA_SUCCESS || device == kNoDevice || bytes == nullptr) return result;
  *bytes = static_cast<unsigned int>(Min<uint64_t>(*bytes, LimitsOf(device).memory_limit_bytes));
  return result;
}
