#pragma once

// Which container a process is in, by the text of /proc/PID/cgroup: the kernel's word, which no
// program in a container can change. Pure.
//
// What engines call a container's group (ID: 64 hexadecimal digits), v1 and v2:
//
//   podman       …/libpod-ID.scope     (systemd)   …/libpod-ID             (cgroupfs)
//   Docker       …/docker-ID.scope                 …/docker/ID
//   containerd   …/cri-containerd-ID.scope         …/podUID/ID or …:cri-containerd:ID
//                …/nerdctl-ID.scope                /NAMESPACE/ID           (ctr; any name for ID)
//   CRI-O        …/crio-ID.scope                   …/crio-ID
//
// Groups that a container makes below its own are part of it.

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace prorata::agent {

// A container, as its cgroup shows it.
struct ContainerGroup {
  std::string engine;     // podman, docker, containerd, cri-o
  std::string id;         // what the engine knows it by
  std::string hierarchy;  // "" is v2, else what names it in /proc/PID/cgroup
  std::string path;       // the container's own group there

  bool operator==(const ContainerGroup&) const = default;
};

// Nothing: it is in no container of these engines. `name_space` and `id` of groups of ctr's are
// those of a container only if `is_task` says so.
struct TaskQuestion {
  virtual bool IsTask(const std::string& name_space, const std::string& id) const = 0;

 protected:
  ~TaskQuestion() = default;
};
std::optional<ContainerGroup> ParseCgroup(std::string_view text, const TaskQuestion& tasks);

// The user in whose part of the tree (systemd's user-UID.slice) a group lies: an engine without
// root made it. Nothing: root's.
std::optional<uid_t> UserOfGroup(std::string_view path);

// Where the hierarchies are mounted, by the text of /proc/PID/mountinfo.
struct CgroupMount {
  std::string hierarchy;  // as in ContainerGroup
  std::string root;       // the group that is shown at `folder`
  std::string folder;
};
std::vector<CgroupMount> ParseCgroupMounts(std::string_view mountinfo);

struct Container {
  ContainerGroup group;
  std::string name;  // the id's first 12 characters until the engine's word for it is found
};

}  // namespace prorata::agent
