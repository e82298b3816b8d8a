#include "agent/runtime/cgroup.h"

#include <algorithm>
#include <charconv>

namespace prorata::agent {
namespace {

constexpr size_t kIdLength = 64;

bool IsHexId(std::string_view text) {
  return text.size() == kIdLength &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::vector<std::string_view> Split(std::string_view text, char by) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(by), text.size());
    if (end > 0) parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

struct Prefix {
  std::string_view prefix;
  std::string_view engine;
};
// In the order of trial: one is no beginning of another.
constexpr Prefix kPrefixes[] = {
    {"libpod-payload-", "podman"},     {"libpod-", "podman"},      {"docker-", "docker"},
    {"cri-containerd-", "containerd"}, {"nerdctl-", "containerd"}, {"crio-", "cri-o"},
};

// One group's name, whose parent is `parent`: the engine and the id, or nothing.
struct Named {
  std::string_view engine;
  std::string_view id;
};
std::optional<Named> ReadName(std::string_view name, std::string_view parent) {
  constexpr std::string_view kScope = ".scope";
  if (name.ends_with(kScope)) name.remove_suffix(kScope.size());
  for (const auto& [prefix, engine] : kPrefixes) {
    if (name.starts_with(prefix) && IsHexId(name.substr(prefix.size()))) {
      return Named{engine, name.substr(prefix.size())};
    }
  }
  // systemd's way of runc: SLICE:cri-containerd:ID.
  const size_t colon = name.rfind(':');
  if (colon != std::string_view::npos && IsHexId(name.substr(colon + 1))) {
    const bool cri = name.substr(0, colon).ends_with("cri-containerd");
    return Named{cri ? "containerd" : "docker", name.substr(colon + 1)};
  }
  if (!IsHexId(name)) return std::nullopt;
  if (parent == "docker") return Named{"docker", name};
  if (parent.starts_with("pod") || parent.find("-pod") != std::string_view::npos) {
    return Named{"containerd", name};
  }
  return std::nullopt;
}

std::optional<ContainerGroup> ReadLine(std::string_view hierarchy, std::string_view path,
                                       const TaskQuestion& tasks) {
  const auto names = Split(path, '/');
  // The outermost: a container in a container is part of it.
  for (size_t i = 0; i < names.size(); ++i) {
    const auto named = ReadName(names[i], i > 0 ? names[i - 1] : "");
    if (!named) continue;
    const auto end = static_cast<size_t>(names[i].data() + names[i].size() - path.data());
    return ContainerGroup{std::string(named->engine), std::string(named->id),
                          std::string(hierarchy), std::string(path.substr(0, end))};
  }
  if (names.size() < 2) return std::nullopt;
  const std::string name_space(names[0]);
  const std::string id(names[1]);
  if (!tasks.IsTask(name_space, id)) return std::nullopt;
  return ContainerGroup{"containerd", id, std::string(hierarchy), "/" + name_space + "/" + id};
}

}  // namespace

std::optional<ContainerGroup> ParseCgroup(std::string_view text, const TaskQuestion& tasks) {
  std::optional<ContainerGroup> found;
  for (const std::string_view line : Split(text, '\n')) {
    // NUMBER:HIERARCHY:PATH
    const size_t first = line.find(':');
    const size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view hierarchy = line.substr(first + 1, second - first - 1);
    auto group = ReadLine(hierarchy, line.substr(second + 1), tasks);
    // v2's where it has one; else the first: in each the same answer for all of a container.
    if (group && (!found || hierarchy.empty())) found = std::move(group);
  }
  return found;
}

std::optional<uid_t> UserOfGroup(std::string_view path) {
  constexpr std::string_view kUser = "user-";
  constexpr std::string_view kSlice = ".slice";
  for (const std::string_view name : Split(path, '/')) {
    if (!name.starts_with(kUser) || !name.ends_with(kSlice)) continue;
    const std::string_view number =
        name.substr(kUser.size(), name.size() - kUser.size() - kSlice.size());
    uid_t user = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), user);
    if (error == std::errc() && end == number.data() + number.size()) return user;
  }
  return std::nullopt;
}

std::vector<CgroupMount> ParseCgroupMounts(std::string_view mountinfo) {
  std::vector<CgroupMount> mounts;
  for (const std::string_view line : Split(mountinfo, '\n')) {
    // ID PARENT MAJOR:MINOR ROOT FOLDER OPTIONS… - TYPE SOURCE SUPEROPTIONS (proc(5))
    const size_t dash = line.find(" - ");
    if (dash == std::string_view::npos) continue;
    const auto before = Split(line.substr(0, dash), ' ');
    const auto after = Split(line.substr(dash + 3), ' ');
    if (before.size() < 5 || after.size() < 3) continue;
    if (after[0] == "cgroup2") {
      mounts.push_back({"", std::string(before[3]), std::string(before[4])});
    } else if (after[0] == "cgroup") {
      // The options of the hierarchy: what /proc/PID/cgroup calls it, behind "rw".
      std::string names;
      for (const std::string_view option : Split(after[2], ',')) {
        if (option == "rw" || option == "ro" || option.starts_with("release_agent=") ||
            option == "xattr" || option == "clone_children" || option == "noprefix") {
          continue;
        }
        names += (names.empty() ? "" : ",") + std::string(option);
      }
      mounts.push_back({names, std::string(before[3]), std::string(before[4])});
    }
  }
  return mounts;
}

}  // namespace prorata::agent
