#pragma once

// One simulated process: the client library's machines over the simulated device. It is the World
// (client/compute/device_compute.h) of its own machines; what they call takes time on the calling
// thread.

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "client/compute/work_tracker.h"
#include "client/session/heartbeat_watch.h"
#include "sim/core/machine.h"
#include "sim/node/delays.h"
#include "sim/node/event_loop.h"
#include "sim/node/scenario.h"

namespace prorata::simulation {

class Agent;
class World;
struct SimulatedShare;

class Process {
 public:
  // One of a program that has one for each of its devices; `group` is a number for all of them.
  struct Rank {
    int device = 0;
    uint32_t group = 0;
  };
  Process(World& world, const ProgramSpec& spec, SimulatedShare* share, uint32_t id, Rank rank);
  ~Process();

  uint32_t id() const { return id_; }
  int pid() const { return static_cast<int>(1000 + id_); }
  int device() const { return rank_.device; }
  uint32_t group() const { return rank_.group; }
  bool IsFirst() const { return rank_.device == spec_.devices.front(); }
  // Every so manieth launch ends together with those of its peers; 0: none.
  uint64_t CollectiveEvery() const {
    const int every = spec_.collective_every;
    return static_cast<uint64_t>(every > 0 && IsFirst() ? every + spec_.first_more : every);
  }
  const ProgramSpec& spec() const { return spec_; }
  SimulatedShare* share() const { return share_; }
  simgpu::Handle context() const { return context_; }

  void Start();
  void Kill();  // as SIGKILL does: its threads are no more, its work is dropped
  // As long as any of those who stop it says.
  void Stop(int64_t until_ns) { stopped_until_ns_ = std::max(stopped_until_ns_, until_ns); }
  int64_t stopped_until_ns() const { return stopped_until_ns_; }
  bool alive() const { return alive_; }
  // Says something to the agent that is not so.
  void Lie(Random& random);
  bool lied() const { return lied_; }
  bool waits_for_lease() const;  // a thread of it
  // For judging: notified now and then whether it waits although it need not, and how long the
  // device has idled so far; how much of that was while it waited.
  void WatchIdle(bool waits, int64_t idle_ns) {
    if (!waits || launches_ != watched_launches_) {
      idle_when_waiting_began_ns_ = idle_ns;
      waiting_since_ns_ = NowNs();
    }
    watched_launches_ = launches_;
  }
  int64_t waiting_ns() { return NowNs() - waiting_since_ns_; }
  int64_t idle_while_waiting_ns(int64_t idle_ns) const {
    return idle_ns - idle_when_waiting_began_ns_;
  }

  // Device time by the core's own account.
  int64_t BusyNs() const;
  // Device time that this member says it used.
  int64_t MeasuredNs() const {
    return static_cast<int64_t>(usage_.device_time_ns.load(std::memory_order_relaxed));
  }
  const shm::DeviceUsage& usage() const { return usage_; }
  uint64_t launches() const { return launches_; }
  uint64_t helper_looks() const;  // wake-ups of the library's helper thread
  // Of an open loop: when each request was done, and how long after it had come.
  struct Request {
    int64_t done_ns;
    int64_t latency_ns;
  };
  const std::vector<Request>& requests() const { return requests_; }
  int64_t began_ns() const { return began_ns_; }
  int64_t lived_ns() const;

  // --- The agent's side of the connection ------------------------------------------------------
  void Welcomed();
  void LeaseMessage();      // kLeaseChanged is readable
  void LeaseWordChanged();  // the futex was woken
  void ConnectionClosed();
  bool connected() const { return connected_; }

  // --- World -----------------------------------------------------------------------------------
  int64_t NowNs();
  void Nap(int64_t) {}  // nothing is under way while a virtual thread runs
  int64_t HeartbeatLostNs();
  const shm::DeviceLimits& Limits(uint32_t);
  shm::DeviceUsage& Usage(uint32_t) { return usage_; }
  client::DeviceCompute& Compute(uint32_t) { return compute_; }
  client::Estimates& estimates() { return estimates_; }
  bool Send(wire::MessageType type, const wire::LeaseEvent& event);
  template <typename F>
  void ForEachWork(uint32_t, F&& f) {
    if (work_ != nullptr && work_->listed != nullptr) f(*work_);
  }
  bool Capturing() { return false; }
  bool MayRecord() { return true; }
  void DoneRecording() {}
  void RecordGone(client::StreamRecord* record) { free_records_.push_back(record); }
  struct OwnCalls {
    explicit OwnCalls(Process&) {}
  };
  bool CreateEvent(CUevent* event);
  client::Recorded Record(const client::StreamRecord& stream, CUevent event);
  bool Pending(CUevent event);
  client::StreamState Ask(const client::StreamRecord& stream);
  bool Elapsed(CUevent from, CUevent to, int64_t* ns);

 private:
  class Host;
  class Helper;
  class HostFunctions;
  friend class Host;
  friend class Helper;
  friend class HostFunctions;

  struct Stream {
    simgpu::Handle handle = 0;
    client::StreamRecord* record = nullptr;  // null: without prorata
  };

  // Its streams (process_streams.cc), as the client library governs them.
  Stream MakeStream(const Host* thread);
  void DestroyStream(const Stream& stream);
  // What comes into the stream next waits until the gate is opened.
  simgpu::Handle PutWait(const Stream& stream, simgpu::Handle event_before);
  void OpenGate(simgpu::Handle gate);
  void PutHostFunction(const Stream& stream, int64_t ns);
  // Something that does not run on the device; false: its stream has no room.
  bool Put(const Stream& stream, const simgpu::Work& work, bool waits);
  bool PutCopy(const Stream& stream, simgpu::WorkKind kind, uint64_t bytes);
  simgpu::Handle MakeEvent();

  bool Join();         // false: no agent
  bool MakeContext();  // false: the device has no room for it, and the program has ended
  void End();
  int64_t EndsNs() const;  // by itself
  client::WorkTracker<Process> Tracker() { return client::WorkTracker<Process>(*this); }
  int64_t TakeSpent() { return std::exchange(spent_ns_, 0); }
  int NextFunction();
  int64_t KernelNs(int function);
  int64_t DrawKernelNs(Random& random) const;
  static uint64_t KernelSeed(const World& world, const ProgramSpec& spec, int device);

  World& world_;
  const ProgramSpec& spec_;
  SimulatedShare* const share_;  // null: without prorata
  const uint32_t id_;
  const Rank rank_;
  Random random_;
  const uint64_t kernel_seed_;
  Random kernels_;  // of its own: what it launches does not depend on what else goes on

  bool alive_ = false;
  int64_t stopped_until_ns_ = 0;
  bool lied_ = false;
  bool connected_ = false;
  bool joining_ = false;
  int64_t spent_ns_ = 0;  // by the thread that is at it
  uint64_t launches_ = 0;
  std::vector<Request> requests_;
  int64_t began_ns_ = 0;
  int64_t ended_ns_ = 0;
  int64_t busy_at_end_ns_ = 0;
  int64_t idle_when_waiting_began_ns_ = 0;
  int64_t waiting_since_ns_ = 0;
  uint64_t watched_launches_ = 0;

  simgpu::Handle process_ = 0;
  simgpu::Handle context_ = 0;
  int threads_at_work_ = 0;

  // What the client library has in its globals.
  shm::DeviceUsage usage_ = {};
  client::DeviceCompute compute_ = {};
  client::Estimates estimates_;
  client::HeartbeatWatch watch_;
  std::unique_ptr<client::ContextWork> work_;
  std::vector<std::unique_ptr<client::StreamRecord>> records_;
  std::vector<client::StreamRecord*> free_records_;

  std::vector<std::unique_ptr<Host>> hosts_;
  std::unique_ptr<Helper> helper_;
  std::unique_ptr<HostFunctions> host_functions_;
};

}  // namespace prorata::simulation
