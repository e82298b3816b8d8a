#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "sim/core/model/state.h"

namespace prorata::simgpu {

// Which process this is, among all that may share a machine: pids repeat in different pid
// namespaces and come round, and after an exec a process has the same pid but holds nothing any
// more. All copies of this code in a process find the same.
struct Identity {
  int32_t pid = 0;
  uint64_t pid_namespace = 0;
  uint64_t image = 0;  // another one after every exec and fork

  static Identity Self();
  bool operator==(const Identity&) const = default;
};

// Who is alive, by POSIX record locks on the bytes of one file: a process holds the byte of its
// slot; the kernel drops it with the process, however that ends, and F_GETLK tells others the
// holder's pid in the asker's own namespace.
//
// Such a lock has two traps, and this class is built around them:
//   A. Closing *any* descriptor of the file in the owner drops the lock, even one that another
//      library in the process opened. So no descriptor of it is ever closed: each copy of this
//      code keeps one per file for the life of the process.
//   B. The owner itself never sees its own lock. So a slot is first compared with Identity::Self.
class Presence {
 public:
  static Result<Presence> Open(const std::string& path);

  // Holds the slot's byte; false when another process has it.
  bool Claim(Index slot) const;
  void Release(Index slot) const;
  // The pid of the process that holds the slot: 0 when it is not visible from this namespace, -1
  // when nobody has it. Sees no lock of this process itself.
  int HolderPid(Index slot) const;
  // Another process holds any slot.
  bool AnyOther() const;

 private:
  explicit Presence(int fd) : fd_(fd) {}
  int fd_;  // never closed; see A
};

}  // namespace prorata::simgpu
