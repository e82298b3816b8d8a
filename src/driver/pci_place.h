#pragma once

// Where a device is on its machine, as Linux tells it in /sys.

#include <cstdint>
#include <optional>
#include <string>

namespace prorata::driver {

struct PciPlace {
  std::optional<uint32_t> numa_node;  // absent: the machine has one only, or does not say
  std::string root;                   // the root complex, "pci0000:16"; empty: not known
};

// "0000:1a:00.0", as /sys names a device.
std::string PciAddress(uint32_t domain, uint32_t bus, uint32_t device);

// Of the device with this address; nothing known of one that is not there. `sysfs`: for tests.
// (PCI devices' symbolic links and `numa_node`: the kernel's
// Documentation/ABI/testing/sysfs-bus-pci.)
PciPlace FindPciPlace(const std::string& address, const std::string& sysfs = "/sys");

}  // namespace prorata::driver
