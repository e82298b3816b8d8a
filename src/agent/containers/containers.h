#pragma once

// The containers that processes are in: seen by the kernel's word (cgroup.h), called by the name
// that their engine's user gave them. The agent's loop; what reads a disk runs on a worker.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/runtime/cgroup.h"
#include "agent/runtime/process.h"
#include "agent/runtime/worker.h"

namespace prorata::agent {

class Containers {
 public:
  explicit Containers(Worker& disk) : disk_(disk) {}

  // Nothing: in none that is known, or the process has ended.
  static std::optional<ContainerGroup> Of(const ProcessId& process);
  // The same, of many that begin at once: to tell whether a group is a container takes a look at
  // all ancestors of a process, so the answer for a group is remembered for a second. It is not
  // seen here whether the process has ended.
  std::optional<ContainerGroup> OfCgroup(const ProcessId& process);
  // Whether a container is one that this user's engine made (root's: whoever may run that).
  static bool IsMadeBy(const ContainerGroup& group, uid_t user);
  // Whether the process finds this folder where a container has its share: the specification was
  // applied to it.
  static bool FindsShare(const ProcessId& process, const std::string& share_folder);
  // No process is in it, nor in a group below it. Nothing: it cannot be seen from here.
  static std::optional<bool> IsEmpty(const ContainerGroup& group);

  // The name, or "": none is known. An engine's own process is found from the first of these that
  // is still there; all are in the container.
  static std::string NameOf(const ContainerGroup& group, const std::vector<pid_t>& processes);
  // The same, `then` on the loop. `process` is in it, and may have ended: then any other there.
  void FindName(const ContainerGroup& group, const ProcessId& process,
                std::function<void(const std::string&)> then);

 private:
  Worker& disk_;
  std::map<std::string, std::optional<ContainerGroup>> remembered_;  // by /proc/PID/cgroup
  int64_t remembered_since_ns_ = 0;
};

}  // namespace prorata::agent
