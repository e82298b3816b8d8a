#include "driver/nvml_links.h"

#include <algorithm>

namespace prorata::driver {
namespace {

LinkClass ClassOf(nvmlGpuTopologyLevel_t level) {
  switch (level) {
    case NVML_TOPOLOGY_INTERNAL:
      return LinkClass::kInternal;
    case NVML_TOPOLOGY_SINGLE:
      return LinkClass::kSingle;
    case NVML_TOPOLOGY_MULTIPLE:
      return LinkClass::kMultiple;
    case NVML_TOPOLOGY_HOSTBRIDGE:
      return LinkClass::kHostBridge;
    case NVML_TOPOLOGY_NODE:
      return LinkClass::kNode;
    case NVML_TOPOLOGY_SYSTEM:
      return LinkClass::kSystem;
    default:
      return LinkClass::kUnknown;
  }
}

// Where the NVLinks of a device lead.
struct Nvlinks {
  uint32_t to_switch = 0;
  std::vector<uint32_t> to_device;
};

bool Same(const nvmlPciInfo_t& a, const nvmlPciInfo_t& b) {
  return a.domain == b.domain && a.bus == b.bus && a.device == b.device;
}

Nvlinks FollowNvlinks(const LinkFunctions& f, const std::vector<nvmlDevice_t>& devices,
                      nvmlDevice_t device) {
  Nvlinks found;
  found.to_device.resize(devices.size());
  if (f.nvlink_state == nullptr) return found;
  for (unsigned link = 0; link < NVML_NVLINK_MAX_LINKS; ++link) {
    nvmlEnableState_t state = NVML_FEATURE_DISABLED;
    if (f.nvlink_state(device, link, &state) != NVML_SUCCESS || state != NVML_FEATURE_ENABLED) {
      continue;
    }
    nvmlIntNvLinkDeviceType_t type = NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
    if (f.nvlink_remote_type != nullptr) f.nvlink_remote_type(device, link, &type);
    if (type == NVML_NVLINK_DEVICE_TYPE_SWITCH) {
      ++found.to_switch;
      continue;
    }
    nvmlPciInfo_t remote{};
    if (f.nvlink_remote_pci == nullptr || f.pci_info == nullptr ||
        f.nvlink_remote_pci(device, link, &remote) != NVML_SUCCESS) {
      continue;
    }
    for (size_t peer = 0; peer < devices.size(); ++peer) {
      nvmlPciInfo_t pci{};
      if (f.pci_info(devices[peer], &pci) == NVML_SUCCESS && Same(pci, remote)) {
        ++found.to_device[peer];
      }
    }
  }
  return found;
}

}  // namespace

std::vector<std::vector<DeviceLink>> ReadLinks(const LinkFunctions& f,
                                               const std::vector<nvmlDevice_t>& devices) {
  const size_t count = devices.size();
  std::vector<std::vector<DeviceLink>> links(count, std::vector<DeviceLink>(count));
  std::vector<Nvlinks> nvlinks;
  for (const nvmlDevice_t device : devices) {
    nvlinks.push_back(count > 1 ? FollowNvlinks(f, devices, device) : Nvlinks{});
  }
  for (size_t a = 0; a < count; ++a) {
    for (size_t b = 0; b < count; ++b) {
      DeviceLink& link = links[a][b];
      if (a == b) {
        link.kind = LinkClass::kSelf;
        continue;
      }
      nvmlGpuP2PStatus_t by_nvlink = NVML_P2P_STATUS_UNKNOWN;
      if (f.p2p_status != nullptr) {
        f.p2p_status(devices[a], devices[b], NVML_P2P_CAPS_INDEX_NVLINK, &by_nvlink);
      }
      // Through switches every pair has as many as the one with fewer of them.
      const uint32_t direct = nvlinks[a].to_device[b];
      const uint32_t switched = std::min(nvlinks[a].to_switch, nvlinks[b].to_switch);
      if (by_nvlink == NVML_P2P_STATUS_OK || direct > 0) {
        link = {LinkClass::kNvlink, direct > 0 ? direct : switched};
        continue;
      }
      nvmlGpuTopologyLevel_t level = NVML_TOPOLOGY_SYSTEM;
      if (f.common_ancestor != nullptr &&
          f.common_ancestor(devices[a], devices[b], &level) == NVML_SUCCESS) {
        link.kind = ClassOf(level);
      }
    }
  }
  return links;
}

}  // namespace prorata::driver
