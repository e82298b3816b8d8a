#include <algorithm>
#include <utility>

#include "sim/nvml/session.h"

// NVML's entry points about how devices reach each other: what the machine's file says of links.

namespace {

using prorata::simgpu::LinkConfig;
using prorata::simgpu::LinkType;
using prorata::simgpu::Machine;
using prorata::simgpu::NvmlSession;

struct Pair {
  Machine* machine = nullptr;
  int first = -1;
  int second = -1;
};

nvmlReturn_t Find(nvmlDevice_t first, nvmlDevice_t second, Pair* pair) {
  NvmlSession& session = NvmlSession::Get();
  *pair = {session.machine(), 0, 0};
  if (pair->machine == nullptr) return NVML_ERROR_UNINITIALIZED;
  pair->first = session.IndexOf(first);
  pair->second = session.IndexOf(second);
  return pair->first < 0 || pair->second < 0 ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

nvmlGpuTopologyLevel_t LevelOf(const Machine& machine, int first, int second) {
  if (first == second) return NVML_TOPOLOGY_INTERNAL;
  return static_cast<nvmlGpuTopologyLevel_t>(machine.config().LinkBetween(first, second).topology);
}

// A device's NVLinks are numbered by peer; where the pairs have more than there are, all lead to a
// switch, as between the eight GPUs of an HGX board.
int NvlinksOf(const Machine& machine, int device) {
  int count = 0;
  for (int peer = 0; peer < machine.device_count(); ++peer) {
    if (peer != device) count += machine.config().LinkBetween(device, peer).nvlinks;
  }
  return std::min(count, prorata::simgpu::kMaxNvlinks);
}

// The device that a link of `device` leads to; -1: a switch.
int PeerOf(const Machine& machine, int device, unsigned int link) {
  unsigned int end = 0;
  int total = 0, found = -1;
  for (int peer = 0; peer < machine.device_count(); ++peer) {
    if (peer == device) continue;
    total += machine.config().LinkBetween(device, peer).nvlinks;
    const auto before = std::exchange(end, static_cast<unsigned int>(total));
    if (link >= before && link < end) found = peer;
  }
  return total > prorata::simgpu::kMaxNvlinks ? -1 : found;
}

nvmlReturn_t FindLink(nvmlDevice_t device, unsigned int link, bool arguments_good, Pair* pair) {
  if (const nvmlReturn_t failed = Find(device, device, pair); failed != NVML_SUCCESS) {
    return failed;
  }
  if (!arguments_good || link >= NVML_NVLINK_MAX_LINKS) return NVML_ERROR_INVALID_ARGUMENT;
  const int count = NvlinksOf(*pair->machine, pair->first);
  return count > static_cast<int>(link) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

}  // namespace

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1, nvmlDevice_t device2,
                                                 nvmlGpuTopologyLevel_t* pathInfo) {
  Pair pair;
  if (const nvmlReturn_t failed = Find(device1, device2, &pair); failed != NVML_SUCCESS) {
    return failed;
  }
  if (pathInfo == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *pathInfo = LevelOf(*pair.machine, pair.first, pair.second);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level,
                                              unsigned int* count, nvmlDevice_t* deviceArray) {
  Pair pair;
  if (const nvmlReturn_t failed = Find(device, device, &pair); failed != NVML_SUCCESS) {
    return failed;
  }
  if (count == nullptr || (*count > 0 && deviceArray == nullptr)) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  const unsigned int room = *count;
  *count = 0;
  for (int other = 0; other < pair.machine->device_count(); ++other) {
    if (other == pair.first || LevelOf(*pair.machine, pair.first, other) != level) continue;
    if (*count < room) deviceArray[*count] = NvmlSession::Get().HandleOf(other);
    ++*count;
  }
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device1, nvmlDevice_t device2,
                                    nvmlGpuP2PCapsIndex_t p2pIndex, nvmlGpuP2PStatus_t* p2pStatus) {
  Pair pair;
  if (const nvmlReturn_t failed = Find(device1, device2, &pair); failed != NVML_SUCCESS) {
    return failed;
  }
  const bool known = p2pIndex >= NVML_P2P_CAPS_INDEX_READ && p2pIndex < NVML_P2P_CAPS_INDEX_UNKNOWN;
  if (p2pStatus == nullptr || !known || pair.first == pair.second) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  const LinkConfig& link = pair.machine->config().LinkBetween(pair.first, pair.second);
  bool can = link.peer_access();
  if (p2pIndex == NVML_P2P_CAPS_INDEX_NVLINK || p2pIndex == NVML_P2P_CAPS_INDEX_ATOMICS) {
    can = link.type == LinkType::kNvlink;
  } else if (p2pIndex == NVML_P2P_CAPS_INDEX_PCI) {
    can = link.type == LinkType::kPcieSwitch;
  }
  *p2pStatus = can ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link,
                                      nvmlEnableState_t* isActive) {
  Pair pair;
  if (const nvmlReturn_t failed = FindLink(device, link, isActive != nullptr, &pair);
      failed != NVML_SUCCESS) {
    return failed;
  }
  *isActive = NVML_FEATURE_ENABLED;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link,
                                                 nvmlIntNvLinkDeviceType_t* pNvLinkDeviceType) {
  Pair pair;
  if (const nvmlReturn_t failed = FindLink(device, link, pNvLinkDeviceType != nullptr, &pair);
      failed != NVML_SUCCESS) {
    return failed;
  }
  *pNvLinkDeviceType = PeerOf(*pair.machine, pair.first, link) < 0 ? NVML_NVLINK_DEVICE_TYPE_SWITCH
                                                                   : NVML_NVLINK_DEVICE_TYPE_GPU;
  return NVML_SUCCESS;
}

// The model's switches are on no bus: of them there is nothing to tell.
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link,
                                                 nvmlPciInfo_t* pci) {
  Pair pair;
  if (const nvmlReturn_t failed = FindLink(device, link, pci != nullptr, &pair);
      failed != NVML_SUCCESS) {
    return failed;
  }
  const int peer = PeerOf(*pair.machine, pair.first, link);
  if (peer < 0) return NVML_ERROR_NOT_SUPPORTED;
  return nvmlDeviceGetPciInfo_v3(NvmlSession::Get().HandleOf(peer), pci);
}

nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link,
                                           nvmlNvLinkCapability_t capability,
                                           unsigned int* capResult) {
  Pair pair;
  if (const nvmlReturn_t failed = FindLink(device, link, capResult != nullptr, &pair);
      failed != NVML_SUCCESS) {
    return failed;
  }
  if (capability >= NVML_NVLINK_CAP_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  *capResult = capability == NVML_NVLINK_CAP_P2P_SUPPORTED ||
                       capability == NVML_NVLINK_CAP_P2P_ATOMICS ||
                       capability == NVML_NVLINK_CAP_VALID
                   ? 1
                   : 0;
  return NVML_SUCCESS;
}
