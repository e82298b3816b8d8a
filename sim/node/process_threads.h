#pragma once

// The threads of a simulated process: the program's own, the library's helper, and the driver's for
// host functions.

#include "client/compute/gate.h"
#include "sim/node/process.h"

namespace prorata::simulation {

// A thread of the program: launches, synchronises, sleeps, and again. What it does between two
// waits happens at one instant and is paid for afterwards, but that now and then it loses its
// processor in between.
class Process::Host final : public Thread {
 public:
  // The first thread of a process joins, and makes its context.
  Host(EventLoop& loop, Process& process, bool first)
      : Thread(loop), process_(process), first_(first), wait_(0) {}

  bool waits_for_lease() const { return waits_for_lease_; }
  void Start();
  void MakeStreams();
  void LeaseWoken();
  void StopWaiting() { waits_for_lease_ = false; }

 private:
  enum class At : uint8_t {
    kJoin,
    kAwaitWelcome,
    kContext,
    kLaunch,
    kCopyIn,
    kGate,
    kRaise,
    kSubmit,
    kAccount,
    kPoll,
    kCopyOut,
    kSync,
    kSynced,
    kSyncStream,
    kStreamSynced,
    kLast,
    kEnd,
  };
  void Run() override;
  // One step; false: it has asked to be woken.
  bool Step();
  bool NextRequest();  // false: none has come
  // What it launches next, and how much of that: the streams that are only to exist, what lies
  // behind a wait for good, or a request.
  enum class Part : uint8_t { kIdleStreams, kBlocked, kRequests };
  bool BeginPart();  // false: it is over, or asleep
  void ChooseLaunch();
  bool CopyIn();  // false: it waits for room
  bool CopyOut();
  bool Copy(simgpu::WorkKind kind, uint64_t bytes);
  void CopyAhead();
  bool NextIsCollective() const;
  void EndPart();
  bool WaitsForStreams() const;
  const std::vector<Stream>& SyncedStreams() const;
  bool SyncStream();
  bool SyncContext(At then);
  bool StepGate();
  bool StepSubmit();
  void StepAccount();
  void PayAndGoOn(At next);  // wakes when what was spent is over
  bool Preempted();
  bool Governed() const { return process_.share_ != nullptr; }
  client::StreamRecord* record() const { return stream_.record; }

  Process& process_;
  const bool first_;
  At at_ = At::kJoin;
  client::LaunchWait wait_;
  bool waits_for_lease_ = false;
  std::vector<Stream> streams_;
  std::vector<Stream> idle_streams_;
  Stream blocked_;
  simgpu::Handle blocked_gate_ = 0;
  Part part_ = Part::kIdleStreams;
  int left_ = 0;             // launches of this part, or request
  uint64_t launched_ = 0;    // of its requests
  simgpu::Handle gate_ = 0;  // of this request; 0: there is none
  size_t sync_stream_ = 0;
  client::WorkTracker<Process>::SyncMark sync_mark_;
  Stream stream_;                              // of this launch
  bool copies_ = false;                        // it comes after a copy
  Stream copy_stream_;                         // where they are made ahead
  std::array<simgpu::Handle, 2> copied_ = {};  // events in it, in turn
  uint64_t copies_made_ = 0;
  uint64_t copies_used_ = 0;
  bool begins_ = false;
  bool raising_ = false;  // the gate was asked again after the batch was prepared for
  uint32_t estimate_ns_ = 0;
  uint64_t key_ = 0;
  int64_t kernel_ns_ = 0;
  uint64_t epoch_ = 0;    // of the synchronisation of its context
  int steps_ = 0;         // of this request, done
  int64_t rests_ns_ = 0;  // when the next burst ends
  bool in_request_ = false;
  int64_t request_came_ns_ = 0;
  int64_t next_request_ns_ = -1;
};

class Process::Helper final : public Thread {
 public:
  Helper(EventLoop& loop, Process& process) : Thread(loop), process_(process) {}
  // There is something to read.
  void Readable();
  void JoinAnswered(bool welcome);

 private:
  static constexpr int64_t kReconnectEveryNs = 50'000'000;
  static constexpr int64_t kJoinWithinNs = 1'000'000'000;
  void Run() override;

  Process& process_;
  int64_t next_connect_ns_ = 0;
  int64_t join_until_ns_ = 0;
};

// The driver's thread runs them one after the other, each when its stream has got there.
class Process::HostFunctions final : public Thread {
 public:
  HostFunctions(EventLoop& loop, Process& process) : Thread(loop), process_(process) {}
  // `reached`: an event before it in its stream, and its to destroy; `gate`: opened after it.
  void Add(simgpu::Handle reached, simgpu::Handle gate, int64_t ns);

 private:
  struct Entry {
    simgpu::Handle reached;
    simgpu::Handle gate;
    int64_t ns;
  };
  void Begin();
  void Run() override;

  Process& process_;
  std::deque<Entry> queue_;
  bool running_ = false;
};

}  // namespace prorata::simulation
