#pragma once

#include <cstdint>

namespace prorata {

// How two devices reach each other, the nearer the higher; the words of `nvidia-smi topo`.
enum class LinkClass : uint8_t {
  kUnknown,     // NVML does not say
  kSystem,      // SYS: over the interconnect between the host's memory nodes
  kNode,        // NODE: over host bridges of one memory node
  kHostBridge,  // PHB: over one host bridge
  kMultiple,    // PXB: over several PCIe switches
  kSingle,      // PIX: over one PCIe switch
  kInternal,    // PSB: on one board
  kNvlink,      // NV18: over NVLinks
  kSelf,        // the device itself
};

struct DeviceLink {
  LinkClass kind = LinkClass::kUnknown;
  uint32_t nvlinks = 0;  // how many, for kNvlink; 0: NVML does not say

  bool operator==(const DeviceLink&) const = default;
};

}  // namespace prorata
