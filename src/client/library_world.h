#pragma once

// The World (member_compute.h) of the client library: this process, its share, its driver. Empty:
// what it hands out is global, and a call through it costs what the global costs.

#include "client/charge.h"
#include "client/compute.h"
#include "client/connection.h"
#include "client/fence_machine.h"
#include "client/real.h"
#include "client/share.h"

namespace prorata::client {

struct LibraryWorld {
  static int64_t NowNs() { return client::NowNs(); }
  static int64_t AgentSilentNs() { return client::AgentSilentNs(); }
  static const protocol::DeviceLimits& Limits(uint32_t device) { return LimitsOf(device); }
  static protocol::DeviceUsage& Usage(uint32_t device) { return UsageOf(device); }
  static DeviceCompute& Compute(uint32_t device) { return g_compute[device]; }
  static Estimates& estimates() { return g_estimates; }
  static bool Send(protocol::MessageType type, const protocol::LeaseEvent& event) {
    return client::Send(type, event);
  }
  static bool PlanLook(uint32_t device, int64_t at_ns, int64_t by_ns) {
    return g_look_timer.Plan(device, at_ns, by_ns);
  }
  static void MoveLook(uint32_t device, int64_t at_ns) { g_look_timer.Move(device, at_ns); }

  struct OwnCalls {
    explicit OwnCalls(LibraryWorld&) {}
    client::OwnCalls own;
  };
  // Blocking: whoever waits for one waits for milliseconds, and should sleep.
  static bool CreateEvent(CUevent* event) {
    return PRORATA_REAL(cuEventCreate)(event, CU_EVENT_BLOCKING_SYNC) == CUDA_SUCCESS;
  }
  static bool Record(const StreamRecord& stream, CUevent event) {
    const auto record =
        stream.per_thread ? PRORATA_REAL(cuEventRecord_ptsz) : PRORATA_REAL(cuEventRecord);
    return record(event, stream.stream) == CUDA_SUCCESS;
  }
  static bool Pending(CUevent event) {
    return PRORATA_REAL(cuEventQuery)(event) == CUDA_ERROR_NOT_READY;
  }
  static bool Elapsed(CUevent from, CUevent to, int64_t* ns) {
    float ms = 0;
    if (PRORATA_REAL(cuEventElapsedTime)(&ms, from, to) != CUDA_SUCCESS) return false;
    *ns = static_cast<int64_t>(static_cast<double>(ms) * 1e6);
    return true;
  }
};

inline constinit LibraryWorld g_world;
inline FenceMachine<LibraryWorld> Fences() { return FenceMachine<LibraryWorld>(g_world); }

}  // namespace prorata::client
