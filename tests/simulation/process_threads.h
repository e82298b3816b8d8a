#pragma once

// The two threads of a simulated process: the program's own, and the library's helper.

#include "client/launch_steps.h"
#include "simulation/process.h"

namespace prorata::simulation {

// A program: launches, synchronises, sleeps, and again. What it does between two waits happens at
// one instant and is paid for afterwards, but that now and then it loses its processor in between.
class Process::Host final : public Thread {
 public:
  Host(EventLoop& loop, Process& process) : Thread(loop), process_(process), wait_(0) {}

  bool awaits_lease() const { return process_.waits_for_lease_; }
  void Start();
  void LeaseWoken();

 private:
  enum class At : uint8_t {
    kJoin,
    kAwaitWelcome,
    kContext,
    kLaunch,
    kGate,
    kRaise,
    kSubmit,
    kAccount,
    kFenced,
    kSync,
    kSynced,
    kLast,
    kEnd,
  };
  void Run() override;
  // One step; false: it has asked to be woken.
  bool Step();
  bool NextRequest();  // false: none has come
  bool StepGate();
  bool StepSubmit();
  void StepAccount();
  void PayAndGoOn(At next);  // wakes when what was spent is over
  bool Preempted();
  bool AwaitDevice(simgpu::Handle event_or_context, bool event);
  bool Governed() const { return process_.share_ != nullptr; }
  client::StreamRecord* record() { return &process_.records_[stream_]; }

  Process& process_;
  At at_ = At::kJoin;
  client::LaunchWait wait_;
  int stream_ = 0;
  bool begins_ = false;
  bool raising_ = false;  // the gate was asked again after the batch was prepared for
  uint32_t estimate_ns_ = 0;
  uint64_t key_ = 0;
  int64_t kernel_ns_ = 0;
  int32_t held_slot_ = -1;
  bool in_request_ = false;
  int64_t request_came_ns_ = 0;
  int64_t next_request_ns_ = -1;
};

class Process::Helper final : public Thread {
 public:
  Helper(EventLoop& loop, Process& process) : Thread(loop), process_(process) {}
  // There is something to read.
  void Readable();
  void Move(int64_t at_ns);
  void JoinAnswered(bool welcome);

 private:
  static constexpr int64_t kReconnectEveryNs = 50'000'000;
  static constexpr int64_t kJoinWithinNs = 1'000'000'000;
  void Run() override;

  Process& process_;
  int64_t next_connect_ns_ = 0;
  int64_t join_until_ns_ = 0;
  bool by_timer_ = false;  // that is what it wakes for
};

}  // namespace prorata::simulation
