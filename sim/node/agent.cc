#include "sim/node/agent.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/node/policies.h"
#include "sim/node/world.h"

namespace prorata::simulation {

using agent::DeviceLeases;
using agent::ShareTime;
using wire::MessageType;

// What an agent has only in its own memory.
struct Agent::Life {
  Life(Agent& agent, const Scenario& scenario, const std::string& policy)
      : times(scenario.machine.devices.size()), scheduler(agent, Policies(scenario, policy)) {}
  static std::vector<std::unique_ptr<policy::LeasePolicy>> Policies(const Scenario& scenario,
                                                                    const std::string& name) {
    std::vector<std::unique_ptr<policy::LeasePolicy>> policies;
    for (size_t i = 0; i < scenario.machine.devices.size(); ++i) {
      policies.push_back(MakePolicy(name, scenario.elastic_ceiling));
    }
    return policies;
  }
  std::vector<std::map<uint64_t, std::unique_ptr<ShareTime>>> times;  // by device, by share
  agent::LeaseScheduler scheduler;
};

int64_t Agent::NowNs() const { return world_.now_ns(); }

Agent::Agent(World& world) : Thread(world.loop()), world_(world), random_(world.random().Next()) {
  for (const ShareSpec& spec : world.scenario().shares) {
    auto share = std::make_unique<SimulatedShare>();
    share->spec = spec;
    share->key = shares_.size() + 1;
    for (size_t i = 0; i < world.scenario().machine.devices.size(); ++i) {
      share->limits.push_back(std::make_unique<shm::DeviceLimits>());
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
  outages_ = 0;
  life_ = std::make_unique<Life>(*this, world_.scenario(), world_.policy());
  deadline_ns_.assign(devices, Thread::kNever);
  gangs_deadline_ns_ = Thread::kNever;
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
  gangs_deadline_ns_ = Thread::kNever;
  restart_ns_ = restart_ns;
  for (const auto& process : world_.processes()) process->ConnectionClosed();
  WakeAt(restart_ns);
}

void Agent::BeginShare(SimulatedShare& share) {
  share.begun = true;
  std::vector<agent::LeaseScheduler::OnDevice> devices;
  for (const int number : share.spec.devices) {
    const auto device = static_cast<size_t>(number);
    auto& time = life_->times[device][share.key];
    time = std::make_unique<ShareTime>(share.limits[device].get());
    for (Process* member : share.members) {
      if (member->device() != number) continue;
      time->Admit(member->id());
      if (!member->alive()) {
        time->Depart(member->id());
        PostDeath(*member);  // its memory is looked for again
      }
    }
    devices.push_back({device, time.get(), share.spec.compute});
  }
  life_->scheduler.Add(share.key, share.spec.name, devices, share.spec.gang);
}

// The share of a member on the member's own device; null: it is not there any more, or not yet.
ShareTime* Agent::TimeOf(const Process& member) {
  auto& times = life_->times[static_cast<size_t>(member.device())];
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
    return WakeAt(stopped_until_ns_ + world_.agent_delays().Wake(random_));
  }
  if (now_ns >= next_beat_ns_) {
    const bool was_lost =
        now_ns - last_beat_ns_ >= static_cast<int64_t>(shm::kHeartbeatLostAfterNs);
    last_beat_ns_ = now_ns;
    if (was_lost) {
      ++outages_;
      for (size_t i = 0; i < deadline_ns_.size(); ++i) Reschedule(static_cast<int>(i));
    }
    for (const auto& share : shares_) share->header.heartbeat.fetch_add(1);
    next_beat_ns_ = now_ns + static_cast<int64_t>(shm::kHeartbeatPeriodNs);
  }
  while (!inbox_.empty() && inbox_.front().arrives_ns <= now_ns) {
    const Message message = inbox_.front();
    inbox_.pop_front();
    Handle(message);
  }
  ForgetDead();
  if (now_ns >= next_tick_ns_) {
    next_tick_ns_ = now_ns + kTickNs;
    life_->scheduler.Tick();
    for (size_t i = 0; i < deadline_ns_.size(); ++i) TraceStates(life_->scheduler.device(i));
  }
  if (now_ns >= next_audit_ns_) {
    next_audit_ns_ = now_ns + kAuditNs;
    AuditTime(now_ns);
  }
  for (size_t i = 0; i < deadline_ns_.size(); ++i) {
    if (now_ns < deadline_ns_[i]) continue;
    world_.Trace("agent polls", static_cast<uint32_t>(i));
    Reschedule(static_cast<int>(i));
  }
  if (now_ns >= gangs_deadline_ns_) life_->scheduler.StepGangs();
  // Not before each device has been looked at: a gang's step brings the accounts of all up to date.
  if (const std::string wrong = CheckLeases(); !wrong.empty()) world_.Fail(wrong);
  Arm();
}

void Agent::Arm() {
  int64_t next_ns = std::min({next_beat_ns_, next_tick_ns_, gangs_deadline_ns_});
  for (const int64_t deadline_ns : deadline_ns_) next_ns = std::min(next_ns, deadline_ns);
  for (const auto& [gone_ns, member] : dying_) next_ns = std::min(next_ns, gone_ns);
  // A timer of the loop is exact (timerfd), but its thread must wake.
  next_ns = std::max(next_ns, world_.now_ns() + 1) + world_.agent_delays().Wake(random_);
  if (!inbox_.empty()) {
    next_ns = std::min(next_ns, std::max(inbox_.front().arrives_ns,
                                         world_.now_ns() + world_.agent_delays().handle_ns));
  }
  WakeAt(next_ns);
}

// --- Messages -----------------------------------------------------------------------------------

void Agent::Post(Process& from, MessageType type, uint32_t sequence) {
  if (!alive_) return;
  const Delays& delays = world_.agent_delays();
  int64_t arrives_ns = world_.now_ns() + delays.message_ns + delays.Wake(random_);
  if (!inbox_.empty()) arrives_ns = std::max(arrives_ns, inbox_.back().arrives_ns);
  inbox_.push_back({arrives_ns, &from, type, sequence, false});
  WakeBy(arrives_ns);
}

void Agent::PostDeath(Process& member) {
  if (!alive_) return;
  const int64_t arrives_ns = world_.now_ns() + world_.agent_delays().Wake(random_);
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
  } else {
    time->Said(from.id());
  }
  Reschedule(from.device());
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
  Reschedule(member.device());
}

bool Agent::Update(const UpdateSpec& update) {
  if (!alive_ || stopped_until_ns_ > world_.now_ns()) return false;
  SimulatedShare& share = *ShareOf(update.share);
  world_.Trace("update", static_cast<uint32_t>(share.key));
  share.spec.compute = update.compute;
  for (const auto& limits : share.limits) agent::WriteComputeLimits(*limits, update.compute);
  for (const int device : share.spec.devices) {
    if (!share.begun) break;
    life_->scheduler.SetTerms(share.key, static_cast<size_t>(device), update.compute);
  }
  if (share.begun) Arm();
  return true;
}

void Agent::Depart(Process& member) {
  Reschedule(member.device());  // it pays until now
  if (ShareTime* time = TimeOf(member)) time->Depart(member.id());
  // The device shows its memory gone a little later; the agent looks now and then.
  dying_.emplace_back(world_.now_ns() + random_.Between(1'000'000, 100'000'000), &member);
  Reschedule(member.device());
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
    life_->scheduler.Remove(share.key);
    for (const int device : share.spec.devices) {
      life_->times[static_cast<size_t>(device)].erase(share.key);
    }
  }
  std::erase_if(dying_, [now_ns](const auto& entry) { return entry.first <= now_ns; });
}

const agent::TraceRing* Agent::TraceOf(size_t device) const {
  return life_ == nullptr ? nullptr : &life_->scheduler.device(device).trace();
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

// As NVML shows it: whose context the device had at some moments.
void Agent::AuditTime(int64_t now_ns) {
  std::map<int, uint64_t> shares;
  for (const auto& process : world_.processes()) shares[process->pid()] = process->share()->key;
  for (size_t i = 0; i < deadline_ns_.size(); ++i) {
    std::vector<policy::LeasePolicy::Look> looks;
    const auto usage = world_.machine().Usage(static_cast<int>(i));
    for (const simgpu::ProcessSample& sample : usage->samples) {
      const auto share = shares.find(sample.pid);
      if (sample.time_ns <= audited_at_ns_ || share == shares.end()) continue;
      const double ran_ns = sample.percent * simgpu::kProcessSampleNs / 100.0;
      const int64_t within_ns = sample.percent < 95 ? simgpu::kProcessSampleNs : 0;
      looks.push_back({share->second, ran_ns, sample.time_ns, within_ns});
    }
    life_->scheduler.Audit(i, looks);
  }
  audited_at_ns_ = now_ns;
}

// --- Decisions ----------------------------------------------------------------------------------

void Agent::Reschedule(int device) { life_->scheduler.Reschedule(static_cast<size_t>(device)); }

void Agent::LeaseChanged(size_t device, uint64_t key, uint32_t) {
  const SimulatedShare& share = *shares_[key - 1];
  const uint32_t lease = share.limits[device]->lease.load(std::memory_order_relaxed);
  world_.Trace("lease", static_cast<uint32_t>(key), lease);
  for (Process* member : share.members) {
    if (static_cast<size_t>(member->device()) != device) continue;
    if (shm::LaunchesPass(*share.limits[device], lease)) member->LeaseWordChanged();
    if (member->connected()) member->LeaseMessage();
  }
}

int64_t Agent::ChargedNs(const std::string& name, int of_device) const {
  int64_t charged_ns = 0;
  for (const auto& share : shares_) {
    if (share->spec.name != name || life_ == nullptr) continue;
    for (size_t i = 0; i < deadline_ns_.size(); ++i) {
      if (of_device != kAllDevices && static_cast<size_t>(of_device) != i) continue;
      charged_ns += static_cast<int64_t>(life_->scheduler.device(i).ChargedNs(share->key));
    }
  }
  return charged_ns;
}

std::string Agent::CheckLeases() const {
  if (life_ == nullptr) return "";
  for (size_t i = 0; i < life_->times.size(); ++i) {
    const DeviceLeases& leases = life_->scheduler.device(i);
    for (const auto& [key, time] : life_->times[i]) {
      const bool word = (time->lease() & shm::kLeaseOpen) != 0;
      const policy::LeasePolicy::ShareState state = leases.State(key);
      const bool open = state.phase == policy::LeasePolicy::Phase::kRunning && !state.closed;
      // A share that is just being made has a closed word and no state yet.
      if (word != open) {
        return "the lease word of share " + shares_[key - 1]->spec.name +
               " is not what the policy decided";
      }
    }
    if (const char* broken = leases.CheckInvariants()) return broken;
  }
  return "";
}

}  // namespace prorata::simulation
