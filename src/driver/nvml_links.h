#pragma once

// How devices reach each other, from what NVML says of their links.

#include <vector>

#include "base/link_class.h"
#include "generated/nvml_abi.h"

namespace prorata::driver {

// NVML's functions about links; null where it has none: then less is known of the links.
struct LinkFunctions {
  decltype(&nvmlDeviceGetTopologyCommonAncestor) common_ancestor = nullptr;
  decltype(&nvmlDeviceGetP2PStatus) p2p_status = nullptr;
  decltype(&nvmlDeviceGetPciInfo_v3) pci_info = nullptr;
  decltype(&nvmlDeviceGetNvLinkState) nvlink_state = nullptr;
  decltype(&nvmlDeviceGetNvLinkRemoteDeviceType) nvlink_remote_type = nullptr;
  decltype(&nvmlDeviceGetNvLinkRemotePciInfo_v2) nvlink_remote_pci = nullptr;
};

// A row for each device, with its link to each of them, itself too. What NVML does not answer stays
// kUnknown, or without the number of NVLinks.
std::vector<std::vector<DeviceLink>> ReadLinks(const LinkFunctions& functions,
                                               const std::vector<nvmlDevice_t>& devices);

}  // namespace prorata::driver
