#pragma once

// Processes by number and start time: a number alone is used again.

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace prorata::agent {

struct ProcessId {
  pid_t pid = 0;
  uint64_t start_ticks = 0;  // field 22 of /proc/PID/stat: clock ticks since boot
  bool operator==(const ProcessId&) const = default;
};

// The process that has this number now; "no_process" if none has. Like the others here "pidfd" if
// that cannot be seen, as an agent without free descriptors cannot: it says nothing of the process.
Result<ProcessId> IdentifyProcess(pid_t pid);

// A descriptor that becomes readable when the process ends; "no_process" if it has ended, or if its
// number is another's by now. `command`, if not null, becomes what CommandOf would answer: where
// both are wanted, one file is read instead of two.
Result<UniqueFd> WatchProcess(const ProcessId& process, std::string* command = nullptr);

// What to do about this error number: "; ..." if no descriptor is free, else nothing.
std::string DescriptorsRemedy(int error_number);

// Whether a descriptor of WatchProcess says that its process ended.
bool HasEnded(int pidfd);

// The name of the program a process runs (at most 15 characters, /proc/PID/comm), or "".
std::string CommandOf(pid_t pid);

// The number the process has in its own pid namespace: the last of NSpid in /proc/PID/status. `pid`
// itself if that cannot be read.
pid_t InnerPidOf(pid_t pid);

// This process's pid namespace, by the inode number of /proc/self/ns/pid; 0 if it cannot be seen.
uint64_t OwnPidNamespace();

// Who is at the other end of a unix socket, by the kernel. "peer" if it has no number here (another
// process namespace) or has ended.
struct Peer {
  ProcessId process;
  uid_t uid = 0;
};
// What is of use while it lives, and found on the way: a descriptor as WatchProcess has it, and
// what CommandOf answers.
struct PeerWatch {
  UniqueFd pidfd = {};
  std::string command = {};
};
Result<Peer> IdentifyPeer(int socket, PeerWatch* watch = nullptr);
// Whether nobody holds the other end of a connected unix socket any more.
bool HasHungUp(int socket);

}  // namespace prorata::agent
