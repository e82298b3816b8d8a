#pragma once

// The World (device_compute.h) of the client library: this process, its share, its driver. Empty:
// what it hands out is global, and a call through it costs what the global costs.

#include "client/compute/compute.h"
#include "client/compute/streams.h"
#include "client/compute/work_tracker.h"
#include "client/session/captures.h"
#include "client/session/connection.h"
#include "client/session/driver_functions.h"
#include "client/session/heartbeat_watch.h"
#include "client/session/share.h"

namespace prorata::client {

// Ordering the helper's events against captures (capture_abi.cc).
bool HelperMayRecord();
void HelperDoneRecording();

struct LibraryWorld {
  static int64_t NowNs() { return client::NowNs(); }
  static void Nap(int64_t ns) { AwaitReadable(-1, ns); }
  static int64_t HeartbeatLostNs() { return client::HeartbeatLostNs(); }
  static const shm::DeviceLimits& Limits(uint32_t device) { return LimitsOf(device); }
  static shm::DeviceUsage& Usage(uint32_t device) { return UsageOf(device); }
  static DeviceCompute& Compute(uint32_t device) { return g_compute[device]; }
  static Estimates& estimates() { return g_estimates; }
  static bool Send(wire::MessageType type, const wire::LeaseEvent& event) {
    return client::Send(type, event);
  }
  template <typename F>
  static void ForEachWork(uint32_t device, F&& f) {
    for (ContextWork* work = g_works.load(); work != nullptr; work = work->next) {
      // Its device is another with its context, so it is looked at in use only.
      const WorkUse use(work);
      if (!use.entered() || work->device != device || NextListed(work, nullptr) == nullptr)
        continue;
      const client::OwnCalls own;
      // Queries want a current context on some drivers.
      CUcontext popped;
      if (PRORATA_REAL(cuCtxPushCurrent_v2)(work->context.load()) != CUDA_SUCCESS) continue;
      f(*work);
      PRORATA_REAL(cuCtxPopCurrent_v2)(&popped);
    }
  }
  static bool Capturing() { return g_open_captures.load(std::memory_order_relaxed) != 0; }
  static bool MayRecord() { return HelperMayRecord(); }
  static void DoneRecording() { HelperDoneRecording(); }
  static void RecordGone(StreamRecord* record) { FreeRecord(record); }

  struct OwnCalls {
    explicit OwnCalls(LibraryWorld&) {}
    client::OwnCalls own;
  };
  static bool CreateEvent(CUevent* event) {
    return PRORATA_REAL(cuEventCreate)(event, CU_EVENT_DEFAULT) == CUDA_SUCCESS;
  }
  static client::Recorded Record(const StreamRecord& stream, CUevent event) {
    const auto record =
        stream.per_thread ? PRORATA_REAL(cuEventRecord_ptsz) : PRORATA_REAL(cuEventRecord);
    const CUresult result = record(event, stream.stream);
    return result == CUDA_SUCCESS ? Recorded::kYes
           : IsFault(result)      ? Recorded::kFault
                                  : Recorded::kNo;
  }
  static bool Pending(CUevent event) {
    return PRORATA_REAL(cuEventQuery)(event) == CUDA_ERROR_NOT_READY;
  }
  static StreamState Ask(const StreamRecord& stream) {
    const CUresult result = PRORATA_REAL(cuStreamQuery)(stream.stream);
    return result == CUDA_SUCCESS           ? StreamState::kIdle
           : result == CUDA_ERROR_NOT_READY ? StreamState::kAtWork
                                            : StreamState::kUnknown;
  }
  static bool Elapsed(CUevent from, CUevent to, int64_t* ns) {
    float ms = 0;
    if (PRORATA_REAL(cuEventElapsedTime)(&ms, from, to) != CUDA_SUCCESS) return false;
    *ns = static_cast<int64_t>(static_cast<double>(ms) * 1e6);
    return true;
  }

 private:
  // A kernel of this context faulted: it runs nothing any more.
  static bool IsFault(CUresult result) {
    switch (result) {
      case CUDA_ERROR_ECC_UNCORRECTABLE:
      case CUDA_ERROR_ILLEGAL_ADDRESS:
      case CUDA_ERROR_LAUNCH_TIMEOUT:
      case CUDA_ERROR_ASSERT:
      case CUDA_ERROR_HARDWARE_STACK_ERROR:
      case CUDA_ERROR_ILLEGAL_INSTRUCTION:
      case CUDA_ERROR_MISALIGNED_ADDRESS:
      case CUDA_ERROR_INVALID_ADDRESS_SPACE:
      case CUDA_ERROR_INVALID_PC:
      case CUDA_ERROR_LAUNCH_FAILED:
        return true;
      default:
        return false;
    }
  }
};

inline constinit LibraryWorld g_world;
inline WorkTracker<LibraryWorld> Tracker() { return WorkTracker<LibraryWorld>(g_world); }

}  // namespace prorata::client
