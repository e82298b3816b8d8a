#pragma once

#include <cstdint>

#include "sim/core/attachment.h"
#include "sim/core/machine.h"
#include "sim/core/model/model.h"

namespace prorata::simgpu {

// What a caller waits for or asks about, by handle.
struct Target {
  enum class Kind : uint8_t { kStream, kRoom, kEvent, kContext } kind = Kind::kStream;
  Handle handle = 0;
  uint64_t sequence = 0;  // kStream: up to here; kRoom: entries
};

// One call: takes the machine's lock, brings the model to now and now and then buries the dead;
// at its end brings the model to rest, commits, lets the lock go, and wakes whom it concerns.
struct Operation {
  explicit Operation(Machine* machine);
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  void Reap();
  void ReapDescriptors();
  Wipe wipe();
  int PidOf(Index slot) const;  // 0: not visible from here; -1: dead
  bool Look(int device, DeviceUsage* out) const;
  bool DeviceIsLost(Index context) const {
    return model.Lost(static_cast<int>(model.state().contexts[context].device));
  }
  Code Resolve(const Target& target, Condition* condition) const;
  // Real time to sleep until a model time, bounded.
  int64_t RealSleepNs(int64_t wake_ns) const;

  Machine* const machine_;
  Attachment& attachment_;
  Model& model;
  int64_t now_ns = 0;

 private:
  bool IsSelf(const ProcessRecord& process) const;
  void OwnedBy(Index context, Condition* condition) const;
};

}  // namespace prorata::simgpu
