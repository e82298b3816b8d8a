#pragma once

// The agent's decisions on one device: a policy::LeasePolicy decides; this shows it what members
// publish, and writes the lease words. Messages and time in, changed leases and a deadline out; no
// clock, timer or socket (lease_scheduler.h brings the devices of a machine together).
//
// What a share is doing is read from its members' usage memory whenever something happens (a
// message, a deadline, the tick): messages say that there is something to see, and a lost or false
// one costs at most a deadline. Only `idle` and `drained` need the sequence of the lease word, for
// they are true of one lease only. Not thread-safe.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "agent/compute/device_trace.h"
#include "agent/share/share_time.h"
#include "policy/compute/time_sharing.h"

namespace prorata::agent {

class DeviceLeases {
 public:
  using Key = uint64_t;
  static constexpr int64_t kNever = policy::LeasePolicy::kNever;

  struct Change {
    Key share = 0;
    uint32_t sequence = 0;
  };
  struct Outcome {
    std::vector<Change>
        changes;               // lease words that were written: wake and notify who waits for them
    int64_t next_ns = kNever;  // Reschedule again by then
  };

  explicit DeviceLeases(const policy::TimeSharingOptions& options = {})
      : DeviceLeases(std::make_unique<policy::TimeSharing>(options)) {}
  explicit DeviceLeases(std::unique_ptr<policy::LeasePolicy> policy) : policy_(std::move(policy)) {}

  // `share` must stay where it is until Remove. An adopted share may still have its lease from the
  // last agent: it begins anew, closed; who waits or runs says so when it has joined again.
  Outcome Add(Key key, ShareTime& share, const policy::ComputeTerms& terms, int64_t now_ns);
  Outcome Remove(Key key, int64_t now_ns);
  Outcome SetTerms(Key key, const policy::ComputeTerms& terms, int64_t now_ns);

  // The agent was unavailable until now (it was stopped, say), and members were in failsafe mode:
  // what they used meanwhile is nobody's debt, and no lease says anything any more.
  Outcome ResetAfterOutage(int64_t now_ns);

  // Something may have changed: polls everything, and decides.
  Outcome Reschedule(int64_t now_ns);

  // When NVML saw shares on the device since the last call: what they ran past their leases is
  // charged now.
  Outcome Audit(const std::vector<policy::LeasePolicy::Look>& looks, int64_t now_ns);

  // Each tenth of a second: remembers the figures for Lately.
  void Sample(int64_t now_ns);
  // A share in about the last second, as parts of that time from 0 to 1.
  struct Recent {
    double gpu_time = 0;  // charged
    double busy = 0;      // its kernels ran, by its members' estimate
    double waiting = 0;   // a launch waited for the lease, others had the device
    double at_limit = 0;  // a launch waited, its own limit was reached
    double stalled = 0;   // its lease was revoked, and what was submitted did not end
  };
  std::optional<Recent> Lately(Key key, int64_t now_ns) const;  // empty: not known yet
  // The part of that time that the shares were charged together.
  double GpuTime() const;

  policy::LeasePolicy::ShareState State(Key key) const { return policy_->State(key); }
  // Empty (null), or which invariant of the policy does not hold. For tests.
  const char* CheckInvariants() const { return policy_->CheckInvariants(); }
  uint64_t ChargedNs(Key key) const;  // since Add, as of the last Reschedule
  bool empty() const { return shares_.empty(); }

  // What happened here (device_trace.h). The name of a share, for people; and an event of it, or of
  // the device (null).
  const TraceRing& trace() const { return trace_.ring(); }
  void NameInTrace(Key key, const std::string& name) { trace_.Name(shares_.at(key).traced, name); }
  void TraceEvent(const Key* key, api::EventKind kind, int64_t now_ns);

  // Shows the policy what members publish now: it charges by what it was shown last, so before
  // anything else at a new time. True: work of a share has come out from behind its waits, or a
  // share is back that was away, and Reschedule is to be called.
  bool Observe(int64_t now_ns);
  // For GangLeases. What is changed by `policy` takes effect with the next Reschedule.
  uint64_t MostLaunches(Key key) const { return shares_.at(key).time->MostLaunches(); }
  policy::LeasePolicy& policy() { return *policy_; }

 private:
  // What keeps a share from running, between two polls of it.
  enum class Held : uint8_t { kNot, kForOthers, kByLimit, kStalled };
  struct HeldTimes {
    Held now = Held::kNot;
    int64_t for_others_ns = 0;
    int64_t by_limit_ns = 0;
    int64_t stalled_ns = 0;
  };
  struct OnDevice {
    ShareTime* time = nullptr;
    policy::ComputeTerms terms;
    HeldTimes held;
    int64_t bound_ns = kNever;              // of its backlog, for the sake of others that may wake
    bool may_wake = false;                  // it had a member when bounds were looked at last
    double charged_before_ns = 0;           // until the last ResetAfterOutage
    policy::LeasePolicy::ShareState state;  // after the last decision
    bool blocked = false;                   // as Work::blocked
    bool held_up = false;  // its work stood behind waits, or it was away, when last observed
    DeviceTrace::Live traced;
  };
  struct Counts {
    uint64_t charged_ns = 0;
    uint64_t busy_ns = 0;
    HeldTimes held;
  };
  struct Moment {
    int64_t when_ns = 0;
    int64_t charged_at_ns = 0;
    std::map<Key, Counts> shares;
  };
  void AddToPolicy(Key key, OnDevice& on, int64_t now_ns);
  void ShowWhatIsSeen(int64_t now_ns);
  void BoundBacklogs();
  void NoteWhatIsHeld(int64_t now_ns);
  Held WhatHolds(const OnDevice& on) const;
  uint64_t ChargedNs(const OnDevice& on) const;
  DeviceTrace::Seen SeenOf(const OnDevice& on) const;
  DeviceTrace::Others ShowAll() const;
  void WriteTrace(int64_t now_ns);
  void WriteKeyframes(int64_t now_ns);
  uint64_t ChargedSince(const Moment& moment) const;
  double ChargedFor(const Moment& moment) const;

  std::unique_ptr<policy::LeasePolicy> policy_;
  std::map<Key, OnDevice> shares_;
  int64_t noted_ns_ = 0;
  int64_t charged_at_ns_ = 0;  // of the last Reschedule
  std::deque<Moment> moments_;
  DeviceTrace trace_;
  int64_t promised_ns_ = kNever;  // the deadline that the last Reschedule gave
};

}  // namespace prorata::agent
