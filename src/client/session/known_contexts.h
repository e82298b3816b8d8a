#pragma once

// The contexts of this process that are known: from their creation (cuCtxCreate*,
// cuDevicePrimaryCtxRetain) to their end. entry/contexts.cc enters and removes them; memory and
// compute ask which device a context belongs to. Thread-safe, but for what says that the caller
// holds the lock.

#include <atomic>
#include <cstdint>

#include "client/platform/os.h"
#include "client/session/driver_functions.h"
#include "shm/limits_file.h"

namespace prorata::client {

inline constexpr uint32_t kMaxContexts = 256;

struct KnownContext {
  CUcontext context;  // or a green context's own handle
  uint32_t device;
  bool charged;
  uint32_t attached;
  CUgreenCtx green;  // whose context it is
};

struct ContextRegistry {
  // All under the lock, which the caller holds for the functions, too.
  KnownContext* Find(CUcontext context);
  void Add(CUcontext context, uint32_t device, bool is_charged, CUgreenCtx green = nullptr);
  bool Drop(CUcontext context, KnownContext* was);
  CUcontext OfGreen(CUgreenCtx green) const;

  Lock lock;
  KnownContext known[kMaxContexts] = {};
  std::atomic<uint32_t> count{0};            // used length of `known`; entries are in no order
  CUcontext primary[shm::kMaxDevices] = {};  // handles of primary contexts, once they were retained
  uint32_t charged[shm::kMaxDevices] = {};   // contexts that overhead is charged for
};
extern ContextRegistry g_contexts;

struct Place {
  CUcontext context = nullptr;
  uint32_t device = ~uint32_t{0};
};
// Where an allocation of this thread goes: its current context and that one's device.
Place CurrentPlace();

// How many green contexts there are, and the primary context that one belongs to; a context that is
// not green belongs to itself.
extern std::atomic<uint32_t> g_green_contexts;
CUcontext OwnerOf(CUcontext context);

// The device of a context: from what is known, or by asking the driver about the current one.
uint32_t DeviceOfCurrent(CUcontext current);

// Devices with a context that is charged, as bits.
uint32_t DevicesWithContexts();

// Contexts known now. While it is at most one, the default stream means one thing.
uint32_t KnownContexts();

}  // namespace prorata::client
