#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "generated/nvml_abi.h"
#include "sim/core/machine.h"

namespace prorata::simgpu {

// What nvmlInit opened: an observer's attachment to the machine. It follows the machine when that
// is made anew with another configuration, and a fork into the child.
//
// The library is also loaded by programs that have the driver's library loaded, each with its own
// copy of the core; nothing here may disturb the other's record lock (see core/presence.h).
class NvmlSession {
 public:
  static NvmlSession& Get();

  nvmlReturn_t Init();
  nvmlReturn_t Shutdown();

  // The machine, while initialized; null means NVML_ERROR_UNINITIALIZED. A machine once given out
  // stays valid for the life of the process, since callers hold no lock.
  Machine* machine();
  // The device's index, -1 when the handle is none of ours.
  int IndexOf(nvmlDevice_t device);
  nvmlDevice_t HandleOf(int index);

 private:
  nvmlReturn_t Attach();

  std::mutex mutex_;
  int users_ = 0;
  Machine* machine_ = nullptr;
  std::string where_;  // what `machine_` was found by
};

}  // namespace prorata::simgpu
