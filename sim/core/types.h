#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <iterator>
#include <limits>
#include <vector>

namespace prorata::simgpu {

// A name for a record of the machine: table, index and generation, so that a stale one is refused.
// 0 is none. Handles mean the same in every process that shares the machine.
using Handle = uint64_t;

inline constexpr int64_t kForever = std::numeric_limits<int64_t>::max();

// Answers of the machine. The driver room translates them to CUresult, the nvml room to
// nvmlReturn_t.
enum class Code {
  kOk,
  kNotReady,        // a query: not finished yet
  kInvalidHandle,   // never existed, destroyed, or of another table
  kInvalidValue,    // an argument out of range
  kOutOfMemory,     // the device has not that much memory left
  kOutOfResources,  // a table of the machine is full
  kFull,            // the stream's queue is full: WaitForRoom, then submit again
  kTimedOut,        // the deadline passed
  kStuck,           // on a virtual clock: no event will ever end this wait
  kDeviceLost,      // the device is off the bus
  kShutdown,        // NextAction: WakeExecutor(true) was called
  kOwn,             // this process itself made what it wants to import
};

template <typename T>
using Answer = std::expected<T, Code>;

// A piece of a device's memory file. Offsets and lengths are multiples of the slab size.
struct Extent {
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
};

// What one process tells another, so that this can hold its memory or wait for its event.
struct ShareName {
  Handle handle = 0;
  uint64_t cookie = 0;
};

// Memory that a process holds together with others.
struct SharedMemory {
  Handle share = 0;  // to be dropped
  Handle block = 0;  // the same for all who hold it
  int device = 0;
  std::vector<Extent> extents;
  uint64_t offset_bytes = 0;  // what the name was given for, inside the extents
  uint64_t length_bytes = 0;
};

struct MemoryInfo {
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
};

// Some of a device's SMs, a bit for each of the first 256. None set: all of the device's.
struct SmSet {
  static constexpr uint32_t kMax = 256;
  uint64_t bits[kMax / 64] = {};

  static SmSet Range(uint32_t first, uint32_t count) {
    SmSet set;
    for (uint32_t sm = first; sm < first + count; ++sm) set.bits[sm / 64] |= uint64_t{1} << sm % 64;
    return set;
  }
  bool all() const { return count() == 0; }
  uint32_t count() const {
    uint32_t sum = 0;
    for (uint64_t word : bits) sum += static_cast<uint32_t>(std::popcount(word));
    return sum;
  }
  bool Contains(const SmSet& other) const { return other.WithoutThose(*this).count() == 0; }
  bool Overlaps(const SmSet& other) const { return WithoutThose(other).count() != count(); }
  void Add(const SmSet& other) {
    for (size_t i = 0; i < std::size(bits); ++i) bits[i] |= other.bits[i];
  }
  SmSet WithoutThose(const SmSet& other) const {
    SmSet rest;
    for (size_t i = 0; i < std::size(bits); ++i) rest.bits[i] = bits[i] & ~other.bits[i];
    return rest;
  }
  bool operator==(const SmSet&) const = default;
};

// A stream that is neither is an ordinary blocking one; a per-thread default stream is such a
// stream, made by the driver room for each thread.
enum class StreamKind : uint8_t {
  kBlocking,     // ordered against the legacy stream of its context
  kNonBlocking,  // CU_STREAM_NON_BLOCKING
  kLegacy,       // the context's default stream; one per context, and one per part of it
};

// A stream that is confined to some of the device's SMs (a green context's).
struct StreamPart {
  SmSet sms;
  // Of a blocking stream: the default stream of its part, which it is ordered against in place of
  // the context's own. A legacy stream with a part is the default stream of that part.
  Handle legacy = 0;
};

enum class WorkKind : uint8_t {
  kKernel,        // compute engine: duration_ns, sm_ppm
  kCopyToDevice,  // host-to-device copy engine: bytes
  kCopyToHost,    // device-to-host copy engine: bytes
  kCopyToPeer,    // from one device to another, over their link: bytes, from_device, to_device
  kCopyOnDevice,  // compute engine, all SMs: bytes at the device's own bandwidth
  kHost,          // nothing but the action; for host functions, and for free waits
  kEventRecord,   // event
  kEventWait,     // event: as it was last recorded when this is submitted
  kStreamWait,    // stream, sequence: until that stream, of any context, is past its entry
};

// One entry of a stream. If `token` is not 0, then after the engine's time is over the executor of
// the process that submitted it must run the action of that token: that is how copied bytes arrive
// and kernels compute. Until it says that it is done, a kernel is not finished for the host, while
// its stream goes on; other work holds its stream up.
struct Work {
  WorkKind kind = WorkKind::kKernel;
  uint32_t sm_ppm = 1'000'000;  // share of the SMs that the kernel occupies, 1 to 1,000,000
  int64_t duration_ns = 0;      // kernels: at full speed, engine time
  uint64_t bytes = 0;           // copies
  int from_device = 0;          // kCopyToPeer
  int to_device = 0;
  Handle event = 0;       // kEventRecord, kEventWait
  uint64_t token = 0;     // not 0: the action
  Handle stream = 0;      // kStreamWait; one that is gone is past everything
  uint64_t sequence = 0;  // kStreamWait; may be an entry that is yet to be submitted
  // kKernel, as collectives are: it goes on, and holds its SMs, until so many kernels of this
  // number (itself included, on any devices) have run their time; then all of them end. 0: it meets
  // nobody.
  uint64_t rendezvous = 0;
  uint32_t rendezvous_size = 0;

  static Work Kernel(int64_t duration_ns, uint32_t sm_ppm = 1'000'000, uint64_t token = 0) {
    return {
        .kind = WorkKind::kKernel, .sm_ppm = sm_ppm, .duration_ns = duration_ns, .token = token};
  }
  static Work Collective(int64_t duration_ns, uint32_t sm_ppm, uint64_t rendezvous, uint32_t size) {
    Work work = Kernel(duration_ns, sm_ppm);
    work.rendezvous = rendezvous;
    work.rendezvous_size = size;
    return work;
  }
  static Work Copy(WorkKind kind, uint64_t bytes, uint64_t token = 0) {
    return {.kind = kind, .bytes = bytes, .token = token};
  }
  static Work PeerCopy(int from_device, int to_device, uint64_t bytes, uint64_t token = 0) {
    return {.kind = WorkKind::kCopyToPeer,
            .bytes = bytes,
            .from_device = from_device,
            .to_device = to_device,
            .token = token};
  }
  static Work Host(uint64_t token) { return {.kind = WorkKind::kHost, .token = token}; }
  static Work Record(Handle event) { return {.kind = WorkKind::kEventRecord, .event = event}; }
  static Work WaitFor(Handle event) { return {.kind = WorkKind::kEventWait, .event = event}; }
  static Work WaitForStream(Handle stream, uint64_t sequence) {
    return {.kind = WorkKind::kStreamWait, .stream = stream, .sequence = sequence};
  }
};

// What the executor thread is to run: the token of a Work; answer with CompleteAction.
struct Action {
  uint64_t token = 0;
  Handle stream = 0;
  uint64_t sequence = 0;
  // When the engine began and ended it (model clock): first admitted, and done. Equal for kHost.
  int64_t started_ns = 0;
  int64_t ended_ns = 0;
};

// What NVML shows. Times are model time.
struct ProcessUsage {
  int slot = 0;
  int pid = 0;  // as the asking process sees it; 0 when it is not visible in its pid namespace
  uint64_t used_bytes = 0;  // contexts and slabs on this device
  int64_t busy_ns = 0;      // time in which a kernel of it was running on this device
  int64_t begun_ns = 0;     // when it came to the machine
};

// NVML's samples of who has a device: see Model::SampleProcesses.
inline constexpr int64_t kProcessSampleNs = 200'000'000;  // from one to the next
struct ProcessSample {
  int64_t time_ns = 0;
  int64_t time_us = 0;  // the same moment by CLOCK_REALTIME
  int pid = 0;          // as in ProcessUsage; 0 also where it is gone, or nothing ran
  uint32_t percent = 0;
};

struct DeviceUsage {
  uint64_t total_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t peak_bytes = 0;              // the most that was ever in use at once
  int64_t now_ns = 0;                   // when this was true
  int64_t busy_ns = 0;                  // sum over all processes, dead ones included
  int64_t switching_ns = 0;             // time lost to context switches
  uint32_t utilization_ppm = 0;         // busy share of the last second
  std::vector<ProcessUsage> processes;  // those with a context or memory on this device
  std::vector<ProcessSample> samples;   // of the last seconds, oldest first
};

}  // namespace prorata::simgpu
