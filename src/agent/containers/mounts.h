#pragma once

// What is mounted where, by the text of /proc/PID/mountinfo. The kernel's text, never a look into
// the file systems themselves: those of a container may be anybody's, and never answer. Pure.

#include <optional>
#include <string>
#include <string_view>

namespace prorata::agent {

// A folder, wherever it is shown: the file system by its device, and the path in that.
struct FolderOfDevice {
  std::string device;  // "0:25"
  std::string path;

  bool operator==(const FolderOfDevice&) const = default;
};

// What is mounted at exactly this path, the last where there are several on top of each other.
std::optional<FolderOfDevice> MountedAt(std::string_view mountinfo, std::string_view point);

// The folder at this path (absolute, no links in it), by the mount that it lies in.
std::optional<FolderOfDevice> FolderAt(std::string_view mountinfo, std::string_view path);

}  // namespace prorata::agent
