#include "sim/cuda/context/visible_devices.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string_view>

namespace prorata::simgpu::driver {
namespace {

std::string_view Trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

int FindDevice(std::string_view entry, const std::vector<std::string>& uuids) {
  if (entry.empty()) return -1;
  const bool number =
      std::all_of(entry.begin(), entry.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
  if (number) {
    const long index = std::strtol(std::string(entry).c_str(), nullptr, 10);
    return index < static_cast<long>(uuids.size()) ? static_cast<int>(index) : -1;
  }
  int found = -1;
  for (size_t i = 0; i < uuids.size(); ++i) {
    if (!uuids[i].starts_with(entry)) continue;
    if (found >= 0) return -1;
    found = static_cast<int>(i);
  }
  return found;
}

}  // namespace

std::vector<int> VisibleDevices(const char* value, const std::vector<std::string>& uuids) {
  std::vector<int> out;
  if (!value) {
    for (size_t i = 0; i < uuids.size(); ++i) out.push_back(static_cast<int>(i));
    return out;
  }
  std::string_view rest(value);
  while (true) {
    const size_t comma = rest.find(',');
    const int device = FindDevice(Trim(rest.substr(0, comma)), uuids);
    if (device < 0 || std::find(out.begin(), out.end(), device) != out.end()) return out;
    out.push_back(device);
    if (comma == std::string_view::npos) return out;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace prorata::simgpu::driver
