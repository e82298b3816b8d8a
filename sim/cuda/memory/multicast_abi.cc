// Multicast objects: teams of devices, and the memory that is bound to them on each.
//
// What is written to a multicast object's addresses goes to the memory of every device of its team,
// by instructions that only kernels have. None of that is simulated: its addresses can be mapped
// and given access to, and neither copies nor host kernels reach memory through them. What is
// kept are the rules of who may bind what when, and that the object holds what is bound to it.

#include <algorithm>
#include <condition_variable>

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/copy/peer.h"
#include "sim/cuda/from_c.h"
#include "sim/cuda/memory/memory.h"
#include "sim/cuda/memory/vmm.h"

namespace prorata::simgpu::driver {
namespace {

// Leaked, like the Driver: notified when a team has got a device.
std::condition_variable& TeamGrew() {
  static auto* const grew = new std::condition_variable;
  return *grew;
}

bool TeamIsComplete(const Multicast& multicast) {
  return multicast.devices.size() == multicast.prop.numDevices ||
         Broken(Rule::kMulticastWaitsForItsTeam);
}

}  // namespace

CUresult FindWithTeam(uint64_t handle, std::unique_lock<std::mutex>* lock, Physical** out) {
  while (true) {
    // Anew each time: it may be released meanwhile.
    if (CUresult result = FindPhysical(handle, out)) return result;
    if (!(*out)->multicast || TeamIsComplete(*(*out)->multicast)) return CUDA_SUCCESS;
    TeamGrew().wait(*lock);
  }
}

void DropBindings(Multicast* multicast) {
  for (const auto& [place, binding] : multicast->bindings) {
    // What went with its context is no more.
    auto found = V().physical.find(binding.memory);
    if (found != V().physical.end()) LetGo(found->second.get());
  }
  multicast->bindings.clear();
}

}  // namespace prorata::simgpu::driver

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

uint64_t Unit() { return D().config(0).slab_bytes; }

CUresult FindMulticast(uint64_t handle, Physical** out) {
  if (CUresult result = FindPhysical(handle, out)) return result;
  return (*out)->multicast ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool IsMember(const Multicast& multicast, int device) {
  return std::find(multicast.devices.begin(), multicast.devices.end(), device) !=
         multicast.devices.end();
}

bool AnyDeviceHasMulticast() {
  for (size_t i = 0; i < D().devices.size(); ++i) {
    if (D().config(static_cast<int>(i)).multicast) return true;
  }
  return false;
}

CUresult CheckMulticast(const CUmulticastObjectProp* prop) {
  if (!AnyDeviceHasMulticast()) return CUDA_ERROR_NOT_SUPPORTED;
  const bool valid =
      prop && prop->numDevices > 0 && prop->numDevices <= D().devices.size() && prop->flags == 0;
  return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Of the object's range on a device.
bool Overlaps(const Multicast& multicast, int device, uint64_t offset, uint64_t bytes) {
  return std::any_of(multicast.bindings.begin(), multicast.bindings.end(), [&](const auto& entry) {
    const auto& [place, binding] = entry;
    return place.first == device && place.second < offset + bytes &&
           offset < place.second + binding.bytes;
  });
}

// D().mutex held, the team complete.
CUresult Bind(Multicast* multicast, uint64_t offset, uint64_t memory, uint64_t memory_offset,
              uint64_t bytes, unsigned long long flags) {
  Physical* physical = V().physical.at(memory).get();
  const uint64_t unit = Unit();
  if (physical->multicast || flags != 0 || bytes == 0 || bytes % unit != 0 || offset % unit != 0 ||
      memory_offset % unit != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (offset > multicast->prop.size || bytes > multicast->prop.size - offset ||
      memory_offset > physical->bytes || bytes > physical->bytes - memory_offset) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!IsMember(*multicast, physical->device)) return CUDA_ERROR_INVALID_DEVICE;
  if (Overlaps(*multicast, physical->device, offset, bytes)) return CUDA_ERROR_INVALID_VALUE;
  const bool keeps = !Broken(Rule::kMulticastKeepsMemory);
  multicast->bindings[{physical->device, offset}] = {keeps ? memory : 0, bytes};
  if (keeps) ++physical->mappings;
  return CUDA_SUCCESS;
}

uint64_t HandleOfPhysical(const Physical* physical) {
  for (const auto& [handle, known] : V().physical) {
    if (known.get() == physical) return handle;
  }
  return 0;
}

}  // namespace

PRORATA_ENUMS_FROM_C CUresult cuMulticastGetGranularity(size_t* granularity,
                                                        const CUmulticastObjectProp* prop,
                                                        CUmulticastGranularity_flags option) {
  if (CUresult result = EnterCall()) return result;
  if (!granularity || (option != CU_MULTICAST_GRANULARITY_MINIMUM &&
                       option != CU_MULTICAST_GRANULARITY_RECOMMENDED)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (CUresult result = CheckMulticast(prop)) return result;
  *granularity = Unit();
  return CUDA_SUCCESS;
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle* mcHandle,
                           const CUmulticastObjectProp* prop) {
  if (CUresult result = EnterCall()) return result;
  if (!mcHandle) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = CheckMulticast(prop)) return result;
  if (prop->size == 0 || prop->size % Unit() != 0) return CUDA_ERROR_INVALID_VALUE;
  if (prop->handleTypes != 0) return CUDA_ERROR_NOT_SUPPORTED;
  auto physical = std::make_unique<Physical>();
  physical->bytes = prop->size;
  physical->multicast = std::make_unique<Multicast>();
  physical->multicast->prop = *prop;
  std::lock_guard lock(D().mutex);
  *mcHandle = D().next_id++;
  V().physical[*mcHandle] = std::move(physical);
  return CUDA_SUCCESS;
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle mcHandle, CUdevice dev) {
  if (CUresult result = EnterDevice(dev)) return result;
  std::lock_guard lock(D().mutex);
  Physical* physical;
  if (CUresult result = FindMulticast(mcHandle, &physical)) return result;
  Multicast& multicast = *physical->multicast;
  if (!D().config(dev).multicast) return CUDA_ERROR_NOT_SUPPORTED;
  if (IsMember(multicast, dev) || multicast.devices.size() == multicast.prop.numDevices) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (int other : multicast.devices) {
    if (!LinkedForPeers(dev, other)) return CUDA_ERROR_INVALID_DEVICE;
  }
  if (multicast.devices.empty()) physical->device = dev;
  multicast.devices.push_back(dev);
  TeamGrew().notify_all();
  return CUDA_SUCCESS;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle mcHandle, size_t mcOffset,
                            CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,
                            unsigned long long flags) {
  if (CUresult result = EnterCall()) return result;
  std::unique_lock lock(D().mutex);
  Physical* physical;
  if (CUresult result = FindMulticast(mcHandle, &physical)) return result;
  if (CUresult result = FindWithTeam(mcHandle, &lock, &physical)) return result;
  Physical* memory;
  if (CUresult result = FindPhysical(memHandle, &memory)) return result;
  return Bind(physical->multicast.get(), mcOffset, memHandle, memOffset, size, flags);
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle mcHandle, size_t mcOffset,
                             CUdeviceptr memptr, size_t size, unsigned long long flags) {
  if (CUresult result = EnterCall()) return result;
  std::unique_lock lock(D().mutex);
  Physical* physical;
  if (CUresult result = FindMulticast(mcHandle, &physical)) return result;
  if (CUresult result = FindWithTeam(mcHandle, &lock, &physical)) return result;
  auto after = V().mappings.upper_bound(memptr);
  const bool first = after == V().mappings.begin();
  if (first || memptr - std::prev(after)->first >= std::prev(after)->second.bytes) {
    // Memory of a pool could be bound, too.
    const Memory* memory = FindMemory(memptr);
    const bool pool = memory && memory->kind == Memory::Kind::kPool;
    return pool ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
  }
  const auto& [base, mapping] = *std::prev(after);
  if (size > mapping.bytes - (memptr - base)) return CUDA_ERROR_INVALID_VALUE;
  return Bind(physical->multicast.get(), mcOffset, HandleOfPhysical(mapping.physical),
              memptr - base, size, flags);
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
                           size_t size) {
  if (CUresult result = EnterDevice(dev)) return result;
  std::lock_guard lock(D().mutex);
  Physical* physical;
  if (CUresult result = FindMulticast(mcHandle, &physical)) return result;
  if (!IsMember(*physical->multicast, dev)) return CUDA_ERROR_INVALID_DEVICE;
  auto& bindings = physical->multicast->bindings;
  auto found = bindings.find({dev, mcOffset});
  // "must match the corresponding values specified during the bind call"
  if (found == bindings.end() || found->second.bytes != size) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t memory = found->second.memory;
  bindings.erase(found);
  auto bound = V().physical.find(memory);
  if (bound != V().physical.end()) LetGo(bound->second.get());
  return CUDA_SUCCESS;
}
