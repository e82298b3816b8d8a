#include "agent/containers/outside_process.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

#include "agent/containers/cdi.h"
#include "agent/containers/containers.h"

namespace prorata::agent {
namespace {

constexpr size_t kMaxProcBytes = 8 << 20;
constexpr size_t kMaxLibraries = 3;

// The kernel says no size of these files.
std::string ReadProc(const std::string& process, const char* name) {
  std::ifstream file("/proc/" + process + "/" + name);
  std::string text;
  char buffer[64 << 10];
  while (file.read(buffer, sizeof buffer), file.gcount() > 0) {
    text.append(buffer, static_cast<size_t>(file.gcount()));
    if (text.size() > kMaxProcBytes) break;
  }
  return text;
}

}  // namespace

std::string LibcudaOfMaps(std::string_view maps) {
  std::vector<std::string> found;
  while (!maps.empty() && found.size() < kMaxLibraries) {
    const size_t end = std::min(maps.find('\n'), maps.size());
    const std::string_view line = maps.substr(0, end);
    maps.remove_prefix(std::min(end + 1, maps.size()));
    // FROM-TO RIGHTS OFFSET DEVICE INODE   PATH: only a path has a slash.
    const size_t begin = line.find('/');
    if (begin == std::string_view::npos) continue;
    std::string path(line.substr(begin));
    if (!std::string_view(path).substr(path.rfind('/') + 1).starts_with("libcuda.so")) continue;
    std::replace_if(path.begin(), path.end(), [](char c) { return c < 0x20 || c >= 0x7f; }, '?');
    if (std::find(found.begin(), found.end(), path) == found.end()) found.push_back(path);
  }
  std::string text;
  for (const std::string& path : found) text += (text.empty() ? "" : ", ") + path;
  return text;
}

std::optional<OutsideProcess> InspectOutside(pid_t pid) {
  const auto process = IdentifyProcess(pid);
  if (!process) return std::nullopt;
  auto group = Containers::Of(*process);
  if (!group) return std::nullopt;
  OutsideProcess seen{*process, std::move(*group), {}, CommandOf(pid), {}};
  seen.share = MountedAt(ReadProc(std::to_string(pid), "mountinfo"), kShareInContainer);
  seen.libraries = LibcudaOfMaps(ReadProc(std::to_string(pid), "maps"));
  // It was this process that was read of, unless its number changed hands meanwhile.
  const auto now = IdentifyProcess(pid);
  return now && *now == *process ? std::optional(std::move(seen)) : std::nullopt;
}

std::optional<FolderOfDevice> IdentifyFolder(const std::string& folder) {
  std::error_code none;
  const auto real = std::filesystem::canonical(folder, none);
  if (none) return std::nullopt;
  return FolderAt(ReadProc("self", "mountinfo"), real.native());
}

}  // namespace prorata::agent
