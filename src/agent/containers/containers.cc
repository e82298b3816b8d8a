#include "agent/containers/containers.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <sstream>

#include "agent/containers/cdi.h"
#include "agent/containers/container_name.h"
#include "agent/containers/mounts.h"
#include "base/clock.h"

namespace prorata::agent {
namespace {

constexpr int kMaxAncestors = 64;
constexpr int64_t kRememberNs = kNsPerS;
constexpr size_t kMaxRemembered = 64;
constexpr size_t kMaxAsked = 16;  // processes of a container

std::string ReadFile(const std::filesystem::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char part[4096];
  for (ssize_t got; fd && (got = ::read(fd.get(), part, sizeof part)) > 0;) {
    text.append(part, static_cast<size_t>(got));
  }
  return text;
}

std::string Proc(pid_t pid, const char* name) {
  return "/proc/" + std::to_string(pid) + "/" + name;
}

// The folder of a group, or "": its hierarchy is not mounted here, or not that part of it.
std::string GroupFolder(const ContainerGroup& group) {
  for (const CgroupMount& mount : ParseCgroupMounts(ReadFile("/proc/self/mountinfo"))) {
    if (mount.hierarchy != group.hierarchy) continue;
    if (mount.root == "/") return mount.folder + group.path;
    if (group.path.starts_with(mount.root + "/")) {
      return mount.folder + group.path.substr(mount.root.size());
    }
  }
  return "";
}

pid_t ParentOf(pid_t pid) {
  const std::string stat = ReadFile(Proc(pid, "stat"));
  const size_t bracket = stat.rfind(')');
  if (bracket == std::string::npos || bracket + 4 > stat.size()) return 0;
  return static_cast<pid_t>(std::strtol(stat.c_str() + bracket + 4, nullptr, 10));
}

// An engine's own process is an ancestor of all that runs in its container, `exec` included: the
// outermost of them that `is_it` says so of, for what is in the container may say anything of
// itself. 0: none.
pid_t FindAncestor(pid_t pid, const std::function<bool(const std::string& command_line)>& is_it) {
  pid_t outermost = 0;
  for (int depth = 0; pid > 1 && depth < kMaxAncestors; ++depth) {
    if (is_it(ReadFile(Proc(pid, "cmdline")))) outermost = pid;
    pid = ParentOf(pid);
  }
  return outermost;
}

struct ContainerdTasks final : TaskQuestion {
  explicit ContainerdTasks(pid_t process) : pid(process) {}
  bool IsTask(const std::string& name_space, const std::string& id) const override {
    return FindAncestor(pid, [&](const std::string& command_line) {
             const auto task = TaskOfShim(command_line);
             return task && task->name_space == name_space && task->id == id;
           }) != 0;
  }
  const pid_t pid;
};

std::string NameByMonitor(const ContainerGroup& group, pid_t pid) {
  std::string name;
  FindAncestor(pid, [&](const std::string& command_line) {
    std::string its = NameOfMonitor(command_line, group.id);
    const bool is_it = !its.empty();
    if (is_it) name = std::move(its);
    return is_it;
  });
  return name;
}

// A shim works in the folder of its task, beside which are those of all tasks of its namespace.
std::string NameByShim(const ContainerGroup& group, pid_t pid) {
  const pid_t shim = FindAncestor(
      pid, [](const std::string& command_line) { return TaskOfShim(command_line).has_value(); });
  if (shim == 0) return "";
  const std::string name =
      NameOfOciConfig(ReadFile(Proc(shim, "cwd/../") + group.id + "/config.json"));
  return name.empty() ? group.id : name;
}

// `first`, and who else is in the container, but for those in groups below it.
std::vector<pid_t> ProcessesIn(const ContainerGroup& group, pid_t first) {
  std::vector<pid_t> processes = {first};
  const std::string folder = GroupFolder(group);
  std::istringstream others(folder.empty() ? "" : ReadFile(folder + "/cgroup.procs"));
  for (pid_t pid = 0; processes.size() < kMaxAsked && others >> pid;) processes.push_back(pid);
  return processes;
}

}  // namespace

std::string Containers::NameOf(const ContainerGroup& group, const std::vector<pid_t>& processes) {
  if (group.engine == "docker") {
    return NameOfDockerConfig(
        ReadFile("/var/lib/docker/containers/" + group.id + "/config.v2.json"));
  }
  if (group.engine != "podman" && group.engine != "containerd") {
    return NameOfOciConfig(ReadFile("/run/containers/storage/overlay-containers/" + group.id +
                                    "/userdata/config.json"));
  }
  std::string name;
  for (const pid_t pid : processes) {
    name = group.engine == "podman" ? NameByMonitor(group, pid) : NameByShim(group, pid);
    if (!name.empty()) break;
  }
  return name;
}

std::optional<ContainerGroup> Containers::Of(const ProcessId& process) {
  auto group = ParseCgroup(ReadFile(Proc(process.pid, "cgroup")), ContainerdTasks(process.pid));
  // It was this process that was read of, unless its number changed hands meanwhile.
  const auto now = IdentifyProcess(process.pid);
  return now && *now == process ? group : std::nullopt;
}

std::optional<ContainerGroup> Containers::OfCgroup(const ProcessId& process) {
  const int64_t now_ns = RealClock().NowNs();
  if (now_ns - remembered_since_ns_ > kRememberNs || remembered_.size() >= kMaxRemembered) {
    remembered_.clear();
    remembered_since_ns_ = now_ns;
  }
  std::string cgroup = ReadFile(Proc(process.pid, "cgroup"));
  const auto found = remembered_.find(cgroup);
  if (found != remembered_.end()) return found->second;
  auto group = ParseCgroup(cgroup, ContainerdTasks(process.pid));
  // An answer for a process of the same number would be remembered for all of its group.
  const auto now = IdentifyProcess(process.pid);
  if (!now || *now != process) return std::nullopt;
  remembered_[std::move(cgroup)] = group;
  return group;
}

bool Containers::IsMadeBy(const ContainerGroup& group, uid_t user) {
  return UserOfGroup(group.path).value_or(0) == user;
}

bool Containers::FindsShare(const ProcessId& process, const std::string& share_folder) {
  std::error_code none;
  const auto real = std::filesystem::canonical(share_folder, none);
  const auto own = FolderAt(ReadFile("/proc/self/mountinfo"), real.native());
  const auto its = MountedAt(ReadFile(Proc(process.pid, "mountinfo")), kShareInContainer);
  // It was this process that was read of, unless its number changed hands meanwhile.
  const auto now = IdentifyProcess(process.pid);
  return own && its && *own == *its && now && *now == process;
}

std::optional<bool> Containers::IsEmpty(const ContainerGroup& group) {
  const std::string folder = GroupFolder(group);
  if (folder.empty()) return std::nullopt;
  if (!ReadFile(folder + "/cgroup.procs").empty()) return false;
  std::error_code none;
  for (std::filesystem::recursive_directory_iterator below(folder, none), end; below != end;
       below.increment(none)) {
    const bool is_folder = below->is_directory(none);
    if (is_folder && !ReadFile(below->path() / "cgroup.procs").empty()) return false;
  }
  return true;
}

void Containers::FindName(const ContainerGroup& group, const ProcessId& process,
                          std::function<void(const std::string&)> then) {
  auto name = std::make_shared<std::string>();
  const bool queued = disk_.Run(
      [group, pid = process.pid, name] { *name = NameOf(group, ProcessesIn(group, pid)); },
      [name, then] { then(*name); });
  if (!queued) then("");
}

}  // namespace prorata::agent
