#pragma once

// The simulated agent: agent::LeaseScheduler with the messages, timers, deaths and outages around
// it.

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "agent/compute/lease_scheduler.h"
#include "sim/node/delays.h"
#include "sim/node/event_loop.h"
#include "sim/node/process.h"

namespace prorata::simulation {

class World;

// What the agent's files hold: they outlive it.
struct SimulatedShare {
  ShareSpec spec;
  uint64_t key = 0;
  shm::LimitsHeader header = {};
  std::vector<std::unique_ptr<shm::DeviceLimits>> limits;  // by device of the machine
  std::vector<Process*> members;  // by the state file: admitted and not forgotten
  bool begun = false;
  int64_t to_start = 0;  // programs that will still come
};

class Agent final : public Thread, private agent::LeaseScheduler::Host {
 public:
  explicit Agent(World& world);
  ~Agent() override;

  // --- What programs ask -----------------------------------------------------------------------
  SimulatedShare* ShareOf(const std::string& name);
  bool alive() const { return alive_; }
  // Messages arrive after their latency, in order.
  void Post(Process& from, wire::MessageType type, uint32_t sequence);
  void PostDeath(Process& member);
  // `prorata update`. False: nobody answers now.
  bool Update(const UpdateSpec& update);

  // --- What goes wrong -------------------------------------------------------------------------
  void Kill(int64_t restart_ns);
  void Stop(int64_t until_ns) { stopped_until_ns_ = until_ns; }

  // Empty, or how the lease words contradict the policy.
  std::string CheckLeases() const;
  // What a share was charged, on one of its devices or on all together.
  static constexpr int kAllDevices = -1;
  int64_t ChargedNs(const std::string& share, int device = kAllDevices) const;
  // What happened on a device since this agent began; null: no agent is alive.
  const agent::TraceRing* TraceOf(size_t device) const;
  // Since when it has been answering as it should; for judging waits.
  int64_t troubled_until_ns() const { return troubled_until_ns_; }

 private:
  struct Message {
    int64_t arrives_ns;
    Process* from;
    wire::MessageType type;
    uint32_t sequence;
    bool death;
  };
  struct Life;  // what dies with it

  void Run() override;
  void Begin();  // a new agent adopts what the files say
  void AuditTime(int64_t now_ns);
  void TraceStates(const agent::DeviceLeases& leases);
  void Handle(const Message& message);
  void Join(Process& member);
  void Depart(Process& member);
  void BeginShare(SimulatedShare& share);
  void ForgetDead();
  agent::ShareTime* TimeOf(const Process& member);
  void Reschedule(int device);
  void Arm();

  int64_t NowNs() const override;
  uint64_t Outages() const override { return outages_; }
  void LeaseChanged(size_t device, uint64_t share, uint32_t sequence) override;
  void SetDeadline(size_t device, int64_t when_ns) override { deadline_ns_[device] = when_ns; }
  void SetGangsDeadline(int64_t when_ns) override { gangs_deadline_ns_ = when_ns; }
  void GangChanged(uint64_t, bool) override {}

  static constexpr int64_t kTickNs = 100'000'000;
  static constexpr int64_t kAuditNs = 250'000'000;

  World& world_;
  Random random_;
  std::vector<std::unique_ptr<SimulatedShare>> shares_;
  std::unique_ptr<Life> life_;
  std::deque<Message> inbox_;
  std::vector<std::pair<int64_t, Process*>> dying_;  // memory gone by then
  bool alive_ = false;
  int64_t stopped_until_ns_ = 0;
  int64_t restart_ns_ = Thread::kNever;
  std::vector<int64_t> deadline_ns_;  // by device
  int64_t gangs_deadline_ns_ = Thread::kNever;
  uint64_t outages_ = 0;
  int64_t next_tick_ns_ = 0;
  int64_t next_audit_ns_ = 0;
  int64_t audited_at_ns_ = 0;
  int64_t next_beat_ns_ = 0;
  int64_t last_beat_ns_ = 0;
  int64_t troubled_until_ns_ = 0;
};

}  // namespace prorata::simulation
