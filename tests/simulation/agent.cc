#include "simulation/agent.h"

#include <algorithm>

#include "simulation/policies.h"
#include "simulation/world.h"

namespace prorata::simulation {

using agent::DeviceLeases;
using agent::ShareTime;
using protocol::MessageType;

// What an agent has only in its own memory.
struct Agent::Life {
  explicit Life(const std::string& policy) : leases(MakePolicy(policy)) {}
  DeviceLeases leases;
  std::map<uint64_t, std::unique_ptr<ShareTime>> times;  // by share
};

Agent::Agent(World& world) : Thread(world.loop()), world_(world), random_(world.random().Next()) {
  for (const ShareSpec& spec : world.scenario().shares) {
    auto share = std::make_unique<SimulatedShare>();
    share->spec = spec;
    share->key = shares_.size() + 1;
    agent::WriteComputeLimits(share->limits, spec.compute);
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
  life_ = std::make_unique<Life>(world_.policy());
  world_.Trace("agent", 0);
  for (const auto& share : shares_) {
    if (share->begun) BeginShare(*share);
  }
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
  deadline_ns_ = Thread::kNever;
  restart_ns_ = restart_ns;
  for (const auto& process : world_.processes()) process->ConnectionClosed();
  WakeAt(restart_ns);
}

void Agent::BeginShare(SimulatedShare& share) {
  share.begun = true;
  auto& time = life_->times[share.key];
  time = std::make_unique<ShareTime>(&share.limits);
  for (Process* member : share.members) {
    time->Admit(member->id());
    if (!member->alive()) {
      time->Depart(member->id());
      PostDeath(*member);  // its memory is looked for again
    }
  }
  CarryOut(life_->leases.Add(share.key, *time, share.spec.compute, world_.now_ns()));
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
    if (silent) CarryOut(life_->leases.BeginAnew(now_ns));
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
    life_->leases.Sample(now_ns);
    next_tick_ns_ = now_ns + kTickNs;
    Touch();
  }
  if (now_ns >= deadline_ns_) Touch();
  Arm();
}

void Agent::Arm() {
  int64_t next_ns = std::min({next_beat_ns_, next_tick_ns_, deadline_ns_});
  for (const auto& [gone_ns, member] : dying_) next_ns = std::min(next_ns, gone_ns);
  // A timer of the loop is exact (timerfd), but its thread must wake.
  next_ns = std::max(next_ns, world_.now_ns() + 1) + world_.delays().Wake(random_);
  if (!inbox_.empty()) {
    next_ns = std::min(
        next_ns, std::max(inbox_.front().arrives_ns, world_.now_ns() + world_.delays().handle_ns));
  }
  WakeAt(next_ns);
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
  SimulatedShare& share = *from.share();
  if (message.death) return Depart(from);
  if (message.type == MessageType::kJoin) return Join(from);
  const auto time = life_->times.find(share.key);
  if (time == life_->times.end() || !from.connected()) return;
  if (message.type == MessageType::kLeaseIdle) {
    time->second->SaidIdle(from.id(), message.sequence);
  } else if (message.type == MessageType::kLeaseDrained) {
    time->second->SaidDrained(from.id(), message.sequence);
  }
  Touch();
}

void Agent::Join(Process& member) {
  if (!member.alive()) return;  // its death is on the way
  SimulatedShare& share = *member.share();
  if (!share.begun) BeginShare(share);
  ShareTime& time = *life_->times.at(share.key);
  if (std::find(share.members.begin(), share.members.end(), &member) == share.members.end()) {
    share.members.push_back(&member);
    time.Admit(member.id());
  }
  time.SetUsage(member.id(), &member.usage());
  time.SetConnected(member.id(), true);
  member.Welcomed();
  Touch();
}

void Agent::Depart(Process& member) {
  const auto time = life_->times.find(member.share()->key);
  if (time != life_->times.end()) time->second->Depart(member.id());
  // The device shows its memory gone a little later; the agent looks now and then.
  dying_.emplace_back(world_.now_ns() + random_.Between(1'000'000, 100'000'000), &member);
  Touch();
}

void Agent::ForgetDead() {
  const int64_t now_ns = world_.now_ns();
  for (const auto& [gone_ns, member] : dying_) {
    if (gone_ns > now_ns) continue;
    SimulatedShare& share = *member->share();
    std::erase(share.members, member);
    const auto time = life_->times.find(share.key);
    if (time == life_->times.end()) continue;
    time->second->Forget(member->id());
    if (!share.members.empty() || share.to_start > 0) continue;
    // Its last member is gone, and nobody will come: the share ends.
    share.begun = false;
    const std::unique_ptr<ShareTime> ended = std::move(time->second);
    life_->times.erase(time);
    CarryOut(life_->leases.Remove(share.key, now_ns));
  }
  std::erase_if(dying_, [now_ns](const auto& entry) { return entry.first <= now_ns; });
}

// --- Decisions ----------------------------------------------------------------------------------

void Agent::Touch() { CarryOut(life_->leases.Touch(world_.now_ns())); }

void Agent::CarryOut(const DeviceLeases::Outcome& outcome) {
  deadline_ns_ = outcome.next_ns;
  for (const DeviceLeases::Change& change : outcome.changes) {
    const SimulatedShare& share = *shares_[change.share - 1];
    world_.Trace("lease", static_cast<uint32_t>(change.share),
                 share.limits.lease.load(std::memory_order_relaxed));
    for (Process* member : share.members) {
      member->LeaseWordChanged();
      if (member->connected()) member->LeaseMessage();
    }
  }
  if (const std::string wrong = CheckLeases(); !wrong.empty()) world_.Fail(wrong);
}

bool Agent::StateOpen(const SimulatedShare& share) const {
  return life_->leases.State(share.key).open;
}

std::string Agent::CheckLeases() const {
  if (life_ == nullptr) return "";
  int open = 0;
  for (const auto& [key, time] : life_->times) {
    const bool word = (time->lease() & protocol::kLeaseOpen) != 0;
    // A share that is just being made has a closed word and no state yet.
    if (word != life_->leases.State(key).open) {
      return "the lease word of share " + shares_[key - 1]->spec.name +
             " is not what the policy decided";
    }
    open += word;
  }
  if (open > 1) return std::to_string(open) + " shares hold the device's lease at once";
  return "";
}

}  // namespace prorata::simulation
