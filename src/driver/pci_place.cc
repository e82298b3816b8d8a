#include "driver/pci_place.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

namespace prorata::driver {

std::string PciAddress(uint32_t domain, uint32_t bus, uint32_t device) {
  char text[32];
  std::snprintf(text, sizeof text, "%04x:%02x:%02x.0", domain, bus, device);
  return text;
}

PciPlace FindPciPlace(const std::string& address, const std::string& sysfs) {
  PciPlace place;
  const std::filesystem::path device = std::filesystem::path(sysfs) / "bus/pci/devices" / address;
  int32_t node = -1;
  if (std::ifstream file(device / "numa_node"); file >> node && node >= 0) {
    place.numa_node = static_cast<uint32_t>(node);
  }
  std::error_code error;
  // ../../../devices/pci0000:16/0000:16:01.0/0000:1a:00.0
  for (const auto& part : std::filesystem::read_symlink(device, error)) {
    if (part.string().starts_with("pci") && part.string().contains(':')) place.root = part.string();
  }
  return place;
}

}  // namespace prorata::driver
