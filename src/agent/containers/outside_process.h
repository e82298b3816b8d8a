#pragma once

// What can be seen of a process that uses a device and is no member of a share: its container, the
// share that its container was given, and which libcuda it has mapped. Not on the agent's loop: the
// memory map of a process is read with a lock held that the process may hold for any time.

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

#include "agent/containers/mounts.h"
#include "agent/runtime/cgroup.h"
#include "agent/runtime/process.h"

namespace prorata::agent {

struct OutsideProcess {
  ProcessId process;
  ContainerGroup group;
  std::optional<FolderOfDevice> share;  // what is mounted where a container has its share
  std::string command;
  std::string
      libraries;  // what it has mapped by the name of libcuda: paths, ", " between; "": none
};

// Nothing: it has ended, or is in no container.
std::optional<OutsideProcess> InspectOutside(pid_t pid);

// The share's folder as `OutsideProcess::share` tells it; nothing: it is gone.
std::optional<FolderOfDevice> IdentifyFolder(const std::string& folder);

// Of the text of /proc/PID/maps: the files whose names begin with libcuda.so, each once, at most
// three; what is not printable is '?'. Pure.
std::string LibcudaOfMaps(std::string_view maps);

}  // namespace prorata::agent
