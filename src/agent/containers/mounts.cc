#include "agent/containers/mounts.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace prorata::agent {
namespace {

// The kernel writes space, tab, newline and backslash as \ooo.
std::string Unescaped(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '\\' && i + 3 < text.size() &&
                        text.substr(i + 1, 3).find_first_not_of("01234567") == text.npos;
    if (!escape) {
      plain += text[i];
      continue;
    }
    plain +=
        static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + text[i + 3] - '0');
    i += 3;
  }
  return plain;
}

struct Mount {
  FolderOfDevice root;
  std::string point;
};

// ID PARENT MAJOR:MINOR ROOT POINT … (proc(5)); in the order in which they were mounted.
void ForEachMount(std::string_view mountinfo, const std::function<void(const Mount&)>& visit) {
  while (!mountinfo.empty()) {
    const size_t end = std::min(mountinfo.find('\n'), mountinfo.size());
    std::string_view line = mountinfo.substr(0, end);
    mountinfo.remove_prefix(std::min(end + 1, mountinfo.size()));
    std::vector<std::string_view> fields;
    while (!line.empty() && fields.size() < 5) {
      const size_t space = std::min(line.find(' '), line.size());
      fields.push_back(line.substr(0, space));
      line.remove_prefix(std::min(space + 1, line.size()));
    }
    if (fields.size() < 5) continue;
    visit({{std::string(fields[2]), Unescaped(fields[3])}, Unescaped(fields[4])});
  }
}

std::string Joined(const std::string& folder, std::string_view rest) {
  if (rest.empty()) return folder;
  return (folder == "/" ? "" : folder) + std::string(rest);
}

}  // namespace

std::optional<FolderOfDevice> MountedAt(std::string_view mountinfo, std::string_view point) {
  std::optional<FolderOfDevice> found;
  ForEachMount(mountinfo, [&](const Mount& mount) {
    if (mount.point == point) found = mount.root;
  });
  return found;
}

std::optional<FolderOfDevice> FolderAt(std::string_view mountinfo, std::string_view path) {
  std::optional<FolderOfDevice> found;
  size_t longest = 0;
  ForEachMount(mountinfo, [&](const Mount& mount) {
    const std::string_view point = mount.point == "/" ? std::string_view() : mount.point;
    const bool within =
        path.starts_with(point) && (path.size() == point.size() || path[point.size()] == '/');
    if (!within || point.size() < longest) return;
    longest = point.size();
    found = FolderOfDevice{mount.root.device, Joined(mount.root.path, path.substr(point.size()))};
  });
  return found;
}

}  // namespace prorata::agent
