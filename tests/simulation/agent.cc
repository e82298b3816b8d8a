#include "simulation/agent.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "simulation/policies.h"
#include "simulation/world.h"

namespace prorata::simulation {

using agent::DeviceLeases;
using agent::ShareTime;
using protocol::MessageType;

// What an agent has only in its own memory.
struct Agent::Life {
  Life(const std::string& policy, Fraction elastic_ceiling, size_t count) {
    for (size_t i = 0; i < count; ++i) devices.emplace_back(MakePolicy(policy, elastic_ceiling));
    std::vector<DeviceLeases*> all;
    for (Device& device : devices) all.push_back(&device.leases);
    gangs = agent::GangLeases(all);
  }
  struct Device {
    explicit Device(std::unique_ptr<policy::LeasePolicy> policy) : leases(std::move(policy)) {}
    DeviceLeases leases;
    std::map<uint64_t, std::unique_ptr<ShareTime>> times;  // by share
  };
  std::deque<Device> devices;
  agent::GangLeases gangs{{}};
};

Agent::Agent(World& world) : Thread(world.loop()), world_(world), random_(world.random().Next()) {
  for (const ShareSpec& spec : world.scenario().shares) {
    auto share = std::make_unique<SimulatedShare>();
    share->spec = spec;
    share->key = shares_.size() + 1;
    for (size_t i = 0; i < world.scenario().machine.devices.size(); ++i) {
      share->limits.push_back(std::make_unique<protocol::DeviceLimits>());
      agent::WriteComputeLimits(*share->limits.back(), spec.compute);
    }
    shares_.push_back(std::move(share));
  }
  Begin();
}

Agent::~Agent() = default;

SimulatedShare* Agent::ShareOf(const std::string& name) {
  for (const auto& share : shares_) {
    if (share->spec.name == name) return share.get();
  }
  return nullptr;
}

// --- Life ---------------------------------------------------------------------------------------

void Agent::Begin() {
  const int64_t now_ns = world_.now_ns();
  alive_ = true;
  restart_ns_ = Thread::kNever;
  troubled_until_ns_ = now_ns + 200'000'000;  // until members have joined again
  const size_t devices = world_.scenario().machine.devices.size();
  life_ = std::make_unique<Life>(world_.policy(), world_.scenario().elastic_ceiling, devices);
  deadline_ns_.assign(devices, Thread::kNever);
  world_.Trace("agent", 0);
  for (const auto& share : shares_) {
    if (share->begun) BeginShare(*share);
  }
  next_audit_ns_ = now_ns;
  next_tick_ns_ = now_ns + kTickNs;
  next_beat_ns_ = last_beat_ns_ = now_ns;
  Arm();
}

void Agent::Kill(int64_t restart_ns) {
  if (!alive_) return;
  world_.Trace("agent killed", 0);
  alive_ = false;
  life_.reset();
  inbox_.clear();
  deadline_ns_.assign(deadline_ns_.size(), Thread::kNever);
  restart_ns_ = restart_ns;
  for (const auto& process : world_.processes()) process->ConnectionClosed();
  WakeAt(restart_ns);
}

void Agent::BeginShare(SimulatedShare& share) {
  share.begun = true;
  for (const int number : share.spec.devices) {
    Life::Device& device = life_->devices[static_cast<size_t>(number)];
    auto& time = device.times[share.key];
    time = std::make_unique<ShareTime>(share.limits[static_cast<size_t>(number)].get());
    for (Process* member : share.members) {
      if (member->device() != number) continue;
      time->Admit(member->id());
      if (!member->alive()) {
        time->Depart(member->id());
        PostDeath(*member);  // its memory is looked for again
      }
    }
    CarryOut(number, device.leases.Add(share.key, *time, share.spec.compute, world_.now_ns()));
  }
  const bool plain = share.spec.gang == ShareSpec::Gang::kNever;
  if (plain || share.spec.devices.size() < 2) return;
  life_->gangs.Add(share.key, {share.spec.devices.begin(), share.spec.devices.end()},
                   share.spec.gang == ShareSpec::Gang::kAlways);
}

// The share of a member on the member's own device; null: it is not there any more, or not yet.
ShareTime* Agent::TimeOf(const Process& member) {
  auto& times = life_->devices[static_cast<size_t>(member.device())].times;
  const auto time = times.find(member.share()->key);
  return time == times.end() ? nullptr : time->second.get();
}

void Agent::Run() {
  const int64_t now_ns = world_.now_ns();
  if (!alive_) {
    if (now_ns >= restart_ns_) Begin();
    return;
  }
  if (stopped_until_ns_ > now_ns) {
    troubled_until_ns_ = stopped_until_ns_;
    return WakeAt(stopped_until_ns_ + world_.delays().Wake(random_));
  }
  if (now_ns >= next_beat_ns_) {
    const bool silent =
        now_ns - last_beat_ns_ >= static_cast<int64_t>(protocol::kAgentSilentAfterNs);
    last_beat_ns_ = now_ns;
    if (silent) ResetAfterOutage();
    for (const auto& share : shares_) share->header.heartbeat.fetch_add(1);
    next_beat_ns_ = now_ns + static_cast<int64_t>(protocol::kHeartbeatPeriodNs);
  }
  while (!inbox_.empty() && inbox_.front().arrives_ns <= now_ns) {
    const Message message = inbox_.front();
    inbox_.pop_front();
    Handle(message);
  }
  ForgetDead();
  if (now_ns >= next_tick_ns_) {
    next_tick_ns_ = now_ns + kTickNs;
    for (size_t i = 0; i < life_->devices.size(); ++i) {
      life_->devices[i].leases.Sample(now_ns);
      TraceStates(life_->devices[i].leases);
      Touch(static_cast<int>(i));
    }
  }
  if (now_ns >= next_audit_ns_) {
    next_audit_ns_ = now_ns + kAuditNs;
    AuditTime(now_ns);
  }
  for (size_t i = 0; i < deadline_ns_.size(); ++i) {
    if (now_ns < deadline_ns_[i]) continue;
    world_.Trace("agent looks", static_cast<uint32_t>(i));
    Touch(static_cast<int>(i));
  }
  // Not before each device has been looked at: a gang's step brings the accounts of all up to date.
  if (const std::string wrong = CheckLeases(); !wrong.empty()) world_.Fail(wrong);
  Arm();
}

void Agent::Arm() {
  int64_t next_ns = std::min(next_beat_ns_, next_tick_ns_);
  for (const int64_t deadline_ns : deadline_ns_) next_ns = std::min(next_ns, deadline_ns);
  for (const auto& [gone_ns, member] : dying_) next_ns = std::min(next_ns, gone_ns);
  // A timer of the loop is exact (timerfd), but its thread must wake.
  next_ns = std::max(next_ns, world_.now_ns() + 1) + world_.delays().Wake(random_);
  if (!inbox_.empty()) {
    next_ns = std::min(
        next_ns, std::max(inbox_.front().arrives_ns, world_.now_ns() + world_.delays().handle_ns));
  }
  WakeAt(next_ns);
}

// It was silent itself: nobody is a gang any more, and no device knows of one (agent/leases.cc).
void Agent::ResetAfterOutage() {
  life_->gangs.ResetAfterOutage();
  for (size_t i = 0; i < life_->devices.size(); ++i) {
    WriteOut(i, life_->devices[i].leases.ResetAfterOutage(world_.now_ns()));
  }
  for (size_t i = 0; i < life_->devices.size(); ++i) Touch(static_cast<int>(i));
}

// --- Messages -----------------------------------------------------------------------------------

void Agent::Post(Process& from, MessageType type, uint32_t sequence) {
  if (!alive_) return;
  const Delays& delays = world_.delays();
  int64_t arrives_ns = world_.now_ns() + delays.message_ns + delays.Wake(random_);
  if (!inbox_.empty()) arrives_ns = std::max(arrives_ns, inbox_.back().arrives_ns);
  inbox_.push_back({arrives_ns, &from, type, sequence, false});
  WakeBy(arrives_ns);
}

void Agent::PostDeath(Process& member) {
  if (!alive_) return;
  const int64_t arrives_ns = world_.now_ns() + world_.delays().Wake(random_);
  const int64_t behind_ns = inbox_.empty() ? 0 : inbox_.back().arrives_ns;
  inbox_.push_back({std::max(arrives_ns, behind_ns), &member, MessageType::kRefused, 0, true});
  WakeBy(inbox_.back().arrives_ns);
}

void Agent::Handle(const Message& message) {
  Process& from = *message.from;
  if (message.death) return Depart(from);
  if (message.type == MessageType::kJoin) return Join(from);
  world_.Trace("agent reads", from.id(), static_cast<int64_t>(message.type));
  ShareTime* time = TimeOf(from);
  if (time == nullptr || !from.connected()) return;
  if (message.type == MessageType::kLeaseIdle) {
    time->SaidIdle(from.id(), message.sequence);
  } else if (message.type == MessageType::kLeaseDrained) {
    time->SaidDrained(from.id(), message.sequence);
  }
  Touch(from.device());
}

void Agent::Join(Process& member) {
  if (!member.alive()) return;  // its death is on the way
  SimulatedShare& share = *member.share();
  if (!share.begun) BeginShare(share);
  ShareTime& time = *TimeOf(member);
  if (std::find(share.members.begin(), share.members.end(), &member) == share.members.end()) {
    share.members.push_back(&member);
    time.Admit(member.id());
  }
  time.SetUsage(member.id(), &member.usage());
  time.SetConnected(member.id(), true);
  member.Welcomed();
  Touch(member.device());
}

bool Agent::Update(const UpdateSpec& update) {
  if (!alive_ || stopped_until_ns_ > world_.now_ns()) return false;
  SimulatedShare& share = *ShareOf(update.share);
  world_.Trace("update", static_cast<uint32_t>(share.key));
  share.spec.compute = update.compute;
  for (const auto& limits : share.limits) agent::WriteComputeLimits(*limits, update.compute);
  for (const int device : share.spec.devices) {
    if (!share.begun) break;
    agent::DeviceLeases& leases = life_->devices[static_cast<size_t>(device)].leases;
    CarryOut(device, leases.SetTerms(share.key, update.compute, world_.now_ns()));
  }
  if (share.begun) Arm();
  return true;
}

void Agent::Depart(Process& member) {
  if (ShareTime* time = TimeOf(member)) time->Depart(member.id());
  // The device shows its memory gone a little later; the agent looks now and then.
  dying_.emplace_back(world_.now_ns() + random_.Between(1'000'000, 100'000'000), &member);
  Touch(member.device());
}

void Agent::ForgetDead() {
  const int64_t now_ns = world_.now_ns();
  for (const auto& [gone_ns, member] : dying_) {
    if (gone_ns > now_ns) continue;
    SimulatedShare& share = *member->share();
    std::erase(share.members, member);
    ShareTime* time = TimeOf(*member);
    if (time == nullptr) continue;
    time->Forget(member->id());
    if (!share.members.empty() || share.to_start > 0) continue;
    // Its last member is gone, and nobody will come: the share ends.
    share.begun = false;
    life_->gangs.Remove(share.key);
    for (const int number : share.spec.devices) {
      Life::Device& device = life_->devices[static_cast<size_t>(number)];
      const std::unique_ptr<ShareTime> ended = std::move(device.times.at(share.key));
      device.times.erase(share.key);
      CarryOut(number, device.leases.Remove(share.key, now_ns));
    }
  }
  std::erase_if(dying_, [now_ns](const auto& entry) { return entry.first <= now_ns; });
}

void Agent::TraceStates(const DeviceLeases& leases) {
  if (!world_.tracing()) return;
  for (const auto& share : shares_) {
    const policy::LeasePolicy::ShareState state = leases.State(share->key);
    world_.Trace("phase", static_cast<uint32_t>(share->key), static_cast<int64_t>(state.phase));
    world_.Trace("lag us", static_cast<uint32_t>(share->key),
                 static_cast<int64_t>(state.lag_ns / 1e3));
  }
}

// As NVML shows it: for each process a whole percentage of the time since the last reading.
void Agent::AuditTime(int64_t now_ns) {
  std::vector<std::map<uint64_t, int64_t>> ran_ns(life_->devices.size());
  const double percent_ns = static_cast<double>(now_ns - audited_at_ns_) / 100;
  for (const auto& process : world_.processes()) {
    const int64_t busy_ns = process->BusyNs();
    int64_t& audited_ns = audited_ns_[process->id()];
    const int64_t since_ns = busy_ns - std::exchange(audited_ns, busy_ns);
    const double percent =
        percent_ns > 0 ? std::round(static_cast<double>(since_ns) / percent_ns) : 0;
    ran_ns[static_cast<size_t>(process->device())][process->share()->key] +=
        static_cast<int64_t>(percent * percent_ns);
  }
  audited_at_ns_ = now_ns;
  for (size_t i = 0; i < ran_ns.size(); ++i) {
    CarryOut(static_cast<int>(i), life_->devices[i].leases.Audit(ran_ns[i], now_ns));
  }
}

// --- Decisions ----------------------------------------------------------------------------------

void Agent::Touch(int device) {
  CarryOut(device, life_->devices[static_cast<size_t>(device)].leases.Touch(world_.now_ns()));
}

void Agent::CarryOut(int device, const DeviceLeases::Outcome& outcome) {
  const auto number = static_cast<size_t>(device);
  WriteOut(number, outcome);
  const agent::GangLeases::Outcome gangs = life_->gangs.Step(world_.now_ns());
  for (const auto& [told, decided] : gangs.devices) WriteOut(told, decided);
  deadline_ns_[number] = std::min(deadline_ns_[number], gangs.next_ns);
}

void Agent::WriteOut(size_t device, const DeviceLeases::Outcome& outcome) {
  deadline_ns_[device] = outcome.next_ns;
  for (const DeviceLeases::Change& change : outcome.changes) {
    const SimulatedShare& share = *shares_[change.share - 1];
    world_.Trace("lease", static_cast<uint32_t>(change.share),
                 share.limits[device]->lease.load(std::memory_order_relaxed));
    for (Process* member : share.members) {
      if (static_cast<size_t>(member->device()) != device) continue;
      if (StateOpen(share, static_cast<int>(device))) member->LeaseWordChanged();
      if (member->connected()) member->LeaseMessage();
    }
  }
}

int64_t Agent::ChargedNs(const std::string& name, int of_device) const {
  int64_t charged_ns = 0;
  for (const auto& share : shares_) {
    if (share->spec.name != name || life_ == nullptr) continue;
    for (size_t i = 0; i < life_->devices.size(); ++i) {
      if (of_device != kAllDevices && static_cast<size_t>(of_device) != i) continue;
      charged_ns += static_cast<int64_t>(life_->devices[i].leases.ChargedNs(share->key));
    }
  }
  return charged_ns;
}

bool Agent::StateOpen(const SimulatedShare& share, int device) const {
  return life_->devices[static_cast<size_t>(device)].leases.State(share.key).phase ==
         policy::LeasePolicy::Phase::kRunning;
}

std::string Agent::CheckLeases() const {
  if (life_ == nullptr) return "";
  for (const Life::Device& device : life_->devices) {
    for (const auto& [key, time] : device.times) {
      const bool word = (time->lease() & protocol::kLeaseOpen) != 0;
      // A share that is just being made has a closed word and no state yet.
      if (word != (device.leases.State(key).phase == policy::LeasePolicy::Phase::kRunning)) {
        return "the lease word of share " + shares_[key - 1]->spec.name +
               " is not what the policy decided";
      }
    }
    if (const char* broken = device.leases.CheckInvariants()) return broken;
  }
  return "";
}

}  // namespace prorata::simulation
